"""What strategies keep of recorded sessions, and what their prompts cost, beside `trim_messages`.

All prompts go through the very same functions of `holdfast.replay`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from benchmarks.peers import Trimmer
from benchmarks.run import Run
from benchmarks.tables import Column, Figure, Table, format_count, format_decimal, format_duration, format_share
from benchmarks.timing import report
from holdfast.context.build import PRIMING, WorkingSet
from holdfast.domain.messages import Message
from holdfast.replay import SCRIPTED, Result, Spec, SummaryWriter, Tally, chained, play, read, spec_of, stand_in
from holdfast.replay.judging import Said
from holdfast.replay.playing import Player, play_call
from holdfast.tokens import STORED, TokenCounter
from holdfast.wire.openai import split_system
from holdfast.wire.transcripts import Recording

BUDGETS = (256, 512, 1_024, 2_048)
CHAIN = 16_384
EVERYTHING, WIDEST = 10**8, 128_000
TRIM = "trim_messages"
SHORT = ("digest", "token_window", "salience", "head_tail", TRIM)
"""Played at each budget."""
LONG = (
    ("digest", CHAIN),
    ("token_window", CHAIN),
    ("salience", CHAIN),
    (f"summary_buffer:summarizer_llm={SCRIPTED}", CHAIN),
    (f"summary_buffer:target=0.5,summarizer_llm={SCRIPTED}", CHAIN),
    ("clear_tool_results", CHAIN),
    ("clear_tool_results+token_window", CHAIN),
    (TRIM, CHAIN),
    ("none", WIDEST),
    ("none", EVERYTHING),
)
"""Played through all sessions as one, and at which budget."""
Make = Callable[[tuple[Message, ...]], Player]
"""A player for a session with this system prompt."""


async def measure(run: Run) -> list[Table]:
    """The two tables, or one line that says what is missing."""
    path = Path(os.environ.get("HOLDFAST_TEST_DATA") or DATA) / "airline" / "sessions.jsonl"
    if not path.exists():
        note = "Not measured: HOLDFAST_TEST_DATA names no folder with airline/sessions.jsonl."
        return [Table("replay", "What strategies keep", (), (), (note,))]
    sessions = read([path], skip_bad=False, on_bad=lambda _: None)
    rows = [_measure_strategy(sessions, name, budget) for budget in BUDGETS for name in SHORT]
    tables = [Table("replay", f"What is kept of {len(sessions)} recorded sessions", _make_columns(), rows, _NOTES)]
    if not run.quick:
        one = chained(sessions)
        # In a thread, because a summarizer has an event loop of its own.
        long = [await asyncio.to_thread(_measure_strategy, one, name, budget) for name, budget in LONG]
        title = f"The same sessions as one long one, budget {CHAIN:,}"
        tables.append(Table("replay_chain", title, _make_columns(), _add_ratios(long), _CHAIN_NOTES))
    return tables


DATA = Path(__file__).parents[2] / "shared" / "data"
_NOTES = (
    "Measured by the functions of `holdfast replay`. Budgets do not count the system prompt; tokens and cost do.",
    "trim_messages: strategy last, include_system, exact counter; counting is not in its build time.",
)


_CHAIN_NOTES = (
    f"none: everything sent, up to {WIDEST:,} tokens, and without an end. Shares and means are of what was sent, recall of all.",
    "summary_buffer: summaries by the stand-in of `holdfast replay --summarizer scripted`; its recall says nothing about models.",
    "Their own tokens are in the cost: 1 a token read, 5 a token written.",
)


def _make_columns() -> list[Column]:
    return [
        Column("strategy", "strategy"),
        Column("budget", "budget", lambda budget: "all" if budget == EVERYTHING else format_count(budget)),
        Column("refused", "refused", format_count),
        Column("tokens_per_call", "tokens a call", format_count),
        Column("recall", "recall", format_share),
        Column("bound", "bound", format_share),
        Column("cached", "cached", format_share),
        Column("cost_per_call", "cost a call", format_count),
        Column("cost_ratio", "cost ratio", format_decimal),
        Column("orphans", "orphans", format_share),
        Column("tasks_lost", "tasks lost", format_share),
        Column("build", "build", format_duration),
    ]


def _measure_strategy(sessions: Sequence[Recording], name: str, budget: int) -> dict[str, Figure]:
    report(f"replay: {name}, {budget:,} tokens, {len(sessions)} sessions")
    if name == TRIM:
        return _make_row(_play(sessions, lambda system: _TrimmingPlayer(system, budget)).result(name, budget))
    spec = spec_of(name)
    if spec.summarizer == SCRIPTED:
        with SummaryWriter(stand_in()) as writer:
            return _make_row(play(sessions, spec, budget, writer=writer).result)
    return _make_row(_play(sessions, lambda system: _make_player(spec, budget, system)).result(spec.label, budget))


def _make_row(result: Result) -> dict[str, Figure]:
    row: dict[str, Figure] = msgspec.structs.asdict(result)
    return {**row, "build": result.build_ms / 1000}


def _add_ratios(rows: list[dict[str, Figure]]) -> list[dict[str, Figure]]:
    """Each row's cost by that of the first."""
    base = cast("float", rows[0]["cost_per_call"])
    return [{**row, "cost_ratio": cast("float", row["cost_per_call"]) / base} for row in rows]


