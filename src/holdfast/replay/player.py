"""Sessions played through a strategy, and the totals over their calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from holdfast.context.build import PRIMING, Request, WorkingSet, build
from holdfast.context.escaping import derive_marker
from holdfast.context.strategies import Strategy
from holdfast.context.view import ViewState
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.errors import BudgetTooSmall
from holdfast.replay.prompt_checks import SessionTexts, has_orphan, has_task, is_bound, list_blocks, list_values
from holdfast.replay.specs import Spec
from holdfast.replay.summaries import SessionSummaries, SummaryWriter
from holdfast.tokens import STORED, TokenCounter
from holdfast.wire.openai import split_system
from holdfast.wire.transcripts import Recording

CACHE_READ, CACHE_WRITE, CACHE_LEAST = 0.1, 1.25, 1024
"""Prices of a cached and a fresh prompt token, as multiples of an input token; and the shortest cached prefix, in tokens."""
SUMMARY_READ, SUMMARY_WRITTEN = 1.0, 5.0
"""Prices of a token that a summarizer reads (never cached) and of one that it writes, as multiples of an input token."""
UNLIMITED = 10**9
"""Size of the model's window in tokens, so large that only the strategy's budget counts."""


class Result(msgspec.Struct, frozen=True):
    """Figures of one strategy at one budget. Shares are from 0 to 1; `recall` is None if no call used a known value."""

    strategy: str
    budget: int
    calls: int
    refused: int
    tokens_per_call: float
    recall: float | None
    bound: float | None
    cached: float
    cost_per_call: float
    orphans: float
    tasks_lost: float
    build_ms: float
    summaries: int
    """Number of summaries made by a model."""
    summaries_failed: int
    """Number of failed summaries, for which the digest was used."""
    summarizer_tokens: int
    """Tokens read and written by the summarizer; their price is included in `cost_per_call`."""


class SessionResult(msgspec.Struct, frozen=True):
    """Figures of one strategy in one session."""

    id: str
    calls: int
    recall: float | None
    """None if no call used a known value."""
    bound: float | None
    cost_per_call: float | None
    """None if every call was refused, or there was none."""
    refused: int


class Tally:
    """Totals over the calls of one run."""

    def __init__(self) -> None:
        self.calls = self.refused = self.orphans = self.tasks_lost = 0
        self.tokens = self.cached = self.used = self.found = self.bound = 0
        self.cost = self.seconds = 0.0
        self.summaries = self.summaries_failed = self.read = self.written = 0

    @classmethod
    def sum_up(cls, parts: Iterable[Tally]) -> Tally:
        """Return the sum of several tallies."""
        whole = cls()
        for part in parts:
            for name, value in vars(part).items():
                setattr(whole, name, getattr(whole, name) + value)
        return whole

    @property
    def sent(self) -> int:
        """Number of calls for which a prompt was built."""
        return self.calls - self.refused

    def make_result(self, name: str, budget: int) -> Result:
        """Return the totals as shares and means."""
        sent = max(1, self.sent)
        return Result(
            strategy=name,
            budget=budget,
            calls=self.calls,
            refused=self.refused,
            tokens_per_call=round(self.tokens / sent, 1),
            recall=self._share(self.found),
            bound=self._share(self.bound),
            cached=round(self.cached / max(1, self.tokens), 4),
            cost_per_call=round(self.cost / sent, 1),
            orphans=round(self.orphans / sent, 4),
            tasks_lost=round(self.tasks_lost / sent, 4),
            build_ms=round(self.seconds / sent * 1000, 4),
            summaries=self.summaries,
            summaries_failed=self.summaries_failed,
            summarizer_tokens=self.read + self.written,
        )

    def add_summaries(self, summaries: SessionSummaries) -> None:
        """Add the tokens and the cost of a session's summaries."""
        self.summaries += summaries.made
        self.summaries_failed += summaries.failed
        self.read += summaries.spent.prompt_tokens
        self.written += summaries.spent.completion_tokens
        self.cost += SUMMARY_READ * summaries.spent.prompt_tokens + SUMMARY_WRITTEN * summaries.spent.completion_tokens

    def make_session_result(self, session_id: str) -> SessionResult:
        """Return the figures of one session."""
        return SessionResult(
            id=session_id,
            calls=self.calls,
            recall=self._share(self.found),
            bound=self._share(self.bound),
            cost_per_call=round(self.cost / self.sent, 1) if self.sent else None,
            refused=self.refused,
        )

    def _share(self, count: int) -> float | None:
        return round(count / self.used, 4) if self.used else None


class PlayResult(msgspec.Struct, frozen=True):
    """Results of one strategy at one budget, in total and by session."""

    result: Result
    sessions: tuple[tuple[str, Tally], ...]
    """Ids and tallies, in the order in which the sessions were played."""

    def list_rows(self) -> list[SessionResult]:
        """Return one row per session."""
        return [tally.make_session_result(session_id) for session_id, tally in self.sessions]


def play(
    sessions: Sequence[Recording],
    spec: Spec,
    budget: int,
    *,
    on_session: Callable[[], None] = lambda: None,
    writer: SummaryWriter | None = None,
) -> PlayResult:
    """Play `sessions` through one strategy at one budget.

    Args:
        sessions: The recordings.
        spec: The strategy and its keys.
        budget: Tokens of the conversation without the system prompt. For `none`, which has no budget of its own, larger
            prompts are refused; strategies that count messages ignore it.
        on_session: Called after each session, to show progress.
        writer: Writes summaries for strategies that have them. None: the digest is used instead.
    """
    rule = spec.make_strategy(budget, written=writer is not None)
    tallies = []
    for session in sessions:
        tally = Tally()
        _play_session(session, Player(rule, budget, split_system(session.messages)[0], writer), tally)
        tallies.append((session.id, tally))
        on_session()
    whole = Tally.sum_up(tally for _, tally in tallies)
    return PlayResult(whole.make_result(spec.label, budget), tuple(tallies))


