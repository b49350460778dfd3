"""Time to build a working set by session length: in memory, in a whole turn, and from a cold store.

The first tables compare the usual strategies with a peer. The last table has every strategy, in a short and in a long session.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from benchmarks import corpus
from benchmarks.corpus import LENGTHS, LLM, REACH, STRATEGIES, SYSTEM, SampleSession, make_request, make_roster
from benchmarks.lengths import Cells, make_length_table
from benchmarks.peers import Trimmer
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration, format_ratio
from benchmarks.timing import Block, Samples, alternate, clock, repeat, report
from holdfast.context import settings
from holdfast.context.build import Request, build, build_from_view
from holdfast.context.summaries import make_compaction, make_summarized_view
from holdfast.context.view import ViewState, decode_state, encode_state
from holdfast.domain.log import extend
from holdfast.domain.session import Entry, NewCompaction, NewEntry, SessionRef
from holdfast.holdfast import Holdfast
from holdfast.replay.specs import parse_spec
from holdfast.sessions.handle import SessionHandle
from holdfast.stores import open_store
from holdfast.stores.log import Append, SavedView
from holdfast.tokens import STORED

BUDGETS = (8_000, 128_000)
ENDS = (100, 100_000)
"""Entries of the sessions in which every strategy is measured, even in a quick run."""
SMALL = 4_000
"""Budget in tokens for these sessions: 100 entries fill it."""
ALL_STRATEGIES = (
    *(name for name in settings.STRATEGIES if name not in ("none", "summary_buffer")),
    "summary_buffer:summarizer_llm=none",
    "summary_buffer",
    "clear_tool_results:clear_at_least=500+token_window",
)
RECENT = 24
"""Newest messages after the summary, in a view that has a summary."""
MOST = 100
"""New messages in a block: a session of 100 grows to at most 200."""


async def measure(run: Run) -> list[Table]:
    """Measure warm and cold builds at both budgets, and every strategy."""
    warm: Cells = {}
    cold: Cells = {}
    for length in run.select_lengths(LENGTHS):
        for budget in BUDGETS:
            report(f"window: {length:,} entries, {budget:,} tokens")
            for name, samples in (await _measure_warm(run, length, budget)).items():
                warm[name, budget, length] = samples
            for name, samples in (await _measure_cold(run, length, budget)).items():
                cold[name, budget, length] = samples
    return [
        make_length_table(
            "window_warm",
            "A working set after one new message, with the session in memory: median by session length in entries",
            warm,
            base="digest, view in memory",
            notes=_WARM_NOTES,
        ),
        make_length_table(
            "window_cold",
            "A working set from a cold store: median by session length in entries",
            cold,
            base="digest",
            notes=_COLD_NOTES,
        ),
        await _measure_strategies(run),
    ]


_WARM_NOTES = (
    "view in memory: a sample adds one message to a view and builds the working set. The mean includes the rare builds that move the frontier.",
    "turn in memory: a sample is a whole turn of the library with two appends, on an in-memory store. No model is called.",
    "slope: only lengths that fill the budget count, because a shorter session is sent whole.",
    "ratio: relative to the row 'digest, view in memory' of the same budget.",
    "trim_messages runs with the strategy last and include_system. Exact uses Holdfast's o200k counter, approximate uses langchain's own counter.",
)
_COLD_NOTES = (
    (
        "Each sample uses a new connection, which is opened before the clock starts. A sample reads the view and its entries, decodes them, and "
        "builds the working set. Ratios are relative to the row 'digest' of the same budget."
    ),
)


# -- warm --------------------------------------------------------------------


async def _measure_warm(run: Run, length: int, budget: int) -> dict[str, Samples]:
    sample = run.sample
    blocks = {f"{name}, view in memory": _make_warm_block(sample, name, budget, length) for name in STRATEGIES}
    trimmer = Trimmer([SYSTEM, *(new.message for new in sample.new[:length])])
    for label, exact in (("trim_messages, approximate", False), ("trim_messages, exact", True)):
        blocks[label] = _make_trim_block(trimmer, budget, exact=exact)
    async with Holdfast("sqlite://:memory:", roster=make_roster("digest", budget)) as hf:
        ref = await sample.store_session(hf, "s", length, view=hf.roster.find_responder())
        handle = await hf.session(ref.id, user_id=ref.user_id)

        async def turn() -> list[float]:
            # A session cannot be shortened again, so there are few turns: a short session must stay close to its nominal length.
            # The first turn is left out, because the processor's caches hold the data of the candidate before it.
            times = [await _time_turn(handle, at) for at in range(6)]
            await corpus.wait_for_index(hf)
            return times[1:]

        blocks["digest, turn in memory"] = turn
        return await alternate(blocks, rounds=run.rounds, limit=run.limit)


async def _time_turn(handle: SessionHandle, at: int) -> float:
    started = clock()
    async with handle.turn(corpus.make_text(at)) as running:
        running.add("Noted.")
    return clock() - started


def _make_warm_block(sample: SampleSession, strategy: str, budget: int, length: int) -> Block:
    return _make_build_block(
        sample, make_request(strategy, budget), sample.build_state(strategy, budget, length), length
    )


def _make_build_block(sample: SampleSession, request: Request, state: ViewState, length: int) -> Block:
    """Return a block that adds a new message and builds; each block starts with the original view."""
    rows, (grown, _) = sample.select_rows(state, length), extend(sample.compute_tail(length), _make_new_entries(length))
    view, news = build(request, state, *rows).view, iter(grown)

    def reset() -> None:
        nonlocal view, news
        view, news = build(request, state, *rows).view, iter(grown)

    def call() -> None:
        view.extend((next(news),))
        build_from_view(request, view)

    return repeat(call, max_calls=MOST, reset=reset)


def _make_new_entries(length: int) -> list[NewEntry]:
    messages = [corpus.make_message(6 * (length // 6 + 1) + at) for at in range(MOST)]
    return [NewEntry(message=message, tokens=STORED.message(message), timestamp=0) for message in messages]


def _make_trim_block(trimmer: Trimmer, budget: int, *, exact: bool) -> Block:
    """Return a block that appends a message and trims."""
    length, news = len(trimmer.messages), [new.message for new in _make_new_entries(len(trimmer.messages))]
    room = budget + STORED.message(SYSTEM)

    def call() -> None:
        trimmer.append(news[len(trimmer.messages) - length])
        trimmer.trim(room, exact=exact)

    return repeat(call, max_calls=MOST, reset=lambda: trimmer.truncate(length))


# -- cold --------------------------------------------------------------------


async def _measure_cold(run: Run, length: int, budget: int) -> dict[str, Samples]:
    blocks: dict[str, Block] = {}
    for strategy in STRATEGIES:
        path = run.folder / f"cold-{strategy}-{budget}-{length}.db"
        async with Holdfast(f"sqlite:///{path}", roster=make_roster(strategy, budget)) as hf:
            await run.sample.store_session(hf, "s", length, view=hf.roster.find_responder())
        blocks[strategy] = _make_cold_block(path, strategy, budget)
    samples = await alternate(blocks, rounds=run.rounds, limit=run.limit)
    delete_files(run.folder, "cold-*")
    return samples


def _make_cold_block(path: Path, strategy: str, budget: int) -> Block:
    return _make_read_block(
        path, make_request(strategy, budget), make_roster(strategy, budget).find_responder().view_key
    )


def _make_read_block(path: Path, request: Request, key: str) -> Block:
    """Return a block that reads and builds on new connections."""

    async def block() -> list[float]:
        times = []
        for _ in range(5):
            store = await open_store(f"sqlite:///{path}", tenant="default")
            try:
                ref = (await store.list(limit=1)).sessions[0].ref
                started = clock()
                rows = await store.window(ref, key)
                assert rows.view is not None, "the view was saved"
                build(request, decode_state(rows.view.state), rows.head, rows.entries)
                times.append(clock() - started)
            finally:
                await store.close()
        return times

    return block


# -- every strategy ----------------------------------------------------------


class StrategyView(NamedTuple):
    """A strategy's view of a session."""

    request: Request
    state: ViewState
    read: int
    """Number of entries that a build reads."""


