"""Misuse of the Responses and Conversations APIs: what a hostile client sends, and what the server does about it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.limits import Limits
from tests.edges.server import Served, gateway


async def create(served: Served, **fields: Any) -> Any:
    """Send a request to `/v1/responses`; return the response."""
    return await served.http.post("/v1/responses", json={"model": "gpt-4o", **fields})


# -- references ------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"])
async def test_references_cannot_make_a_request_larger_than_a_body(path: str) -> None:
    """A reference is short and its item may be long, so many references to one item would be a large request."""
    limits = Limits(body=100_000)
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


# -- metadata --------------------------------------------------------------------


async def test_metadata_of_a_conversation_cannot_replace_what_is_not_text() -> None:
    """The participants of a session are in its metadata. A client of this API sees only texts, so it changes only texts."""
    async with gateway() as (served, _):
        made = (await served.http.post("/v1/conversations", json={"metadata": {"topic": "rome"}})).json()
        path = f"/v1/conversations/{made['id']}"
        refused = await served.http.post(path, json={"metadata": {"participants": "carl"}})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "metadata.participants")
        (session,) = (await served.hf.sessions()).sessions
        changes = {"metadata": {**session.metadata, "participants": ["bob"], "tags": [1]}}
        assert (await served.http.patch(f"/v1/sessions/{session.id}", json=changes)).status_code == 200
        for name in ("participants", "tags"):
            refused = await served.http.post(path, json={"metadata": {name: "carl"}})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, f"metadata.{name}")
        assert (await served.http.post(path, json={"metadata": {"topic": "oslo"}})).json()["metadata"] == {
            "topic": "oslo"
        }
        after = await served.hf.store.get(SessionRef("default", session.id))
        assert after.metadata == {"topic": "oslo", "participants": ["bob"], "tags": [1]}
