"""The routes and fields that the product's founding documents write out: each is served with these very names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.kit import gateway
from tests.behaviour.kit.voice import SOURCES

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mP8/x8AAwMCAO+ip1sAAAAASUVORK5CYII="
CUT = {
    "role": "assistant",
    "content": "Why did the scarecrow ",
    "turn_id": 2,
    "timestamp": 1678901236,
    "metadata": {
        "interrupted": True,
        "interrupt_timestamp": 1678905225,
        "original": "Why did the scarecrow win an award?",
        "source": "llm",
    },
}


async def test_short_session_routes() -> None:
    """`GET /sessions?user_id=` lists `id`, `agent` and `updated_at`; `GET` and `DELETE /sessions/{id}` work."""
    async with gateway(["Hello."]) as served:
        await served.chat("hi", user="ada")
        listed = (await served.http.get("/sessions", params={"user_id": "ada"})).json()
        assert set(listed) == {"sessions"}
        assert set(listed["sessions"][0]) == {"id", "agent", "updated_at"}
        one = (await served.http.get("/sessions/s")).json()
        assert {"id", "agent", "updated_at", "messages", "state"} <= set(one)
        assert (await served.http.delete("/sessions/s")).status_code == 200
        assert (await served.http.get("/sessions/s")).status_code == 404


async def test_serialized_session() -> None:
    """`GET /v1/sessions/{id}` returns `messages`, `images` and `videos`; `PUT` installs what it returned."""
    data = f"data:image/png;base64,{PIXEL}"
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": data}}]
    async with gateway(["A pixel."]) as served:
        await served.chat([{"role": "user", "content": content}])
        exported = (await served.http.get("/v1/sessions/s")).json()
        assert {"messages", "images", "videos"} <= set(exported)
        assert len(exported["images"]) == 1
        copied = await served.http.put("/v1/sessions/copy", json={**exported, "id": "copy"})
        assert copied.status_code == 200, copied.text
        assert (await served.http.get("/v1/sessions/copy")).json()["messages"] == exported["messages"]


async def test_put_takes_images_as_base64() -> None:
    async with gateway([]) as served:
        content = [{"type": "text", "text": "Look."}, {"type": "image"}]
        body = {"messages": [{"role": "user", "content": content}], "images": [PIXEL], "videos": []}
        answer = await served.http.put("/v1/sessions/s", json=body)
        assert answer.status_code == 200, answer.text
        assert PIXEL in (await served.http.get("/v1/sessions/s")).text


async def test_session_state_routes() -> None:
    """`GET` and `PATCH …/state` with the prefixes `user:` and `app:`."""
    async with gateway([]) as served:
        await served.http.post("/v1/sessions", json={"id": "s", "user_id": "ada"})
        values = {"topic": "boats", "user:language": "de", "app:version": "1"}
        changed = await served.http.patch("/v1/sessions/s/state", json=values)
        assert changed.status_code == 200, changed.text
        assert values.items() <= (await served.http.get("/v1/sessions/s/state")).json().items()


@pytest.mark.parametrize("name", ["contents", "messages"])
async def test_contents_in_place_of_messages(name: str) -> None:
    async with gateway([]) as served:
        answer = await served.http.put("/v1/sessions/s", json={name: [CUT]})
        assert answer.status_code == 200, answer.text
        assert (await served.http.get("/v1/sessions/s/history")).json()["contents"] == [CUT]
        plain = (await served.http.get("/v1/sessions/s/history", params={"view": "plain"})).json()
        assert plain["messages"] == [{"role": "assistant", "content": CUT["content"]}]


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("source", SOURCES)
async def test_sources_of_records(source: str, role: str) -> None:
    record = {
        "role": role,
        "content": "Hello.",
        "metadata": {"source": source, **({"user": "u1"} if role == "user" else {})},
    }
    async with gateway([]) as served:
        answer = await served.http.put("/v1/sessions/s", json={"contents": [record]})
        assert answer.status_code == (200 if role in SOURCES[source] else 422), answer.text
        if answer.status_code == 200:
            [kept] = (await served.http.get("/v1/sessions/s/history")).json()["contents"]
            assert kept["metadata"] == record["metadata"]


async def test_fields_for_a_custom_vendor() -> None:
    """A model of `vendor: custom` gets `turn_id`, `timestamp`, `interruptable` and `model`, and every field of a message."""
    async with gateway(["Good."]) as model:
        config = f"llm: {{vendor: custom, base_url: '{model.upstream.url}', model: mine}}"
        async with gateway(None, config) as served:
            await served.http.put("/v1/sessions/s", json={"contents": [CUT]})
            assert (await served.chat("And then?", interruptable=False))["status"] == 200
        body = model.upstream.requests[0].body
        assert {"turn_id", "timestamp", "interruptable", "model"} <= set(body)
        assert body["interruptable"] is False
        assert body["messages"][0] == CUT


async def test_system_messages_of_a_session() -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "system", "content": "Be brief."}]
    async with gateway(["Yes."]) as served:
        created = await served.http.post("/v1/sessions", json={"id": "s", "system_messages": messages})
        assert created.status_code == 201, created.text
        await served.chat("hi")
        assert served.upstream.requests[0].body["messages"][:2] == messages
        changed = await served.http.patch("/v1/sessions/s", json={"system_messages": messages[:1]})
        assert changed.status_code == 200, changed.text


ANTHROPIC: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 100,
    "system": "Be kind.",
    "messages": [{"role": "user", "content": "hi"}],
}


async def test_anthropic_routes() -> None:
    """`POST /v1/messages` with `context_management.edits`, and `POST /v1/messages/count_tokens`, which returns `input_tokens`."""
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 1000},
        "keep": {"type": "tool_uses", "value": 2},
        "clear_at_least": {"type": "input_tokens", "value": 100},
    }
    async with gateway(["Hello."]) as served:
        counted = await served.http.post("/v1/messages/count_tokens", json=ANTHROPIC)
        assert counted.json()["input_tokens"] > 0
        body = {**ANTHROPIC, "context_management": {"edits": [edit]}}
        headers = {"anthropic-beta": "context-management-2025-06-27", "anthropic-version": "2023-06-01"}
        answer = await served.http.post("/v1/messages", json=body, headers=headers)
        assert answer.status_code == 200, answer.text


async def test_session_ids_of_a_request() -> None:
    """A request names its session by the field `session_id` or the header `X-Session-Id`."""
    request = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with gateway(["One.", "Two."]) as served:
        by_field = await served.http.post("/v1/chat/completions", json={**request, "session_id": "s"})
        by_header = await served.http.post("/v1/chat/completions", json=request, headers={"X-Session-Id": "s"})
        assert [one.json()["session_id"] for one in (by_field, by_header)] == ["s", "s"]
