"""One durable turn by length of the session: append the question, build an 8k working set, append the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.corpus import STRATEGIES, make_roster, make_text, wait_for_index
from benchmarks.lengths import Cells, make_length_table
from benchmarks.peers import BUDGET, LIMIT, PlainStore, open_agents_session, run_agents_turn, to_items
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_duration
from benchmarks.timing import AsyncFunction, Block, Samples, alternate, clock, repeat, repeat_async, report
from holdfast.holdfast import Holdfast
from holdfast.sessions.handle import SessionHandle

LENGTHS = (10, 100, 1_000, 10_000, 100_000)
MOST = 10
"""Turns in a block: a session of 10 grows, one of 100,000 does not."""
ANSWER = "I have looked it up: it was sent on Monday, and should be with you on Thursday."
PLAIN = "plain sqlite3"
INDEX_UPDATE = "the index, behind the turn"
LONGEST_FIRST_TURN = {"quick": 1_000, "digest": 10_000, "token_window": 100_000}
"""Longest session whose first turn is measured: the whole log is condensed in it, which takes long."""


async def measure(run: Run) -> list[Table]:
    """Every candidate at every length, on the disk and where there is none, and first turns behind an import."""
    cells: dict[Path, Cells] = {folder: {} for folder in (run.folder, run.memory) if folder is not None}
    for length in run.select_lengths(LENGTHS):
        for folder, found in cells.items():
            report(f"turn: {length:,} entries{' in memory' if folder == run.memory else ''}")
            for name, samples in (await _measure_length(run, folder, length)).items():
                found[name, 0, length] = samples
    on_disk = make_length_table("turn", f"{_TITLE}, on the disk", cells[run.folder], base=PLAIN, notes=_NOTES)
    tables = [on_disk]
    if run.memory is not None:
        title = f"{_TITLE}, where a commit costs nothing: the software alone"
        tables.append(make_length_table("turn_memory", title, cells[run.memory], base=PLAIN))
    return [*tables, await _measure_first_turns(run)]


_TITLE = "One turn with two commits: median by entries of the session"
_NOTES = (
    f"All with WAL and synchronous FULL, two commits a turn. Working set: {BUDGET:,} tokens; SQLiteSession counts none.",
    f"{PLAIN}: the same thread, one table with running totals, no repair, no idempotency, no policy: the floor.",
    f"{INDEX_UPDATE}: what taking a turn into the index costs, seconds later, beside other turns.",
)


async def _measure_length(run: Run, folder: Path, length: int) -> dict[str, Samples]:
    """The times of every candidate at one length."""
    blocks: dict[str, Block] = {}
    index_updates: list[float] = []
    async with AsyncExitStack() as stack:
        for strategy in STRATEGIES:
            url = f"sqlite:///{folder}/turn-{strategy}-{length}.db"
            hf = await stack.enter_async_context(Holdfast(url, roster=make_roster(strategy, BUDGET)))
            turns = repeat_async(await _make_holdfast_turns(run, hf, length, saved=True), most=MOST)
            blocks[f"Holdfast, {strategy}"] = _add_index_update(turns, hf, index_updates)
        for name, limit in (("SQLiteSession", None), (f"SQLiteSession, limit={LIMIT}", LIMIT)):
            where = open_agents_session(folder / f"turn-agents-{limit}-{length}.db")
            stack.callback(where.close)
            await where.add_items(to_items(new.message for new in run.sample.new[:length]))
            blocks[name] = repeat_async(_number_turns(_make_agents_turn(where, limit)), most=MOST)
        plain = PlainStore(folder / f"turn-plain-{length}.db")
        stack.callback(plain.raw.close)
        blocks[PLAIN] = _make_plain_block(run, plain, length)
        for block in blocks.values():
            await block()  # what only the first turn in a process costs
        index_updates.clear()
        found = await alternate(blocks, rounds=run.rounds, limit=run.limit)
    delete_files(folder, "turn-*")
    return {**found, INDEX_UPDATE: Samples(index_updates)}


def _add_index_update(turns: Block, hf: Holdfast, index_updates: list[float]) -> Block:
    """Turns, and behind each block the index's part, so that it is not at work while others are measured."""

    async def block() -> list[float]:
        found = await turns()
        started = clock()
        await wait_for_index(hf)
        index_updates.append((clock() - started) / len(found))
        return found

    return block


async def _measure_first_turns(run: Run) -> Table:
    """The first turn behind an import, which works the view out of the whole log."""
    rows: list[dict[str, Figure]] = []
    lengths = run.select_lengths(LENGTHS)
    for strategy in STRATEGIES:
        rows.append({"what": f"Holdfast, {strategy}"})
        for length in run.select_lengths(LENGTHS):
            if length > LONGEST_FIRST_TURN["quick" if run.quick else strategy]:
                continue
            report(f"turn: the first one behind {length:,} entries, {strategy}")
            url = f"sqlite:///{run.folder}/turn-{strategy}-{length}.db"
            async with Holdfast(url, roster=make_roster(strategy, BUDGET)) as hf:
                turn = await _make_holdfast_turns(run, hf, length, saved=False)
                started = clock()
                await turn()
                rows[-1][f"first_{length}"] = clock() - started
    delete_files(run.folder, "turn-*")
    columns = [Column("what", ""), *(Column(f"first_{length}", f"{length:,}", format_duration) for length in lengths)]
    return Table("turn_first", "The first turn behind an import, by entries: once a session and view", columns, rows)


async def _make_holdfast_turns(run: Run, hf: Holdfast, length: int, *, saved: bool) -> AsyncFunction:
    """Turns of a filled session, its view in the store or not."""
    ref = await run.sample.store_session(hf, "s", length, view=hf.roster.find_responder() if saved else None)
    return _number_turns(_make_turn(await hf.session(ref.id, user_id=ref.user_id)))


def _make_turn(handle: SessionHandle) -> Callable[[str], Awaitable[None]]:
    async def turn(text: str) -> None:
        async with handle.turn(text) as opened:
            opened.add(ANSWER)

    return turn


def _make_agents_turn(where: Any, limit: int | None) -> Callable[[str], Awaitable[None]]:
    return lambda text: run_agents_turn(where, text, ANSWER, limit=limit)


def _make_plain_block(run: Run, plain: PlainStore, length: int) -> Block:
    new = run.sample.new[:length]
    plain.store_session("s", [item.message for item in new], [item.tokens for item in new])
    number = 0

    def turn() -> None:
        nonlocal number
        number += 1
        plain.run_turn(make_text(number), ANSWER)

    return repeat(turn, most=MOST)


def _number_turns(turn: Callable[[str], Awaitable[None]]) -> AsyncFunction:
    """A turn with another question each time: an equal one would be a retry."""
    number = 0

    def ask() -> Awaitable[None]:
        nonlocal number
        number += 1
        return turn(make_text(number))

    return ask
