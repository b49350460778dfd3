"""A million sessions of ten messages in one database, loaded in bulk: what lists, matches, appends, sweeps and a restart take then."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.corpus import make_roster
from benchmarks.databases import DATABASES, MYSQL, POSTGRES, open_database
from benchmarks.many import PAGE, run_each, time_pages
from benchmarks.matching import store_own, time_requests
from benchmarks.peers import BUDGET
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration
from benchmarks.timing import Samples, clock, freeze_heap, report
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, SessionRef
from holdfast.holdfast import Holdfast
from holdfast.stores import open_store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession

TEMPLATES, LENGTH, COPIES, AT_ONCE = 1_000, 10, 1_000, 20
"""Sessions written by the store, their messages, how often each is copied by SQL, and how many copies one statement makes."""
SHARES = 100
"""Users that have the copies of one session between them."""
EXPIRED = 0.01
"""Share of the copies that has been idle for longer than the server allows; at least one copy of each session."""
DAY, MINUTE = 86_400_000, 60_000
_COLUMNS = [
    Column("what", ""),
    Column("sessions", "sessions", format_count),
    Column("load", "bulk load", format_duration),
    Column("reopened", "opened after kill -9", format_duration),
    Column("list_first", "first page", format_duration),
    Column("list_middle", "middle page", format_duration),
    Column("list_user", "page of a user", format_duration),
    Column("continued", "match, continued", format_duration),
    Column("new", "match, new", format_duration),
    Column("append", "append, p50", format_duration),
    Column("append_p99", "p99", format_duration),
    Column("window", "window, p50", format_duration),
    Column("overview", "overview page", format_duration),
    Column("swept", "swept", format_count),
    Column("sweep", "sweep", format_duration),
]
_NOTES = (
    f"{TEMPLATES:,} sessions of {LENGTH} messages are written by the store, then copied by SQL, with other names, users, times and digests.",
    "append, window: in sessions chosen at random. There is no search index. Database servers run with their default settings.",
    "opened after kill -9: from opening the store to the first answer, after a process was killed that appended all the time.",
)
_DIALECTS: Final[Mapping[str, Mapping[str, str]]] = {
    "SQLite file": {
        "named": "{column} || '-' || {number}",
        "bytes": "randomblob(32)",
        "number": "random()",
        "into": "",
    },
    "PostgreSQL": {
        "named": "{column} || convert_to('-' || {number}, 'UTF8')",
        "bytes": "sha256(convert_to(random()::text || pk || n.k, 'UTF8'))",
        "number": "((random() - 0.5) * 1.8e19)::bigint",
        "into": " OVERRIDING SYSTEM VALUE",
    },
    "MariaDB": {
        "named": "CONCAT({column}, '-', {number})",
        "bytes": "UNHEX(SHA2(CONCAT(RAND(), pk, n.k), 256))",
        "number": "CAST((RAND() - 0.5) * 1.8e19 AS SIGNED)",
        "into": "",
    },
}
Execute = Callable[[str], Awaitable[Sequence[str]]]
"""Runs a statement and returns the names of its columns, if it has any."""


async def measure(run: Run) -> list[Table]:
    """Load and measure one database after another."""
    rows = list[dict[str, Figure]]()
    for name in DATABASES:
        async with open_database(name, run.folder) as url:
            if url is not None:
                rows.append({"what": name, **await _measure_database(run, name, url)})
        delete_files(run.folder, "servers.db*")
    return [Table("millions", "A million sessions and ten million messages in one database", _COLUMNS, rows, _NOTES)]


async def _measure_database(run: Run, name: str, url: str) -> dict[str, Figure]:
    copies = COPIES // 100 if run.quick else COPIES
    report(f"millions: {name}, bulk load of {TEMPLATES * copies:,} sessions")
    started = clock()
    async with _open(url) as hf:
        await _store_templates(hf)
        now = hf.clock()
    await _copy_templates(name, url, now, copies)
    figures: dict[str, Figure] = {"sessions": TEMPLATES * (copies + 1) + 1, "load": clock() - started}
    report(f"millions: {name} is loaded")
    figures["reopened"] = await _time_restart(url)
    async with _open(url) as hf:
        await store_own(hf)
        freeze_heap()
        figures |= await _time_lists(hf, copies)
        figures |= await time_requests(hf)
        figures |= await _time_sessions(hf, copies)
        figures |= await time_pages(hf) if name != "MariaDB" else {}
        freeze_heap()
        started = clock()
        swept = await hf.sweep()
        figures |= {"sweep": clock() - started, "swept": swept.expired}
    return figures


def _open(url: str) -> Holdfast:
    settings: dict[str, Any] = {"max_sessions": 0, "session_ttl": "24h", "index": None}
    return Holdfast(url, roster=make_roster("token_window", BUDGET), **settings)


# -- the bulk load -----------------------------------------------------------------


async def _store_templates(hf: Holdfast) -> None:
    now = hf.clock()

    async def make(number: int) -> None:
        messages = [
            Message(role="user" if at % 2 == 0 else "assistant", content=_make_text(number, at)) for at in range(LENGTH)
        ]
        new = [NewEntry(message=one, tokens=30, timestamp=now) for one in messages]
        await hf.store.replace(NewSession(id=f"s{number}", user_id=f"u{number}", timestamp=now), new)

    await run_each(TEMPLATES, make)


def _make_text(number: int, at: int) -> str:
    return f"Message {at} of session {number}: the order was sent on Monday and should arrive at your address today."


async def _copy_templates(name: str, url: str, now: int, copies: int) -> None:
    """Insert copies of the sessions that the store has written, and of their entries."""
    execute, close = await _connect(name, url)
    text = _DIALECTS[name]
    old = now - 2 * DAY
    idle = f"CASE WHEN n.k > {copies - _count_expired(copies)} THEN {old} ELSE {now} - n.k * {MINUTE} END"
    of_sessions = {
        "pk": f"pk + n.k * {2 * TEMPLATES}",
        "id": text["named"].format(column="id", number="n.k"),
        "identity": text["named"].format(column="identity", number="n.k"),
        "user_id": text["named"].format(column="user_id", number=f"(n.k % {SHARES})"),
        "digest": text["bytes"],
        **dict.fromkeys(("created_at", "updated_at", "accessed_at"), idle),
    }
    of_entries = {
        "session": f"session + n.k * {2 * TEMPLATES}",
        "mark": f"CASE WHEN mark IS NULL THEN NULL ELSE {text['number']} END",
        "alias": f"CASE WHEN alias IS NULL THEN NULL ELSE {text['number']} END",
    }
    await _prepare(name, execute)
    for first in range(1, copies + 1, AT_ONCE):
        numbers = " UNION ALL ".join(f"SELECT {k} AS k" for k in range(first, min(first + AT_ONCE, copies + 1)))
        for table, changed, key in (("sessions", of_sessions, "pk"), ("entries", of_entries, "session")):
            columns = await execute(f"SELECT * FROM {table} WHERE 1 = 0")
            columns = [column for column in columns if table == "sessions" or column != "pk"]
            values = ", ".join(changed.get(column, column) for column in columns)
            into = f"INSERT INTO {table} ({', '.join(columns)}){text['into'] if table == 'sessions' else ''}"
            live = "" if table == "sessions" else " AND retired_by IS NULL"  # lets the index of live entries serve
            await execute(f"{into} SELECT {values} FROM {table}, ({numbers}) AS n WHERE {key} <= {2 * TEMPLATES}{live}")
    await _finish(name, execute, 2 * TEMPLATES * (copies + 1))
    await close()


def _count_expired(copies: int) -> int:
    return max(1, round(copies * EXPIRED))


_MARKS: Final = ("mark", "alias")
"""Columns of random numbers: their indexes are built after the load, in order."""


async def _prepare(name: str, execute: Execute) -> None:
    if name == "PostgreSQL":
        await execute("SET synchronous_commit = off")
    for column in _MARKS:
        await execute(f"DROP INDEX entries_{column}" + (" ON entries" if name == "MariaDB" else ""))


async def _finish(name: str, execute: Execute, last: int) -> None:
    for column in _MARKS:
        partial = "" if name == "MariaDB" else f" WHERE {column} IS NOT NULL"
        await execute(f"CREATE INDEX entries_{column} ON entries ({column}, session, seq){partial}")
    if name == "PostgreSQL":
        await execute(f"SELECT setval(pg_get_serial_sequence('sessions', 'pk'), {last + 1})")
    if name != "SQLite file":
        await execute("ANALYZE TABLE sessions, entries" if name == "MariaDB" else "ANALYZE")


async def _connect(name: str, url: str) -> tuple[Execute, Callable[[], Awaitable[None]]]:
    """Return a function that runs statements on the database's own driver, and one that closes the connection."""
    if name == "SQLite file":
        plain = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
        plain.executescript("PRAGMA synchronous = OFF; PRAGMA cache_size = -500000")

        async def run_plain(sql: str) -> list[str]:
            found = await asyncio.to_thread(plain.execute, sql)
            return [column[0] for column in found.description or ()]

        return run_plain, lambda: asyncio.to_thread(plain.close)
    if name == "PostgreSQL":
        import asyncpg

        raw = await asyncpg.connect(POSTGRES, server_settings={"search_path": url.rpartition("=")[2]})

        async def run_asyncpg(sql: str) -> list[str]:
            if not sql.startswith("SELECT *"):
                await raw.execute(sql)
                return []
            return [one.name for one in (await raw.prepare(sql)).get_attributes()]

        return run_asyncpg, raw.close
    import asyncmy

    database = urlsplit(url).path[1:]
    joined = await asyncmy.connect(host=MYSQL[0], port=MYSQL[1], user="root", db=database, autocommit=True)

    async def run_asyncmy(sql: str) -> list[str]:
        async with joined.cursor() as cursor:
            await cursor.execute(sql)
            return [column[0] for column in cursor.description or ()]

    return run_asyncmy, joined.ensure_closed


