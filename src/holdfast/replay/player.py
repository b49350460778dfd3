"""Sessions played through a policy, and the sums over their calls."""

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
from holdfast.replay.prompt_checks import Said, blocks_of, has_orphan, has_task, is_bound, values_of
from holdfast.replay.specs import Spec
from holdfast.replay.summaries import SessionSummaries, SummaryWriter
from holdfast.tokens import STORED, TokenCounter
from holdfast.wire.openai import split_system
from holdfast.wire.transcripts import Recording

CACHE_READ, CACHE_WRITE, CACHE_LEAST = 0.1, 1.25, 1024
"""Price of a cached and of a fresh prompt token, in input tokens; shortest prefix that a provider caches, in tokens."""
SUMMARY_READ, SUMMARY_WRITTEN = 1.0, 5.0
"""The same of a token that a summarizer reads, which nobody caches, and of one that it writes."""
UNLIMITED = 10**9
"""Tokens of the model's window: only the strategy's budget counts here."""


class Result(msgspec.Struct, frozen=True):
    """How one strategy did at one budget. Shares are from 0 to 1; `recall` is None where no call used a known value."""

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
    """That a model made."""
    summaries_failed: int
    """For which the digest stood in."""
    summarizer_tokens: int
    """Read and written by the summarizer; their price is in `cost_per_call`."""


class SessionResult(msgspec.Struct, frozen=True):
    """How one strategy did in one session."""

    id: str
    calls: int
    recall: float | None
    """None where no call used a known value."""
    bound: float | None
    cost_per_call: float | None
    """None where every call was refused, or there was none."""
    refused: int


class Tally:
    """Sums over the calls of one run."""

    def __init__(self) -> None:
        self.calls = self.refused = self.orphans = self.tasks_lost = 0
        self.tokens = self.cached = self.used = self.found = self.bound = 0
        self.cost = self.seconds = 0.0
        self.summaries = self.summaries_failed = self.read = self.written = 0

    @classmethod
    def of(cls, parts: Iterable[Tally]) -> Tally:
        """The sums of several."""
        whole = cls()
        for part in parts:
            for name, value in vars(part).items():
                setattr(whole, name, getattr(whole, name) + value)
        return whole

    @property
    def sent(self) -> int:
        """Calls for which a prompt was built."""
        return self.calls - self.refused

    def result(self, name: str, budget: int) -> Result:
        """The sums as shares and means."""
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
        """What a session's summaries took, and what that costs."""
        self.summaries += summaries.made
        self.summaries_failed += summaries.failed
        self.read += summaries.spent.prompt_tokens
        self.written += summaries.spent.completion_tokens
        self.cost += SUMMARY_READ * summaries.spent.prompt_tokens + SUMMARY_WRITTEN * summaries.spent.completion_tokens

    def session(self, session_id: str) -> SessionResult:
        """The same of one session."""
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


class Played(msgspec.Struct, frozen=True):
    """One strategy at one budget: the whole, and each session."""

    result: Result
    sessions: tuple[tuple[str, Tally], ...]
    """Ids and sums, in the order they were played."""

    def rows(self) -> list[SessionResult]:
        """A row a session."""
        return [tally.session(session_id) for session_id, tally in self.sessions]


def play(
    sessions: Sequence[Recording],
    spec: Spec,
    budget: int,
    *,
    on_session: Callable[[], None] = lambda: None,
    writer: SummaryWriter | None = None,
) -> Played:
    """Play `sessions` through one strategy at one budget.

    Args:
        sessions: what to play.
        spec: the strategy and its keys.
        budget: tokens of the conversation, the system prompt not counted; what a strategy without a budget of its
            own cannot keep is refused where it is over, for `none`, and ignored for count windows.
        on_session: called after each session: progress.
        writer: who writes summaries, for strategies that have them; None: the digest stands in.
    """
    rule = spec.policy(budget, written=writer is not None)
    tallies = []
    for session in sessions:
        tally = Tally()
        _play_one(session, Player(rule, budget, split_system(session.messages)[0], writer), tally)
        tallies.append((session.id, tally))
        on_session()
    whole = Tally.of(tally for _, tally in tallies)
    return Played(whole.result(spec.label, budget), tuple(tallies))


