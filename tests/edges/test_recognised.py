"""Requests that name no session, at the gateway: which one they come to, and when it is a new one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.gates import Gate
from holdfast.testing.upstream import Reply, ScriptedUpstream
from tests.edges.server import Served, config_text, gateway, serving

OPENING = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "re: hi"}]
MORE = {"role": "user", "content": "more"}
EDIT = {"role": "user", "content": "else"}


def answer(body: dict[str, Any]) -> str:
    """What the model says: it depends on what it is asked alone."""
    return f"re: {body['messages'][-1]['content']}"


async def asked(served: Served, *messages: dict[str, Any], headers: dict[str, str] | None = None, **body: Any) -> Any:
    """The answer to a request that names its user and no session."""
    sent = {"model": "gpt-4o", "user": "ada", "messages": list(messages), **body}
    response = await served.http.post("/v1/chat/completions", json=sent, headers=headers)
    return response.json()


async def begun(served: Served) -> str:
    """A session that was opened with "hi"."""
    return str((await asked(served, OPENING[0]))["session_id"])


@pytest.mark.parametrize(
    ("body", "headers", "known"),
    [
        ({}, {}, True),
        ({"session_match": "off"}, {}, False),
        ({}, {"x-session-match": "off"}, False),
        ({"session_match": "on"}, {"x-session-match": "on"}, True),
        ({"session_mode": "transcript"}, {}, True),
        ({"session_mode": "delta"}, {}, False),
    ],
)
async def test_who_is_recognised(body: dict[str, Any], headers: dict[str, str], known: bool) -> None:
    """What goes on with a session, unless the request says that it is not to be looked for, or that all of it is new."""
    async with gateway(answer) as (served, _):
        first = await begun(served)
        found = await asked(served, *OPENING, MORE, headers=headers, **body)
        assert (found["session_id"] == first) is known
        assert found["session"]["reconciled"] == ("continued" if known else "new")


async def test_header_and_body_that_disagree() -> None:
    """And a word that is neither: 400, which names the header."""
    async with gateway(answer) as (served, _):
        for value, body in (("off", {"session_match": "on"}), ("maybe", {})):
            told = await asked(served, MORE, headers={"x-session-match": value}, **body)
            assert (told["error"]["param"], told["error"]["type"]) == ("X-Session-Match", "invalid_request_error")


def held(gate: Gate) -> Any:
    """Answers "more" when the gate opens, anything else at once."""
    return lambda body: Reply(text=answer(body), hold=gate if body["messages"][-1] == MORE else None)


@pytest.mark.parametrize(
    ("body", "headers", "relation"),
    [({}, {}, "forked"), ({"session_queue": "interrupt"}, {}, "edited"), ({}, {"idempotency-key": "k"}, "forked")],
)
async def test_an_edit_of_what_is_being_answered(body: dict[str, Any], headers: dict[str, str], relation: str) -> None:
    """Is given a copy, unless it is to end that turn; sent again with its key it finds its answer."""
    gate = Gate()
    async with gateway(held(gate)) as (served, upstream):
        first = await begun(served)
        running = asyncio.create_task(asked(served, *OPENING, MORE))
        await upstream.until(lambda: len(upstream.requests) == 2)
        editing = asyncio.create_task(asked(served, *OPENING, EDIT, headers=headers, **body))
        if not body:  # it waits for no other turn
            await editing
        gate.open()
        told, edited = await running, await editing
        assert edited["session"]["reconciled"] == relation
        assert (edited["session_id"] == first) is (relation == "edited")
        assert edited["choices"][0]["message"]["content"] == "re: else"
        if headers:
            again = await asked(served, *OPENING, EDIT, headers=headers, **body)
            assert again["session_id"] == edited["session_id"]
            assert len(upstream.requests) == 3
        if not body:
            assert told["choices"][0]["message"]["content"] == "re: more"


async def test_an_edit_of_what_another_server_answers(tmp_path: Path) -> None:
    """The session says so itself."""
    gate, store = Gate(), f"sqlite:///{tmp_path}/s.db"
    async with ScriptedUpstream(held(gate)) as upstream:
        config = config_text(upstream.url)
        async with serving(config, store=store) as one, serving(config, store=store) as two:
            first = await begun(one)
            running = asyncio.create_task(asked(one, *OPENING, MORE))
            await upstream.until(lambda: len(upstream.requests) == 2)
            edited = await asked(two, *OPENING, EDIT)
            gate.open()
            await running
            assert edited["session"]["reconciled"] == "forked"
            assert edited["session_id"] != first


async def test_a_message_that_says_nothing() -> None:
    """Is refused with its place: in a log it would be sent to the model again and again, which takes none."""
    async with gateway(answer) as (served, _):
        for content in (None, "", [], [{"type": "text", "text": ""}]):
            told = await asked(served, MORE, {"role": "user", "content": content}, session_id="s")
            assert (told["error"]["param"], told["error"]["code"]) == ("messages[1].content", "invalid_message")
        assert not (await served.hf.sessions()).sessions
