"""Plain appends by concurrent tasks, without prompts: the store beside the drivers that it uses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from time import time_ns

from benchmarks.databases import NAME, POSTGRES, open_database
from benchmarks.peers import GroupCommit, PlainStore
from benchmarks.run import Run, delete_files
from benchmarks.sessions import PLAIN, Candidate, Load
from benchmarks.tables import Column, Figure, Table, format_count, format_duration, format_ratio
from benchmarks.timing import freeze_heap, report
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, SessionRef
from holdfast.stores import open_store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from holdfast.tokens import STORED

TASKS = (50, 200)
CONNECTIONS = 10
"""Connections of raw asyncpg's pool, as many as Holdfast's."""
ROUNDS = 4
_COLUMNS = [
    Column("tasks", "tasks", format_count),
    Column("what", ""),
    Column("turns_per_second", "appends/s", format_count),
    Column("p50", "p50", format_duration),
    Column("p99", "p99", format_duration),
    Column("errors", "errors", format_count),
    Column("share", "of the driver's", format_ratio),
]
_NOTES = (
    "Each task appends one message after another to a session of its own, and waits for each commit.",
    "plain sqlite3: one thread writes all waiting messages in one transaction, with synchronous=FULL, as Holdfast does.",
    f"raw asyncpg: {CONNECTIONS} connections; a transaction that reads the last row and inserts the next one.",
    "Both drivers count the message's tokens and keep a running total, and nothing else. The database server runs on the same cores.",
)
Open = Callable[[Path, int], AbstractAsyncContextManager[Candidate]]


async def measure(run: Run) -> list[Table]:
    """Measure the store and the driver of each database in turn, and return their rates."""
    rows: list[dict[str, Figure]] = []
    for database, (driver, opens) in _CANDIDATES.items():
        for tasks in TASKS:
            report(f"appends: {tasks} tasks, {database}")
            try:
                rows += await _measure_load(run, tasks, {f"Holdfast on {database}": opens[0], driver: opens[1]})
            except OSError as exc:
                report(f"{database} is not measured: {type(exc).__name__}: {exc}")
                break
    return [
        Table(
            "appends", "Appends by concurrent tasks, each of which is durable when it returns", _COLUMNS, rows, _NOTES
        )
    ]


async def _measure_load(run: Run, tasks: int, candidates: Mapping[str, Open]) -> list[dict[str, Figure]]:
    loads = {name: Load(tasks, tasks) for name in candidates}
    seconds = 0.5 if run.quick else 2.0
    for _ in range(ROUNDS):
        for at, (name, opens) in enumerate(candidates.items()):
            async with opens(run.folder / f"appends-{at}.db", tasks) as candidate:
                await Load(tasks, tasks).run(candidate, 0.2)
                freeze_heap()
                await loads[name].run(candidate, seconds)
            delete_files(run.folder, "appends-*")
    *_, driver = loads.values()
    return [{**load.make_row(name), "share": load.rate / driver.rate} for name, load in loads.items()]


# -- the candidates ------------------------------------------------------------


@asynccontextmanager
async def _open_holdfast(url: str, tasks: int) -> AsyncIterator[Candidate]:
    store = await open_store(url, tenant="bench")
    refs = [SessionRef("bench", f"s{number}") for number in range(tasks)]
    for ref in refs:
        await store.create(NewSession(id=ref.id, user_id=ref.user_id, timestamp=_read_clock()))

    async def append(number: int, text: str) -> None:
        message = Message(role="user", content=text)
        entry = NewEntry(message=message, timestamp=_read_clock(), tokens=STORED.message(message))
        await store.append(refs[number], Append(entries=(entry,), timestamp=entry.timestamp))

    yield Candidate(append)
    await store.close()


def _open_holdfast_file(path: Path, tasks: int) -> AbstractAsyncContextManager[Candidate]:
    return _open_holdfast(f"sqlite:///{path}", tasks)


@asynccontextmanager
async def _open_holdfast_server(path: Path, tasks: int) -> AsyncIterator[Candidate]:
    async with open_database("PostgreSQL", path) as url:
        if url is None:
            raise ConnectionError("no PostgreSQL server is reachable")
        async with _open_holdfast(url, tasks) as candidate:
            yield candidate


@asynccontextmanager
async def _open_plain(path: Path, _: int) -> AsyncIterator[Candidate]:
    plain = PlainStore(path)
    group = GroupCommit(plain)
    yield Candidate(lambda number, text: group.write(partial(plain.write_message, f"s{number}", "user", text)))
    plain.raw.close()


@asynccontextmanager
async def _open_asyncpg(_: Path, tasks: int) -> AsyncIterator[Candidate]:
    import asyncpg

    name, options = f"{NAME}_appends", {"min_size": CONNECTIONS, "max_size": CONNECTIONS}
    async with asyncpg.create_pool(POSTGRES, **options, server_settings={"search_path": name}) as pool:
        await pool.execute(f"CREATE SCHEMA {name}")
        try:
            await pool.execute(
                "CREATE TABLE log (session TEXT, seq INT, total INT, message TEXT, PRIMARY KEY (session, seq))"
            )
            await pool.executemany("INSERT INTO log VALUES ($1, -1, 0, '')", [(f"s{at}",) for at in range(tasks)])

            async def append(number: int, text: str) -> None:
                message = {"role": "user", "content": text}
                tokens = STORED.message(Message(role="user", content=text))
                async with pool.acquire() as raw, raw.transaction():
                    last = await raw.fetchrow(_NEWEST, f"s{number}")
                    row = (f"s{number}", last["seq"] + 1, last["total"] + tokens, json.dumps(message))
                    await raw.execute("INSERT INTO log VALUES ($1, $2, $3, $4)", *row)

            yield Candidate(append)
        finally:
            await pool.execute(f"DROP SCHEMA {name} CASCADE")


_NEWEST = "SELECT seq, total FROM log WHERE session = $1 ORDER BY seq DESC LIMIT 1"
_CANDIDATES: Mapping[str, tuple[str, tuple[Open, Open]]] = {
    "an SQLite file": (PLAIN, (_open_holdfast_file, _open_plain)),
    "PostgreSQL": ("raw asyncpg", (_open_holdfast_server, _open_asyncpg)),
}
"""The driver of each database by name; then what opens the store, and what opens the driver."""


def _read_clock() -> int:
    return time_ns() // 1_000_000
