"""What only the SQLite store promises: its file, its plans, what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import resource
import stat
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import apsw
import pytest

from holdfast.domain.messages import encode_payload
from holdfast.domain.session import ModelCall, SessionRef
from holdfast.errors import HoldfastError, InvalidRequest, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.base import Append, SavedView, Store
from holdfast.stores.indexes import open_index
from holdfast.stores.sql import migrations, statements
from holdfast.stores.sql.address import path_of
from holdfast.stores.sqlite_connection import translated
from holdfast.stores.verify import verify
from holdfast.testing.contract.kit import REF, assistant, compaction, failed, lay, live, session, user

ON_A_TURNS_PATH = (
    "session_get",
    "session_advance",
    "entry_insert",
    "entries_retire",
    "entries_count_from",
    "entries_among",
    "entry_live",
    "entry_is_live",
    "live_forward",
    "live_backward",
    "last_not_result",
    "last_visible",
    "view_get",
    "view_put",
    "views_delete",
    "idempotency_get",
    "idempotency_put",
    "call_insert",
    "calls_newest",
    "calls_of_turn",
    "compaction_next",
    "compaction_live",
    "compaction_insert",
    "compaction_supersede",
    "compaction_get",
    "compactions_retire",
    "compactions_list",
    "lease_put",
    "lease_get",
    "leases_clean",
    "learned_get",
    "learned_put",
    "profile_put",
    "mark_last",
    "mark_places",
    "alias_last",
    "alias_places",
    "session_claim",
    "claim_want",
    "media_known",
    "media_get",
    "media_put",
    "media_use",
    "media_of",
    "media_uses_drop",
    "scope_get",
    "scope_new",
    "scope_put",
    "state_named",
    "state_read",
    "state_read_named",
    "state_put",
    "state_drop",
    "media_drop_unused",
    "key_of_hash",
    "key_use",
)
NO_SCANS = ("CONSTANT ROW", "json_each VIRTUAL TABLE")
"""What a plan calls a scan of its own parameters."""


async def opened(database: Path) -> Store:
    """The store in the file `database`."""
    return await open_store(f"sqlite:///{database}", tenant="acme")


# -- opening -----------------------------------------------------------------


def test_urls_name_files() -> None:
    """Three slashes are relative, four absolute; memory has two spellings."""
    assert path_of("sqlite:///chat.db") == str(Path.cwd() / "chat.db")
    assert path_of("sqlite:///data/chat.db") == str(Path.cwd() / "data/chat.db")
    assert path_of("sqlite:////var/lib/chat.db") == "/var/lib/chat.db"
    assert path_of("sqlite://:memory:") == path_of("sqlite:///:memory:") == ":memory:"


@pytest.mark.parametrize(
    "url",
    [
        *("", "chat.db", "sqlite", "sqlite:chat.db", "sqlite://", "sqlite:///", "sqlite://chat.db", "sqlite:///data/"),
        *("sqlite:///chat.db?mode=ro", "sqlite:///a\0b", "mongodb://x", "SQLITE:///chat.db", "sqlite3:///chat.db"),
    ],
)
async def test_urls_that_are_none(url: str) -> None:
    """`InvalidRequest` shows what is meant."""
    with pytest.raises(InvalidRequest, match="sqlite://"):
        await open_store(url, tenant="acme")


async def test_an_opened_file_is_as_it_was_left(database: Path) -> None:
    """Closing leaves one file; opening it again finds everything."""
    store = await opened(database)
    await store.create(session(state={"k": 1}))
    await store.append(REF, Append(entries=[user("a")], timestamp=2, views={"v": SavedView(0, b"v")}))
    before = await store.window(REF, "v")
    await store.close()
    assert [file.name for file in database.parent.iterdir()] == [database.name]
    store = await opened(database)
    assert await store.window(REF, "v") == before
    await store.close()


async def test_many_openings_of_a_new_file_at_once(database: Path) -> None:
    """The schema is made once, and all can write."""
    stores = await asyncio.gather(*(opened(database) for _ in range(8)))
    await stores[0].create(session())
    await asyncio.gather(*(store.append(REF, Append(entries=[user("a")], timestamp=2)) for store in stores))
    assert (await stores[0].get(REF)).messages == 8
    for store in stores:
        await store.close()


def _other_program(database: Path) -> None:
    connection = apsw.Connection(str(database))
    connection.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
    connection.close()


def _newer_schema(database: Path) -> None:
    asyncio.run(_close_after_opening(database))
    connection = apsw.Connection(str(database))
    connection.execute("INSERT INTO holdfast_migrations VALUES (9999, 'future', '')")
    connection.close()


def _edited_schema(database: Path) -> None:
    asyncio.run(_close_after_opening(database))
    connection = apsw.Connection(str(database))
    connection.execute("UPDATE holdfast_migrations SET checksum = 'other'")
    connection.close()


async def _close_after_opening(database: Path) -> None:
    await (await opened(database)).close()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda database: database.write_text("no database\n" * 100), "is not an SQLite database"),
        (lambda database: database.mkdir(), "SQLite"),
        (_other_program, "another program"),
        (_newer_schema, "newer release"),
        (_edited_schema, "another schema 1"),
    ],
)
def test_files_that_are_refused(database: Path, spoil: object, says: str) -> None:
    """`StoreUnavailable` says why, the file stays as it was, and no thread is left."""
    spoil(database)  # type: ignore[operator]
    before = database.read_bytes() if database.is_file() else b""
    with pytest.raises(StoreUnavailable, match=says):
        asyncio.run(_close_after_opening(database))
    assert (database.read_bytes() if database.is_file() else b"") == before
    assert _store_threads() == []


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """`StoreUnavailable`; the store makes files, not folders."""
    with pytest.raises(StoreUnavailable):
        await opened(tmp_path / "missing" / "holdfast.db")


# -- schema and plans --------------------------------------------------------


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
async def test_new_files_are_their_owners_alone(tmp_path: Path) -> None:
    """The store's and an index's, with what SQLite keeps beside them; also at the end of a link that leads nowhere yet."""
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
async def test_a_file_that_is_there_keeps_its_rights(tmp_path: Path) -> None:
    """Whoever shares one with a group has said so; what SQLite keeps beside it has the same."""
    (tmp_path / "chat.db").touch(0o660)
    store = await open_store(f"sqlite:///{tmp_path}/chat.db", tenant="acme")
    await store.create(session())
    assert rights(tmp_path) == dict.fromkeys(("chat.db", "chat.db-wal", "chat.db-shm"), 0o660)
    await store.close()


def test_statements_and_migrations_are_named() -> None:
    """Numbers have no gap, and every statement has a purpose."""
    assert [migration.number for migration in migrations("sqlite")] == list(range(1, len(migrations("sqlite")) + 1))
    assert all(re.match(r"(SELECT|INSERT|UPDATE|DELETE)\b", sql) for sql in statements("sqlite").values())


async def scans(database: Path, name: str) -> list[str]:
    """The steps of SQLite's own plan for a statement that say SCAN, or sort."""
    await _close_after_opening(database)
    connection = apsw.Connection(str(database))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    sql = statements("sqlite")[name]
    count = max((int(number) for number in re.findall(r"\?(\d+)", sql)), default=0)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * count)]
    connection.close()
    plan = [step for step in plan if not any(harmless in step for harmless in NO_SCANS)]
    return [step for step in plan if step.startswith("SCAN") or "TEMP B-TREE" in step]


