"""`session_mode`: its sources, and which messages of a request are new."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import Served, bearer, gateway, user

Messages = list[dict[str, Any]]


def answer(body: dict[str, Any]) -> str:
    """Return a reply that depends only on the last message."""
    return f"re: {body['messages'][-1]['content']}"


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"re: {text}"}


async def send(served: Served, messages: Messages, **headers: str) -> Any:
    """Send messages for the session `s`; return the answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"messages": messages, "session_id": "s"}
    response = await served.http.post("/v1/chat/completions", json=body, headers=named)
    assert response.status_code == 200, response.text
    return response.json()


async def log(served: Served) -> list[Any]:
    return [content for _, content in await served.log()]


async def test_client_that_restarts_with_an_empty_history_continues() -> None:
    """Its history leaves out what was said before the restart."""
    async with gateway(answer) as served:
        for first, second in (("one", "two"), ("three", "four")):
            await send(served, [user(first)])
            await send(served, [user(first), reply(first), user(second)])
        assert await log(served) == [
            *("one", "re: one", "two", "re: two"),
            *("three", "re: three", "four", "re: four"),
        ]


async def test_message_after_a_shortened_history_is_new() -> None:
    async with gateway(answer) as served:
        for text in ("one", "two", "three"):
            await send(served, [user(text)])
        shortened = [user("two"), reply("two"), user("three"), reply("three"), user("four")]
        assert (await send(served, shortened))["session"]["reconciled"] == "continued"
        assert (await send(served, [user("five")]))["session"]["reconciled"] == "delta"
        assert len(await log(served)) == 10


def call_count(number: int) -> Reply:
    """Return a reply that calls a tool of the client; its id is `c` and the number."""
    function = {"name": "count", "arguments": f'{{"n": {number}}}'}
    return Reply(tool_calls=[{"id": f"c{number}", "type": "function", "function": function}])


async def send_tool_turn(served: Served, text: str, *, repeats_user: bool, rounds: int = 1) -> Any:
    """Run a turn whose client runs the tool and resends only this turn's messages with the results."""
    messages: Messages = [user(text)]
    told = await send(served, messages)
    for _ in range(rounds):
        call = {key: told["choices"][0]["message"][key] for key in ("role", "content", "tool_calls")}
        messages += [call, {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "1"}]
        told = await send(served, messages if repeats_user else messages[1:])
        assert told["session"]["reconciled"] == "continued"
        assert told["session"].get("edited_at") is None
    return told


@pytest.mark.parametrize("repeats_user", [True, False])
async def test_client_that_resends_only_the_current_turn_replaces_nothing(repeats_user: bool) -> None:
    script = [call_count(0), "first", call_count(1), call_count(2), "second", "third"]
    async with gateway(script) as served:
        await send_tool_turn(served, "one", repeats_user=repeats_user)
        await send_tool_turn(served, "two", repeats_user=repeats_user, rounds=2)
        told = await send(served, [user("three")])
        assert (told["session"]["reconciled"], told["session"].get("warnings")) == ("delta", None)
        contents = ["one", None, "1", "first", "two", None, "1", None, "1", "second", "three", "third"]
        assert await log(served) == contents
        sent = [message.get("content") for message in served.upstream.requests[-1].body["messages"]]
        assert [one or None for one in sent] == contents[:-1]


