"""Memories of two servers on one database with a shared index, and of a server that is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.memory import Memory, Owner
from holdfast.holdfast import Holdfast
from holdfast.indexes.settings import IndexSettings
from tests.service.recall_kit import LetterEmbedder

ANN = Owner("user", "ann")
WRITER = """
import asyncio, sys
from holdfast.holdfast import Holdfast

async def main():
    async with Holdfast(sys.argv[1]) as hf:
        for at in range(100_000):
            made = await hf.memories.remember(f"My favourite colour is shade{at}", user_id="ann")
            print(made.memory.id, flush=True)

asyncio.run(main())
"""


async def list_memories(hf: Holdfast) -> list[Memory]:
    return list((await hf.memories.page(ANN, limit=1000)).memories)


@pytest.mark.parametrize("told", [1, 7, 20])
async def test_memories_survive_a_kill_and_changes_are_atomic(tmp_path: Path, told: int) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, url, stdout=asyncio.subprocess.PIPE)
    assert writer.stdout is not None
    lines = [await writer.stdout.readline() for _ in range(told)]
    writer.kill()
    rest, _ = await writer.communicate()
    ids = [line.strip().decode() for line in (*lines, *rest.splitlines(keepends=True)) if line.endswith(b"\n")]
    async with Holdfast(url) as hf:
        found = {one.id: one for one in await list_memories(hf)}
        assert found.keys() >= set(ids)
        active = [one for one in found.values() if one.status == "active"]
        assert len(active) == 1
        assert all(one.superseded_by in found for one in found.values() if one not in active)
        assert len(found) - len(ids) <= 1
        recalled = await hf.memories.recall("favourite colour", user_id="ann", limit=50)
        assert [one.memory for one in recalled.found] == active
        made = await hf.memories.remember("My favourite colour is blue", user_id="ann")
        assert made.memory.supersedes == (active[0].id,)


async def test_two_servers_with_one_index_see_each_others_changes_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with Holdfast(url) as one, Holdfast(url) as other:
        made = (await one.memories.remember("Ann likes green tea", user_id="ann")).memory
        assert [hit.memory.id for hit in (await other.memories.recall("tea", user_id="ann")).found] == [made.id]
        assert (await other.memories.remember("Ann likes green tea", user_id="ann", tags=["t"])).outcome == "merged"
        await other.memories.forget(made.id)
        assert (await one.memories.recall("tea", user_id="ann")).found == ()
        assert (await one.memories.remember("Ann likes green tea", user_id="ann")).outcome == "new"


async def test_concurrent_new_values_on_two_servers_leave_one_active(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with Holdfast(url) as one, Holdfast(url) as other:
        said = [
            hf.memories.remember(f"My favourite colour is {shade}", user_id="ann")
            for shade in ("red", "blue", "green", "black", "white", "brown")
            for hf in (one, other)
        ]
        await asyncio.gather(*said)
        active = [kept for kept in await list_memories(one) if kept.status == "active"]
        assert len(active) == 1
        recalled = await other.memories.recall("favourite colour", user_id="ann")
        assert [hit.memory for hit in recalled.found] == active


async def test_forgetting_concurrently_with_remembering_leaves_no_trace_in_the_index(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with Holdfast(url) as one, Holdfast(url) as other:
        ids = [(await one.memories.remember(f"Ann owns boat{at}", user_id="ann")).memory.id for at in range(12)]
        await asyncio.gather(
            *(one.memories.forget(memory_id) for memory_id in ids),
            *(other.memories.remember(f"Ann sails sea{at}", user_id="ann") for at in range(12)),
        )
        assert [kept.content for kept in await list_memories(one) if "boat" in kept.content] == []
        assert (await other.memories.recall("boat3 boat7 owns", user_id="ann")).found == ()
        assert len((await other.memories.recall("Ann sails", user_id="ann", limit=50)).found) == 12


@pytest.mark.parametrize("mode", ["keyword", "hybrid"])
async def test_index_under_constant_writes_does_not_block_remember_or_recall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    settings = IndexSettings(mode=mode, embedder=LetterEmbedder() if mode == "hybrid" else None)
    async with Holdfast(f"sqlite:///{tmp_path}/chat.db", index=settings) as hf:
        first = (await hf.memories.remember("Ann likes green tea", user_id="ann")).memory
        assert hf.engine.index is not None
        await hf.engine.index.settled()

        async def lose_every_race(*_: Any) -> bool:
            return False

        monkeypatch.setattr(hf.engine.index.index, "write", lose_every_race)
        second = (await hf.memories.remember("Ann sails at noon", user_id="ann")).memory
        assert (await hf.memories.remember("Ann sails at noon.", user_id="ann")).outcome == "merged"
        found = await hf.memories.recall("who sails at noon?", user_id="ann")
        assert found.found[0].memory.id == second.id
        await hf.memories.forget(first.id)
        found = await hf.memories.recall("green tea", user_id="ann")
        assert first.id not in [hit.memory.id for hit in found.found]