@pytest.mark.parametrize("name", ON_A_TURNS_PATH)
async def test_no_statement_of_a_turn_scans(database: Path, name: str) -> None:
    """SQLite's own plan says SEARCH, never SCAN or a sort."""
    assert await scans(database, name) == []


@pytest.mark.parametrize("name", ["list_newest", "list_oldest", "list_newest_of_user", "list_oldest_of_user"])
async def test_lists_are_read_in_index_order(database: Path, name: str) -> None:
    """A page is read from an index, without sorting."""
    assert await scans(database, name) == []


@pytest.mark.parametrize("name", ["log_forward", "log_backward"])
async def test_the_long_way_round_is_merged_not_sorted(database: Path, name: str) -> None:
    """Live and retired entries are read in order from their two indexes."""
    assert await scans(database, name) == []


async def _fill(database: Path) -> int:
    """Twenty sessions of a hundred messages; the size of their JSON."""
    store, size = await opened(database), 0
    for number in range(20):
        ref = SessionRef("ann", f"session-{number}")
        await store.create(session(ref))
        for at in range(50):
            entries = [user(f"{at} " + "word " * 90), assistant(f"{at} " + "word " * 95)]
            size += sum(len(encode_payload(entry.message)) for entry in entries)
            await store.append(ref, Append(entries=entries, timestamp=1_700_000_000_000 + at))
    await store.close()
    return size