async def test_last_round_of_a_tool_loop_is_enough() -> None:
    async with gateway([call_count(0), call_count(1), "done"]) as served:
        told = await send(served, [user("one")])
        for _ in range(2):
            call = told["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "1"}
            told = await send(served, [call, result])
        assert await log(served) == ["one", None, "1", None, "1", "done"]


@pytest.mark.parametrize("resent", [1, 2, 3])
@pytest.mark.parametrize("is_same", [False, True], ids=["other arguments", "same arguments"])
async def test_rounds_are_told_apart_if_their_ids_repeat(resent: int, is_same: bool) -> None:
    """Some upstreams use the same id in each round. The client resends the last rounds of the turn, also after the reply."""
    functions = [{"name": "count", "arguments": f'{{"n": {0 if is_same else at}}}'} for at in range(3)]
    calls = [Reply(tool_calls=[{"id": "call_0", "type": "function", "function": one}]) for one in functions]
    async with gateway(["hi", *calls, "lost", "done"]) as served:
        await send(served, [user("zero")])
        answer, rounds = await send(served, [user("one")]), list[Messages]()
        for _ in range(3):
            result = {"role": "tool", "tool_call_id": "call_0", "content": "pending"}
            rounds.append([answer["choices"][0]["message"], result])
            messages = [message for one in rounds[-resent:] for message in one]
            answer = await send(served, messages)
            assert answer["session"]["reconciled"] == "continued"
        again = await send(served, messages)
        assert again["session"]["reconciled"] == "regenerated"
        assert await log(served) == ["zero", "hi", "one", *[None, "pending"] * 3, "done"]


async def test_round_whose_reply_was_lost_is_found_if_ids_repeat() -> None:
    """The client sends the results of the round before the last one again, and gets other calls."""
    functions = [{"name": "count", "arguments": f'{{"n": {at}}}'} for at in range(3)]
    calls = [Reply(tool_calls=[{"id": "call_0", "type": "function", "function": one}]) for one in functions]
    async with gateway([*calls, "done"]) as served:
        answer = await send(served, [user("one")])
        messages = [answer["choices"][0]["message"], {"role": "tool", "tool_call_id": "call_0", "content": "1"}]
        for _ in range(2):
            answer = await send(served, messages)
        assert answer["session"]["reconciled"] == "regenerated"
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"] == functions[2]
        assert await log(served) == ["one", None, "1", None]


@pytest.mark.parametrize("is_cut", [False, True], ids=["complete reply", "cut reply"])
@pytest.mark.parametrize("repeats_user", [True, False])
async def test_current_turn_that_has_a_reply_can_be_sent_again(is_cut: bool, repeats_user: bool) -> None:
    """A client that lost the reply, or wants another one, keeps the turns before."""
    broken = Reply(text="one two three four", cut_after=3, reset=True) if is_cut else "lost"
    async with gateway(["hi", call_count(1), broken, "done"]) as served:
        await send(served, [user("zero")])
        call = (await send(served, [user("one")]))["choices"][0]["message"]
        messages = [user("one"), call, {"role": "tool", "tool_call_id": "c1", "content": "1"}]
        body = {"messages": messages if repeats_user else messages[1:], "session_id": "s"}
        first, again = [await served.http.post("/v1/chat/completions", json=body) for _ in range(2)]
        assert (first.status_code == 200) is not is_cut
        assert again.json()["session"]["reconciled"] == "regenerated"
        assert await log(served) == ["zero", "hi", "one", None, "1", "done"]
        assert [one["role"] for one in served.upstream.requests[-1].body["messages"]] == [
            *("user", "assistant", "user", "assistant", "tool")
        ]


async def test_another_result_of_a_call_is_refused() -> None:
    """It would rewrite what was said. This is so in a history, and in a delta."""
    async with gateway(["hi", call_count(1), "first"]) as served:
        await send(served, [user("zero")])
        call = (await send(served, [user("one")]))["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": "c1", "content": "1"}
        first = await send(served, [user("one"), call, result])
        for messages in ([user("one"), call, {**result, "content": "2"}], [{**result, "content": "2"}]):
            answer = await served.http.post("/v1/chat/completions", json={"messages": messages, "session_id": "s"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "result_exists")
        again = await send(served, [result])
        assert again["choices"][0]["message"]["content"] == first["choices"][0]["message"]["content"] == "first"
        assert await log(served) == ["zero", "hi", "one", None, "1", "first"]


async def test_tool_does_not_run_again_for_a_resent_message() -> None:
    """If the first message is resent as a transcript, the earlier tool result is reused."""
    ran: list[int] = []

    def count(number: int) -> int:
        """Count.

        Args:
            number: a number
        """
        ran.append(number)
        return number

    script = [Reply(tool_calls=[("count", {"number": 1})]), "first", "again"]
    async with gateway(script, tools=[count]) as served:
        await send(served, [user("one")], x_session_mode="transcript")
        told = await send(served, [user("one")], x_session_mode="transcript")
        assert told["choices"][0]["message"]["content"] == "again"
        assert ran == [1]


# -- sources of the mode --------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "key", "body", "header", "doubled"),
    [
        ("gateway: {session_mode: transcript}", None, None, None, False),
        ("gateway: {session_mode: transcript}", "delta", None, None, True),
        ("agents: {a: {session_mode: transcript}}", None, None, None, False),
        ("agents: {a: {session_mode: transcript}}", "delta", None, None, True),
        ("agents: {a: {}}", "transcript", None, None, False),
        ("gateway: {session_mode: transcript}", "transcript", "delta", None, True),
        ("gateway: {session_mode: transcript}", None, None, "auto", True),
        ("agents: {a: {}}", None, "transcript", "transcript", False),
    ],
)
async def test_precedence_of_session_modes(
    config: str, key: str | None, body: str | None, header: str | None, doubled: bool
) -> None:
    """Request before key before agent before server; a resent message is duplicated if it counts as new."""
    async with gateway(answer, config) as served:
        headers = bearer(await served.create_key(session_mode=key)) if key else {}
        headers |= {"x-session-mode": header} if header else {}
        sent: dict[str, Any] = {"messages": [user("one")], "session_id": "s", "session_mode": body}
        sent |= {"agent": "a"} if "agents" in config else {}
        for _ in range(2):
            assert (await served.http.post("/v1/chat/completions", json=sent, headers=headers)).status_code == 200
        served.http.headers.update(headers)
        assert await log(served) == ["one", "re: one"] * (2 if doubled else 1)


@pytest.mark.parametrize(("header", "body"), [("all", None), ("delta", "transcript")])
async def test_invalid_or_conflicting_mode_header_is_refused(header: str, body: str | None) -> None:
    async with gateway(answer) as served:
        sent = {"messages": [user("one")], "session_id": "s", "session_mode": body}
        told = await served.http.post("/v1/chat/completions", json=sent, headers={"x-session-mode": header})
        assert (told.status_code, told.json()["error"]["param"]) == (400, "X-Session-Mode")
        assert not served.upstream.requests
