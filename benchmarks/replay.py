"""What strategies and `trim_messages` keep of recorded sessions, and what their prompts cost.

The same functions of `holdfast.replay` measure all of them.
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
from benchmarks.scripted_summaries import SCRIPTED, make_scripted_llm
from benchmarks.tables import Column, Figure, Table, format_count, format_decimal, format_duration, format_share
from benchmarks.timing import report
from holdfast.context.build import PRIMING, WorkingSet
from holdfast.domain.counting import TokenCounter
from holdfast.domain.messages import Message
from holdfast.replay.player import Player, Result, Tally, play, play_call
from holdfast.replay.prompt_checks import SessionTexts
from holdfast.replay.recordings import chain_sessions, read
from holdfast.replay.specs import Spec, parse_spec
from holdfast.replay.summaries import SummaryWriter
from holdfast.tokens import STORED
from holdfast.wire.openai import split_system
from holdfast.wire.transcripts import Recording

BUDGETS = (256, 512, 1_024, 2_048)
CHAIN = 16_384
EVERYTHING, WIDEST = 10**8, 128_000
TRIM = "trim_messages"
SHORT = ("digest", "token_window", "salience", "head_tail", TRIM)
"""Strategies that are replayed at each budget."""
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
"""Strategies that are replayed on all sessions joined into one, and their budgets."""
Make = Callable[[tuple[Message, ...]], Player]
"""Creates a player for a session with this system prompt."""


async def measure(run: Run) -> list[Table]:
    """Return both tables, or a note that the recorded sessions are missing."""
    path = Path(os.environ.get("HOLDFAST_TEST_DATA") or DATA) / "airline" / "sessions.jsonl"
    if not path.exists():
        note = "Not measured: set HOLDFAST_TEST_DATA to a folder that contains airline/sessions.jsonl."
        return [Table("replay", "What each strategy keeps", (), (), (note,))]
    sessions = read([path], skip_bad=False, on_bad=lambda _: None)
    rows = [_measure_strategy(sessions, name, budget) for budget in BUDGETS for name in SHORT]
    tables = [
        Table("replay", f"What each strategy keeps of {len(sessions)} recorded sessions", _make_columns(), rows, _NOTES)
    ]
    if not run.quick:
        joined = chain_sessions(sessions)
        # In a thread, because a summarizer runs its own event loop.
        long = [await asyncio.to_thread(_measure_strategy, joined, name, budget) for name, budget in LONG]
        title = f"The same sessions joined into one, budget {CHAIN:,}"
        tables.append(Table("replay_chain", title, _make_columns(), _add_ratios(long), _CHAIN_NOTES))
    return tables


DATA = Path(__file__).parents[2] / "shared" / "data"
_NOTES = (
    "Budgets do not include the system prompt. Tokens and cost per call do.",
    "trim_messages runs with the strategy last, include_system and the exact counter. Its build time excludes counting.",
)


_CHAIN_NOTES = (
    (
        f"none sends everything: in one row only calls of up to {WIDEST:,} tokens, in the other row all calls. A refused call counts only in recall "
        "and bound, where its values are lost."
    ),
    "summary_buffer: a script writes the summaries instead of a model, so these rows say nothing about the recall of real models.",
    "The cost includes the summarizer's tokens: each token that it reads counts 1, and each token that it writes counts 5.",
)


def _make_columns() -> list[Column]:
    return [
        Column("strategy", "strategy"),
        Column("budget", "budget", lambda budget: "all" if budget == EVERYTHING else format_count(budget)),
        Column("refused", "refused", format_count),
        Column("tokens_per_call", "tokens per call", format_count),
        Column("recall", "recall", format_share),
        Column("bound", "bound", format_share),
        Column("cached", "cached", format_share),
        Column("cost_per_call", "cost per call", format_count),
        Column("cost_ratio", "cost ratio", format_decimal),
        Column("orphans", "orphans", format_share),
        Column("tasks_lost", "tasks lost", format_share),
        Column("build", "build", format_duration),
    ]


def _measure_strategy(sessions: Sequence[Recording], name: str, budget: int) -> dict[str, Figure]:
    report(f"replay: {name}, {budget:,} tokens, {len(sessions)} sessions")
    if name == TRIM:
        return _make_row(_play(sessions, lambda system: _TrimmingPlayer(system, budget)).make_result(name, budget))
    spec = parse_spec(name)
    if spec.summarizer == SCRIPTED:
        with SummaryWriter(make_scripted_llm()) as writer:
            return _make_row(play(sessions, spec, budget, writer=writer).result)
    return _make_row(_play(sessions, lambda system: _make_player(spec, budget, system)).make_result(spec.label, budget))


def _make_row(result: Result) -> dict[str, Figure]:
    row: dict[str, Figure] = msgspec.structs.asdict(result)
    return {**row, "build": result.build_ms / 1000}


def _add_ratios(rows: list[dict[str, Figure]]) -> list[dict[str, Figure]]:
    """Add to each row the ratio of its cost to that of the first row."""
    base = cast("float", rows[0]["cost_per_call"])
    return [{**row, "cost_ratio": cast("float", row["cost_per_call"]) / base} for row in rows]


# -- replay ------------------------------------------------------------------


def _play(sessions: Sequence[Recording], make: Make) -> Tally:
    """Replay sessions as `holdfast.replay.player.play` does, with a player of the caller."""
    tally = Tally()
    for session in sessions:
        system, messages = split_system(session.messages)
        player, said = make(system), SessionTexts()
        task = next((message for message in messages if message.role == "user"), None)
        before: tuple[Message, ...] = ()
        for message in messages:
            if message.role == "assistant" and player.entries:
                before = play_call(player, message, task, before, said, tally=tally)
            player.append(message)
            said.add(message)
    return tally


def _make_player(spec: Spec, budget: int, system: tuple[Message, ...]) -> Player:
    player = Player(spec.make_strategy(budget), budget, system)
    player.count = CachingCounter()
    return player


class _TrimmingPlayer(Player):
    """A player whose working sets are the prompts of `trim_messages`."""

    def __init__(self, system: tuple[Message, ...], budget: int) -> None:
        super().__init__(parse_spec("none").make_strategy(budget), budget, system)
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
    """An empty window: `trim_messages` condenses nothing."""

    summary: None = None
    compaction: None = None


class _Prompt(NamedTuple):
    """The fields of a working set that replay reads."""

    messages: tuple[Message, ...]
    total_tokens: int
    window: _NoWindow


class CachingCounter:
    """A token counter that counts each message once, because the cost of every prompt is summed from its messages."""

    name, exact, margin, factor = STORED.name, STORED.exact, STORED.margin, STORED.factor

    def __init__(self) -> None:
        self._counts: dict[int, tuple[Message, int]] = {}

    def message(self, message: Message) -> int:
        """Return the tokens of `message`; keep a reference to it so that its id is not reused."""
        if id(message) not in self._counts:
            self._counts[id(message)] = (message, STORED.message(message))
        return self._counts[id(message)][1]

    text = staticmethod(STORED.text)
    tools = staticmethod(STORED.tools)


_: TokenCounter = CachingCounter()
