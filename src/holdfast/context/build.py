"""Building a working set: from a view and what the store read, to messages ready to send, checked and explained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from holdfast.context.cut import MIN_CUT, Count
from holdfast.context.dialects import RESERVE, Dialect, adapted
from holdfast.context.policies import Policy
from holdfast.context.units import Unit
from holdfast.context.view import ViewState, advance
from holdfast.context.window import Room, Window
from holdfast.errors import BudgetTooSmall
from holdfast.messages import Message, encode_payload
from holdfast.session import Entry

PRIMING = 3
"""Tokens that a provider adds to every prompt to begin the reply."""
_TRIES = 4


class ModelCount(Count):
    """What building needs of a counter; `holdfast.tokens` has them."""

    exact: bool
    factor: float

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of tool schemas."""
        ...


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a working set is built for."""

    policy: Policy
    count: Any
    """A `ModelCount`: the model's own counter."""
    input_budget: int
    """Tokens the prompt may have in all: `Budget.input`."""
    system: tuple[Message, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    dialect: Dialect = "openai"

    def overhead(self) -> int:
        """Tokens of everything that is sent beside the conversation."""
        system = sum(self.count.message(message) for message in self.system)
        tools = self.count.tools(self.tools) if self.tools else 0
        return PRIMING + system + tools + (0 if self.dialect == "openai" else RESERVE)

    def room(self) -> Room:
        """What the conversation may use. Raises `BudgetTooSmall` when system prompt and tools leave nothing."""
        overhead = self.overhead()
        left = self.input_budget - overhead
        if left <= 0:
            what = "system prompt and tool schemas alone"
            raise BudgetTooSmall(budget=self.input_budget, needed=overhead + 1, what=what)
        tokens = left if self.policy.budget is None else min(left, self.policy.budget)
        return Room(tokens, self.count, self.count.factor)


class Run(msgspec.Struct, frozen=True):
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


class WorkingSet:
    """The messages for one call, and how they came about.

    Attributes:
        messages: system prompt and conversation, ready to send.
        tokens: of the conversation: what a strategy's budget limits.
        total_tokens: of all that is sent, tool schemas included: what the model's input budget limits.
        budget: tokens the conversation could use.
        state: what the view has worked out, to be saved with the session.
    """

    def __init__(self, request: Request, window: Window, state: ViewState, conversation: list[Message]) -> None:
        self.request = request
        self.window = window
        self.state = state
        self.messages: tuple[Message, ...] = (*request.system, *conversation)
        self.budget = window.room.tokens
        self.tokens = window.tokens

    @cached_property
    def total_tokens(self) -> int:
        """Tokens of all that is sent."""
        return self.tokens + self.request.overhead()

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
        """Tokens by decision: the short form for a response."""
        sums: dict[str, int] = {}
        for run in self.decisions():
            sums[run.decision] = sums.get(run.decision, 0) + run.tokens
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
    room = request.room()
    window, saved = advance(request.policy, room, state, kept, entries)
    return WorkingSet(request, *fit(window, saved, request, room))


def fit(window: Window, saved: ViewState, request: Request, room: Room) -> tuple[Window, ViewState, list[Message]]:
    """Check a window against the model's own count, and make it smaller while that is over.

    Stored counts times the counter's factor bound the model's count for ordinary text; what they do not bound is counted
    here before it is sent.
    """
    smaller = room
    for _ in range(_TRIES):
        if window.tokens > smaller.tokens:
            break
        conversation = adapted(window.messages(), request.dialect)
        over = _over(window, request, room)
        if over <= 0:
            return window.within(room), saved, conversation
        smaller = Room(smaller.tokens - over, room.count, room.factor)
        window = window.within(smaller)
        window = request.policy(window) if request.policy.due(window) else window
    raise _refusal(window, request, room)


def _over(window: Window, request: Request, room: Room) -> int:
    """Tokens over the room by the model's own count. For o200k the stored counts are that count already."""
    if request.count.exact and request.count.factor == 1.0:
        return window.tokens - room.tokens
    return sum(request.count.message(message) for message in window.messages()) - room.tokens


def _refusal(window: Window, request: Request, room: Room) -> BudgetTooSmall:
    if not request.policy.bounded:
        what = f"strategy {request.policy.name!r} sends everything"
        return BudgetTooSmall(budget=room.tokens, needed=window.tokens, what=what)
    needed = window.smallest((*window.head, *window.units[-1:]))
    what = f"task anchor, pins, current message and newest unit, nothing cut below {MIN_CUT} tokens"
    return BudgetTooSmall(budget=room.tokens, needed=max(needed, room.tokens + 1), what=what)


# -- decisions ---------------------------------------------------------------


def _decisions(window: Window, policy: Policy) -> Iterator[Run]:
    gone, reason = ("compacted", "condensed") if window.compaction else ("evicted", _EVICTED[policy.name])
    place, before = 0, 0
    for unit, decision, why in _told_units(window):
        first_total = unit.entries[0].total - unit.entries[0].tokens
        if unit.first > place and first_total > before:
            yield Run(place, unit.first - 1, gone, reason, first_total - before)
        for entry in unit.entries:
            cut = window.cuts.get(entry.seq)
            if cut is not None:
                yield Run(entry.seq, entry.seq, "cut", f"{decision}, {why}, too long to be whole", cut.tokens)
            else:
                yield Run(entry.seq, entry.seq, decision, why, entry.tokens)
        place, before = max(place, unit.last + 1), max(before, unit.entries[-1].total)


_EVICTED = {
    "none": "never",
    "buffer_window": "older than the last messages of the window",
    "head_tail": "older than the last messages of the window",
    "token_window": "before the frontier: over the budget",
    "digest": "before the frontier: over the budget, and no room to condense it",
}


def _told_units(window: Window) -> Iterator[tuple[Unit, str, str]]:
    for unit in (*window.head, *window.units):
        if window.anchored and unit.first == window.anchor:
            yield unit, "anchored", "the task"
        elif any(entry.pinned for entry in unit.entries):
            yield unit, "pinned", "pinned"
        elif unit.first == window.current:
            yield unit, "kept", "the current user message"
        else:
            yield unit, "kept", "recent"


def _joined(runs: Iterator[Run]) -> list[Run]:
    joined: list[Run] = []
    for run in runs:
        last = joined[-1] if joined else None
        if last and (last.decision, last.reason) == (run.decision, run.reason) and run.decision != "cut":
            joined[-1] = msgspec.structs.replace(last, last=run.last, tokens=last.tokens + run.tokens)
        else:
            joined.append(run)
    return joined