# -- what is timed -----------------------------------------------------------------


async def _time_restart(url: str) -> float:
    """Kill a process that appends, and return how long opening the store and reading a session take then."""
    code = f"import asyncio; from benchmarks.millions import append_endlessly; asyncio.run(append_endlessly({url!r}))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    await asyncio.sleep(1)
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    await process.wait()
    started = clock()
    store = await open_store(url, tenant="default")
    await store.get(SessionRef("u1", "s1"))
    took = clock() - started
    await store.close()
    return took


async def append_endlessly(url: str) -> None:
    """Append to the sessions that the store has written, until the process is killed; print a line after the first append."""
    store, number = await open_store(url, tenant="default"), 0
    while True:
        number += 1
        await _append(store, SessionRef(f"u{number % TEMPLATES}", f"s{number % TEMPLATES}"))
        if number == 1:
            print("appending", flush=True)  # the other process waits for it


async def _append(store: Any, ref: SessionRef) -> None:
    entry = NewEntry(message=Message(role="user", content="Where is my order now?"), tokens=10, timestamp=1)
    await store.append(ref, Append(entries=(entry,), timestamp=(await store.get(ref)).updated_at + 1))


async def _time_lists(hf: Holdfast, copies: int) -> dict[str, Figure]:
    middle = _choose(random.Random(1), copies // 2, copies // 2)
    pages: dict[str, dict[str, Any]] = {
        "list_first": {},
        "list_middle": {"after": middle},
        "list_user": {"user_id": middle.user_id},
    }
    figures: dict[str, Figure] = {}
    for name, options in pages.items():
        times = list[float]()
        for _ in range(20):
            started = clock()
            page = await hf.store.list(limit=PAGE, **options)
            times.append(clock() - started)
            assert page.sessions, "the sessions are there"
        figures[name] = Samples(times).median
    return figures


async def _time_sessions(hf: Holdfast, copies: int) -> dict[str, Figure]:
    appends, windows, choose = list[float](), list[float](), random.Random(2)
    for _ in range(500):
        ref = _choose(choose, 1, copies - _count_expired(copies))
        started = clock()
        read = await hf.store.window(ref, None)
        windows.append(clock() - started)
        entry = NewEntry(message=Message(role="user", content="Where is it now?"), tokens=10, timestamp=1)
        write = Append(entries=(entry,), timestamp=read.session.updated_at + 1)
        started = clock()
        await hf.store.append(ref, write)
        appends.append(clock() - started)
    found = Samples(appends)
    return {"append": found.median, "append_p99": found.quantile(0.99), "window": Samples(windows).median}


def _choose(choose: random.Random, first: int, last: int) -> SessionRef:
    """Return a copy of a session, whose number is at least `first` and at most `last`."""
    copy, number = choose.randint(first, last), choose.randrange(TEMPLATES)
    return SessionRef(f"u{number}-{copy % SHARES}", f"s{number}-{copy}")
