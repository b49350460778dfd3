"""Concurrent sessions on each kind of database, one process compared with two, and the time of a turn by session length."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.corpus import SampleSession, make_roster, make_text, wait_for_index
from benchmarks.databases import DATABASES, NAME, POSTGRES, open_database
from benchmarks.peers import BUDGET, LIMIT, run_agents_turn, to_items
from benchmarks.run import Run, delete_files
from benchmarks.sessions import ENTRIES, Candidate, Load, Turn
from benchmarks.tables import Column, Figure, Table, format_count, format_duration, format_ratio
from benchmarks.timing import clock, freeze_heap, report
from benchmarks.turn import ANSWER
from holdfast.domain.messages import Message
from holdfast.holdfast import Holdfast
from holdfast.tokens import STORED
from holdfast.wire.openai import to_chat_message

TASKS = 50
LENGTHS = (10, 1_000, 10_000)
AGENTS = "SQLAlchemySession on PostgreSQL"
ADK = "ADK DatabaseSessionService on SQLite"
PLAIN = "raw asyncpg on PostgreSQL"
CONNECTIONS = 10
"""Connections of raw asyncpg's pool: the default, and the fastest setting here."""
_LOAD_COLUMNS = [
    Column("what", ""),
    Column("turns_per_second", "turns/s", format_count),
    Column("p50", "p50", format_duration),
    Column("p99", "p99", format_duration),
    Column("errors", "errors", format_count),
    Column("ratio", "vs. first row", format_ratio),
    Column("floor", "vs. raw asyncpg", format_ratio),
]
_LENGTH_COLUMNS = [
    Column("what", ""),
    *(Column(f"n{length}", f"{length:,} entries", format_duration) for length in LENGTHS),
]


async def measure(run: Run) -> list[Table]:
    """Measure Holdfast and its peers on every database, turns by session length, and one process against two."""
    load_rows, length_rows, processes = [], [], []
    loads: dict[str, Load] = {}
    for name in DATABASES:
        async with open_database(name, run.folder) as url:
            if url is None:
                continue
            report(f"servers: {name}")
            loads[f"Holdfast on {name}"] = await _run_load(partial(_open_holdfast, url), run)
            length_rows.append({"what": f"Holdfast on {name}", **await _time_by_length(url, run)})
            if name == "PostgreSQL":
                processes = await _measure_processes(url, run)
        delete_files(run.folder, "servers.db*")
    for name, open_candidate in ((PLAIN, _open_plain), (AGENTS, _open_agents), (ADK, partial(_open_adk, run.folder))):
        report(f"servers: {name}")
        try:
            loads[name] = await _run_load(open_candidate, run)
        except Exception as exc:  # noqa: BLE001  # the peer is not installed or its server is missing
            report(f"{name} is not measured: {type(exc).__name__}: {exc}")
    delete_files(run.folder, "adk.db*")
    first = next(iter(loads.values()))
    for name, load in loads.items():
        row = {**load.make_row(name), "ratio": load.rate / first.rate}
        if PLAIN in loads and name.endswith("PostgreSQL"):
            row["floor"] = load.rate / loads[PLAIN].rate
        load_rows.append(row)
    title = f"{TASKS} concurrent sessions, two commits per turn, by database"
    return [
        Table("servers", title, _LOAD_COLUMNS, load_rows, _NOTES),
        Table("servers_length", "One turn, by database and session length", _LENGTH_COLUMNS, length_rows),
        Table(
            "servers_together",
            f"{TASKS} sessions on one PostgreSQL, by number of processes",
            _PROCESS_COLUMNS,
            processes,
        ),
    ]


_NOTES = (
    f"Each task takes one turn after another in its own session, which starts with {ENTRIES} entries; {BUDGET:,} tokens.",
    "The database servers run on the same cores.",
    "Holdfast's turns/s include updating the index up to the last turn.",
    f"{PLAIN}: two transactions per turn, each with one read and one write, and one read of the newest messages within the budget.",
    f"Peers: append, read the items for the model (at most {LIMIT}), append.",
)
_PROCESS_COLUMNS = [
    Column("what", ""),
    Column("turns_per_second", "turns/s", format_count),
    Column("ratio", "vs. one process", format_ratio),
]


async def _run_load(open_candidate: Any, run: Run) -> Load:
    load = Load(TASKS, TASKS)
    async with open_candidate(run.sample) as candidate:
        freeze_heap()
        for _ in range(2):
            await load.run(candidate, 0.5 if run.quick else 2.0)
    return load


# -- the candidates ----------------------------------------------------------


@asynccontextmanager
async def _open_holdfast(url: str, sample: SampleSession) -> AsyncIterator[Candidate]:
    async with Holdfast(url, roster=make_roster("token_window", BUDGET)) as hf:
        refs = [await sample.store_session(hf, f"s{number}", ENTRIES) for number in range(TASKS)]
        yield Candidate(await _make_turn(hf, refs), partial(wait_for_index, hf))


async def _make_turn(hf: Holdfast, refs: Any) -> Turn:
    handles = [await hf.session(ref.id, user_id=ref.user_id) for ref in refs]

    async def turn(number: int, text: str) -> None:
        async with handles[number].turn(text) as running:
            running.add(ANSWER)

    return turn


