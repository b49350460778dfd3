"""Writes of two processes on a database server, interleaved at a chosen statement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.domain.artifact import Artifact, Scope, UserRef
from holdfast.domain.memory import MemoryDelta
from holdfast.errors import InvalidRequest
from holdfast.recall.base import Space, Vectored
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.indexes import open_index
from tests.contract.artifacts import artifact
from tests.contract.index_kit import SOURCE, SPACE, digest_of, feed, vector
from tests.contract.kit import REF, session
from tests.contract.memory_kit import ANN, memory
from tests.contract.records import SPACE as RECORDS
from tests.contract.records import put

USER = UserRef("ann")
BLOCKED = 0.5
"""Seconds after which a write that has not ended waits for a lock."""


async def _interrupt(store: Any, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], Awaitable[None]]) -> None:
    """Call `act` with the name of each statement that the next writes have run, before the following one is run."""
    database: Any = store.database
    line = await database._pool.acquire()
    query = line.query

    async def run(name: str, params: Any) -> Any:
        rows = await query(name, params)
        await act(name)
        return rows

    monkeypatch.setattr(line, "query", run)
    database._pool.release(line)


async def _change_state(store: Store, key: str) -> None:
    await store.change_state("ann", {key: 1}, timestamp=2)


async def _put_record(store: Store, key: str) -> None:
    await store.change_records(USER, [put(key)], timestamp=2)


async def _remember(store: Store, content: str) -> None:
    await store.change_memories(ANN, MemoryDelta(put=(memory(content),)), timestamp=2)


OWNERS = pytest.mark.parametrize(
    ("write", "drop", "read"),
    [
        (_change_state, lambda store: store.drop_state("ann"), lambda store: store.state("ann")),
        (_put_record, lambda store: store.drop_records(USER), lambda store: store.list_records(USER, RECORDS, now=1)),
        (_remember, lambda store: store.drop_memories(ANN), lambda store: store.memories(ANN)),
    ],
    ids=["state", "records", "memories"],
)
Write = Callable[[Store, str], Awaitable[None]]


@OWNERS
async def test_an_owner_is_not_dropped_before_its_first_writer_is_done(
    server_url: str,
    monkeypatch: pytest.MonkeyPatch,
    write: Write,
    drop: Callable[[Store], Awaitable[int]],
    read: Callable[[Store], Awaitable[Any]],
) -> None:
    """The value of a writer that has the owner's row is written and then dropped, and is not lost before."""
    store, other = [await open_store(server_url, tenant="acme") for _ in range(2)]
    dropping: list[asyncio.Future[int]] = []
    if not server_url.startswith("mysql"):
        await write(other, "theirs")

    async def act(name: str) -> None:
        if name == "owner_take_row" and not dropping:
            await write(other, "theirs")  # the row was not there for the first writer
        if name == "owner_take":
            dropping.append(asyncio.ensure_future(drop(other)))
            await asyncio.wait(dropping, timeout=BLOCKED)

    await _interrupt(store, monkeypatch, act)
    await write(store, "ours")
    assert await dropping[0] == 2
    for one in (store, other):
        await one.close()


@OWNERS
async def test_a_write_waits_for_a_drop_and_continues_above_its_versions(
    server_url: str,
    monkeypatch: pytest.MonkeyPatch,
    write: Write,
    drop: Callable[[Store], Awaitable[int]],
    read: Callable[[Store], Awaitable[Any]],
) -> None:
    """The owner's row is deleted when it is wanted, but not for sure yet: it is created again, with no version of the old one."""
    store, other = [await open_store(server_url, tenant="acme") for _ in range(2)]
    for key in "abc":
        await write(store, key)
    version = (await read(store)).version
    deleted, proceed = asyncio.Event(), asyncio.Event()

    async def act(name: str) -> None:
        if name == "owner_delete":
            deleted.set()
            await proceed.wait()

    await _interrupt(other, monkeypatch, act)
    dropping = asyncio.ensure_future(drop(other))
    await deleted.wait()
    writing = asyncio.ensure_future(write(store, "d"))
    await asyncio.wait([writing], timeout=BLOCKED)
    assert not writing.done()
    proceed.set()
    assert await dropping == 3
    await writing
    assert (await read(store)).version > version
    assert await drop(store) == 1
    for one in (store, other):
        await one.close()


@pytest.mark.parametrize("scope", [REF, USER])
async def test_artifacts_are_added_before_or_after_others_are_dropped(
    server_url: str, monkeypatch: pytest.MonkeyPatch, scope: Scope
) -> None:
    """The caller deletes the contents of the artifacts that it gets, so none of them may be missing or added meanwhile."""
    store, other = [await open_store(server_url, tenant="acme") for _ in range(2)]
    await store.create(session())
    name = "user:a" if scope is USER else "a"
    await store.add_artifact(scope, artifact(name, "b1"))
    adding: list[asyncio.Future[Artifact]] = []

    async def act(statement: str) -> None:
        if statement == "artifacts_all":
            adding.append(asyncio.ensure_future(other.add_artifact(scope, artifact(name, "b2"))))
            await asyncio.wait(adding, timeout=BLOCKED)

    await _interrupt(store, monkeypatch, act)
    assert [one.blob for one in await store.drop_artifacts(scope)] == ["b1"]
    assert (await adding[0]).version == 0
    assert [one.blob for one in (await store.artifacts(scope)).artifacts] == ["b2"]
    for one in (store, other):
        await one.close()


async def test_vectors_of_a_model_that_another_process_creates_are_checked(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors with other dimensions are refused, although the model did not exist when they were checked first."""
    index, other = [await open_index(server_url, tenant="acme") for _ in range(2)]
    for space in (SPACE, Space("talk", "bob")):
        await feed(index, "x", space=space)
    created: list[str] = []

    async def act(name: str) -> None:
        if name == "index_models" and not created:
            created.append(name)
            await other.put_vectors(Space("talk", "bob"), SOURCE, "m", [Vectored(0, digest_of("x"), vector(1, 2, 3))])

    await _interrupt(index, monkeypatch, act)
    with pytest.raises(InvalidRequest, match="with 3 dimensions, not 2"):
        await index.put_vectors(SPACE, SOURCE, "m", [Vectored(0, digest_of("x"), vector(1, 2))])
    assert (await other.status()).vectors == {"m": 1}
    for one in (index, other):
        await one.close()
