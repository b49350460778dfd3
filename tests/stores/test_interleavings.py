"""Writes of two processes on a database server, interleaved at a chosen statement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.domain.artifact import UserRef
from holdfast.domain.memory import MemoryDelta
from holdfast.errors import InvalidRequest
from holdfast.recall.base import Space, Vectored
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.indexes import open_index
from tests.contract.artifacts import artifact
from tests.contract.index_kit import SOURCE, SPACE, digest_of, feed, vector
from tests.contract.memory_kit import ANN, memory
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


@pytest.mark.parametrize(
    ("owner", "write", "drop"),
    [
        ("scope", _change_state, lambda store: store.drop_state("ann")),
        ("record_owner", _put_record, lambda store: store.drop_records(USER)),
        ("memory_owner", _remember, lambda store: store.drop_memories(ANN)),
    ],
    ids=["state", "records", "memories"],
)
async def test_a_new_owner_is_not_dropped_before_its_second_writer_is_done(
    server_url: str,
    monkeypatch: pytest.MonkeyPatch,
    owner: str,
    write: Callable[[Store, str], Awaitable[None]],
    drop: Callable[[Store], Awaitable[int]],
) -> None:
    """Another process inserts the owner after it was not found, and drops it after it was found by its insertion.

    The second writer's value is written and then dropped, and is not lost before.
    """
    store, other = [await open_store(server_url, tenant="acme") for _ in range(2)]
    dropping: list[asyncio.Future[int]] = []
    inserted: list[str] = []

    async def act(name: str) -> None:
        if name == f"{owner}_get" and not inserted:
            inserted.append(name)
            await write(other, "theirs")
        if name == f"{owner}_new":
            dropping.append(asyncio.ensure_future(drop(other)))
            await asyncio.wait(dropping, timeout=BLOCKED)

    await _interrupt(store, monkeypatch, act)
    await write(store, "ours")
    assert await dropping[0] == 2
    for one in (store, other):
        await one.close()


async def _list_blobs(store: Store) -> list[str]:
    return [one.blob for one in (await store.artifacts(USER)).artifacts]


async def test_dropped_artifacts_include_one_that_was_added_meanwhile(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content would be kept otherwise, because the caller deletes the contents of the artifacts that it gets."""
    store, other = [await open_store(server_url, tenant="acme") for _ in range(2)]
    await store.add_artifact(USER, artifact("user:a", "b1"))
    added: list[str] = []

    async def act(name: str) -> None:
        if name == "artifacts_all" and not added:
            added.append(name)
            await other.add_artifact(USER, artifact("user:a", "b2"))
            await other.add_artifact(USER, artifact("user:c", "b3"))

    await _interrupt(store, monkeypatch, act)
    dropped = await store.drop_artifacts(USER)
    assert sorted(one.blob for one in dropped) == ["b1", "b2", "b3"]
    assert await _list_blobs(other) == []
    for one in (store, other):
        await one.close()


async def test_an_artifact_that_is_being_added_is_dropped_with_its_name(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version without its name could not be found, and its number could not be given again."""
    store, other = [await open_store(server_url, tenant="acme") for _ in range(2)]
    await store.add_artifact(USER, artifact("user:a", "b1"))
    inserted, proceed = asyncio.Event(), asyncio.Event()

    async def act(name: str) -> None:
        if name == "artifact_insert":
            inserted.set()
            await proceed.wait()

    await _interrupt(other, monkeypatch, act)
    adding = asyncio.ensure_future(other.add_artifact(USER, artifact("user:a", "b2")))
    await inserted.wait()
    dropping = asyncio.ensure_future(store.drop_artifacts(USER))
    await asyncio.wait([dropping], timeout=BLOCKED)
    proceed.set()
    assert (await adding).version == 1
    assert sorted(one.blob for one in await dropping) == ["b1", "b2"]
    for blob in ("b3", "b4"):
        await store.add_artifact(USER, artifact("user:a", blob))
    assert await _list_blobs(store) == ["b4"]
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
