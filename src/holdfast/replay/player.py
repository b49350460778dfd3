"""Replay sessions through a strategy, and add up measured values over their calls, and compare two strategies by them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.build import PRIMING, Request, WorkingSet, build
from holdfast.context.escaping import derive_marker
from holdfast.context.strategies import Strategy
from holdfast.context.view import ViewState
from holdfast.domain.activity import CACHE_LEAST, compute_prompt_cost, compute_summary_cost
from holdfast.domain.counting import TokenCounter
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.errors import BudgetTooSmall
from holdfast.replay.prompt_checks import SessionTexts, has_orphan, has_task, is_bound, list_blocks, list_values
from holdfast.replay.specs import Spec
from holdfast.replay.summaries import SessionSummaries, SummaryWriter
from holdfast.tokens import STORED
from holdfast.wire.openai import split_system
from holdfast.wire.transcripts import Recording

UNLIMITED = 10**9
"""Size of the model's context window in tokens. It is so large that only the budget of the strategy limits a prompt."""


class Result(msgspec.Struct, frozen=True):
    """Results of one strategy with one budget, over all sessions. Fractions are from 0 to 1.

    `recall` and `bound` are argument recall and bound recall, as `holdfast.replay` defines them. They are None if no call used a value from
    an earlier message.
    """

    strategy: str
    budget: int
    calls: int
    refused: int
    """Number of calls for which no prompt was built, because the required messages do not fit the budget."""
    tokens_per_call: float
    recall: float | None
    bound: float | None
    cached: float
    """Fraction of the prompt tokens that a provider would read from its cache."""
    cost_per_call: float
    """Mean cost of a call, including summaries, as a multiple of the price of an input token."""
    orphans: float
    """Fraction of the prompts that contain a tool call without its result, or a result without its call."""
    tasks_lost: float
    """Fraction of the prompts without the task, which is the first user message."""
    build_ms: float
    """Mean milliseconds for building a prompt."""
    summaries: int
    """Number of summaries that a model wrote."""
    summaries_failed: int
    """Number of summaries that failed. The digest was used instead."""
    summarizer_tokens: int
    """Number of tokens that the summarizer read and wrote. `cost_per_call` includes their price."""


class SessionResult(msgspec.Struct, frozen=True):
    """Results of one strategy in one session. `Result` describes the fields."""

    id: str
    calls: int
    recall: float | None
    bound: float | None
    cost_per_call: float | None
    """None if no prompt was built."""
    refused: int


class Tally:
    """Totals of the measured values over several calls, from which results are computed."""

    def __init__(self) -> None:
        self.calls = self.refused = self.orphans = self.tasks_lost = 0
        self.tokens = self.cached = self.used = self.found = self.bound = 0
        self.cost = self.seconds = 0.0
        self.summaries = self.summaries_failed = self.read = self.written = 0

    @classmethod
    def sum_up(cls, parts: Iterable[Tally]) -> Tally:
        """Return a tally with the sums of several tallies."""
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
        """Return the fractions and means that the totals give.

        Args:
            name: Name of the strategy.
            budget: The budget in tokens.
        """
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
        """Add the number, the tokens and the cost of a session's summaries."""
        self.summaries += summaries.made
        self.summaries_failed += summaries.failed
        self.read += summaries.spent.prompt_tokens
        self.written += summaries.spent.completion_tokens
        self.cost += compute_summary_cost(summaries.spent.prompt_tokens, summaries.spent.completion_tokens)

    def make_session_result(self, session_id: str) -> SessionResult:
        """Return the fractions and means for one session."""
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
    """Results of one strategy with one budget, over all sessions and for each session."""

    result: Result
    sessions: tuple[tuple[str, Tally], ...]
    """Id and totals of each session, in the order in which the sessions were replayed."""

    def list_rows(self) -> list[SessionResult]:
        """Return the results of each session."""
        return [tally.make_session_result(session_id) for session_id, tally in self.sessions]

    def to_row(self, *, per_session: bool = False) -> dict[str, Any]:
        """Convert the result to a JSON object. If `per_session` is set, the object includes the results of single sessions."""
        row = msgspec.structs.asdict(self.result)
        return {**row, "sessions": self.list_rows()} if per_session else row


def play(
    sessions: Sequence[Recording],
    spec: Spec,
    budget: int,
    *,
    on_session: Callable[[], None] = lambda: None,
    writer: SummaryWriter | None = None,
) -> PlayResult:
    """Replay sessions through one strategy with one budget.

    Args:
        sessions: The recorded sessions.
        spec: The strategy and its keys.
        budget: Maximum tokens of the conversation without the system prompt. The strategy `none` has no budget, so its larger prompts are
            refused. Strategies that limit the number of messages ignore the budget.
        on_session: Function that is called after each session, to show progress.
        writer: Writes the summaries for strategies that use summaries. None: the digest is used instead.
    """
    rule = spec.make_strategy(budget, written=writer is not None)
    tallies = []
    for session in sessions:
        tally = Tally()
        play_session(session, rule, budget, tally, writer=writer)
        tallies.append((session.id, tally))
        on_session()
    whole = Tally.sum_up(tally for _, tally in tallies)
    return PlayResult(whole.make_result(spec.label, budget), tuple(tallies))


# -- one session -------------------------------------------------------------


MARKER: Final = derive_marker(b"replay", "")
"""Marker of generated blocks in all replayed sessions. The marker is constant, so that the same recordings give the same results. In a
replay it need not be secret.
"""


