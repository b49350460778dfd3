"""Building a working set by length of the session: carried on in memory, through a turn, and from a cold store."""

from __future__ import annotations

from pathlib import Path

from benchmarks import corpus
from benchmarks.corpus import LENGTHS, STRATEGIES, SYSTEM, Material, asked, roster
from benchmarks.lengths import Cell, by_length
from benchmarks.peers import Trimmer
from benchmarks.run import Run, clear
from benchmarks.tables import Table
from benchmarks.timing import Block, Samples, clock, in_turn, repeated, told
from holdfast.context.build import build, build_on
from holdfast.context.view import decode_state
from holdfast.handles import SessionHandle
from holdfast.holdfast import Holdfast
from holdfast.session import NewEntry, extend
from holdfast.stores import open_store
from holdfast.tokens import STORED

BUDGETS = (8_000, 128_000)
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
        ref = await material.fill(hf, "s", length, view=hf.roster.voice())
        handle = await hf.session(ref.id, user_id=ref.user_id)

        async def turn() -> list[float]:
            # A session cannot be made shorter again: few turns, so that a short one stays about as long as it is said to be.
            # The first one finds the processor's caches full of what was measured before it.
            return [await _turn(handle, at) for at in range(6)][1:]

        blocks["digest, turn in memory"] = turn
        return await in_turn(blocks, rounds=run.rounds, limit=run.limit)


async def _turn(handle: SessionHandle, at: int) -> float:
    started = clock()
    async with handle.turn(corpus.prose(at)) as opened:
        opened.add("Noted.")
    return clock() - started


def _carried(material: Material, strategy: str, budget: int, length: int) -> Block:
    """Take one new message in and build; back to the beginning for each block."""
    request, state = asked(strategy, budget), material.state(strategy, budget, length)
    rows, (grown, _) = material.rows(state, length), extend(material.tail(length), _news(length))
    view, news = build(request, state, *rows).carried, iter(grown)

    def fresh() -> None:
        nonlocal view, news
        view, news = build(request, state, *rows).carried, iter(grown)

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
            await run.material.fill(hf, "s", length, view=hf.roster.voice())
        blocks[strategy] = _opened(path, strategy, budget)
    found = await in_turn(blocks, rounds=run.rounds, limit=run.limit)
    clear(run.folder, "cold-*")
    return found


def _opened(path: Path, strategy: str, budget: int) -> Block:
    """Read and build on connections that have read nothing yet."""
    request, voice = asked(strategy, budget), roster(strategy, budget).voice()
    key = voice.view_key()

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
