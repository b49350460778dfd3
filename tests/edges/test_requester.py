"""The user and session of a chat request: key, body and headers."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

import pytest

from holdfast import config
from holdfast.domain.session import SessionRef
from holdfast.errors import ConfigError
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


@pytest.mark.parametrize(
    ("fields", "headers", "user"),
    [
        ({}, {}, "default"),
        ({"user": "ada"}, {}, "ada"),
        ({"user_id": "ada"}, {}, "ada"),
        ({"safety_identifier": "ada"}, {}, "ada"),
        ({"user": "ada", "safety_identifier": "hash-of-ada"}, {}, "ada"),
        ({"user": "ada", "user_id": "ada"}, {}, "ada"),
        ({}, {"x-user": "ada"}, "ada"),
        ({}, {"x-forwarded-user": quote("ádá")}, "ádá"),
        ({"user": "ada"}, {"x-user": "ada"}, "ada"),
        ({"metadata": {"user_id": "ada"}}, {}, "default"),
        ({"user": "", "safety_identifier": None}, {"x-user": ""}, "default"),
    ],
)
async def test_sources_of_the_user(fields: dict[str, Any], headers: dict[str, str], user: str) -> None:
    async with gateway(lambda _: "ok", HEADERS) as (served, _):
        assert await owner_of(served, await post(served, "/v1/chat/completions", headers, **fields)) == user


@pytest.mark.parametrize(
    ("fields", "headers", "param"),
    [
        ({"user_id": "ada", "user": "bob"}, {}, "user_id"),
        ({"user_id": "ada", "safety_identifier": "bob"}, {}, "user_id"),
        ({"user": "ada"}, {"x-user": "bob"}, "user"),
        ({"safety_identifier": "ada"}, {"x-user": "bob"}, "safety_identifier"),
        ({}, {"x-user": "ada", "x-forwarded-user": "bob"}, "X-Forwarded-User"),
    ],
)
async def test_conflicting_sources_are_refused(fields: dict[str, Any], headers: dict[str, str], param: str) -> None:
    async with gateway(lambda _: "ok", HEADERS) as (served, upstream):
        answer = await post(served, "/v1/chat/completions", headers, **fields)
        assert (answer["status"], answer["error"]["param"]) == (400, param)
        assert not upstream.requests
        assert not (await served.hf.sessions()).sessions


async def test_anthropic_metadata_names_the_user() -> None:
    async with gateway(lambda _: "ok", HEADERS) as (served, _):
        answer = await post(served, "/v1/messages", max_tokens=50, metadata={"user_id": "ada"})
        assert await owner_of(served, answer) == "ada"
        for source in ("user_id", "user", "safety_identifier"):
            fields: dict[str, Any] = {source: "bob", "metadata": {"user_id": "ada"}}
            answer = await post(served, "/v1/messages", max_tokens=50, **fields)
            assert (answer["status"], answer["error"]["type"]) == (400, "invalid_request_error")


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


async def test_user_can_be_required() -> None:
    async with gateway(lambda _: "ok", "gateway: {require_user: true, user_headers: X-User}") as (served, upstream):
        for path in ("/v1/chat/completions", "/v1/messages"):
            answer = await post(served, path, max_tokens=50)
            assert (answer["status"], answer["error"]["param"]) == (400, "user_id")
            assert "X-User" in answer["error"]["message"]
            await served.hf.ensure("s", user_id="bob")
            answer = await post(served, path, session_id="s", max_tokens=50)
            assert (answer["status"], answer["error"]["param"]) == (400, "user_id"), "nor with the id of a session"
            assert await owner_of(served, await post(served, path, {"x-user": "ada"}, max_tokens=50)) == "ada"
        assert len(upstream.requests) == 2


def test_header_name_is_validated() -> None:
    with pytest.raises(ConfigError, match="user_headers"):
        config.load("gateway: {user_headers: ['X User']}", env={})


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
    async with gateway(lambda _: "ok", HEADERS) as (served, upstream):
        for at in range(2):
            headers = {"x-chat-id": f"chat-{at}", marks: "k" if marks == "idempotency-key" else str(at)}
            answer = await post(served, "/v1/chat/completions", headers)
            assert (answer["status"], answer["session_id"]) == (200, f"chat-{at}")
        assert len(upstream.requests) == 2


# -- the session ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"x-session-id": "chat-1"},
        {"x-chat-id": "chat-1"},
        {"x-chat-id": "chat%2D1", "x-session-id": "chat-1"},
    ],
)
async def test_headers_can_name_the_session(headers: dict[str, str]) -> None:
    async with gateway(lambda _: "ok", HEADERS) as (served, _):
        assert (await post(served, "/v1/chat/completions", headers))["session_id"] == "chat-1"


async def test_conflicting_session_ids_are_refused() -> None:
    async with gateway(lambda _: "ok", HEADERS) as (served, _):
        for headers, fields in (
            ({"x-chat-id": "a"}, {"session_id": "b"}),
            ({"x-chat-id": "a", "x-session-id": "b"}, {}),
        ):
            assert (await post(served, "/v1/chat/completions", headers, **fields))["status"] == 400


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
