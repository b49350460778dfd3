"""Session matching: the tables of what mistral.rs does and promises, as tests of the gateway. Rows follow the
promised behaviour; where docs/reconcile.md differs, it takes precedence, and the test says so. Words are those of
the tables; `r` is the model's answer to the request of the row.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from tests.service.simulator.gateway import Gateway, open_gateway
from tests.service.simulator.notation import call, message, messages, words
from tests.service.simulator.vectors import create_session, good, live, whole

Data = dict[str, Any]


async def find_match(gateway: Gateway, sent: list[Data] | str, **body: Any) -> str:
    """Send a request without an id for a named user and return the id of the matched session, or `new`."""
    sender = {"user": "default", **body}
    answer = good(await gateway.chat(messages(sent) if isinstance(sent, str) else sent, **sender))
    known = {"s", "A", "B", "C"}
    return answer.session_id if answer.session_id in known else "new"


@pytest.mark.parametrize("order", ["A B", "B A"])
async def test_the_longest_match_wins(order: str) -> None:
    """The order of creation does not matter, and repeating the request does not either."""
    logs = {"A": "u1", "B": "u1 a1 u2"}
    for _ in range(20):
        async with open_gateway() as gateway:
            for name in order.split():
                await create_session(gateway, logs[name], name)
            assert await find_match(gateway, "u1 a1 u2 a2 u3") == "B"
            assert await live(gateway, "B") == "u1 a1 u2 a2 u3 r"
            assert await live(gateway, "A") == "u1"


async def test_the_longest_match_wins_over_the_latest() -> None:
    """A longer common prefix beats a more recently used session."""
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1 u2 a2", "A")
        await create_session(gateway, "u1 a1", "B")
        assert await find_match(gateway, "u1 a1 u2 a2 u3") == "A"


@pytest.mark.parametrize(
    ("log", "sent"),
    [
        ("u1", "u1"),  # one message in common, and none of the assistant's
        ("u1 a1", "u1"),
        ("u1 a1", "u1 u2"),
        ("u1 a1", "u1 a1' u2"),
        ("u1 a1", "u1' a1 u2"),
        ("u1 a1 u2 a2", "u1' a1 u2 a2 u3"),  # an edited opening is not an omission: it does not skip more than it adds
        ("tc1 t1", "u1 a1 u2"),  # nothing visible in it
        ("", "u1 a1 u2"),
        ("u1 a1 u2 a2", "a2 u3"),  # too little of a run
    ],
)
async def test_unmatched_requests_start_a_new_session(log: str, sent: str) -> None:
    async with open_gateway() as gateway:
        await create_session(gateway, log)
        assert await find_match(gateway, sent) == "new"
        assert await whole(gateway) == log


async def test_empty_request_is_rejected() -> None:
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1")
        assert (await gateway.chat([])).status == 400
        assert await live(gateway) == "u1 a1"


async def test_log_that_is_longer_than_the_request_matches_and_is_edited() -> None:
    """mistral.rs finds no match here; Holdfast matches the longest common prefix and retires the messages after it."""
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1 u2 a2 u3")
        assert await find_match(gateway, "u1 a1 u2") == "s"
        assert await live(gateway) == "u1 a1 u2 r"
        assert await whole(gateway) == "u1 a1 u2 a2 u3 r"


async def test_equal_or_missing_system_prompt_matches() -> None:
    """Tool messages are skipped when matching."""
    for system in ("sys ", ""):
        async with open_gateway() as gateway:
            await create_session(gateway, "u1 tc1 t1 a1", system="sys")
            assert await find_match(gateway, f"{system}u1 a1 u2") == "s"
            assert await live(gateway) == "u1 tc1 t1 a1 u2 r"


async def test_different_system_prompt_ranks_lower() -> None:
    """mistral.rs finds no match here; Holdfast matches if nothing better does."""
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1", "A", system="sys")
        assert await find_match(gateway, "sys' u1 a1 u2") == "A"
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1", "A", system="sys")
        await create_session(gateway, "u1 a1", "B", system="sys'")
        assert await find_match(gateway, "sys u1 a1 u2") == "A"
        assert await find_match(gateway, "sys' u1 a1 u3") == "B"


async def test_equal_system_prompt_ranks_above_a_log_that_continues() -> None:
    """Both have the same prefix in common; the log with the other prompt ends there, the other one continues."""
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1 u2 a2", "A", system="sys")
        await create_session(gateway, "u1 a1", "B", system="sys'")
        assert await find_match(gateway, "sys u1 a1 u3") == "A"


TOLD_APART: dict[str, Data] = {
    "role": {"role": "assistant", "content": "u1"},
    "case": {"role": "user", "content": "U1"},
    "text": {"role": "user", "content": "u1."},
    "white space before": {"role": "user", "content": " u1"},
}
THE_SAME: dict[str, Data] = {
    "white space behind": {"role": "user", "content": "u1 \n"},
    "one text part": {"role": "user", "content": [{"type": "text", "text": "u1"}]},
    "two text parts": {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "text", "text": "1"}]},
    "a name": {"role": "user", "content": "u1", "name": "Ada"},
    "a field of its own": {"role": "user", "content": "u1", "x_id": 7},
}


@pytest.mark.parametrize("how", TOLD_APART)
async def test_significant_differences_prevent_a_match(how: str) -> None:
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1")
        assert await find_match(gateway, [TOLD_APART[how], *messages("a1 u2")]) == "new"


@pytest.mark.parametrize("how", THE_SAME)
async def test_insignificant_differences_still_match(how: str) -> None:
    """A reader would call it the same message; the log keeps its own copy."""
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1")
        assert await find_match(gateway, [THE_SAME[how], *messages("a1 u2")]) == "s"
        assert [entry.message.content for entry in await gateway.log("s")] == ["u1", "a1", "u2", "r"]


async def test_reasoning_is_ignored_when_matching() -> None:
    for there, sent in ((True, False), (False, True)):
        async with open_gateway() as gateway:
            session = await gateway.hf.session("s")
            thought = {**message("a1"), "reasoning_content": "hm"}
            await session.append([message("u1"), thought if there else message("a1")])
            assert await find_match(gateway, [message("u1"), thought if sent else message("a1"), message("u2")]) == "s"
            assert (await gateway.log("s"))[1].message.extra == ({"reasoning_content": "hm"} if there else {})


async def test_most_recently_used_of_equal_sessions_is_matched() -> None:
    """The match makes it the most recently used one; the others are unchanged."""
    async with open_gateway(clock=iter(range(10**12, 10**13)).__next__) as gateway:
        for name in ("A", "B", "C"):
            await create_session(gateway, "u1 a1", name)
        await (await gateway.hf.session("A")).append(messages("u9"))
        await (await gateway.hf.session("A")).append(messages("a9"))
        before = {name: await gateway.hf.store.get(SessionRef("default", name)) for name in ("A", "B")}
        assert await find_match(gateway, "u1 a1 u2") == "C"  # A was used last, and would be edited
        assert {name: await gateway.hf.store.get(SessionRef("default", name)) for name in ("A", "B")} == before
        assert await find_match(gateway, "u1 a1 u3") == "B"
        await gateway.hf.delete(SessionRef("default", "B"))
        # Both would be edited now.
        assert await find_match(gateway, "u1 a1 u4") == "C"


async def test_client_that_resends_tool_messages_is_matched() -> None:
    """Matching uses what is visible on both sides, and nothing is stored twice; ids and the order of keys may differ."""
    other = json.loads(json.dumps(messages("u1 tc1 t1 a1 u2")).replace("call_1", "toolu_9"))
    function = other[1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(dict(reversed(json.loads(function["arguments"]).items())), indent=2)
    for sent in (messages("u1 tc1 t1 a1 u2"), other):
        async with open_gateway() as gateway:
            await create_session(gateway, "u1 tc1 t1 a1")
            assert await find_match(gateway, sent) == "s"
            assert await live(gateway) == "u1 tc1 t1 a1 u2 r"
            assert words(gateway.speaker.prompts[-1]) == "u1 tc1 t1 a1 u2"


async def test_another_user_is_never_matched() -> None:
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1 u2 a2", user="ada")
        answer = good(await gateway.chat(messages("u1 a1 u2 a2 u3"), user="bob"))
        assert answer.session["reconciled"] == "new"
        assert await live(gateway, "s", "ada") == "u1 a1 u2 a2"
        assert await live(gateway, answer.session_id, "bob") == "u1 a1 u2 a2 u3 r"


async def test_matching_can_be_switched_off() -> None:
    """`session_match: off` starts a new session each time; the next request without it is matched again."""
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1")
        assert await find_match(gateway, "u1 a1 u2", session_match="off") == "new"
        assert await live(gateway) == "u1 a1"
        assert await find_match(gateway, "u1 a1 u3") == "s"


# -- what the client was sent ------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("named", [False, True])
async def test_text_before_and_after_a_server_tool_is_one_reply_for_matching(stream: bool, named: bool) -> None:
    """The client resends the text streamed before and after the tool as one message."""

    def look(number: str) -> str:
        """Look a number up."""
        return f"found {number}"

    calls = {"content": "Let me look. ", "tool_calls": [call("1", {"name": "look", "arguments": '{"number": "1"}'})]}

    def say(request: Data) -> Data | str:
        return calls if request["messages"][-1]["content"] == "u1" else f"done {len(request['messages'])}"

    async with open_gateway(say, tools=[look]) as gateway:
        first = good(await gateway.chat(messages("u1"), session_id="s", stream=stream))
        assert first.message["content"] == "Let me look. done 3"
        assert not first.message.get("tool_calls")
        sent = [message("u1"), {"role": "assistant", "content": first.message["content"]}, message("u2")]
        second = good(await gateway.chat(sent, session_id="s" if named else None, stream=stream))
        assert (second.session_id, second.session["reconciled"]) == ("s", "continued")
        roles = [entry.message.role for entry in await gateway.log("s")]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert gateway.speaker.prompts[-1][2]["content"] == "found 1"
        await (await gateway.hf.session("s")).verify()


async def test_interrupted_reply_matches_any_prefix_of_it() -> None:
    """With and without an id; longer or different text is an edit."""
    for seen, known in (("one two", True), ("one", True), ("one two three", False), ("two", False)):
        for named in (False, True):
            async with open_gateway() as gateway:
                session = await gateway.hf.session("s")
                cut = {**message("a2"), "content": "one two", "metadata": {"interrupted": True}}
                await session.append([*messages("u1 a1 u2"), cut])
                sent = [*messages("u1 a1 u2"), {"role": "assistant", "content": seen}, message("u3")]
                answer = good(await gateway.chat(sent, session_id="s" if named else None, user="default"))
                assert (answer.session_id, answer.session["reconciled"]) == ("s", "continued" if known else "edited")
                assert await live(gateway) == ("u1 a1 u2 one two u3 r" if known else f"u1 a1 u2 {seen} u3 r")
