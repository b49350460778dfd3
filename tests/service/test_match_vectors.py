"""Which session a request is recognised as: the tables of what mistral.rs does and promises, as tests of the gateway.

Rows are those of `mistralrs-and-nexo.md`, 1.9b (match), by their promised side; where docs/reconcile.md says otherwise, it holds,
and the test says so. Words are those of the tables; `r` is what the model answers to the request of the row.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from tests.service.simulator.door import Door, opened
from tests.service.simulator.notation import call, message, messages, words
from tests.service.simulator.vectors import good, live, stored, whole

Data = dict[str, Any]


async def landed(door: Door, sent: list[Data] | str, **body: Any) -> str:
    """Which session a request without id comes to, of a user that is named: its id, or `new`."""
    sender = {"user": "default", **body}
    answer = good(await door.chat(messages(sent) if isinstance(sent, str) else sent, **sender))
    known = {"s", "A", "B", "C"}
    return answer.session_id if answer.session_id in known else "new"


@pytest.mark.parametrize("order", ["A B", "B A"])
async def test_the_longest_match_wins(order: str) -> None:
    """Whichever was made first, and however often it is tried."""
    logs = {"A": "u1", "B": "u1 a1 u2"}
    for _ in range(20):
        async with opened() as door:
            for name in order.split():
                await stored(door, logs[name], name)
            assert await landed(door, "u1 a1 u2 a2 u3") == "B"
            assert await live(door, "B") == "u1 a1 u2 a2 u3 r"
            assert await live(door, "A") == "u1"


async def test_the_longest_match_wins_over_the_latest() -> None:
    """A longer prefix in common beats one that was used a moment ago."""
    async with opened() as door:
        await stored(door, "u1 a1 u2 a2", "A")
        await stored(door, "u1 a1", "B")
        assert await landed(door, "u1 a1 u2 a2 u3") == "A"


@pytest.mark.parametrize(
    ("log", "sent"),
    [
        ("u1", "u1"),  # one message in common, and no assistant's
        ("u1 a1", "u1"),
        ("u1 a1", "u1 u2"),
        ("u1 a1", "u1 a1' u2"),
        ("u1 a1", "u1' a1 u2"),
        ("u1 a1 u2 a2", "u1' a1 u2 a2 u3"),  # an edited opening is no omission: it skips no more than it brings
        ("tc1 t1", "u1 a1 u2"),  # nothing visible in it
        ("", "u1 a1 u2"),
        ("u1 a1 u2 a2", "a2 u3"),  # too little of a run
    ],
)
async def test_what_is_not_recognised(log: str, sent: str) -> None:
    """A new session, and the one that is there stays as it is."""
    async with opened() as door:
        await stored(door, log)
        assert await landed(door, sent) == "new"
        assert await whole(door) == log


async def test_an_empty_request_is_none() -> None:
    async with opened() as door:
        await stored(door, "u1 a1")
        assert (await door.chat([])).status == 400
        assert await live(door) == "u1 a1"


async def test_a_log_that_is_longer_than_the_request() -> None:
    """Not "none", as with mistral.rs: the longest prefix in common counts (section 6, 2), and what is behind it is retired."""
    async with opened() as door:
        await stored(door, "u1 a1 u2 a2 u3")
        assert await landed(door, "u1 a1 u2") == "s"
        assert await live(door) == "u1 a1 u2 r"
        assert await whole(door) == "u1 a1 u2 a2 u3 r"


async def test_the_same_system_prompt() -> None:
    """Tool messages are skipped; an equal system prompt and one that is not said both match."""
    for system in ("sys ", ""):
        async with opened() as door:
            await stored(door, "u1 tc1 t1 a1", system="sys")
            assert await landed(door, f"{system}u1 a1 u2") == "s"
            assert await live(door) == "u1 tc1 t1 a1 u2 r"


async def test_another_system_prompt_ranks_lower() -> None:
    """Not "none", as with mistral.rs: it matches where nothing better does (section 6)."""
    async with opened() as door:
        await stored(door, "u1 a1", "A", system="sys")
        assert await landed(door, "sys' u1 a1 u2") == "A"
    async with opened() as door:
        await stored(door, "u1 a1", "A", system="sys")
        await stored(door, "u1 a1", "B", system="sys'")
        assert await landed(door, "sys u1 a1 u2") == "A"
        assert await landed(door, "sys' u1 a1 u3") == "B"


async def test_an_equal_system_prompt_comes_before_one_that_continues() -> None:
    """Both have the same in common; the log with the other prompt ends there, the other goes on."""
    async with opened() as door:
        await stored(door, "u1 a1 u2 a2", "A", system="sys")
        await stored(door, "u1 a1", "B", system="sys'")
        assert await landed(door, "sys u1 a1 u3") == "A"


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
async def test_what_counts(how: str) -> None:
    """Nothing is in common then."""
    async with opened() as door:
        await stored(door, "u1 a1")
        assert await landed(door, [TOLD_APART[how], *messages("a1 u2")]) == "new"


@pytest.mark.parametrize("how", THE_SAME)
async def test_what_does_not_count(how: str) -> None:
    """A reader would call it the same message; the log keeps its own copy."""
    async with opened() as door:
        await stored(door, "u1 a1")
        assert await landed(door, [THE_SAME[how], *messages("a1 u2")]) == "s"
        assert [entry.message.content for entry in await door.log("s")] == ["u1", "a1", "u2", "r"]


async def test_reasoning_does_not_count() -> None:
    """Neither where the log has it nor where the request does."""
    for there, sent in ((True, False), (False, True)):
        async with opened() as door:
            session = await door.hf.session("s")
            thought = {**message("a1"), "reasoning_content": "hm"}
            await session.append([message("u1"), thought if there else message("a1")])
            assert await landed(door, [message("u1"), thought if sent else message("a1"), message("u2")]) == "s"
            assert (await door.log("s"))[1].message.extra == ({"reasoning_content": "hm"} if there else {})


async def test_of_equal_ones_the_most_recently_used() -> None:
    """And using it makes it the most recently used; the others stay as they were."""
    async with opened(clock=iter(range(10**12, 10**13)).__next__) as door:
        for name in ("A", "B", "C"):
            await stored(door, "u1 a1", name)
        await (await door.hf.session("A")).append(messages("u9"))
        await (await door.hf.session("A")).append(messages("a9"))
        before = {name: await door.hf.store.get(SessionRef("default", name)) for name in ("A", "B")}
        assert await landed(door, "u1 a1 u2") == "C"  # A was used last, and would be edited
        assert {name: await door.hf.store.get(SessionRef("default", name)) for name in ("A", "B")} == before
        assert await landed(door, "u1 a1 u3") == "B"
        await door.hf.delete(SessionRef("default", "B"))
        # Both would be edited now.
        assert await landed(door, "u1 a1 u4") == "C"


async def test_a_client_that_resends_its_tool_messages() -> None:
    """Matched by what is visible on both sides, and not doubled; ids and the order of keys may have changed."""
    other = json.loads(json.dumps(messages("u1 tc1 t1 a1 u2")).replace("call_1", "toolu_9"))
    function = other[1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(dict(reversed(json.loads(function["arguments"]).items())), indent=2)
    for sent in (messages("u1 tc1 t1 a1 u2"), other):
        async with opened() as door:
            await stored(door, "u1 tc1 t1 a1")
            assert await landed(door, sent) == "s"
            assert await live(door) == "u1 tc1 t1 a1 u2 r"
            assert words(door.speaker.prompts[-1]) == "u1 tc1 t1 a1 u2"


async def test_another_user_is_never_matched() -> None:
    """The same words, another's session."""
    async with opened() as door:
        await stored(door, "u1 a1 u2 a2", user="ada")
        answer = good(await door.chat(messages("u1 a1 u2 a2 u3"), user="bob"))
        assert answer.session["reconciled"] == "new"
        assert await live(door, "s", "ada") == "u1 a1 u2 a2"
        assert await live(door, answer.session_id, "bob") == "u1 a1 u2 a2 u3 r"


