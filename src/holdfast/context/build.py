"""Building a working set: from a view and what the store read, to messages ready to send, checked and explained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.context.cut import MIN_CUT, Count
from holdfast.context.dialects import RESERVE, Dialect, adapted
from holdfast.context.policies import Policy
from holdfast.context.units import Unit
from holdfast.context.view import Carried, ViewState
from holdfast.context.window import Room, Window
from holdfast.errors import BudgetTooSmall
from holdfast.messages import Message, encode_payload
from holdfast.session import Entry

PRIMING = 3
"""Tokens that a provider adds to every prompt to begin the reply."""
_TRIES = 8
"""Times that a window is made smaller before it is refused; each time in proportion to what it is over."""


class ModelCount(Count, Protocol):
    """What building needs of a counter; `holdfast.tokens` has them."""

    @property
    def exact(self) -> bool:
        """Whether the model's own tokenizer counts."""

    @property
    def factor(self) -> float:
        """Stored (o200k) counts times this bound the counter's for ordinary text; 1.0 for o200k itself."""

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of tool schemas."""


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a working set is built for."""

    policy: Policy
    count: ModelCount
    """The model's own counter."""
    input_budget: int
    """Tokens the prompt may have in all: `Budget.input`."""
    system: tuple[Message, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    dialect: Dialect = "openai"

    def overhead(self) -> int:
        """Tokens of everything that is sent beside the conversation, counted anew each time."""
        system = sum(self.count.message(message) for message in self.system)
        tools = self.count.tools(self.tools) if self.tools else 0
        return PRIMING + system + tools

    def limit(self, overhead: int) -> int:
        """Tokens the conversation may have beside `overhead`. Raises `BudgetTooSmall` when that leaves nothing."""
        left = self.input_budget - overhead
        if left <= 0:
            what = "system prompt and tool schemas alone"
            raise BudgetTooSmall(budget=self.input_budget, needed=overhead + 1, what=what)
        return left if self.policy.budget is None else min(left, self.policy.budget)

    def room(self, limit: int) -> Room:
        """What a window may use of `limit`: all but what the dialect may add when the messages leave."""
        reserve = 0 if self.dialect == "openai" else RESERVE
        return Room(max(1, limit - reserve), self.count, self.count.factor)


class Run(msgspec.Struct, frozen=True, gc=False):
    """One decision over a run of entries: what became of them, and why."""

    first: int
    last: int
    decision: str
    reason: str
    tokens: int
    """What they take in the log; for what is cut, what is sent of them."""

    def to_wire(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "from": self.first,
            "to": self.last,
            "decision": self.decision,
            "reason": self.reason,
            "tokens": self.tokens,
        }


class Fitted(NamedTuple):
    """A window that can be sent, and what is sent of it."""

    window: Window
    conversation: list[Message]
    tokens: int
    """Of the conversation, by the model's own counter."""


class WorkingSet:
    """The messages for one call, and how they came about.

    Attributes:
        request: what it was built for.
        window: the units it was made from.
        messages: system prompt and conversation, ready to send.
        tokens: of the conversation: what a strategy's budget limits.
        total_tokens: of all that is sent, tool schemas included: what the model's input budget limits.
        budget: tokens the conversation could use.
        carried: the view it was built from.
    """

    def __init__(self, request: Request, fitted: Fitted, carried: Carried, *, budget: int, overhead: int) -> None:
        self.request = request
        self.window = fitted.window
        self.carried = carried
        self.messages: tuple[Message, ...] = (*request.system, *fitted.conversation)
        self.budget = budget
        self.tokens = fitted.tokens
        self.total_tokens = fitted.tokens + overhead

    @cached_property
    def state(self) -> ViewState:
        """What the view has worked out, to be saved with the session; asked for before the view is carried on."""
        return self.carried.state()

    @cached_property
    def hash(self) -> str:
        """Of the exact messages: equal for equal log, policy and budget."""
        digest = hashlib.blake2b(digest_size=16)
        for message in self.messages:
            digest.update(encode_payload(message))
            digest.update(b"\n")
        return digest.hexdigest()

    def decisions(self) -> list[Run]:
        """What became of every entry of the live path, as runs in order; its length follows the window, not the log."""
        return _joined(_decisions(self.window, self.request.policy))

    def kept(self) -> dict[str, int]:
        """Tokens by decision: the short form for a response, without the runs."""
        window, sums, in_log, last = self.window, dict[str, int](), 0, 0
        cuts = {seq: cut for seq, cut in window.cuts.items() if not cut.whole}
        for unit, decision, _ in _told_units(window, self.request.policy):
            for entry in unit.entries:
                in_log += entry.tokens
                last = max(last, entry.total)
                cut = cuts.get(entry.seq) if cuts else None
                name = ("cleared" if cut.cleared else "cut") if cut else decision
                sums[name] = sums.get(name, 0) + (cut.tokens if cut else entry.tokens)
        if last > in_log:
            sums["compacted" if window.compaction or window.summary else "evicted"] = last - in_log
        return sums


def build(request: Request, state: ViewState | None, kept: Sequence[Entry], entries: Sequence[Entry]) -> WorkingSet:
    """The working set of a session as it stands.

    Args:
        request: policy, budget and what else is sent.
        state: the view as saved; None: worked out from the whole live path.
        kept: the entries that the state keeps from before its frontier.
        entries: the live path from the state's frontier on.

    Raises:
        BudgetTooSmall: no legal working set fits; says what is needed.
    """
    overhead = request.overhead()
    limit = request.limit(overhead)
    carried = Carried(request.policy, request.room(limit), state, kept, entries)
    return _built(request, carried, limit, overhead)


def build_on(request: Request, carried: Carried) -> WorkingSet:
    """The working set of a view that is in memory and has everything the log has. See `build`."""
    overhead = request.overhead()
    return _built(request, carried, request.limit(overhead), overhead)


def _built(request: Request, carried: Carried, limit: int, overhead: int) -> WorkingSet:
    window = carried.window(request.room(limit))
    return WorkingSet(request, fit(window, request, limit), carried, budget=limit, overhead=overhead)


def fit(window: Window, request: Request, limit: int) -> Fitted:
    """What is sent of a window, by the model's own count; the window made smaller while that is over the limit.

    A window goes by stored counts times the counter's factor. For ordinary text they bound the model's count; for what
    they do not bound, the room shrinks here until the count fits, for this one build.

    Raises:
        BudgetTooSmall: not even the least that can be sent fits.
    """
    for _ in range(_TRIES):
        fitted = _fitted(window, request)
        if fitted.tokens <= limit:
            return fitted
        smaller = min(window.room.tokens - 1, window.tokens * limit // fitted.tokens)
        window = window.within(msgspec.structs.replace(window.room, tokens=smaller))
        if not request.policy.due(window):
            break
        window = request.policy(window)
    least = _fitted(window.smallest() if request.policy.bounded else window, request)
    if least.tokens <= limit:
        return least
    raise BudgetTooSmall(budget=limit, needed=least.tokens, what=_least_of(request.policy))


def _fitted(window: Window, request: Request) -> Fitted:
    conversation = window.messages() if request.dialect == "openai" else adapted(window.messages(), request.dialect)
    if request.dialect == "openai" and request.count.exact and request.count.factor == 1.0:
        return Fitted(window, conversation, window.tokens)  # o200k: the stored counts are that count already
    return Fitted(window, conversation, sum(request.count.message(message) for message in conversation))


def _least_of(policy: Policy) -> str:
    if not policy.bounded:
        return f"strategy {policy.name!r} sends everything"
    return f"task anchor, pins, current message and newest unit, each cut to about {MIN_CUT} tokens"


# -- decisions ---------------------------------------------------------------


def _decisions(window: Window, policy: Policy) -> Iterator[Run]:
    """One run an entry that is sent, and one for each gap between them: what the running totals say was there."""
    place, before = 0, 0
    for unit, decision, why in _told_units(window, policy):
        for entry in unit.entries:
            yield from _gap(window, policy, Gap(place, entry.seq, before, entry.total - entry.tokens))
            place, before = entry.seq + 1, entry.total
            cut = window.cuts.get(entry.seq)
            if cut is None or cut.whole:
                yield Run(entry.seq, entry.seq, decision, why, entry.tokens)
            elif cut.cleared:
                yield Run(entry.seq, entry.seq, "cleared", "an older tool result", cut.tokens)
            else:
                yield Run(entry.seq, entry.seq, "cut", f"{decision}, {why}, too long to be whole", cut.tokens)


class Gap(NamedTuple):
    """Entries that are not sent: from one `seq` to before another, with the running totals before and behind them."""

    first: int
    end: int
    before: int
    behind: int


def _gap(window: Window, policy: Policy, gap: Gap) -> Iterator[Run]:
    """What became of entries that are not sent: summarized up to where the summary ends, then condensed, or left out."""
    if gap.behind <= gap.before:
        return
    summary, place, before = window.summary, gap.first, gap.before
    if summary is not None and place <= summary.last:
        within = min(gap.behind, summary.total)
        yield Run(place, min(summary.last, gap.end - 1), "compacted", "summarized", within - before)
        place, before = summary.last + 1, within
    if gap.behind > before:
        gone, reason = ("compacted", "condensed") if window.compaction else ("evicted", _EVICTED[policy.name])
        yield Run(place, gap.end - 1, gone, reason, gap.behind - before)


_NOT_CONDENSED = "before the frontier: over the budget, and no room to condense it"
_EVICTED = {
    "none": "never",
    "buffer_window": "older than the last messages of the window",
    "head_tail": "older than the last messages of the window",
    "token_window": "before the frontier: over the budget",
    "digest": _NOT_CONDENSED,
    "salience": "over the budget, and less important than what stays",
    "summary_buffer": _NOT_CONDENSED,
    "clear_tool_results": _NOT_CONDENSED,
}


def _told_units(window: Window, policy: Policy) -> Iterator[tuple[Unit, str, str]]:
    """Every unit that is sent: what it is, and why it is there."""
    anchor = window.anchor if window.anchored else None
    important = len(window.head) if policy.salient else 0
    for number, unit in enumerate((*window.head, *window.units)):
        entries = unit.entries
        first = entries[0].seq
        if first == anchor:
            yield unit, "anchored", "the task"
        elif entries[0].pinned or (len(entries) > 1 and any(entry.pinned for entry in entries)):
            yield unit, "pinned", "pinned"
        elif first == window.current:
            yield unit, "kept", "the current user message"
        else:
            yield unit, "kept", "important" if number < important else "recent"


def _joined(runs: Iterator[Run]) -> list[Run]:
    joined: list[Run] = []
    for run in runs:
        last = joined[-1] if joined else None
        if last and (last.decision, last.reason) == (run.decision, run.reason) and run.decision != "cut":
            joined[-1] = msgspec.structs.replace(last, last=run.last, tokens=last.tokens + run.tokens)
        else:
            joined.append(run)
    return joined
