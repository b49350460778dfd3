"""Deleted users and erased messages leave nothing in any store or index, wherever the removal was interrupted."""

from __future__ import annotations

from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import anyio.to_thread
import apsw
import pytest

import holdfast
from holdfast import faults
from holdfast.domain.memory import MemorySource, Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.lifecycle.settings import LifeSettings
from tests.stores.servers import reach

NAME = "canary-7f3a9c"
STILL = LifeSettings(session_ttl=0, sweep=False)


async def _with_name(url: str) -> list[str]:
    """Tables with a row, or keys with a name or value, that have the name of the user."""
    if url.startswith("sqlite"):
        return _in_files(Path(url.removeprefix("sqlite:///")).parent)
    server = reach("mysql" if url.startswith("mysql") else "postgres")
    place = "DATABASE()" if server.name == "mysql" else "current_schema()"
    listed = f"SELECT table_name FROM information_schema.tables WHERE table_schema = {place}"
    found = []
    for (table,) in await anyio.to_thread.run_sync(server.in_place, url, listed):
        if _has(await anyio.to_thread.run_sync(server.in_place, url, f"SELECT * FROM {table}")):
            found.append(str(table))
    return found


def _in_files(folder: Path) -> list[str]:
    return [name for file in folder.glob("*.db") for name in _in_file(file)]


def _in_file(file: Path) -> list[str]:
    connection = apsw.Connection(str(file))
    listed = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    tables = [str(row[0]) for row in connection.execute(listed)]
    found = [name for name in tables if _has(connection.execute(f'SELECT * FROM "{name}"').fetchall())]
    connection.close()
    return found


def _has(rows: list[Any]) -> bool:
    return any(
        NAME.encode() in (value if isinstance(value, bytes) else str(value).encode()) for row in rows for value in row
    )


async def test_the_name_of_a_deleted_user_is_removed_everywhere(shared_url: str) -> None:
    """Sessions, shared state, artifacts, records, memories with recalls and diary, and searches."""
    async with holdfast.open(shared_url, life=STILL) as hf:
        session = await hf.session("s", user_id=NAME)
        await session.append([{"role": "user", "content": "Where is order 17?"}])
        await session.update(state={"user:k": 1})
        await session.artifacts.save("user:shared.txt", b"x")
        for records in (session.records(NAME), hf.records("x", user_id=NAME)):
            await records.put("k", NAME, ttl="1h")
        await hf.memories.remember("likes tea", user_id=NAME)
        own, other = [MemorySource(session_id="s", user_id=user, seqs=(0,)) for user in (NAME, "ada")]
        await hf.memories.remember("has order 17", agent="helper", sources=[own])
        await hf.memories.remember("the shop sells tea", agent="helper", sources=[own, other])
        await hf.memories.recall("tea?", user_id=NAME)
        await hf.memories.settled()
        await hf.consolidation.consolidate(Owner("user", NAME))
        assert (await hf.search("order", NAME)).hits
        assert len(await _with_name(shared_url)) > 3
        assert (await hf.delete_user(NAME)).memories == 2
        (left,) = (await hf.store.memories(Owner("agent", "helper"))).memories
        assert (left.content, left.sources) == ("the shop sells tea", (other,))
    assert await _with_name(shared_url) == []


async def test_a_new_user_of_the_same_name_gets_no_old_data(shared_url: str) -> None:
    """Versions and numbers go on above what there was, so that nobody who knew the former takes the one for the other."""
    async with holdfast.open(shared_url, life=STILL) as hf, holdfast.open(shared_url, life=STILL) as other:
        owner = Owner("user", NAME)
        for content in ("likes tea", "has a cat called Mia", "lives in Oslo"):
            await hf.memories.remember(content, user_id=NAME)
        state = await hf.store.change_state(NAME, {"k": 1}, timestamp=1)
        assert len((await other.memories.recall("tea, a cat, Oslo", user_id=NAME)).found) == 3
        before = await other.store.memories(owner)
        await hf.delete_user(NAME)
        await hf.memories.remember("likes coffee", user_id=NAME)
        assert [one.memory.content for one in (await other.memories.recall("tea coffee cat", user_id=NAME)).found] == [
            "likes coffee"
        ]
        after = await other.store.memories(owner)
        assert (after.total, after.version > before.version) == (1, True)
        assert after.memories[0].number > before.memories[-1].number
        assert (await hf.store.state(NAME, known=state.version)).values == {}
        assert (await hf.store.change_state(NAME, {"k": 2}, timestamp=2)).version > state.version


async def _fill(hf: holdfast.Holdfast, user: str, word: str) -> None:
    """Make something of everything, with a message that has the word, a copy of it and a memory made from it."""
    session = await hf.session("s", user_id=user)
    await session.append([{"role": "user", "content": word}, {"role": "assistant", "content": "Noted."}])
    await hf.fork(session.ref, id="copy")
    await session.records("x").put("k", "v", text="a record")
    await hf.records("x", user_id=user).put("k", "v", text="a record")
    source = MemorySource(session_id="s", user_id=user, seqs=(0,))
    await hf.memories.remember(f"has {word}", user_id=user, sources=[source])
    await hf.memories.remember(f"somebody has {word}", agent="helper", sources=[source])
    assert hf.index is not None
    await hf.index.settled()


@pytest.mark.parametrize("point", ["before-commit", "before-index-commit"])
@pytest.mark.parametrize("is_erasure", [False, True], ids=["user", "message"])
async def test_an_interrupted_removal_is_completed_by_another_server(
    shared_url: str, point: str, *, is_erasure: bool
) -> None:
    """From each of its writes on, every write of the first server fails, as if it was killed. An index that is away fails nothing."""
    user = "ada" if is_erasure else NAME
    async with holdfast.open(shared_url, life=STILL) as other:
        assert other.index is not None
        for at in count(1):
            await _fill(other, user, NAME)
            ref, is_done = SessionRef(user, "s"), True
            with faults.inject(point, StoreUnavailable("killed"), at=at, times=inf) as fault:
                async with holdfast.open(shared_url, life=STILL) as killed:
                    try:
                        await (killed.erase(ref, 0) if is_erasure else killed.delete_user(user))
                    except StoreError:
                        is_done = False
            assert is_done or point != "before-index-commit"
            await other.engine.sweeper.sweep()
            await other.index.walk()
            if (point, at) == ("before-commit", 1):  # it was not recorded, so nothing was removed
                assert (await other.store.entries(ref))[0].message.content == NAME
            else:
                assert await _with_name(shared_url) == [], at
                assert (await other.index.status()).documents == (4 if is_erasure else 0), at
                assert await other.store.jobs() == ()
            await other.delete_user(user)
            if fault.hits < at:
                break
        assert at > (1 if point == "before-index-commit" else 3)