# -- one session -------------------------------------------------------------


MARKER: Final = derive_marker(b"replay", "")
"""Of every session that is played: nobody speaks to these, and equal recordings give equal figures."""


class Player:
    """A session's log so far and a view of it, in memory: what a store would hold.

    Args:
        rule: what builds the prompts.
        budget: tokens of the conversation, the system prompt not counted; the window too, for `none`.
        system: the session's system prompt.
        writer: who writes summaries, where the rule has them.
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
        """Write the next message of the recording to the log."""
        new = NewEntry(message=message, tokens=self.count.message(message), timestamp=0)
        entries, self.tail = extend(self.tail, [new])
        self.entries += entries

    def prepare(self) -> None:
        """Before a call: have a summary made where the prompt would not fit without a step of the digest."""
        if self.summaries is not None and self._grown > self.summaries.full_at and self._steps():
            self._summarize(self.summaries)

    def build(self) -> WorkingSet:
        """The working set behind what was written so far. Raises `BudgetTooSmall`."""
        built = self._built()
        self.state = built.state
        if self.summaries is not None:
            self._sent, self._total = built.window.tokens, self.tail.total
        return built

    def called(self) -> None:
        """Behind a call and its reply: have a summary made where the threshold is passed."""
        if self.summaries is not None:
            self.summaries.called()
            if self._grown > self.summaries.due_at:
                self._summarize(self.summaries)

    def _built(self) -> WorkingSet:
        return build(self.request, self.state, self._kept, self.entries[self._frontier :])

    def _steps(self) -> bool:
        """Whether a build would move the frontier."""
        try:
            return self._built().view.frontier != self._frontier
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
        """Tokens of the conversation: those of the last prompt, and what was written since."""
        return self._sent + self.tail.total - self._total

    def _summarize(self, summaries: SessionSummaries) -> None:
        state = summaries.summarize(self.state, self._kept, self.entries, anchor=self.tail.anchor)
        if state is not None:
            self.state = state


def _play_one(session: Recording, player: Player, tally: Tally) -> None:
    _, messages = split_system(session.messages)
    task = next((message for message in messages if message.role == "user"), None)
    before: tuple[Message, ...] = ()
    said = Said()
    for message in messages:
        call = message.role == "assistant" and bool(player.entries)
        if call:
            before = play_call(player, message, task, before, said, tally=tally)
        player.append(message)
        said.add(message)
        if call:
            player.called()
    if player.summaries is not None:
        tally.add_summaries(player.summaries)


def play_call(
    player: Player,
    recorded: Message,
    task: Message | None,
    before: tuple[Message, ...],
    said: Said,
    *,
    tally: Tally,
) -> tuple[Message, ...]:
    """Build for one recorded call and add to the sums; the prompt, for the next call's common prefix.

    Args:
        player: the session, up to this call.
        recorded: the message that the agent answered with.
        task: the session's first user message.
        before: the prompt of the call before.
        said: what was said in the session, up to this call.
        tally: the sums.
    """
    tally.calls += 1
    used = {value: origin for value in values_of(recorded) if (origin := said.origin(value)) is not None}
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
    blocks = blocks_of(built, conversation)
    tally.found += sum(any(value in block for block in blocks) for value in used)
    tally.bound += sum(is_bound(value, origin, blocks) for value, origin in used.items())
    tally.tokens += built.total_tokens
    cached = _cached(before, built.messages, player.count)
    tally.cached += cached
    tally.cost += CACHE_READ * cached + CACHE_WRITE * (built.total_tokens - cached)
    tally.orphans += has_orphan(conversation)
    tally.tasks_lost += not has_task(conversation, task)
    return built.messages


def _cached(before: Sequence[Message], now: Sequence[Message], count: TokenCounter) -> int:
    """Tokens of the longest common prefix with the previous prompt, as a provider's cache would have them."""
    common = 0
    for old, new in zip(before, now, strict=False):
        if old is not new and old != new:
            break
        common += count.message(new)
    return common if common >= CACHE_LEAST else 0