# -- playing -----------------------------------------------------------------


def _play(sessions: Sequence[Recording], make: Make) -> Tally:
    """What `holdfast.replay.play` does, with a player of one's own."""
    tally = Tally()
    for session in sessions:
        system, messages = split_system(session.messages)
        player, said = make(system), Said()
        task = next((message for message in messages if message.role == "user"), None)
        before: tuple[Message, ...] = ()
        for message in messages:
            if message.role == "assistant" and player.entries:
                before = play_call(player, message, task, before, said, tally=tally)
            player.append(message)
            said.add(message)
    return tally


def _make_player(spec: Spec, budget: int, system: tuple[Message, ...]) -> Player:
    player = Player(spec.policy(budget), budget, system)
    player.count = CachingCounter()
    return player


class _TrimmingPlayer(Player):
    """The prompts that `trim_messages` makes, as working sets."""

    def __init__(self, system: tuple[Message, ...], budget: int) -> None:
        super().__init__(spec_of("none").policy(budget), budget, system)
        self.count = CachingCounter()
        self._room = budget + sum(STORED.message(message) for message in system)
        self._trimmer = Trimmer(system, remember=True)

    def append(self, message: Message) -> None:
        super().append(message)
        self._trimmer.append(message)

    def build(self) -> WorkingSet:
        messages = tuple(self._trimmer.trim(self._room, exact=True))
        total = PRIMING + sum(self.count.message(message) for message in messages)
        return cast("WorkingSet", _Prompt(messages, total, _NoWindow()))


class _NoWindow(NamedTuple):
    """There is nothing condensed in what `trim_messages` makes."""

    summary: None = None
    compaction: None = None


class _Prompt(NamedTuple):
    """The part of a working set that replay looks at."""

    messages: tuple[Message, ...]
    total_tokens: int
    window: _NoWindow


class CachingCounter:
    """Counts each message once: the cost of a prompt is summed from its messages for every call."""

    name, exact, margin, factor = STORED.name, STORED.exact, STORED.margin, STORED.factor

    def __init__(self) -> None:
        self._counts: dict[int, tuple[Message, int]] = {}

    def message(self, message: Message) -> int:
        """Tokens of `message`, which is kept so that its identity is."""
        if id(message) not in self._counts:
            self._counts[id(message)] = (message, STORED.message(message))
        return self._counts[id(message)][1]

    text = staticmethod(STORED.text)
    tools = staticmethod(STORED.tools)


_: TokenCounter = CachingCounter()
