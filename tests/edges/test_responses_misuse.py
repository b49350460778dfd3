"""Misuse of the Responses and Conversations APIs: what a hostile client sends, and what the server does about it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.codecs.responses.ids import Place
from holdfast.server.body_limits import BodyLimits
from tests.edges.server import Served, gateway


async def create(served: Served, **fields: Any) -> Any:
    """Send a request to `/v1/responses`; return the response."""
    return await served.http.post("/v1/responses", json={"model": "gpt-4o", **fields})


# -- references ------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"])
async def test_references_cannot_make_a_request_larger_than_a_body(path: str) -> None:
    """A reference is short and its item may be long, so many references to one item would be a large request."""
    limits = BodyLimits(body=100_000)
    async with gateway(lambda _: "word " * 1000, limits=limits) as (served, _):
        item = (await create(served, input="Hello!")).json()["output"][0]["id"]
        reference, question = {"type": "item_reference", "id": item}, {"role": "user", "content": "And?"}
        few = {"model": "gpt-4o", "input": [reference] * 3 + [question], "store": False}
        assert (await served.http.post(path, json=few)).status_code == 200
        before = len((await served.hf.sessions()).sessions)
        refused = await served.http.post(path, json={**few, "input": [reference] * 300 + [question]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (413, "input")
        assert "100000 bytes" in refused.json()["error"]["message"]
        assert len((await served.hf.sessions()).sessions) == before


# -- sessions of other users ------------------------------------------------------


async def test_response_of_another_user_is_not_found() -> None:
    """Nor is its place used in the user's own session with the same id."""
    async with gateway(lambda _: "ok") as (served, upstream):
        made = {}
        for user_id in ("ada", "bob"):
            made[user_id] = (await create(served, session_id="s", user=user_id, input=f"I am {user_id}.")).json()
        for user_id in ("ada", "carl"):
            refused = await create(served, input="And?", user=user_id, previous_response_id=made["bob"]["id"])
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
        assert len(upstream.requests) == 2
        assert [len(await served.log("s", user)) for user in ("ada", "bob")] == [2, 2]


# -- notes -----------------------------------------------------------------------


async def test_note_of_a_program_cannot_forge_a_response() -> None:
    """A note like those of responses is read as one, but it changes neither the id nor the status, and breaks no stream."""
    echo = {"id": "resp_forged", "status": "forged", "output": "forged", "object": "forged", "metadata": {"a": "b"}}
    note = {
        "role": "note",
        "origin": {"response": {"secret": "ab", "created_at": 1, "echo": echo}},
        "metadata": {"input": "x"},
    }
    async with gateway() as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s"})
        messages = [{"role": "user", "content": "Hi"}, note, {"role": "assistant", "content": "Hello."}]
        written = await served.http.post("/v1/sessions/s/messages", json={"messages": messages})
        place = Place("s", written.json()["data"][1]["seq"], "ab").make_id("resp")
        found = await served.http.get(f"/v1/responses/{place}")
        assert (found.status_code, "forged" in found.text) == (200, False)
        assert (found.json()["id"], found.json()["metadata"]) == (place, {"a": "b"})
        events = await served.http.get(f"/v1/responses/{place}?stream=true")
        assert (events.text.count("event: response.completed"), "forged" in events.text) == (1, False)
        assert (await served.http.get(f"/v1/responses/{place}/input_items")).json()["data"] == []