async def _measure_strategies(run: Run) -> Table:
    """Measure what a build reads and takes with each strategy once the view exists, in a short and in a long session."""
    sample = run.sample if len(run.sample.new) >= ENDS[1] else SampleSession(ENDS[1])
    rows: dict[str, dict[str, Figure]] = {name: {"strategy": name} for name in ALL_STRATEGIES}
    for at, length in zip(("short", "long"), ENDS, strict=True):
        report(f"window: every strategy, {length:,} entries, {SMALL:,} tokens")
        views = {name: _make_view(sample, name, length) for name in ALL_STRATEGIES}
        warm = {name: _make_build_block(sample, view.request, view.state, length) for name, view in views.items()}
        path = run.folder / f"every-{length}.db"
        await _store_views(sample, path, length, views)
        cold = {name: _make_read_block(path, view.request, name) for name, view in views.items()}
        for kind, blocks in (("warm", warm), ("cold", cold)):
            for name, samples in (await alternate(blocks, rounds=run.rounds, limit=run.limit)).items():
                rows[name][f"{kind}_{at}"] = samples.median
        for name, view in views.items():
            rows[name][f"read_{at}"] = view.read
        delete_files(run.folder, "every-*")
    for row in rows.values():
        for kind in ("warm", "cold"):
            row[f"{kind}_ratio"] = cast("float", row[f"{kind}_long"]) / cast("float", row[f"{kind}_short"])
    title = (
        f"A working set with each strategy, budget {SMALL:,} tokens, when its view exists already: "
        "median for a session of 100 and of 100,000 entries"
    )
    return Table("window_every", title, _make_columns(), list(rows.values()), _STRATEGY_NOTES)


