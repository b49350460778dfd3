"""The SQLite store's own guarantees: its file, permissions, and errors of unreadable files."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import apsw
import pytest

from holdfast.errors import HoldfastError, InvalidRequest, StoreClosed, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores._worker import Worker
from holdfast.stores.indexes import open_index
from holdfast.stores.log import Append
from holdfast.stores.logic.steps import Query, Steps, do_nothing
from holdfast.stores.sql.address import parse_path
from holdfast.stores.sqlite import SLICE, Operation, Reader, Writer, read_durability
from holdfast.stores.sqlite_connection import MOST_ROWS, translate_error
from tests.contract.kit import REF, live, session, user
from tests.stores.sqlite_kit import open_file, open_once

# -- opening -----------------------------------------------------------------


def test_urls_name_files() -> None:
    """Three slashes mean a relative path, four an absolute one; memory has two spellings."""
    assert parse_path("sqlite:///chat.db") == str(Path.cwd() / "chat.db")
    assert parse_path("sqlite:///data/chat.db") == str(Path.cwd() / "data/chat.db")
    assert parse_path("sqlite:////var/lib/chat.db") == "/var/lib/chat.db"
    assert parse_path("sqlite://:memory:") == parse_path("sqlite:///:memory:") == ":memory:"


@pytest.mark.parametrize(
    "url",
    [
        *("", "chat.db", "sqlite", "sqlite:chat.db", "sqlite://", "sqlite:///", "sqlite://chat.db", "sqlite:///data/"),
        *("sqlite:///chat.db?mode=ro", "sqlite:///a\0b", "mongodb://x", "SQLITE:///chat.db", "sqlite3:///chat.db"),
    ],
)
async def test_invalid_urls_are_rejected(url: str) -> None:
    """`InvalidRequest` shows a valid form."""
    with pytest.raises(InvalidRequest, match="sqlite://"):
        await open_store(url, tenant="acme")


async def test_a_closed_store_is_a_single_file(database: Path) -> None:
    store = await open_file(database)
    await store.create(session())
    await store.close()
    assert [file.name for file in database.parent.iterdir()] == [database.name]


async def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    """The store creates files but not folders."""
    with pytest.raises(StoreUnavailable):
        await open_file(tmp_path / "missing" / "holdfast.db")


def test_durability_is_read_once_a_lock_is_released(database: Path) -> None:
    asyncio.run(open_once(database))
    other = apsw.Connection(str(database))
    other.execute("PRAGMA journal_mode=DELETE").fetchall()
    other.execute("BEGIN EXCLUSIVE")
    letting_go = threading.Timer(0.05, other.execute, ["ROLLBACK"])
    letting_go.start()
    assert read_durability(str(database)) == ("wal", 2)
    letting_go.join()
    other.close()
    database.write_text("no database " * 100)
    with pytest.raises(StoreUnavailable, match=str(database)):
        read_durability(str(database))


# -- who may read it ---------------------------------------------------------


@pytest.fixture
def generous() -> Iterator[None]:
    """A process whose new files everybody may read and write, unless it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def rights(folder: Path) -> dict[str, int]:
    """Who may read and write the files of a folder."""
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if not path.is_symlink()}


@pytest.mark.usefixtures("generous")
async def test_new_files_are_private_to_their_owner(tmp_path: Path) -> None:
    """Files of stores and indexes, SQLite's side files, and targets of dangling links."""
    store = await open_store(f"sqlite:///{tmp_path}/chat.db", tenant="acme")
    index = await open_index(f"sqlite:///{tmp_path}/chat.index.db", tenant="acme")
    await store.create(session())
    await index.keep_note("a", b"b")
    names = {f"chat{kind}.db{beside}" for kind in ("", ".index") for beside in ("", "-wal", "-shm")}
    assert rights(tmp_path) == dict.fromkeys(names, 0o600)
    await index.close()
    await store.close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link.db").symlink_to(elsewhere / "real.db")
    await (await open_store(f"sqlite:///{tmp_path}/link.db", tenant="acme")).close()
    assert rights(elsewhere) == {"real.db": 0o600}


@pytest.mark.usefixtures("generous")
async def test_an_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    """The owner may have shared it with a group; SQLite's side files get the same permissions."""
    (tmp_path / "chat.db").touch(0o660)
    store = await open_store(f"sqlite:///{tmp_path}/chat.db", tenant="acme")
    await store.create(session())
    assert rights(tmp_path) == dict.fromkeys(("chat.db", "chat.db-wal", "chat.db-shm"), 0o660)
    await store.close()


# -- errors ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        (apsw.FullError(), StoreUnavailable),
        (apsw.ReadOnlyError(), StoreUnavailable),
        (apsw.BusyError(), StoreUnavailable),
        (apsw.IOError(), StoreUnavailable),
        (apsw.CantOpenError(), StoreUnavailable),
        (apsw.CorruptError(), StoreCorrupt),
        (apsw.NotADBError(), StoreCorrupt),
        (apsw.SQLError(), StoreError),
        (RuntimeError(), StoreError),
        (OverflowError(), InvalidRequest),
    ],
)
def test_errors_are_translated(foreign: Exception, ours: type[HoldfastError]) -> None:
    """Each foreign error maps to a Holdfast error and stays its cause."""
    error = translate_error(foreign)
    assert type(error) is ours
    assert error.__cause__ is foreign


