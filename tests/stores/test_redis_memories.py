"""Memories on Redis: their slots, traces after deletion, and outdated entries in a tenant's lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.memory import DiaryEntry, MemoryDelta, Owner
from holdfast.errors import InvalidRequest, MemoryNotFound, StoreUnavailable
from holdfast.stores.redis.keys import extract_hash_tag
from holdfast.stores.redis.records import pack
from holdfast.stores.redis.store import RedisStore
from tests.contract.memory_kit import ANN, all_of, forget, memory, put, signal, write_recalls
from tests.stores.conftest import _place
from tests.stores.redis_openings import Opening

CANARY = "canary-7f3a9c"


@pytest.fixture(params=["redis", "redis-cluster"])
def redis_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place, alone or in a cluster."""
    yield from _place(request.param, tmp_path)


@pytest.fixture
async def store(redis_url: str, opening: Opening) -> RedisStore:
    """An opened store."""
    return await opening(redis_url)


async def _dump_keys(store: RedisStore) -> dict[bytes, bytes]:
    """All keys of the place, each with its value as the server would move it elsewhere."""
    nodes, found = store.database.nodes, {}
    for names in (await nodes.call_all(b"KEYS", f"{store.database.keys.prefix}:*")).values():
        for name in names:
            dumped = await nodes.call(name, (b"DUMP", name))
            found[name] = dumped or b""
    return found


async def _traces(store: RedisStore) -> list[bytes]:
    """Keys that hold the canary; short texts, so that the server does not pack them."""
    return [name for name, value in (await _dump_keys(store)).items() if CANARY.encode() in name + value]


async def test_a_forgotten_memory_leaves_no_trace(store: RedisStore) -> None:
    """This includes earlier contents, dropped memories and the id."""
    one, two = await put(store, memory(CANARY), memory(f"{CANARY} 2", tags=(CANARY,)))
    await write_recalls(store, signal(one, session=CANARY), signal(two, session=CANARY))
    assert await _traces(store)
    await forget(store, one)
    await put(store, replace(two, content="another", tags=()))
    await store.change_memories(ANN, MemoryDelta(signals_before=99), timestamp=2)
    assert await _traces(store) == []
    assert not [name for name, value in (await _dump_keys(store)).items() if one.id.encode() in name + value]
    await write_recalls(store, signal(two, session=CANARY), diary=(DiaryEntry(id="d", at=1, report={"why": CANARY}),))
    assert await store.drop_memories(ANN) == 1
    assert await _traces(store) == []
    kept = {name.rpartition(b"}:")[2].partition(b":")[0] for name in await _dump_keys(store) if b"{" in name}
    assert kept - {b"u", b"dirty"} == {b"mo"}


async def test_a_dropped_owners_name_is_removed_from_redis(store: RedisStore) -> None:
    """It is in no key or value, nor are the user's shared values; later versions continue above the old ones."""
    ann = Owner("user", CANARY)
    made = await put(store, *(memory(str(at), ann) for at in range(3)), owner=ann)
    await store.change_state(CANARY, {"k": 1}, timestamp=1)
    assert await _traces(store)
    assert (await store.drop_memories(ann), await store.drop_state(CANARY)) == (3, 1)
    # A cluster's tenant has noted for whom was written within the last hour.
    assert [name for name in await _traces(store) if not name.endswith(b":dirty")] == []
    await store.change_memories(ann, MemoryDelta(diary=(DiaryEntry(id="d", at=1, report={}),)), timestamp=2)
    assert await store.drop_memories(ann) == 0
    (new,) = await put(store, memory("new", ann), owner=ann)
    assert (new.number > made[-1].number, new.version > made[-1].version) == (True, True)
    assert [owner for owner, _ in await store.memory_owners()] == [ann]


