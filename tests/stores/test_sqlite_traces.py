"""Deleted data leave no row and no trace in the files of an SQLite store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from holdfast.domain.memory import DiaryEntry
from holdfast.domain.session import ModelCall
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.sqlite import SCRUBBING
from holdfast.stores.sqlite_connection import BusyHandler
from holdfast.stores.verify import verify
from tests.contract.kit import REF, assistant, compaction, lay, make_failed, session, user
from tests.contract.memory_kit import ANN, forget, memory, put, signal, write_recalls
from tests.stores.sqlite_kit import open_file

CANARY = "canary-7f3a9c"
SHOWN = {bytes([size % 251]) * 32: CANARY.encode() + bytes(size) for size in (5, 5_000, 300_000)}
"""Contents with it, of several sizes."""


def _traces(database: Path) -> list[str]:
    """Files beside `database` that hold the canary."""
    return [file.name for file in database.parent.iterdir() if CANARY.encode() in file.read_bytes()]


async def _busy_log(store: Store) -> int:
    """A log with a canary in it that was pinned, retired around and grown over many pages; where it stands."""
    await store.create(session())
    for at in range(30):
        await store.append(REF, Append(entries=[user("x" * (97 * at)), assistant("y" * 300)], timestamp=2))
    canary = user(CANARY + "z" * 900, metadata={"original": CANARY}, media=tuple(SHOWN))
    seq = (await store.append(REF, Append(entries=[canary], media=SHOWN, timestamp=2))).entries[0].seq
    await store.append(REF, Append(entries=[user("x" * 200) for _ in range(40)], timestamp=2))
    for other in range(seq - 6, seq + 6):
        await store.annotate(REF, other, pinned=True, importance=0.5)
    await _write_compactions(store, seq)
    for back in range(seq + 30, seq, -1):
        await store.append(REF, Append(entries=[assistant("again")], retire_from=back, timestamp=2))
    return seq


async def _write_compactions(store: Store, seq: int) -> None:
    """Compactions of every status whose range holds the entry, and which tell what it says."""
    told: dict[str, Any] = {"report": {"missing": [CANARY]}}
    for at, view in enumerate(("v", "v", "w", "x")):
        await lay(store, compaction(0, seq + at, CANARY + "s" * 5000 * at, view=view, **told))
    await store.drop_compaction(REF, 3, timestamp=3)
    await lay(store, compaction(0, seq, CANARY, error=CANARY, **told))


async def test_erase_leaves_no_trace_in_the_files(database: Path) -> None:
    """Neither in the database nor in its log, while the store is open; of metadata neither."""
    store = await open_file(database)
    seq = await _busy_log(store)
    assert _traces(database)
    await store.erase(REF, seq)
    assert _traces(database) == []
    assert await verify(store, REF) == (await store.get(REF)).tail.next_seq
    await store.close()
    assert _traces(database) == []


@pytest.mark.parametrize("size", [10, 3_000, 50_000])
async def test_delete_leaves_no_trace_in_the_files(database: Path, size: int) -> None:
    """Nor does a replace: logs, state, system messages, metadata, views, keys and calls are gone."""
    store = await open_file(database)
    for leave in (lambda: store.remove(REF), lambda: store.replace(session(), [user("other")])):
        await store.remove(REF)
        fields: dict[str, Any] = {"state": {"k": CANARY}, "metadata": {"k": CANARY}, "agent": CANARY}
        await store.create(session(system_messages=(user(CANARY).message,), **fields))
        log = [user(CANARY + "x" * size, media=tuple(SHOWN)), assistant(CANARY)]
        views = {CANARY: SavedView(0, CANARY.encode())}
        made = [ModelCall(model=CANARY, timestamp=1, view=CANARY, build=CANARY.encode())]
        write = Append(entries=log, timestamp=2, views=views, calls=made, idempotency_key=CANARY, media=SHOWN)
        await store.append(REF, write)
        await lay(store, compaction(0, 1, CANARY + "x" * size, view=CANARY), make_failed(error=CANARY))
        await store.append(REF, Append(entries=[user(CANARY)], retire_from=1, timestamp=2))
        assert _traces(database)
        await leave()
        assert _traces(database) == []
    await store.close()


async def test_delete_leaves_no_row(database: Path) -> None:
    """Every table is as empty as before."""
    store = await open_file(database)
    await _busy_log(store)
    views = {"v": SavedView(0, b"")}
    made = [ModelCall(model="m", timestamp=1)]
    await store.append(REF, Append(state_delta={"k": 1}, timestamp=2, views=views, calls=made, idempotency_key="k"))
    await store.remove(REF)
    await store.close()
    connection = apsw.Connection(str(database))
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    tables = [
        name for name in tables if not name.startswith("index_postings")
    ]  # an engine's, which has pages of its own
    rows = {name: list(connection.execute(f'SELECT * FROM "{name}"')) for name in tables}
    assert [name for name, found in rows.items() if found] == ["holdfast_schema"]
    connection.close()


async def test_data_still_being_read_are_removed_by_a_later_write(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who removes it waits a moment for the reader; those who write behind that do not."""
    waited: list[float | None] = []

    def record_wait(patience: BusyHandler, attempts: int) -> bool:
        waited.append(patience.seconds)
        return False

    store = await open_file(database)
    await store.create(session())
    await store.append(REF, Append(entries=[user(CANARY)], timestamp=2))
    reader = apsw.Connection(str(database))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchall()
    monkeypatch.setattr(BusyHandler, "__call__", record_wait)
    await store.append(REF, Append(entries=[user("a")], timestamp=2))
    assert waited == []
    await store.erase(REF, 0)
    assert waited == [SCRUBBING]
    await store.append(REF, Append(entries=[user("b")], timestamp=2))
    assert waited == [SCRUBBING, 0.0]
    assert _traces(database)
    reader.close()
    await store.append(REF, Append(entries=[user("c")], timestamp=2))
    assert _traces(database) == []
    await store.append(REF, Append(entries=[user("d")], timestamp=2))
    assert waited == [SCRUBBING, 0.0]
    await store.close()


@pytest.mark.parametrize("size", [10, 25_000])
async def test_a_forgotten_memory_leaves_no_trace_in_the_files(database: Path, size: int) -> None:
    """Nor does what it said before it was changed, nor what is dropped with recalls and diary; other memories stay."""
    store = await open_file(database)
    await put(store, *(memory("x" * 97 * at) for at in range(1, 61)))
    (one, two, three) = await put(store, *(memory(CANARY + "z" * size, tags=(CANARY,)) for _ in range(3)))
    await put(store, *(memory("y" * 97 * at) for at in range(1, 61)))
    told = DiaryEntry(id="d", at=1, report={"why": CANARY})
    await write_recalls(store, signal(two, session=CANARY), signal(three, query=CANARY.encode()))
    assert _traces(database)
    await forget(store, one, two)
    await put(store, replace(three, content="another", tags=()))
    await write_recalls(store, signals_before=99)
    await forget(store, memory())
    assert _traces(database) == []
    await write_recalls(store, signal(three, 100, session=CANARY), diary=(told,))
    assert _traces(database)
    assert await store.drop_memories(ANN) == 121
    assert _traces(database) == []
    await store.close()
    assert _traces(database) == []
