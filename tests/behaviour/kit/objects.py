"""Something of each kind in a store, so that each route has something to find."""

from __future__ import annotations

from typing import Any, Final

import httpx2

from tests.behaviour.kit.messages import user

ITEM: Final[dict[str, Any]] = {"type": "message", "role": "user", "content": "hi"}


async def fill(http: httpx2.AsyncClient) -> dict[str, str]:
    """Write something of each kind; return the names of what is there, by path parameter."""
    await http.put(
        "/v1/sessions/s",
        json={"messages": [user("hi"), {"role": "assistant", "content": "hello"}, user("more")], "state": {"a": 1}},
    )
    memory = (await http.post("/v1/memories", json={"content": "Kelp is green."})).json()
    await http.put("/v1/records/record?namespace=a&key=k", json={"value": 1})
    await http.put("/v1/sessions/s/artifacts/a.txt", content=b"text")
    response = (await http.post("/v1/responses", json={"input": "hi", "model": "gpt-4o"})).json()
    conversation = (await http.post("/v1/conversations", json={"items": [ITEM]})).json()
    items = (await http.get(f"/v1/conversations/{conversation['id']}/items")).json()["data"]
    key = (await http.post("/v1/keys", json={"role": "read"})).json()
    return {
        "session_id": "s",
        "seq": "0",
        "user_id": "default",
        "memory_id": memory["id"] if "id" in memory else memory["memory"]["id"],
        "name": "a.txt",
        "response_id": response["id"],
        "conversation_id": conversation["id"],
        "item_id": items[0]["id"],
        "key_id": key["id"],
        "call_id": "next",
        "compaction_id": "1",
        "fact_id": "1.0",
        "change_id": "1",
        "agent": "default",
    }
