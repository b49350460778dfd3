"""Building a working set by length of the session: carried on in memory, through a turn, and from a cold store.

The first tables are of the usual strategies beside a peer; the last one is of every strategy, in a short and in a long session.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from benchmarks import corpus
from benchmarks.corpus import LENGTHS, LLM, REACH, STRATEGIES, SYSTEM, Material, asked, roster
from benchmarks.lengths import Cell, by_length
from benchmarks.peers import Trimmer
from benchmarks.run import Run, clear
from benchmarks.tables import Column, Figure, Table, duration, ratio, whole
from benchmarks.timing import Block, Samples, clock, in_turn, repeated, told
from holdfast.context import settings
from holdfast.context.build import Request, build, build_on
from holdfast.context.summaries import compaction_of, summarized
from holdfast.context.view import ViewState, decode_state, encode_state
from holdfast.domain.log import extend
from holdfast.domain.session import Entry, NewCompaction, NewEntry, SessionRef
from holdfast.holdfast import Holdfast
from holdfast.replay import spec_of
from holdfast.sessions.handle import SessionHandle
from holdfast.stores import open_store
from holdfast.stores.log import Append, SavedView
from holdfast.tokens import STORED

BUDGETS = (8_000, 128_000)
ENDS = (100, 100_000)
"""Entries of the sessions in which every strategy is measured, whatever the run's longest."""
SMALL = 4_000
"""Tokens of the budget there: a session of 100 entries has filled it."""
EVERY = (
    *(name for name in settings.STRATEGIES if name not in ("none", "summary_buffer")),
    "summary_buffer:summarizer_llm=none",
    "summary_buffer",
    "clear_tool_results:clear_at_least=500+token_window",
)
RECENT = 24
"""Newest messages behind the summary of a view that has one."""
MOST = 100
"""New messages in a block: a session of 100 is one of 200 at most."""


async def measure(run: Run) -> list[Table]:
    """Warm and cold, each at both budgets."""
    warm: Cell = {}
    cold: Cell = {}
    for length in run.lengths(LENGTHS):
        for budget in BUDGETS:
            told(f"window: {length:,} entries, {budget:,} tokens")
            for name, samples in (await _warm(run, length, budget)).items():
                warm[name, budget, length] = samples
            for name, samples in (await _cold(run, length, budget)).items():
                cold[name, budget, length] = samples
    return [
        by_length(
            "window_warm",
            "A working set behind one new message, the session in memory: median by entries of the session",
            warm,
            base="digest, carried on",
            notes=_WARM,
        ),
        by_length(
            "window_cold",
            "A working set from a cold store: median by entries of the session",
            cold,
            base="digest",
            notes=_COLD,
        ),
        await _every(run),
    ]


_WARM = (
    "carried on: the view is in memory and takes one message in; the mean has the steps of the frontier in it.",
    "turn: a whole SessionHandle turn without the model on an in-memory store, two appends in it.",
    "slope: over the lengths at which the session fills its budget; before, all of it is sent.",
    "trim_messages: strategy last, include_system; exact is the same o200k counter, approximate is langchain's own.",
)
_COLD = (
    "A new connection to the file for each sample, opened before the clock starts: read, decode the view's state, build.",
)


# -- warm --------------------------------------------------------------------


async def _warm(run: Run, length: int, budget: int) -> dict[str, Samples]:
    material = run.material
    blocks = {f"{name}, carried on": _carried(material, name, budget, length) for name in STRATEGIES}
    trimmer = Trimmer([SYSTEM, *(new.message for new in material.new[:length])])
    for label, exact in (("trim_messages, approximate", False), ("trim_messages, exact", True)):
        blocks[label] = _trimming(trimmer, budget, exact=exact)
    async with Holdfast("sqlite://:memory:", roster=roster("digest", budget)) as hf:
        ref = await material.fill(hf, "s", length, view=hf.roster.find_responder())
        handle = await hf.session(ref.id, user_id=ref.user_id)

        async def turn() -> list[float]:
            # A session cannot be made shorter again: few turns, so that a short one stays about as long as it is said to be.
            # The first one finds the processor's caches full of what was measured before it.
            found = [await _turn(handle, at) for at in range(6)]
            await corpus.caught_up(hf)
            return found[1:]

        blocks["digest, turn in memory"] = turn
        return await in_turn(blocks, rounds=run.rounds, limit=run.limit)