def test_a_message_takes_little_more_than_its_json(database: Path) -> None:
    """At most 1.3 times the bytes of the messages as JSON, beyond what the file takes without any."""
    asyncio.run(_close_after_opening(database))
    empty = database.stat().st_size
    size = asyncio.run(_fill(database))
    assert database.stat().st_size - empty <= 1.3 * size


# -- what goes, goes ---------------------------------------------------------

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
    await _told_of(store, seq)
    for back in range(seq + 30, seq, -1):
        await store.append(REF, Append(entries=[assistant("again")], retire_from=back, timestamp=2))
    return seq


async def _told_of(store: Store, seq: int) -> None:
    """Compactions of every status whose range holds the entry, and which tell what it says."""
    told: dict[str, Any] = {"report": {"missing": [CANARY]}}
    for at, view in enumerate(("v", "v", "w", "x")):
        await lay(store, compaction(0, seq + at, CANARY + "s" * 5000 * at, view=view, **told))
    await store.drop_compaction(REF, 3, timestamp=3)
    await lay(store, compaction(0, seq, CANARY, error=CANARY, **told))


async def test_erase_leaves_no_trace_in_the_files(database: Path) -> None:
    """Neither in the database nor in its log, while the store is open; of metadata neither."""
    store = await opened(database)
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
    store = await opened(database)
    for leave in (lambda: store.delete(REF), lambda: store.replace(session(), [user("other")])):
        await store.delete(REF)
        fields: dict[str, Any] = {"state": {"k": CANARY}, "metadata": {"k": CANARY}, "agent": CANARY}
        await store.create(session(system_messages=(user(CANARY).message,), **fields))
        log = [user(CANARY + "x" * size, media=tuple(SHOWN)), assistant(CANARY)]
        views = {CANARY: SavedView(0, CANARY.encode())}
        made = [ModelCall(model=CANARY, timestamp=1, view=CANARY, build=CANARY.encode())]
        write = Append(entries=log, timestamp=2, views=views, calls=made, idempotency_key=CANARY, media=SHOWN)
        await store.append(REF, write)
        await lay(store, compaction(0, 1, CANARY + "x" * size, view=CANARY), failed(error=CANARY))
        await store.append(REF, Append(entries=[user(CANARY)], retire_from=1, timestamp=2))
        assert _traces(database)
        await leave()
        assert _traces(database) == []
    await store.close()


async def test_delete_leaves_no_row(database: Path) -> None:
    """Every table is as empty as before."""
    store = await opened(database)
    await _busy_log(store)
    views = {"v": SavedView(0, b"")}
    made = [ModelCall(model="m", timestamp=1)]
    await store.append(REF, Append(state_delta={"k": 1}, timestamp=2, views=views, calls=made, idempotency_key="k"))
    await store.delete(REF)
    await store.close()
    connection = apsw.Connection(str(database))
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    tables = [
        name for name in tables if not name.startswith("index_postings")
    ]  # an engine's, which has pages of its own
    rows = {name: list(connection.execute(f'SELECT * FROM "{name}"')) for name in tables}
    assert [name for name, found in rows.items() if found] == ["holdfast_migrations"]
    connection.close()


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
    """Each foreign error has its place in the tree, and stays the cause."""
    error = translated(foreign)
    assert type(error) is ours
    assert error.__cause__ is foreign