async def test_a_recreated_owner_stays_listed(
    store: RedisStore, opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is updated after a drop, and another client has written for the owner in between."""
    other, database = await opening(redis_url), store.database
    await put(store, memory("1"))
    discard = database._discard

    async def late(tenant: str, known: Any) -> None:
        await put(other, memory("anew"))
        await discard(tenant, known)

    monkeypatch.setattr(database, "_discard", late)
    assert await store.drop_memories(ANN) == 1
    monkeypatch.undo()
    assert [owner for owner, _ in await other.memory_owners()] == [ANN]
    assert await other.drop_memories(ANN) == 1
    assert await other.memory_owners() == ()


async def test_memories_of_an_owner_share_a_slot(store: RedisStore) -> None:
    """A user's are in the user's slot, those of agents and the tenant in the tenant's slot."""
    keys = store.database.keys
    for owner in (ANN, Owner("agent", "ann"), Owner("app")):
        before = set(await _dump_keys(store))
        (one,) = await put(store, memory("x", owner), owner=owner)
        await write_recalls(store, signal(one), owner=owner, diary=(DiaryEntry(id="d", at=1, report={}),))
        tags = {
            extract_hash_tag(name)
            for name in set(await _dump_keys(store)) - before
            if b"}:m" in name and b"}:memory" not in name
        }
        wanted = keys.user("acme", "ann").head if owner == ANN else keys.tenant("acme").memory_ids
        assert tags == {extract_hash_tag(wanted)}


async def test_index_entries_of_a_dead_process_are_ignored(store: RedisStore) -> None:
    """Owners without memories are not listed and ids without a memory not found, until they are written."""
    nodes, keys = store.database.nodes, store.database.keys.tenant("acme")
    one, bob = memory("1"), Owner("user", "bob")
    for member in (b"agent\0\1a\0\1", b"user\0\1ann\0\1", b"user\0\1bob\0\1"):
        await nodes.call(keys.memory_owners, (b"ZADD", keys.memory_owners, 0, member))
    await nodes.call(keys.memory_ids, (b"HSET", keys.memory_ids, one.id, pack(("user", "bob", b"x"))))
    assert await store.memory_owners() == ()
    with pytest.raises(MemoryNotFound):
        await store.find_memory(one.id)
    (stored,) = await put(store, one)
    assert await store.memory_owners(limit=1) == ((ANN, 2),)
    assert await store.find_memory(one.id) == stored
    with pytest.raises(InvalidRequest):
        await put(store, replace(one, owner=bob), owner=bob)
    await put(store, memory("2", bob), owner=bob)
    assert [owner for owner, _ in await store.memory_owners(limit=2)] == [ANN, bob]


async def test_a_write_fails_if_the_tenants_index_is_unavailable(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster the index is written first, so every memory can be found; removals from it may wait."""
    nodes = store.database.nodes
    if not nodes.is_cluster:
        pytest.skip("one server is told with the write")
    (one,) = await put(store, memory("1"))
    call, run, tenants = nodes.call, nodes.run, store.database.keys.tenant("acme").memory_ids

    async def down(key: bytes, command: Any, *, once: bool = False) -> Any:
        if key == tenants and command[0] == "HSET":
            raise StoreUnavailable("the tenant's server is away")
        return await call(key, command, once=once)

    async def away(script: Any, keys: Any, arguments: Any, *, once: bool) -> Any:
        if keys[0] == tenants:
            raise StoreUnavailable("the tenant's server is away")
        return await run(script, keys, arguments, once=once)

    with monkeypatch.context() as then:
        then.setattr(nodes, "call", down)
        then.setattr(nodes, "run", away)
        with pytest.raises(StoreUnavailable):
            await put(store, memory("2"))
        assert [found.content for found in await all_of(store)] == ["1"]
        assert (await forget(store, one)).total == 0
    with pytest.raises(MemoryNotFound):
        await store.find_memory(one.id)
    (again,) = await put(store, replace(one, number=0))
    assert await store.find_memory(one.id) == again


async def test_a_delayed_removal_keeps_an_id_stored_again(
    store: RedisStore, opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id stored again between its deletion and the update of the tenant's index is found."""
    other, database = await opening(redis_url), store.database
    (one,) = await put(store, memory("1"))
    discard = database._discard

    async def late(tenant: str, known: Any) -> None:
        await put(other, replace(one, number=0, content="anew"))
        await discard(tenant, known)

    monkeypatch.setattr(database, "_discard", late)
    await forget(store, one)
    assert (await other.find_memory(one.id)).content == "anew"
