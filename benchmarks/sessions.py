"""Concurrent sessions on one SQLite file: turns per second, time per turn, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.corpus import SampleSession, make_roster, make_text, wait_for_index
from benchmarks.peers import BUDGET, LIMIT, GroupCommit, PlainStore, open_agents_session, run_agents_turn, to_items
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration, format_ratio
from benchmarks.timing import clock, freeze_heap, report
from benchmarks.turn import ANSWER
from holdfast.holdfast import Holdfast
from holdfast.indexes.settings import IndexSettings

LOADS = ((1, 1), (50, 200), (200, 800))
"""Numbers of concurrent tasks and of the sessions that they use."""
ENTRIES = 10
"""Entries of each session at the start."""
PLAIN = "plain sqlite3, group commit"
WITH_INDEX: Final = IndexSettings()
Turn = Callable[[int, str], Awaitable[object]]
"""Runs a turn in a session, given the session's number and a question."""


class Candidate(NamedTuple):
    """A library whose turns are measured."""

    turn: Turn
    finish: Callable[[], Awaitable[None]] | None = None
    """Completes the work that remains after the turns; its time counts too."""


class Load:
    """The turns of concurrent tasks; each task takes one turn after another in its own sessions.

    Args:
        tasks: number of tasks.
        sessions: number of sessions of all tasks together.
    """

    def __init__(self, tasks: int, sessions: int) -> None:
        self.tasks, self.sessions = tasks, sessions
        self.times: list[float] = []
        self.errors = 0
        self.seconds = 0.0

    async def run(self, candidate: Candidate, seconds: float) -> None:
        """Run the tasks for `seconds`, then wait for the work that remains after their turns."""
        started = clock()
        await asyncio.gather(
            *(self._run_task(candidate.turn, number, started + seconds) for number in range(self.tasks))
        )
        if candidate.finish is not None:
            await candidate.finish()
        self.seconds += clock() - started

    async def _run_task(self, turn: Turn, number: int, end: float) -> None:
        sessions, at = range(number, self.sessions, self.tasks), 0
        while (started := clock()) < end:
            at += 1
            try:
                await turn(sessions[at % len(sessions)], f"{make_text(number)} {len(self.times)}.{at}")
            except Exception:  # noqa: BLE001  # "database is locked" and others: the table counts them
                self.errors += 1
            else:
                self.times.append(clock() - started)

    @property
    def rate(self) -> float:
        """Turns per second."""
        return len(self.times) / self.seconds

    def make_row(self, name: str) -> dict[str, Figure]:
        """Return the figures as a row of the table."""
        ordered = sorted(self.times) or [float("nan")]
        return {
            "tasks": self.tasks,
            "sessions": self.sessions,
            "what": name,
            "turns_per_second": self.rate,
            "p50": ordered[len(ordered) // 2],
            "p99": ordered[int(len(ordered) * 0.99)],
            "errors": self.errors,
        }


async def measure(run: Run) -> list[Table]:
    """Measure each candidate with each number of tasks, on disk and in memory."""
    on_disk = [row for load in LOADS for row in await _measure_load(run, run.folder, *load)]
    tables = [Table("sessions", f"{_TITLE}, on disk", _COLUMNS, on_disk, _NOTES)]
    if run.memory_folder is not None:
        rows = [row for load in LOADS for row in await _measure_load(run, run.memory_folder, *load)]
        title = f"{_TITLE}, in memory, so that commits cost nothing"
        tables.append(Table("sessions_memory", title, _COLUMNS, rows))
    return tables


_TITLE = "Concurrent sessions on one SQLite file, two commits per turn"
_COLUMNS = [
    Column("tasks", "tasks", format_count),
    Column("sessions", "sessions", format_count),
    Column("what", ""),
    Column("turns_per_second", "turns/s", format_count),
    Column("p50", "p50", format_duration),
    Column("p99", "p99", format_duration),
    Column("errors", "errors", format_count),
    Column("ratio", "vs. plain", format_ratio),
]
_NOTES = (
    f"Each task takes one turn after another, cycling through its own sessions, which start with {ENTRIES} entries; {BUDGET:,} tokens.",
    f"SQLiteSession: one object per session, kept open, limit={LIMIT}, its fastest use.",
    f"{PLAIN}: two commits per turn; one thread writes all waiting messages in one transaction; reads run on the event loop.",
    "Holdfast's turns/s include updating the index up to the last turn; p50 and p99 do not.",
)


async def _measure_load(run: Run, folder: Path, tasks: int, sessions: int) -> list[dict[str, Figure]]:
    report(f"sessions: {tasks} tasks over {sessions} sessions")
    loads = {name: Load(tasks, sessions) for name in _CANDIDATES}
    async with AsyncExitStack() as stack:
        candidates = {}
        for at, (name, open_candidate) in enumerate(_CANDIDATES.items()):
            path = folder / f"sessions-{at}.db"
            candidates[name] = await stack.enter_async_context(open_candidate(path, sessions, run.sample))
        freeze_heap()
        for _ in range(1 if run.quick else 2):
            for name, load in loads.items():
                await load.run(candidates[name], 0.5 if run.quick else max(1.0, sessions / 200))
    delete_files(folder, "sessions-*")
    return _add_ratios(loads)


def _add_ratios(loads: Mapping[str, Load]) -> list[dict[str, Figure]]:
    rows = [load.make_row(name) for name, load in loads.items()]
    return [{**row, "ratio": loads[str(row["what"])].rate / loads[PLAIN].rate} for row in rows]


# -- the candidates ----------------------------------------------------------


@asynccontextmanager
async def _open_holdfast(
    path: Path, sessions: int, sample: SampleSession, *, strategy: str, index: IndexSettings | None = WITH_INDEX
) -> AsyncIterator[Candidate]:
    async with Holdfast(f"sqlite:///{path}", roster=make_roster(strategy, BUDGET), index=index) as hf:
        refs = [await sample.store_session(hf, f"s{number}", ENTRIES) for number in range(sessions)]
        handles = [await hf.session(ref.id, user_id=ref.user_id) for ref in refs]

        async def turn(number: int, text: str) -> None:
            async with handles[number].turn(text) as running:
                running.add(ANSWER)

        yield Candidate(turn, partial(wait_for_index, hf))


@asynccontextmanager
async def _open_agents(path: Path, sessions: int, sample: SampleSession) -> AsyncIterator[Candidate]:
    initial = to_items(new.message for new in sample.new[:ENTRIES])
    agents_sessions = [open_agents_session(path, f"s{number}") for number in range(sessions)]
    for one in agents_sessions:
        await one.add_items(initial)
    try:
        yield Candidate(lambda number, text: run_agents_turn(agents_sessions[number], text, ANSWER, limit=LIMIT))
    finally:
        for one in agents_sessions:
            one.close()


@asynccontextmanager
async def _open_plain(path: Path, sessions: int, sample: SampleSession) -> AsyncIterator[Candidate]:
    new, writer, reader = sample.new[:ENTRIES], PlainStore(path), PlainStore(path)
    for number in range(sessions):
        writer.store_session(f"s{number}", [item.message for item in new], [item.tokens for item in new])
    group = GroupCommit(writer)

    async def turn(number: int, text: str) -> None:
        name = f"s{number}"
        await group.write(partial(writer.write_message, name, "user", text))
        reader.read_window(name)
        await group.write(partial(writer.write_message, name, "assistant", ANSWER))

    yield Candidate(turn)
    writer.raw.close()
    reader.raw.close()


_CANDIDATES: Mapping[str, Callable[[Path, int, SampleSession], AbstractAsyncContextManager[Candidate]]] = {
    "Holdfast, digest": partial(_open_holdfast, strategy="digest"),
    "Holdfast, token_window": partial(_open_holdfast, strategy="token_window"),
    "Holdfast, token_window, no index": partial(_open_holdfast, strategy="token_window", index=None),
    "SQLiteSession": _open_agents,
    PLAIN: _open_plain,
}
