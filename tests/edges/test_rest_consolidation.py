"""Consolidation over REST: sweep, dry run, diary, owners, and refused requests."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.domain.memory import Owner
from holdfast.errors import StaleMemories
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway

ANN = Owner("user", "ann")


async def make_promotable_memory(served: Served, owner: Owner = ANN) -> str:
    """Return the id of a memory that the next sweep promotes."""
    user = owner.id if owner.kind == "user" else None
    agent = owner.id if owner.kind == "agent" else None
    one = await served.hf.memories.remember("Tea is at five", user_id=user, agent=agent, app=owner.kind == "app")
    for query in ("when is tea", "tea or coffee", "tea at five"):
        await served.hf.memories.recall(query, owners=[owner])
    await served.hf.memories.settled()
    return str(one.memory.id)


async def request_consolidation(served: Served, body: dict[str, Any], **headers: str) -> Any:
    return await served.http.post("/v1/memories/consolidate", json=body, headers=headers)


async def test_users_key_consolidates_only_that_user() -> None:
    async with gateway((), "auth: {required: true}") as (served, _):
        anns, bobs = await make_promotable_memory(served), await make_promotable_memory(served, Owner("user", "bob"))
        mine, others = (
            bearer(await create_stored_key(served.hf, user_id="ann")),
            bearer(await create_stored_key(served.hf, user_id="bob")),
        )
        assert (await request_consolidation(served, {"user_id": "ann"})).status_code == 401
        assert (await served.http.get("/v1/memories/diary", params={"user_id": "ann"})).status_code == 401
        assert (await request_consolidation(served, {"user_id": "ann"}, **others)).status_code == 404
        for asked in ({"scope": "app"}, {"agent": "desk", "scope": "agent"}):
            assert (await request_consolidation(served, asked, **mine)).status_code == 403
        diary = await served.http.get("/v1/memories/diary", params={"user_id": "ann"}, headers=others)
        assert diary.status_code == 404
        done = (await request_consolidation(served, {}, **mine)).json()
        assert (done["user_id"], [one["memory_id"] for one in done["candidates"]]) == ("ann", [anns])
        assert (await served.hf.store.find_memory(bobs)).promoted_at is None
        done = (await request_consolidation(served, {}, **others)).json()
        assert (done["user_id"], [one["memory_id"] for one in done["candidates"]]) == ("bob", [bobs])


async def test_constantly_changing_memories_are_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as (served, _):

        async def stale(*_: Any, **__: Any) -> Any:
            raise StaleMemories(expected=1, version=2)

        monkeypatch.setattr(served.hf.consolidation, "consolidate", stale)
        assert (await request_consolidation(served, {"user_id": "ann"})).status_code == 412