async def test_a_write_waits_for_a_locked_file(database: Path) -> None:
    """Reads do not wait."""
    store = await open_file(database)
    await store.create(session())
    other = apsw.Connection(str(database))
    other.execute("BEGIN IMMEDIATE")
    write = asyncio.create_task(store.append(REF, Append(entries=[user("a")], timestamp=2)))
    for _ in range(20):
        assert await live(store) == []
    assert not write.done()
    other.execute("COMMIT")
    other.close()
    assert (await write).version == 1
    await store.close()


# -- loops -------------------------------------------------------------------


async def test_a_closed_event_loop_does_not_affect_other_callers(database: Path) -> None:
    """A store serves several loops and keeps working when one closes before its answer arrives."""
    store = await open_file(database)
    await store.create(session())

    async def start_and_leave() -> None:
        task = asyncio.ensure_future(store.append(REF, Append(entries=[user("a")], timestamp=2)))
        await asyncio.sleep(0)
        task.cancel()

    await anyio.to_thread.run_sync(asyncio.run, start_and_leave())
    await store.append(REF, Append(entries=[user("b")], timestamp=2))
    assert (await live(store))[-1] == "b"
    await store.close()


def test_a_refused_operation_costs_only_itself() -> None:
    """Although it has changed something, the others of its batch are not run again."""
    runs: list[str] = []

    def write(name: str) -> Steps[None]:
        runs.append(name)
        yield Query("item_new", ("acme", "learned", name, 1, "", b""))
        if name == "b":
            raise StoreError(name)

    def count(name: str) -> Steps[int]:
        return len((yield Query("item_get", ("acme", "learned", name))))

    writer = Writer(":memory:")
    outcomes = writer.run([Operation(partial(write, name)) for name in "abc"])
    assert [error is None for _, error in outcomes] == [True, False, True]
    assert writer.run([Operation(partial(count, name)) for name in "abc"]) == [(1, None), (0, None), (1, None)]
    assert runs == ["a", "b", "c"]
    writer.close()


# -- operations on the event loop ------------------------------------------------


def note_work_of_threads(monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """Return the operations that are handed to threads from now on."""
    on_thread: list[Operation] = []
    submit = Worker.submit

    def note(worker: Worker[Operation, Any], operation: Operation) -> asyncio.Future[object]:
        on_thread.append(operation)
        return submit(worker, operation)

    monkeypatch.setattr(Worker, "submit", note)
    return on_thread


async def test_only_long_operations_in_memory_use_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that takes long on the event loop is undone, and runs completely on the thread."""
    store = await open_store("sqlite://:memory:", tenant="acme")
    await store.create(session())
    on_thread = note_work_of_threads(monkeypatch)
    for at in range(MOST_ROWS):
        await store.append(REF, Append(entries=[user(str(at))], timestamp=2))
    assert len(await store.entries(REF, limit=MOST_ROWS - 1)) == MOST_ROWS - 1
    on_thread.clear()  # a machine that is busy may have interrupted one of those
    assert len(await store.entries(REF)) == MOST_ROWS
    assert len(on_thread) == 1
    monkeypatch.setattr("holdfast.stores.sqlite.SLICE", -1.0)
    written = await store.append(REF, Append(entries=[user("late")], timestamp=3))
    assert (written.entries[0].seq, len(on_thread)) == (MOST_ROWS, 2)
    assert (await store.get(REF)).messages == MOST_ROWS + 1
    await store.close()
    with pytest.raises(StoreClosed):
        await store.database.read(do_nothing)


async def test_few_rows_of_a_file_are_read_without_the_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The thread reads a session or its view only if that takes long on the event loop."""
    store = await open_store(f"sqlite:///{tmp_path / 'sessions.db'}", tenant="acme")
    await store.create(session())
    await store.append(REF, Append(entries=[user("1")], timestamp=2))
    on_thread = note_work_of_threads(monkeypatch)
    monkeypatch.setattr("holdfast.stores.sqlite.SLICE", 60.0)
    assert ((await store.get(REF)).messages, on_thread) == (1, [])
    assert (len((await store.window(REF, "a view")).entries), on_thread) == (1, [])
    monkeypatch.setattr("holdfast.stores.sqlite.SLICE", -1.0)
    assert ((await store.get(REF)).messages, len(on_thread)) == (1, 1)
    assert (len((await store.window(REF, "a view")).entries), len(on_thread)) == (1, 2)
    await store.close()
    with pytest.raises(StoreClosed):
        await store.get(REF)


def test_a_read_on_the_event_loop_has_one_snapshot(monkeypatch: pytest.MonkeyPatch, database: Path) -> None:
    """Its later statements do not see what another connection has committed since the first one."""
    monkeypatch.setattr("holdfast.stores.sqlite.SLICE", 60.0)
    writer, reader = Writer(str(database)), Reader(str(database))

    def write() -> Steps[None]:
        yield Query("item_new", ("acme", "learned", "a", 1, "", b""))

    def read() -> Steps[list[int]]:
        before = yield Query("item_get", ("acme", "learned", "a"))
        writer.run([Operation(write, writing=True)])
        return [len(before), len((yield Query("item_get", ("acme", "learned", "a"))))]

    assert reader.run_briefly(Operation(read)) == ([0, 0], None)
    assert reader.run_briefly(Operation(read, single=True)) == ([1, 1], None)
    reader.close()
    writer.close()


async def test_other_tasks_run_between_operations_in_memory() -> None:
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    store = await open_store("sqlite://:memory:", tenant="acme")
    await store.create(session())
    counting = asyncio.create_task(count())
    until = time.perf_counter() + 10 * SLICE
    while time.perf_counter() < until:
        await store.get(REF)
    counting.cancel()
    assert rounds > 1
    await store.close()
