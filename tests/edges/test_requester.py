"""The user and session of a chat request: key, body and headers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.limits import TURN_WARNINGS
from holdfast.turns.turn import TurnWarning, TurnWarnings
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway

HEADERS = "gateway: {user_headers: [X-User, X-Forwarded-User], session_headers: [X-Chat-Id]}"
HELLO = [{"role": "user", "content": "hello"}]


async def post(served: Served, path: str, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Send one request without streaming, with a new session unless `fields` name one."""
    body = {"messages": HELLO, "session_match": "off", **fields}
    response = await served.http.post(path, json=body, headers=headers)
    return {"status": response.status_code, **response.json()}


async def owner_of(served: Served, answer: dict[str, Any]) -> str:
    """Return the owner of the answered session."""
    assert answer["status"] == 200, answer
    return (await served.hf.store.find(answer["session_id"])).user_id


async def test_unconfigured_header_names_no_user() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        answer = await post(served, "/v1/chat/completions", {"x-user": "ada"})
        assert await owner_of(served, answer) == "default"


async def test_user_of_the_key_takes_precedence() -> None:
    """OpenAI's own fields are ignored next to it; Holdfast's and a proxy's must agree."""
    async with gateway(lambda _: "ok", HEADERS) as (served, _):
        key = bearer(await create_stored_key(served.hf, user_id="ada"))
        chat = "/v1/chat/completions"
        for fields in ({}, {"user": "bob"}, {"safety_identifier": "bob"}, {"user_id": "ada"}):
            assert await owner_of(served, await post(served, chat, key, **fields)) == "ada"
        assert (await post(served, chat, key, user_id="bob"))["status"] == 404
        answer = await post(served, chat, {**key, "x-user": "bob"})
        assert (answer["status"], answer["error"]["param"]) == (400, "X-User")


@pytest.mark.parametrize("marks", ["idempotency-key", "x-stainless-retry-count"])
@pytest.mark.parametrize(
    ("path", "ada", "bob", "named"),
    [
        ("/v1/chat/completions", {"x-user": "ada"}, {"x-user": "bob"}, {}),
        ("/v1/chat/completions", {"x-user": "ada"}, {"x-user": "bob"}, {"session_id": "s"}),
        ("/v1/messages", {}, {}, {"max_tokens": 50}),
    ],
    ids=["header", "header and session", "metadata"],
)
async def test_retry_never_gets_the_reply_of_another_user(
    marks: str, path: str, ada: dict[str, str], bob: dict[str, str], named: dict[str, Any]
) -> None:
    """Clients may use equal keys, and equal first messages are common. Headers that name users are not in the body."""
    async with gateway(lambda _: "ok", HEADERS) as (served, upstream):
        for at, (user, headers) in enumerate((("ada", ada), ("bob", bob))):
            count = "k" if marks == "idempotency-key" else str(at)
            fields = named if headers else {**named, "metadata": {"user_id": user}}
            answer = await post(served, path, {**headers, marks: count}, **fields)
            assert answer["status"] == 200, answer
            await served.hf.store.get(SessionRef(user, answer["session_id"]))  # raises an error if it is another user's
        assert len(upstream.requests) == 2


@pytest.mark.parametrize("marks", ["idempotency-key", "x-stainless-retry-count"])
async def test_retry_never_gets_the_reply_of_another_session(marks: str) -> None:
    """A header may name the session, too."""
    async with gateway(lambda _: "ok", HEADERS) as (served, _upstream):
        for at in range(2):
            headers = {"x-chat-id": f"chat-{at}", marks: "k" if marks == "idempotency-key" else str(at)}
            answer = await post(served, "/v1/chat/completions", headers)
            if at and marks == "idempotency-key":  # the key is that of another request
                assert answer["status"] == 422
            else:
                assert (answer["status"], answer["session_id"]) == (200, f"chat-{at}")


# -- warnings ------------------------------------------------------------------------


def test_warnings_are_logged_once_and_limited(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.turn"):
        warnings = TurnWarnings(SessionRef("ada", "s"), [TurnWarning("a", "first", param="x")])
        for at in range(TURN_WARNINGS + 5):
            warnings.add(TurnWarning("b", f"number {at}"))
            warnings.add(TurnWarning("b", f"number {at}"))
    assert warnings.to_wire()[:2] == [
        {"code": "a", "message": "first", "param": "x"},
        {"code": "b", "message": "number 0"},
    ]
    assert len(warnings.to_wire()) == TURN_WARNINGS
    assert len(caplog.records) == TURN_WARNINGS
