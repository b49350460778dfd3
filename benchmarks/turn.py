"""One durable turn by length of the session: append the question, build an 8k working set, append the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.corpus import STRATEGIES, caught_up, prose, roster
from benchmarks.lengths import Cell, by_length
from benchmarks.peers import BUDGET, LIMIT, Plain, agents_turn, items, session
from benchmarks.run import Run, clear
from benchmarks.tables import Column, Figure, Table, duration
from benchmarks.timing import Ask, Block, Samples, clock, in_turn, repeated, repeated_async, told
from holdfast.holdfast import Holdfast
from holdfast.sessions.handle import SessionHandle

LENGTHS = (10, 100, 1_000, 10_000, 100_000)
MOST = 10
"""Turns in a block: a session of 10 grows, one of 100,000 does not."""
ANSWER = "I have looked it up: it was sent on Monday, and should be with you on Thursday."
PLAIN = "plain sqlite3"
BEHIND = "the index, behind the turn"
FIRST = {"quick": 1_000, "digest": 10_000, "token_window": 100_000}
"""Longest session whose first turn is measured: the whole log is condensed in it, which takes long."""


async def measure(run: Run) -> list[Table]:
    """Every candidate at every length, on the disk and where there is none, and first turns behind an import."""
    cells: dict[Path, Cell] = {folder: {} for folder in (run.folder, run.memory) if folder is not None}
    for length in run.lengths(LENGTHS):
        for folder, found in cells.items():
            told(f"turn: {length:,} entries{' in memory' if folder == run.memory else ''}")
            for name, samples in (await _at(run, folder, length)).items():
                found[name, 0, length] = samples
    on_disk = by_length("turn", f"{_TITLE}, on the disk", cells[run.folder], base=PLAIN, notes=_NOTES)
    tables = [on_disk]
    if run.memory is not None:
        title = f"{_TITLE}, where a commit costs nothing: the software alone"
        tables.append(by_length("turn_memory", title, cells[run.memory], base=PLAIN))
    return [*tables, await _first(run)]


_TITLE = "One turn with two commits: median by entries of the session"
_NOTES = (
    f"All with WAL and synchronous FULL, two commits a turn. Working set: {BUDGET:,} tokens; SQLiteSession counts none.",
    f"{PLAIN}: the same thread, one table with running totals, no repair, no idempotency, no policy: the floor.",
    f"{BEHIND}: what taking a turn into the index costs, seconds later, beside other turns.",
)


async def _at(run: Run, folder: Path, length: int) -> dict[str, Samples]:
    """The times of every candidate at one length."""
    blocks: dict[str, Block] = {}
    behind: list[float] = []
    async with AsyncExitStack() as stack:
        for strategy in STRATEGIES:
            url = f"sqlite:///{folder}/turn-{strategy}-{length}.db"
            hf = await stack.enter_async_context(Holdfast(url, roster=roster(strategy, BUDGET)))
            turns = repeated_async(await _holdfast(run, hf, length, saved=True), most=MOST)
            blocks[f"Holdfast, {strategy}"] = _indexed(turns, hf, behind)
        for name, limit in (("SQLiteSession", None), (f"SQLiteSession, limit={LIMIT}", LIMIT)):
            where = session(folder / f"turn-agents-{limit}-{length}.db")
            stack.callback(where.close)
            await where.add_items(items(new.message for new in run.material.new[:length]))
            blocks[name] = repeated_async(_numbered(_agents(where, limit)), most=MOST)
        plain = Plain(folder / f"turn-plain-{length}.db")
        stack.callback(plain.raw.close)
        blocks[PLAIN] = _plain(run, plain, length)
        for block in blocks.values():
            await block()  # what only the first turn in a process costs
        behind.clear()
        found = await in_turn(blocks, rounds=run.rounds, limit=run.limit)
    clear(folder, "turn-*")
    return {**found, BEHIND: Samples(behind)}


def _indexed(turns: Block, hf: Holdfast, behind: list[float]) -> Block:
    """Turns, and behind each block the index's part, so that it is not at work while others are measured."""

    async def block() -> list[float]:
        found = await turns()
        started = clock()
        await caught_up(hf)
        behind.append((clock() - started) / len(found))
        return found

    return block


async def _first(run: Run) -> Table:
    """The first turn behind an import, which works the view out of the whole log."""
    rows: list[dict[str, Figure]] = []
    lengths = run.lengths(LENGTHS)
    for strategy in STRATEGIES:
        rows.append({"what": f"Holdfast, {strategy}"})
        for length in run.lengths(LENGTHS):
            if length > FIRST["quick" if run.quick else strategy]:
                continue
            told(f"turn: the first one behind {length:,} entries, {strategy}")
            url = f"sqlite:///{run.folder}/turn-{strategy}-{length}.db"
            async with Holdfast(url, roster=roster(strategy, BUDGET)) as hf:
                turn = await _holdfast(run, hf, length, saved=False)
                started = clock()
                await turn()
                rows[-1][f"first_{length}"] = clock() - started
    clear(run.folder, "turn-*")
    columns = [Column("what", ""), *(Column(f"first_{length}", f"{length:,}", duration) for length in lengths)]
    return Table("turn_first", "The first turn behind an import, by entries: once a session and view", columns, rows)


async def _holdfast(run: Run, hf: Holdfast, length: int, *, saved: bool) -> Ask:
    """Turns of a filled session, its view in the store or not."""
    ref = await run.material.fill(hf, "s", length, view=hf.roster.find_responder() if saved else None)
    return _numbered(_turn(await hf.session(ref.id, user_id=ref.user_id)))


def _turn(handle: SessionHandle) -> Callable[[str], Awaitable[None]]:
    async def turn(text: str) -> None:
        async with handle.turn(text) as opened:
            opened.add(ANSWER)

    return turn


def _agents(where: Any, limit: int | None) -> Callable[[str], Awaitable[None]]:
    return lambda text: agents_turn(where, text, ANSWER, limit=limit)


def _plain(run: Run, plain: Plain, length: int) -> Block:
    new = run.material.new[:length]
    plain.fill("s", [item.message for item in new], [item.tokens for item in new])
    number = 0

    def turn() -> None:
        nonlocal number
        number += 1
        plain.turn(prose(number), ANSWER)

    return repeated(turn, most=MOST)


def _numbered(turn: Callable[[str], Awaitable[None]]) -> Ask:
    """A turn with another question each time: an equal one would be a retry."""
    number = 0

    def ask() -> Awaitable[None]:
        nonlocal number
        number += 1
        return turn(prose(number))

    return ask
