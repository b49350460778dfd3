"""Requests without a session id at the gateway: which session they match, and when a new one is created."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.kit import Served, gateway

OPENING = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "re: hi"}]
MORE = {"role": "user", "content": "more"}
EDIT = {"role": "user", "content": "else"}


def answer(body: dict[str, Any]) -> str:
    """Return a reply that depends only on the last message."""
    return f"re: {body['messages'][-1]['content']}"


async def send_without_session(
    served: Served, *messages: dict[str, Any], headers: dict[str, str] | None = None, **body: Any
) -> Any:
    """Send a request that names its user but no session; return the answer."""
    sent = {"model": "gpt-4o", "user": "ada", "messages": list(messages), **body}
    response = await served.http.post("/v1/chat/completions", json=sent, headers=headers)
    return response.json()


async def start_session(served: Served) -> str:
    """Start a session with "hi"; return its id."""
    return str((await send_without_session(served, OPENING[0]))["session_id"])


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
async def test_continuation_matches_its_session(body: dict[str, Any], headers: dict[str, str], known: bool) -> None:
    """Unless the request disables matching or says that all messages are new."""
    async with gateway(answer) as served:
        first = await start_session(served)
        found = await send_without_session(served, *OPENING, MORE, headers=headers, **body)
        assert (found["session_id"] == first) is known
        assert found["session"]["reconciled"] == ("continued" if known else "new")


async def test_conflicting_or_invalid_match_header_is_refused() -> None:
    """With a 400 that names the header."""
    async with gateway(answer) as served:
        for value, body in (("off", {"session_match": "on"}), ("maybe", {})):
            told = await send_without_session(served, MORE, headers={"x-session-match": value}, **body)
            assert (told["error"]["param"], told["error"]["type"]) == ("X-Session-Match", "invalid_request_error")


async def test_empty_message_is_refused() -> None:
    """With its place: in the log it would be sent to the model each time, and models reject it."""
    async with gateway(answer) as served:
        for content in (None, "", [], [{"type": "text", "text": ""}]):
            told = await send_without_session(served, MORE, {"role": "user", "content": content}, session_id="s")
            assert (told["error"]["param"], told["error"]["code"]) == ("messages[1].content", "invalid_message")
        assert await served.rest.sessions() == []


async def test_refused_request_does_not_keep_other_requests_from_its_session() -> None:
    """It is refused after its session was found, because the session's agent allows less than the default model."""
    async with gateway(answer, "agents: {small: {context: {strategy: digest, budget: 900}}}") as served:
        first = (await send_without_session(served, OPENING[0], agent="small"))["session_id"]
        refused = await send_without_session(served, *OPENING, MORE, budget=5000)
        assert refused["error"]["param"] == "budget"
        found = await send_without_session(served, *OPENING, MORE)
        assert (found["session_id"], found["session"]["reconciled"]) == (first, "continued")