_STRATEGY_NOTES = (
    "warm: a sample adds one message to the view in memory and builds the working set. The frontier moves too rarely to affect this median.",
    (
        "cold: a sample uses a new connection, as in the table before this one. It reads the entries of the head (the first messages) and of the "
        "tail. The view's state contains the compactions."
    ),
    "ratio: the time at 100,000 entries divided by the time at 100 entries.",
    "summary_buffer: a summary covers all but the newest messages. With summarizer_llm=none a digest replaces the summary.",
    "The strategy none is not in the table, because it reads and sends everything.",
)


def _make_columns() -> list[Column]:
    return [
        Column("strategy", "strategy"),
        *(Column(f"read_{at}", f"entries read at {length:,}", format_count) for at, length in _AT),
        *(
            Column(f"{kind}_{at}", f"{kind} at {length:,}", format_duration)
            for kind in ("warm", "cold")
            for at, length in _AT
        ),
        *(Column(f"{kind}_ratio", f"{kind}, ratio", format_ratio) for kind in ("warm", "cold")),
    ]


_AT = (("short", ENDS[0]), ("long", ENDS[1]))


def _make_view(sample: SampleSession, name: str, length: int) -> StrategyView:
    """Return a strategy's view, built from the task and the newest entries."""
    strategy = parse_spec(name).make_strategy(SMALL, written=True)
    request = Request(strategy=strategy, count=STORED, input_budget=LLM.compute_budget().input, system=(SYSTEM,))
    log = sample.entries[:length]
    if strategy.summarizer is not None:
        state = _add_summary(request, log)
    else:
        state = build(request, None, (), log if length <= REACH else [*log[:1], *log[-REACH:]]).state
    kept, tail = sample.select_rows(state, length)
    return StrategyView(request, state, len(kept) + len(tail))


def _add_summary(request: Request, log: Sequence[Entry]) -> ViewState:
    """Return the view of a session whose older part a model has summarized in about 500 tokens."""
    last = log[-RECENT - 1]
    text = "\n".join(corpus.make_text(at) for at in range(8))
    summary = make_compaction(text, first=1, last=last.seq, total=last.total, count=request.count, marker="qwertzui")
    room = request.make_room(request.compute_limit(request.count_overhead()))
    return make_summarized_view(request.strategy, room, summary, [log[0], *log[-RECENT:]], anchor=0).to_state()


async def _store_views(sample: SampleSession, path: Path, length: int, views: dict[str, StrategyView]) -> None:
    """Store a session with all these views in a file."""
    async with Holdfast(f"sqlite:///{path}", roster=make_roster("digest", SMALL)) as hf:
        ref = await sample.store_session(hf, "s", length)
        for name, view in views.items():
            await _save_view(hf, ref, name, view)
            rows = await hf.store.window(ref, name)
            assert len(rows.head) + len(rows.entries) == view.read, (
                f"{name}: the store reads a different number of entries"
            )


async def _save_view(hf: Holdfast, ref: SessionRef, name: str, view: StrategyView) -> None:
    summary, state = view.state.summary, view.state
    compactions = (
        []
        if summary is None
        else [
            NewCompaction(
                view=name,
                first=summary.first,
                last=summary.last,
                kind="summary",
                text=summary.text,
                tokens=summary.tokens,
                source_tokens=summary.total,
                total=summary.total,
                created_at=0,
                through=summary.last,
            )
        ]
    )
    saved = SavedView(state.frontier, encode_state(state), state.keep)
    await hf.store.append(ref, Append(timestamp=0, views={name: saved}, compactions=compactions))