@asynccontextmanager
async def _open_plain(sample: SampleSession) -> AsyncIterator[Candidate]:
    """Open the simplest possible store on PostgreSQL, like `PlainStore` on SQLite."""
    import asyncpg

    name = f"{NAME}_plain"
    async with asyncpg.create_pool(
        POSTGRES, min_size=CONNECTIONS, max_size=CONNECTIONS, server_settings={"search_path": name}
    ) as pool:
        await pool.execute(f"CREATE SCHEMA {name}")
        await pool.execute(
            "CREATE TABLE log (session TEXT, seq INT, total INT, message TEXT, PRIMARY KEY (session, seq))"
        )
        try:
            for number in range(TASKS):
                total, rows = 0, []
                for seq, new in enumerate(sample.new[:ENTRIES]):
                    total += new.tokens
                    rows.append((f"s{number}", seq, total, json.dumps(to_chat_message(new.message))))
                await pool.copy_records_to_table("log", records=rows)

            async def put(session: str, role: str, text: str) -> None:
                tokens = STORED.message(Message(role=role, content=text))
                async with pool.acquire() as raw, raw.transaction():
                    last = await raw.fetchrow(_NEWEST + " LIMIT 1", session)
                    row = (
                        session,
                        last["seq"] + 1,
                        last["total"] + tokens,
                        json.dumps({"role": role, "content": text}),
                    )
                    await raw.execute("INSERT INTO log VALUES ($1, $2, $3, $4)", *row)

            async def turn(number: int, text: str) -> None:
                session = f"s{number}"
                await put(session, "user", text)
                _select_within_budget(await pool.fetch(_NEWEST + f" LIMIT {WINDOW}", session))
                await put(session, "assistant", ANSWER)

            yield Candidate(turn)
        finally:
            await pool.execute(f"DROP SCHEMA {name} CASCADE")


_NEWEST = "SELECT seq, total, message FROM log WHERE session = $1 ORDER BY seq DESC"
WINDOW = 150
"""Number of messages that fill the budget."""


def _select_within_budget(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    newest = rows[0]["total"]
    return [json.loads(row["message"]) for row in rows if newest - row["total"] <= BUDGET][::-1]


@asynccontextmanager
async def _open_agents(sample: SampleSession) -> AsyncIterator[Candidate]:
    from agents.extensions.memory import SQLAlchemySession
    from sqlalchemy.ext.asyncio import create_async_engine

    async with open_database("PostgreSQL", Path()) as url:
        if url is None:
            raise ConnectionError("no PostgreSQL server is reachable")
        schema = url.rpartition("=")[2]
        engine = create_async_engine(
            POSTGRES.replace("postgresql://", "postgresql+asyncpg://"),
            connect_args={"server_settings": {"search_path": schema}},
        )
        try:
            async with engine.begin() as raw:
                await raw.exec_driver_sql(f"CREATE SCHEMA {schema}")
            sessions = [SQLAlchemySession(f"s{number}", engine=engine, create_tables=True) for number in range(TASKS)]
            for session in sessions:
                await session.add_items(to_items(new.message for new in sample.new[:ENTRIES]))
            yield Candidate(lambda number, text: run_agents_turn(sessions[number], text, ANSWER, limit=LIMIT))
        finally:
            await engine.dispose()


@asynccontextmanager
async def _open_adk(folder: Path, sample: SampleSession) -> AsyncIterator[Candidate]:
    from google.adk.events import Event
    from google.adk.sessions import DatabaseSessionService
    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.genai.types import Content, Part

    service = DatabaseSessionService(f"sqlite+aiosqlite:///{folder}/adk.db")
    recent = GetSessionConfig(num_recent_events=LIMIT)

    def event(author: str, text: str) -> Any:
        role = "user" if author == "user" else "model"
        return Event(author=author, invocation_id="i", content=Content(role=role, parts=[Part(text=text)]))

    names = [{"app_name": "bench", "user_id": "u", "session_id": f"s{number}"} for number in range(TASKS)]
    for name in names:
        created = await service.create_session(**name)
        for new in sample.new[:ENTRIES]:
            await service.append_event(created, event("user", new.message.text or "call"))

    async def turn(number: int, text: str) -> None:
        current = await service.get_session(**names[number], config=recent)
        await service.append_event(current, event("user", text))
        await service.append_event(current, event("bench", ANSWER))

    try:
        yield Candidate(turn)
    finally:
        await service.db_engine.dispose()


# -- session length ----------------------------------------------------------


async def _time_by_length(url: str, run: Run) -> dict[str, Figure]:
    """Return the median time of a warm turn, with no others running, at each session length."""
    medians: dict[str, Figure] = {}
    async with Holdfast(url, roster=make_roster("token_window", BUDGET)) as hf:
        for length in run.select_lengths(LENGTHS):
            ref = await run.sample.store_session(hf, f"long{length}", length)
            turn, times = await _make_turn(hf, [ref]), []
            for at in range(40):
                started = clock()
                await turn(0, f"{make_text(at)} {at}")
                times.append(clock() - started)
            medians[f"n{length}"] = sorted(times[5:])[len(times[5:]) // 2]
    return medians


# -- two processes -----------------------------------------------------------


async def _measure_processes(url: str, run: Run) -> list[dict[str, Figure]]:
    """Run the same number of sessions in one process, and in two processes with half of them each."""
    rows: list[dict[str, Figure]] = []
    for processes in (1, 2):
        report(f"servers: {processes} processes on PostgreSQL")
        seconds = 1.0 if run.quick else 4.0
        turns = sum(await asyncio.gather(*(_run_worker(url, processes, at, seconds) for at in range(processes))))
        rows.append({"what": f"{processes}", "turns_per_second": turns / seconds})
    first = float(rows[0]["turns_per_second"] or 1)
    return [{**row, "ratio": float(row["turns_per_second"] or 0) / first} for row in rows]


async def _run_worker(url: str, processes: int, at: int, seconds: float) -> int:
    arguments = [url, str(TASKS // processes), str(at), str(seconds)]
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.worker", *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await worker.communicate()
    turns: int = json.loads(output)["turns"]
    return turns