class Player:
    """Replays one session in memory: holds the messages so far, builds prompts from them, and makes summaries.

    Args:
        rule: The strategy that builds the prompts.
        budget: Maximum tokens of the conversation without the system prompt. For `none`, it also limits the context window.
        system: The system prompt of the session.
        writer: Writes the summaries if the strategy uses summaries. None: the digest is used instead.
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
        """Make a summary before a call if otherwise messages would leave the prompt and be replaced by the digest."""
        if self.summaries is not None and self._grown > self.summaries.full_at and self._would_move():
            self._summarize(self.summaries)

    def build(self) -> WorkingSet:
        """Return the prompt for a call that follows the messages so far.

        Raises:
            BudgetTooSmall: The messages that must be sent do not fit the budget.
        """
        built = self._build()
        self.state = built.state
        if self.summaries is not None:
            self._sent, self._total = built.window.tokens, self.tail.total
        return built

    def finish_call(self) -> None:
        """Make a summary after a call and its reply, if the threshold of the strategy is exceeded."""
        if self.summaries is not None:
            self.summaries.count_call()
            if self._grown > self.summaries.due_at:
                self._summarize(self.summaries)

    def _build(self) -> WorkingSet:
        return build(self.request, self.state, self._kept, self.entries[self._frontier :])

    def _would_move(self) -> bool:
        """Return True if building the prompt now would remove more messages from it."""
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
        """Tokens of the conversation: those in the last prompt, plus those of the messages that were appended after it."""
        return self._sent + self.tail.total - self._total

    def _summarize(self, summaries: SessionSummaries) -> None:
        state = summaries.summarize(self.state, self._kept, self.entries, anchor=self.tail.anchor)
        if state is not None:
            self.state = state


def play_session(
    session: Recording, rule: Strategy, budget: int, tally: Tally, *, writer: SummaryWriter | None = None
) -> None:
    """Replay one session, and add its measured values to the totals.

    Args:
        session: The recorded session.
        rule: The strategy.
        budget: Maximum tokens of the conversation without the system prompt.
        tally: The totals.
        writer: Writes the summaries if the strategy uses summaries. None: the digest is used instead.
    """
    system, messages = split_system(session.messages)
    player = Player(rule, budget, system, writer)
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
    """Build the prompt for one recorded call, and add its measured values to the totals.

    Args:
        player: The session up to this call.
        recorded: The message with which the agent answered the call.
        task: The first user message of the session.
        before: The prompt of the previous call, to find the prefix that both prompts share.
        texts: The texts of the session up to this call.
        tally: The totals.

    Returns:
        The prompt, or `before` if the prompt was refused.
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
    tally.cost += compute_prompt_cost(built.total_tokens, cached)
    tally.orphans += has_orphan(conversation)
    tally.tasks_lost += not has_task(conversation, task)
    return built.messages


def _count_cached(before: Sequence[Message], now: Sequence[Message], count: TokenCounter) -> int:
    """Return the number of tokens in the prefix that a prompt shares with the previous one, or 0 if it is too short for a cache."""
    common = 0
    for old, new in zip(before, now, strict=False):
        if old is not new and old != new:
            break
        common += count.message(new)
    return common if common >= CACHE_LEAST else 0


NAMING = frozenset({"strategy", "budget", "calls", "refused"})
"""Fields of a `Result` that are not compared, because they identify the run or its size."""
_DIGITS = 4


class PairedSessions(msgspec.Struct, frozen=True):
    """Comparison of two strategies by one measured value, in the sessions for which both strategies have this value."""

    wins: int
    """Number of sessions in which the second strategy is better."""
    losses: int
    ties: int
    mean_difference: float | None
    """Mean difference: the second strategy's value minus the first strategy's value; None if there are no such sessions."""


class Comparison(msgspec.Struct, frozen=True):
    """The results of two strategies, `a` and `b`, and their differences."""

    a: Result
    b: Result
    difference: dict[str, float | None]
    """For each field of `Result`: the value of `b` minus the value of `a`; None if one of them is None."""
    paired: dict[str, PairedSessions]
    """Comparisons session by session: of `recall` and `bound` (more is better), and of `cost` (less is better)."""


def compare(a: PlayResult, b: PlayResult) -> Comparison:
    """Compare the results of two strategies. Both must be for the same sessions in the same order."""
    paired = {
        "recall": _compare_sessions(a, b, lambda tally: tally.found / tally.used if tally.used else None),
        "bound": _compare_sessions(a, b, lambda tally: tally.bound / tally.used if tally.used else None),
        "cost": _compare_sessions(a, b, lambda tally: tally.cost / tally.sent if tally.sent else None, less=True),
    }
    return Comparison(a.result, b.result, dict(_compute_differences(a.result, b.result)), paired)


def _compute_differences(a: Result, b: Result) -> Iterable[tuple[str, float | None]]:
    for name in (figure for figure in Result.__struct_fields__ if figure not in NAMING):
        first, second = getattr(a, name), getattr(b, name)
        yield name, None if first is None or second is None else round(second - first, _DIGITS)


def _compare_sessions(
    a: PlayResult, b: PlayResult, figure: Callable[[Tally], float | None], *, less: bool = False
) -> PairedSessions:
    differences = []
    for (_, mine), (_, other) in zip(a.sessions, b.sessions, strict=True):
        first, second = figure(mine), figure(other)
        if first is not None and second is not None:
            # Rounded, because sums of the same figures differ slightly with their order.
            differences.append(round(second - first, 9))
    more, fewer = sum(found > 0 for found in differences), sum(found < 0 for found in differences)
    wins, losses = (fewer, more) if less else (more, fewer)
    mean = round(sum(differences) / len(differences), _DIGITS) if differences else None
    return PairedSessions(wins, losses, len(differences) - more - fewer, mean)
