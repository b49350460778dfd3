"""Bytes on the disk a message, beyond the JSON of the messages themselves."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.corpus import roster
from benchmarks.peers import BUDGET, Plain, items, session
from benchmarks.run import Run
from benchmarks.tables import Column, Figure, Table, ratio, whole
from benchmarks.timing import told
from holdfast.holdfast import Holdfast
from holdfast.wire.openai import message_to

MESSAGES = 10_000
SESSIONS = 100


async def measure(run: Run) -> list[Table]:
    """One long session, and many short ones, closed and checkpointed."""
    rows = [row for sessions in (1, SESSIONS) for row in await _rows(run, sessions)]
    columns = [
        Column("sessions", "sessions", whole),
        Column("what", ""),
        Column("bytes", "bytes", whole),
        Column("per_message", "a message", whole),
        Column("ratio", "of the JSON", ratio),
    ]
    title = f"Bytes stored: {MESSAGES:,} messages in one session, and in {SESSIONS}"
    return [Table("stored", title, columns, rows, ("The file's size after the last connection closed.",))]


async def _rows(run: Run, sessions: int) -> list[dict[str, Figure]]:
    told(f"stored: {sessions} sessions")
    each = MESSAGES // sessions
    files = {name: run.folder / f"stored-{at}-{sessions}.db" for at, name in enumerate(_FILL)}
    for name, path in files.items():
        await _FILL[name](run, path, sessions, each)
    payload = sessions * sum(len(msgspec.json.encode(message_to(new.message))) for new in run.material.new[:each])
    sizes = {"the JSON alone": payload, **{name: path.stat().st_size for name, path in files.items()}}
    return [
        {"sessions": sessions, "what": name, "bytes": size, "per_message": size / MESSAGES, "ratio": size / payload}
        for name, size in sizes.items()
    ]


async def _holdfast(run: Run, path: Path, sessions: int, each: int) -> None:
    async with Holdfast(f"sqlite:///{path}", roster=roster("digest", BUDGET)) as hf:
        for number in range(sessions):
            await run.material.fill(hf, f"session-{number}", each, view=hf.roster.find_responder())


async def _agents(run: Run, path: Path, sessions: int, each: int) -> None:
    for number in range(sessions):
        where = session(path, f"session-{number}")
        await where.add_items(items(new.message for new in run.material.new[:each]))
        where.close()


async def _plain(run: Run, path: Path, sessions: int, each: int) -> None:
    plain, new = Plain(path), run.material.new[:each]
    for number in range(sessions):
        plain.fill(f"session-{number}", [item.message for item in new], [item.tokens for item in new])
    plain.raw.close()


_FILL = {"Holdfast, with its view": _holdfast, "SQLiteSession": _agents, "plain sqlite3": _plain}
