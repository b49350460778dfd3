"""One durable turn by session length: append the question, build an 8k working set, append the answer."""

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
"""Turns in a block: few, so that short sessions stay close to their nominal length."""
ANSWER = "I have looked it up: it was sent on Monday, and should be with you on Thursday."
PLAIN = "plain sqlite3"
INDEX_UPDATE = "index update, after the turn"
LONGEST_FIRST_TURN = {"quick": 1_000, "digest": 10_000, "token_window": 100_000}
"""Longest session whose first turn is measured. That turn condenses the whole log, which takes long."""


async def measure(run: Run) -> list[Table]:
    """Measure every candidate at every length, on disk and in memory, and first turns after an import."""
    cells: dict[Path, Cells] = {folder: {} for folder in (run.folder, run.memory_folder) if folder is not None}
    for length in run.select_lengths(LENGTHS):
        for folder, folder_cells in cells.items():
            report(f"turn: {length:,} entries{' in memory' if folder == run.memory_folder else ''}")
            for name, samples in (await _measure_length(run, folder, length)).items():
                folder_cells[name, 0, length] = samples
    on_disk = make_length_table(
        "turn", f"One turn with two commits, on disk: {_MEDIAN}", cells[run.folder], base=PLAIN, notes=_NOTES
    )
    tables = [on_disk]
    if run.memory_folder is not None:
        title = f"One turn with two commits, in memory, so that commits cost nothing: {_MEDIAN}"
        tables.append(make_length_table("turn_memory", title, cells[run.memory_folder], base=PLAIN))
    return [*tables, await _measure_first_turns(run)]


_MEDIAN = "median by session length in entries"
_NOTES = (
    f"All use WAL, synchronous FULL and two commits per turn. Working set: {BUDGET:,} tokens; SQLiteSession counts no tokens.",
    f"{PLAIN}: on the same thread, one table with running totals, no repair, no idempotency, no strategy: the lower bound.",
    f"{INDEX_UPDATE}: the cost of adding a turn to the index, which happens seconds later, during other turns.",
)


async def _measure_length(run: Run, folder: Path, length: int) -> dict[str, Samples]:
    """Return the times of every candidate at one length."""
    blocks: dict[str, Block] = {}
    index_updates: list[float] = []
    async with AsyncExitStack() as stack:
        for strategy in STRATEGIES:
            url = f"sqlite:///{folder}/turn-{strategy}-{length}.db"
            hf = await stack.enter_async_context(Holdfast(url, roster=make_roster(strategy, BUDGET)))
            turns = repeat_async(await _make_holdfast_turns(run, hf, length, saved=True), max_calls=MOST)
            blocks[f"Holdfast, {strategy}"] = _add_index_update(turns, hf, index_updates)
        for name, limit in (("SQLiteSession", None), (f"SQLiteSession, limit={LIMIT}", LIMIT)):
            agents_session = open_agents_session(folder / f"turn-agents-{limit}-{length}.db")
            stack.callback(agents_session.close)
            await agents_session.add_items(to_items(new.message for new in run.sample.new[:length]))
            blocks[name] = repeat_async(_number_turns(_make_agents_turn(agents_session, limit)), max_calls=MOST)
        plain = PlainStore(folder / f"turn-plain-{length}.db")
        stack.callback(plain.raw.close)
        blocks[PLAIN] = _make_plain_block(run, plain, length)
        for block in blocks.values():
            await block()  # warm up: the first turn of a process costs more
        index_updates.clear()
        samples = await alternate(blocks, rounds=run.rounds, limit=run.limit)
    delete_files(folder, "turn-*")
    return {**samples, INDEX_UPDATE: Samples(index_updates)}


def _add_index_update(turns: Block, hf: Holdfast, index_updates: list[float]) -> Block:
    """Return a block that updates the index after its turns, so that the index does not work while others are measured."""

    async def block() -> list[float]:
        times = await turns()
        started = clock()
        await wait_for_index(hf)
        index_updates.append((clock() - started) / len(times))
        return times

    return block


async def _measure_first_turns(run: Run) -> Table:
    """Measure the first turn after an import, which builds the view from the whole log."""
    rows: list[dict[str, Figure]] = []
    lengths = run.select_lengths(LENGTHS)
    for strategy in STRATEGIES:
        rows.append({"what": f"Holdfast, {strategy}"})
        for length in run.select_lengths(LENGTHS):
            if length > LONGEST_FIRST_TURN["quick" if run.quick else strategy]:
                continue
            report(f"turn: first turn after an import of {length:,} entries, {strategy}")
            url = f"sqlite:///{run.folder}/turn-{strategy}-{length}.db"
            async with Holdfast(url, roster=make_roster(strategy, BUDGET)) as hf:
                turn = await _make_holdfast_turns(run, hf, length, saved=False)
                started = clock()
                await turn()
                rows[-1][f"first_{length}"] = clock() - started
    delete_files(run.folder, "turn-*")
    columns = [Column("what", ""), *(Column(f"first_{length}", f"{length:,}", format_duration) for length in lengths)]
    return Table(
        "turn_first",
        "The first turn after an import, by session length in entries; once per session and view",
        columns,
        rows,
    )


async def _make_holdfast_turns(run: Run, hf: Holdfast, length: int, *, saved: bool) -> AsyncFunction:
    """Return turns of a filled session; `saved`: its view is in the store."""
    ref = await run.sample.store_session(hf, "s", length, view=hf.roster.find_responder() if saved else None)
    return _number_turns(_make_turn(await hf.session(ref.id, user_id=ref.user_id)))


def _make_turn(handle: SessionHandle) -> Callable[[str], Awaitable[None]]:
    async def turn(text: str) -> None:
        async with handle.turn(text) as running:
            running.add(ANSWER)

    return turn


def _make_agents_turn(agents_session: Any, limit: int | None) -> Callable[[str], Awaitable[None]]:
    return lambda text: run_agents_turn(agents_session, text, ANSWER, limit=limit)


def _make_plain_block(run: Run, plain: PlainStore, length: int) -> Block:
    new = run.sample.new[:length]
    plain.store_session("s", [item.message for item in new], [item.tokens for item in new])
    number = 0

    def turn() -> None:
        nonlocal number
        number += 1
        plain.run_turn(make_text(number), ANSWER)

    return repeat(turn, max_calls=MOST)


def _number_turns(turn: Callable[[str], Awaitable[None]]) -> AsyncFunction:
    """Return a turn with a new question each time: an equal question would be a retry."""
    number = 0

    def ask() -> Awaitable[None]:
        nonlocal number
        number += 1
        return turn(make_text(number))

    return ask