async def _turn(handle: SessionHandle, at: int) -> float:
    started = clock()
    async with handle.turn(corpus.prose(at)) as opened:
        opened.add("Noted.")
    return clock() - started


def _carried(material: Material, strategy: str, budget: int, length: int) -> Block:
    return _carrying(material, asked(strategy, budget), material.state(strategy, budget, length), length)


def _carrying(material: Material, request: Request, state: ViewState, length: int) -> Block:
    """Take one new message in and build; back to the beginning for each block."""
    rows, (grown, _) = material.rows(state, length), extend(material.tail(length), _news(length))
    view, news = build(request, state, *rows).view, iter(grown)

    def fresh() -> None:
        nonlocal view, news
        view, news = build(request, state, *rows).view, iter(grown)

    def call() -> None:
        view.extend((next(news),))
        build_on(request, view)

    return repeated(call, most=MOST, fresh=fresh)


def _news(length: int) -> list[NewEntry]:
    messages = [corpus.message(6 * (length // 6 + 1) + at) for at in range(MOST)]
    return [NewEntry(message=message, tokens=STORED.message(message), timestamp=0) for message in messages]


def _trimming(trimmer: Trimmer, budget: int, *, exact: bool) -> Block:
    """One more message, then trim."""
    length, news = len(trimmer.said), [new.message for new in _news(len(trimmer.said))]
    room = budget + STORED.message(SYSTEM)

    def call() -> None:
        trimmer.append(news[len(trimmer.said) - length])
        trimmer.trimmed(room, exact=exact)

    return repeated(call, most=MOST, fresh=lambda: trimmer.back_to(length))


# -- cold --------------------------------------------------------------------


async def _cold(run: Run, length: int, budget: int) -> dict[str, Samples]:
    blocks: dict[str, Block] = {}
    for strategy in STRATEGIES:
        path = run.folder / f"cold-{strategy}-{budget}-{length}.db"
        async with Holdfast(f"sqlite:///{path}", roster=roster(strategy, budget)) as hf:
            await run.material.fill(hf, "s", length, view=hf.roster.find_responder())
        blocks[strategy] = _opened(path, strategy, budget)
    found = await in_turn(blocks, rounds=run.rounds, limit=run.limit)
    clear(run.folder, "cold-*")
    return found


def _opened(path: Path, strategy: str, budget: int) -> Block:
    return _opening(path, asked(strategy, budget), roster(strategy, budget).find_responder().view_key)


def _opening(path: Path, request: Request, key: str) -> Block:
    """Read and build on connections that have read nothing yet."""

    async def block() -> list[float]:
        found = []
        for _ in range(5):
            store = await open_store(f"sqlite:///{path}", tenant="default")
            try:
                ref = (await store.list(limit=1)).sessions[0].ref
                started = clock()
                rows = await store.window(ref, key)
                assert rows.view is not None, "the view was saved"
                build(request, decode_state(rows.view.state), rows.head, rows.entries)
                found.append(clock() - started)
            finally:
                await store.close()
        return found

    return block


# -- every strategy ----------------------------------------------------------


class View(NamedTuple):
    """A strategy's view of a session as it has been worked out."""

    request: Request
    state: ViewState
    read: int
    """Entries that a build reads."""


async def _every(run: Run) -> Table:
    """A row a strategy: what a build reads and takes once its view is there, in a short session and in a long one."""
    material = run.material if len(run.material.new) >= ENDS[1] else Material(ENDS[1])
    rows: dict[str, dict[str, Figure]] = {name: {"strategy": name} for name in EVERY}
    for at, length in zip(("short", "long"), ENDS, strict=True):
        told(f"window: every strategy, {length:,} entries, {SMALL:,} tokens")
        views = {name: _view(material, name, length) for name in EVERY}
        warm = {name: _carrying(material, view.request, view.state, length) for name, view in views.items()}
        path = run.folder / f"every-{length}.db"
        await _stored(material, path, length, views)
        cold = {name: _opening(path, view.request, name) for name, view in views.items()}
        for kind, blocks in (("warm", warm), ("cold", cold)):
            for name, samples in (await in_turn(blocks, rounds=run.rounds, limit=run.limit)).items():
                rows[name][f"{kind}_{at}"] = samples.median
        for name, view in views.items():
            rows[name][f"read_{at}"] = view.read
        clear(run.folder, "every-*")
    for row in rows.values():
        for kind in ("warm", "cold"):
            row[f"{kind}_ratio"] = cast("float", row[f"{kind}_long"]) / cast("float", row[f"{kind}_short"])
    title = f"Every strategy once its view is there, {SMALL:,} tokens: a build by entries of the session"
    return Table("window_every", title, _columns(), list(rows.values()), _EVERY)


_EVERY = (
    "warm: one new message into the view in memory, and a build; the median, in which no step of a frontier is.",
    "cold: as above; the entries it reads are those of the head and of the tail, the compactions stand in the view's state.",
    "summary_buffer: a summary lies over all but the newest messages; with summarizer_llm=none the digest stands in.",
    "none is left out: it reads and sends everything.",
)


def _columns() -> list[Column]:
    return [
        Column("strategy", "strategy"),
        *(Column(f"read_{at}", f"entries read at {length:,}", whole) for at, length in _AT),
        *(Column(f"{kind}_{at}", f"{kind} at {length:,}", duration) for kind in ("warm", "cold") for at, length in _AT),
        *(Column(f"{kind}_ratio", f"{kind}, ratio", ratio) for kind in ("warm", "cold")),
    ]


_AT = (("short", ENDS[0]), ("long", ENDS[1]))


def _view(material: Material, name: str, length: int) -> View:
    """A strategy's view, worked out of the newest entries and the task."""
    policy = spec_of(name).policy(SMALL, written=True)
    request = Request(policy=policy, count=STORED, input_budget=LLM.budget().input, system=(SYSTEM,))
    log = material.entries[:length]
    if policy.summarizer is not None:
        state = _with_summary(request, log)
    else:
        state = build(request, None, (), log if length <= REACH else [*log[:1], *log[-REACH:]]).state
    kept, tail = material.rows(state, length)
    return View(request, state, len(kept) + len(tail))


def _with_summary(request: Request, log: Sequence[Entry]) -> ViewState:
    """The view of a session whose older part a model has summarized, in some 500 tokens."""
    last = log[-RECENT - 1]
    text = "\n".join(corpus.prose(at) for at in range(8))
    summary = compaction_of(text, first=1, last=last.seq, total=last.total, count=request.count, marker="qwertzui")
    room = request.room(request.limit(request.overhead()))
    return summarized(request.policy, room, summary, [log[0], *log[-RECENT:]], anchor=0).state()


async def _stored(material: Material, path: Path, length: int, views: dict[str, View]) -> None:
    """A session with all these views in a file."""
    async with Holdfast(f"sqlite:///{path}", roster=roster("digest", SMALL)) as hf:
        ref = await material.fill(hf, "s", length)
        for name, view in views.items():
            await _save(hf, ref, name, view)
            rows = await hf.store.window(ref, name)
            assert len(rows.head) + len(rows.entries) == view.read, f"{name}: a store reads what the view says"


async def _save(hf: Holdfast, ref: SessionRef, name: str, view: View) -> None:
    summary, state = view.state.summary, view.state
    laid = (
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
    await hf.store.append(ref, Append(timestamp=0, views={name: saved}, compactions=laid))
