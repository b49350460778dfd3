"""A frontier step with and without standing facts, by session length: it must not grow with the log."""

from __future__ import annotations

from benchmarks.lengths import Cells, make_length_table
from benchmarks.run import Run
from benchmarks.tables import Table
from benchmarks.timing import Block, alternate, clock, report
from holdfast.context import standing_facts
from holdfast.context.analysis_cache import ANALYSES
from holdfast.context.settings import ContextSettings
from holdfast.context.standing_facts import CANDIDATES, decode_candidates
from holdfast.context.strategies import make_strategy
from holdfast.context.view import FoldedView
from holdfast.context.window import Room
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.tokens import STORED

LENGTHS = (100, 10_000, 100_000)
BUDGET = 4_000
STEPS = 3
"""Frontier steps that one block measures."""
_STATEMENTS = (
    "Well, that went on for a while. I prefer berth {} to all others, because it is {} feet longer.",
    "Good to know. Please never call me before {} in the morning, I sleep with the window open.",
    "The limit for the trip number {} is now 900 a month. We decided to go by train, since it is cheaper.",
    "And what does the tide table number {} say about the harbour on that day?",
)


async def measure(run: Run) -> list[Table]:
    """Measure `digest` with and without standing facts."""
    cells: Cells = {}
    for length in run.select_lengths(LENGTHS):
        report(f"facts: {length:,} messages")
        entries = _make_log(length + 2_000)
        blocks = {
            f"digest, facts {'on' if facts else 'off'}": _time_steps(entries, length, facts=facts)
            for facts in (True, False)
        }
        for name, samples in (await alternate(blocks, rounds=run.rounds, limit=run.limit)).items():
            cells[name, BUDGET, length] = samples
    return [
        make_length_table(
            "facts_step",
            f"A frontier step at {BUDGET:,} tokens: median by session length in messages",
            cells,
            base="digest, facts off",
            notes=(
                f"Every other message is a user message, and three of four user messages state a fact. {CANDIDATES} candidates are kept.",
                "Caches of analysed messages are emptied before each step, so this is the worst case.",
            ),
        )
    ]


def _make_log(length: int) -> list[Entry]:
    messages = [
        Message(role="user", content=_STATEMENTS[at // 2 % len(_STATEMENTS)].format(at, at % 50))
        if at % 2 == 0
        else Message(role="assistant", content=f"Berth {at} is free until Friday. {'The water is calm there. ' * 8}")
        for at in range(length)
    ]
    return extend(Tail(), [NewEntry(message=one, tokens=STORED.message(one), timestamp=0) for one in messages])[0]


def _time_steps(entries: list[Entry], length: int, *, facts: bool) -> Block:
    strategy, room = make_strategy(ContextSettings("digest", {"budget": BUDGET, "facts": facts})), Room(BUDGET, STORED)
    state = FoldedView(strategy, room, None, (), entries[:length]).to_state()
    kept = [entries[seq] for seq in state.keep]
    if facts and length > LENGTHS[0]:
        assert len(decode_candidates(bytes(state.candidates)).statements) == CANDIDATES

    async def block() -> list[float]:
        view, seconds = FoldedView(strategy, room, state, kept, entries[state.frontier : length]), list[float]()
        for entry in entries[length:]:
            before = view.frontier
            ANALYSES.clear()
            standing_facts._extract_values.cache_clear()  # noqa: SLF001
            started = clock()
            view.extend([entry])
            taken = clock() - started
            if view.frontier != before:
                seconds.append(taken)
            if len(seconds) == STEPS:
                break
        return seconds

    return block
