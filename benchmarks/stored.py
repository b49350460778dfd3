"""Bytes on disk per message, compared with the JSON of the messages."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.corpus import make_roster
from benchmarks.peers import BUDGET, PlainStore, open_agents_session, to_items
from benchmarks.run import Run
from benchmarks.tables import Column, Figure, Table, format_count, format_ratio
from benchmarks.timing import report
from holdfast.holdfast import Holdfast
from holdfast.wire.openai import to_chat_message

MESSAGES = 10_000
SESSIONS = 100


async def measure(run: Run) -> list[Table]:
    """Measure the file sizes of one long session and of many short ones, after the store was closed."""
    rows = [row for sessions in (1, SESSIONS) for row in await _measure_sizes(run, sessions)]
    columns = [
        Column("sessions", "sessions", format_count),
        Column("what", ""),
        Column("bytes", "bytes", format_count),
        Column("per_message", "bytes per message", format_count),
        Column("ratio", "vs. JSON", format_ratio),
    ]
    title = f"Bytes stored for {MESSAGES:,} messages, in 1 session and in {SESSIONS}"
    return [Table("stored", title, columns, rows, ("File size after the last connection was closed.",))]


async def _measure_sizes(run: Run, sessions: int) -> list[dict[str, Figure]]:
    report(f"stored: {sessions} sessions")
    each = MESSAGES // sessions
    files = {name: run.folder / f"stored-{at}-{sessions}.db" for at, name in enumerate(_FILL)}
    for name, path in files.items():
        await _FILL[name](run, path, sessions, each)
    payload = sessions * sum(len(msgspec.json.encode(to_chat_message(new.message))) for new in run.sample.new[:each])
    sizes = {"JSON only": payload, **{name: path.stat().st_size for name, path in files.items()}}
    return [
        {"sessions": sessions, "what": name, "bytes": size, "per_message": size / MESSAGES, "ratio": size / payload}
        for name, size in sizes.items()
    ]


async def _fill_holdfast(run: Run, path: Path, sessions: int, each: int) -> None:
    async with Holdfast(f"sqlite:///{path}", roster=make_roster("digest", BUDGET)) as hf:
        for number in range(sessions):
            await run.sample.store_session(hf, f"session-{number}", each, view=hf.roster.find_responder())


async def _fill_agents(run: Run, path: Path, sessions: int, each: int) -> None:
    for number in range(sessions):
        where = open_agents_session(path, f"session-{number}")
        await where.add_items(to_items(new.message for new in run.sample.new[:each]))
        where.close()


async def _fill_plain(run: Run, path: Path, sessions: int, each: int) -> None:
    plain, new = PlainStore(path), run.sample.new[:each]
    for number in range(sessions):
        plain.store_session(f"session-{number}", [item.message for item in new], [item.tokens for item in new])
    plain.raw.close()


_FILL = {"Holdfast, with the view": _fill_holdfast, "SQLiteSession": _fill_agents, "plain sqlite3": _fill_plain}