# -- one session -------------------------------------------------------------


MARKER: Final = derive_marker(b"replay", "")
"""Marker of all replayed sessions: it need not be secret here, and equal recordings give equal figures."""


class Player:
    """A session's log so far and a view of it, in memory, as a store would have them.

    Args:
        rule: The strategy that builds the prompts.
        budget: Tokens of the conversation without the system prompt; also the window, for `none`.
        system: The session's system prompt.
        writer: Writes summaries if the strategy has them.
    """

    def __init__(
        self, rule: Strategy, budget: int, system: tuple[Message, ...] = (), writer: SummaryWriter | None = None
    ) -> None:
        self.count: TokenCounter = STORED
        overhead = PRIMING + sum(self.count.message(message) for message in system)
        window = budget + overhead if rule.name == "none" else UNLIMITED
        self.request = Request(strategy=rule, count=self.count, input_budget=window, system=system).with_marker(MARKER)
        self.entries: list[Entry] = []
        self.tail = Tail()
        self.state: ViewState | None = None
        self.summaries: SessionSummaries | None = None
        if writer is not None and rule.summarizer is not None:
            self.summaries = SessionSummaries(
                writer, self.request, self.request.make_room(self.request.compute_limit(overhead))
            )
        self._sent = self._total = 0

    def append(self, message: Message) -> None:
        """Append the next message of the recording to the log."""
        new = NewEntry(message=message, tokens=self.count.message(message), timestamp=0)
        entries, self.tail = extend(self.tail, [new])
        self.entries += entries

    def prepare(self) -> None:
        """Make a summary before a call if otherwise messages would be evicted into the digest."""
        if self.summaries is not None and self._grown > self.summaries.full_at and self._would_move():
            self._summarize(self.summaries)

    def build(self) -> WorkingSet:
        """Return the working set after the messages so far.

        Raises:
            BudgetTooSmall: The messages that must be sent do not fit.
        """
        built = self._build()
        self.state = built.state
        if self.summaries is not None:
            self._sent, self._total = built.window.tokens, self.tail.total
        return built

    def finish_call(self) -> None:
        """Make a summary after a call and its reply if the threshold is exceeded."""
        if self.summaries is not None:
            self.summaries.count_call()
            if self._grown > self.summaries.due_at:
                self._summarize(self.summaries)

    def _build(self) -> WorkingSet:
        return build(self.request, self.state, self._kept, self.entries[self._frontier :])

    def _would_move(self) -> bool:
        """Return True if a build would move the frontier."""
        try:
            return self._build().view.frontier != self._frontier
        except BudgetTooSmall:
            return False

    @property
    def _frontier(self) -> int:
        return self.state.frontier if self.state else 0

    @property
    def _kept(self) -> list[Entry]:
        return [self.entries[seq] for seq in self.state.keep] if self.state else []

    @property
    def _grown(self) -> int:
        """Tokens of the conversation: those of the last prompt, plus messages added since."""
        return self._sent + self.tail.total - self._total

    def _summarize(self, summaries: SessionSummaries) -> None:
        state = summaries.summarize(self.state, self._kept, self.entries, anchor=self.tail.anchor)
        if state is not None:
            self.state = state


def _play_session(session: Recording, player: Player, tally: Tally) -> None:
    _, messages = split_system(session.messages)
    task = next((message for message in messages if message.role == "user"), None)
    before: tuple[Message, ...] = ()
    texts = SessionTexts()
    for message in messages:
        call = message.role == "assistant" and bool(player.entries)
        if call:
            before = play_call(player, message, task, before, texts, tally=tally)
        player.append(message)
        texts.add(message)
        if call:
            player.finish_call()
    if player.summaries is not None:
        tally.add_summaries(player.summaries)


def play_call(
    player: Player,
    recorded: Message,
    task: Message | None,
    before: tuple[Message, ...],
    texts: SessionTexts,
    *,
    tally: Tally,
) -> tuple[Message, ...]:
    """Build the prompt for one recorded call, add to the totals, and return the prompt for the next call's common prefix.

    Args:
        player: The session up to this call.
        recorded: The message with which the agent answered.
        task: The session's first user message.
        before: The prompt of the previous call.
        texts: The texts of the session up to this call.
        tally: The totals.
    """
    tally.calls += 1
    used = {value: origin for value in list_values(recorded) if (origin := texts.find_origin(value)) is not None}
    tally.used += len(used)
    player.prepare()
    started = time.perf_counter()
    try:
        built = player.build()
    except BudgetTooSmall:
        tally.refused += 1
        return before
    tally.seconds += time.perf_counter() - started
    conversation = built.messages[len(player.request.system) :]
    blocks = list_blocks(built, conversation)
    tally.found += sum(any(value in block for block in blocks) for value in used)
    tally.bound += sum(is_bound(value, origin, blocks) for value, origin in used.items())
    tally.tokens += built.total_tokens
    cached = _count_cached(before, built.messages, player.count)
    tally.cached += cached
    tally.cost += CACHE_READ * cached + CACHE_WRITE * (built.total_tokens - cached)
    tally.orphans += has_orphan(conversation)
    tally.tasks_lost += not has_task(conversation, task)
    return built.messages


def _count_cached(before: Sequence[Message], now: Sequence[Message], count: TokenCounter) -> int:
    """Return the tokens of the longest common prefix with the previous prompt, as a provider would cache it."""
    common = 0
    for old, new in zip(before, now, strict=False):
        if old is not new and old != new:
            break
        common += count.message(new)
    return common if common >= CACHE_LEAST else 0
