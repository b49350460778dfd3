"""A request with very many messages blocks no other client: they are read, hashed and written in threads."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.domain import messages as domain
from holdfast.limits import INLINE_MESSAGES
from holdfast.media import store as media
from holdfast.server.apis import anthropic
from holdfast.turns import place
from holdfast.wire import exports, openai
from tests.edges.server import serving
from tests.loop_guard import watch

MANY = 4 * INLINE_MESSAGES


def make_transcript(number: int = MANY) -> list[dict[str, Any]]:
    """Return `number` messages, the last one from the user."""
    return [{"role": "user" if at % 2 else "assistant", "content": f"message {at}"} for at in range(1, number)]


def _one(*_: Any, **__: Any) -> int:
    return 1


WORK = {
    "openai": (openai, "parse_message", _one),
    "chain": (domain, "chain", _one),
    "fields": (exports, "parse_own_fields", _one),
    "anthropic": (anthropic, "decode_messages", lambda data, *_: len(data)),
    "hashes": (place, "make_chain", lambda *given: len(given[1])),
    "media": (media, "has_media", len),
}
"""Functions that are given every message; each call costs one, or as many as it is given."""


@pytest.mark.parametrize(
    ("method", "path", "body", "called"),
    [
        ("POST", "/v1/chat/completions", {"model": "m", "user": "ada"}, ["openai", "chain", "media"]),
        (
            "POST",
            "/v1/messages",
            {"model": "m", "max_tokens": 9, "metadata": {"user_id": "ada"}},
            ["anthropic", "media"],
        ),
        ("POST", "/v1/messages/count_tokens", {"model": "m"}, ["anthropic"]),
        ("POST", "/v1/sessions/s/messages", {}, ["openai", "fields"]),
        ("PUT", "/v1/sessions/t", {}, ["openai", "media"]),
    ],
    ids=["chat", "anthropic", "count", "append", "import"],
)
async def test_many_messages_are_handled_off_the_loop(
    method: str, path: str, body: dict[str, Any], called: list[str]
) -> None:
    """Regression: a chat of 90,000 messages blocked every client for 11 s."""
    async with serving("{}") as server:
        await server.http.post("/v1/sessions", json={"id": "s"})
        with watch(**WORK) as guard:
            answer = await server.http.request(method, path, json={**body, "messages": make_transcript()})
        assert answer.status_code in (200, 201), answer.text
        assert all(guard.largest[name] for name in called), guard.largest
        heavy = {name: guard.on_loop[name] for name in WORK if guard.on_loop[name] > INLINE_MESSAGES}
        assert not heavy, f"messages in one callback of the event loop: {heavy}"


async def test_a_large_page_is_encoded_off_the_loop() -> None:
    async with serving("{}") as server:
        await server.http.put("/v1/sessions/t", json={"messages": make_transcript(100)})
        with watch() as guard:
            answer = await server.http.get("/v1/sessions/t/messages?limit=99")
        assert answer.headers["content-type"] == "application/json"
        assert len(answer.json()["data"]) == 99
        assert not guard.on_loop["count"]