async def test_matching_can_be_switched_off() -> None:
    """`session_match: off`: a new session each time; the next request is recognised as ever."""
    async with opened() as door:
        await stored(door, "u1 a1")
        assert await landed(door, "u1 a1 u2", session_match="off") == "new"
        assert await live(door) == "u1 a1"
        assert await landed(door, "u1 a1 u3") == "s"


# -- what the client was sent (section 6) ----------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("named", [False, True])
async def test_text_before_a_tool_of_ours(stream: bool, named: bool) -> None:
    """What was streamed before the tool ran and what came after it are one reply to the client, which resends them as one."""

    def look(number: str) -> str:
        """Look a number up."""
        return f"found {number}"

    calls = {"content": "Let me look. ", "tool_calls": [call("1", {"name": "look", "arguments": '{"number": "1"}'})]}

    def say(request: Data) -> Data | str:
        return calls if request["messages"][-1]["content"] == "u1" else f"done {len(request['messages'])}"

    async with opened(say, tools=[look]) as door:
        first = good(await door.chat(messages("u1"), session_id="s", stream=stream))
        assert first.message["content"] == "Let me look. done 3"
        assert not first.message.get("tool_calls")
        sent = [message("u1"), {"role": "assistant", "content": first.message["content"]}, message("u2")]
        second = good(await door.chat(sent, session_id="s" if named else None, stream=stream))
        assert (second.session_id, second.session["reconciled"]) == ("s", "continued")
        roles = [entry.message.role for entry in await door.log("s")]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert door.speaker.prompts[-1][2]["content"] == "found 1"
        await (await door.hf.session("s")).verify()


async def test_a_reply_of_which_the_client_saw_less() -> None:
    """An interrupted reply equals any beginning of it, with and without an id; more than it, or something else, does not."""
    for seen, known in (("one two", True), ("one", True), ("one two three", False), ("two", False)):
        for named in (False, True):
            async with opened() as door:
                session = await door.hf.session("s")
                cut = {**message("a2"), "content": "one two", "metadata": {"interrupted": True}}
                await session.append([*messages("u1 a1 u2"), cut])
                sent = [*messages("u1 a1 u2"), {"role": "assistant", "content": seen}, message("u3")]
                answer = good(await door.chat(sent, session_id="s" if named else None, user="default"))
                assert (answer.session_id, answer.session["reconciled"]) == ("s", "continued" if known else "edited")
                assert await live(door) == ("u1 a1 u2 one two u3 r" if known else f"u1 a1 u2 {seen} u3 r")
