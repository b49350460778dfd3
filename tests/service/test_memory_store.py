"""Memories may be kept in a separate store."""

from __future__ import annotations

import holdfast
from holdfast.domain.memory import Owner
from holdfast.limits import PAGE
from holdfast.stores import open_store

ADA = Owner("user", "ada")


async def test_memories_are_kept_only_in_the_configured_memory_store() -> None:
    elsewhere = await open_store("sqlite://:memory:", tenant="acme")
    sessions = await open_store("sqlite://:memory:", tenant="acme")
    async with holdfast.open(store=sessions, memory_store=elsewhere.for_tenant) as hf:
        made = await hf.memories.remember("Ada has a cat called Miso", user_id="ada")
        found = await hf.memories.recall("what is her cat called", user_id="ada")
        assert [one.memory.id for one in found.found] == [made.memory.id]
        await hf.memories.settled()
        assert len(await elsewhere.signals(ADA)) == 1
        assert (await sessions.memories(ADA)).total == 0
        async with hf.serve_tenant("umbrella") as other:
            await other.memories.remember("Ada has a dog", user_id="ada")
        assert (await elsewhere.memories(ADA)).total == 1, "each tenant has its own"
        receipt = await hf.delete_user("ada")
        assert receipt.memories == 1
    assert (await elsewhere.memories(ADA, limit=PAGE)).total == 0
    await elsewhere.close()
    await sessions.close()