async def test_a_file_that_another_holds_is_waited_for(database: Path) -> None:
    """A write waits for the other's transaction, reads do not."""
    store = await opened(database)
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


async def test_a_file_that_another_never_lets_go(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the end `StoreUnavailable`; all that waited are told, and the store goes on when the file is free."""
    store = await opened(database)
    await store.create(session())
    other = apsw.Connection(str(database))
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("holdfast.stores.sqlite_connection.PATIENCE", 0.01)
    writes = [store.append(REF, Append(entries=[user("a")], timestamp=2)) for _ in range(5)]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 5
    with pytest.raises(StoreUnavailable):
        await store.ping()
    other.execute("COMMIT")
    other.close()
    await store.ping()
    assert (await store.get(REF)).version == 0
    await store.close()


async def test_a_commit_that_fails_fails_all_of_its_batch(database: Path) -> None:
    """Nobody is told that a write is done before it is: the session stays as it was for all of them."""
    store = await opened(database)
    await store.create(session())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = [store.append(REF, Append(entries=[user("b" * 200_000)], timestamp=2)) for _ in range(20)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 * 1024, hard))
    try:
        outcomes = await asyncio.gather(*large, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
    assert (await store.get(REF)).version == 0
    await store.close()


async def test_a_disk_that_is_full(database: Path) -> None:
    """Writes fail with `StoreUnavailable`, reads go on, and with room again writes do too."""
    store = await opened(database)
    await store.create(session())
    await store.append(REF, Append(entries=[user("a")], timestamp=2))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    try:
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.append(REF, Append(entries=[user("b" * 1024 * 1024)], timestamp=2))
        assert await live(store) == ["a"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.append(REF, Append(entries=[user("c")], timestamp=2))
    assert await live(store) == ["a", "c"]
    assert await verify(store, REF) == 2
    await store.close()


async def _read_all(database: Path) -> None:
    store = await opened(database)
    try:
        await store.entries(REF)
    finally:
        await store.close()


async def _write_much(database: Path) -> None:
    store = await opened(database)
    await store.create(session())
    await store.append(REF, Append(entries=[user("a" * 500) for _ in range(500)], timestamp=2))
    await store.close()


def test_a_damaged_file(database: Path) -> None:
    """Reading it is `StoreCorrupt` or `StoreUnavailable`, never a foreign error."""
    asyncio.run(_write_much(database))
    whole = database.read_bytes()
    database.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    with pytest.raises(StoreError):
        asyncio.run(_read_all(database))


# -- leaks -------------------------------------------------------------------


def _store_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


async def test_a_forgotten_store_says_so_and_ends(url: str) -> None:
    """`ResourceWarning`, and its threads and connections go."""
    store: Store | None = await open_store(url, tenant="acme")
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("holdfast")]
    assert threads or not url.startswith("sqlite")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = None
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning]
    assert store is None
    for thread in threads:
        thread.join(timeout=10)
    assert _store_threads() == []


async def test_a_caller_whose_loop_ended_is_nobodys_trouble(database: Path) -> None:
    """A store serves any loop, and goes on when one of them is closed with an answer on its way."""
    store = await opened(database)
    await store.create(session())

    async def start_and_leave() -> None:
        task = asyncio.ensure_future(store.append(REF, Append(entries=[user("a")], timestamp=2)))
        await asyncio.sleep(0)
        task.cancel()

    await anyio.to_thread.run_sync(asyncio.run, start_and_leave())
    await store.append(REF, Append(entries=[user("b")], timestamp=2))
    assert (await live(store))[-1] == "b"
    await store.close()
