"""Build the working set for one model call from a view or from stored entries, and make sure that it fits the model's input budget."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, cast

import msgspec

from holdfast.context import explain
from holdfast.context.cut import MIN_CUT
from holdfast.context.dialects import Dialect
from holdfast.context.explain import Build, Run, find_break
from holdfast.context.fitting import RESERVE, adapt_messages, is_added
from holdfast.context.parts import PromptRecord, SentMessage, ShownPrompt, encode_record, list_block
from holdfast.context.recalled import (
    Introduction,
    PromptContent,
    Recall,
    RecalledBlock,
    RecalledItem,
    compute_session_share,
    make_block,
)
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import Strategy
from holdfast.context.summaries import load_compaction, make_summarized_view
from holdfast.context.truncation import find_refused, without_refused
from holdfast.context.units import has_content, is_guessed
from holdfast.context.view import FoldedView, ViewState, make_view
from holdfast.context.window import Room, Window
from holdfast.domain.budget import Budget
from holdfast.domain.calibration import Measure, MeasuredCount
from holdfast.domain.counting import TokenCounter
from holdfast.domain.messages import Message
from holdfast.domain.refusals import Refusal
from holdfast.domain.session import Entry, PromptText, StoredCompaction
from holdfast.errors import BudgetTooSmall

PRIMING = 3
"""Tokens that a provider adds to every prompt to begin the reply."""
NO_ROOM = "no room: the conversation needs all tokens"
"""The reason that is reported if text to recall was found but does not fit."""
_TRIES = 8
"""Maximum number of attempts to make a window fit, each with a token limit lowered in proportion to the excess."""


_SHORT: Final = 1_000
"""Longest system message, in characters, whose token count is cached in this module. Token counters cache those of longer texts."""


@lru_cache(maxsize=256)
def _count_system(count: Any, content: str) -> int:
    """Return the tokens of a system message; 0 if it is empty. `count` is a `TokenCounter`."""
    message = Message(role="system", content=content)
    tokens: int = count.message(message) if has_content(message) else 0
    return tokens


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The strategy, the budget and all other inputs of a working set, except the log."""

    strategy: Strategy
    count: TokenCounter
    """The token counter of the model."""
    input_budget: int
    """Maximum tokens of the whole prompt: `Budget.input`, or less if a provider rejected a prompt as too long."""
    budget: Budget | None = None
    """The division of the model's context window. It is only shown in explanations."""
    larger_budgets: tuple[Budget, ...] = ()
    """Budgets with less headroom than `budget`, which are used in this order if nothing fits otherwise."""
    measure: Measure = Measure()
    """The known difference between the counts of `count` and of the provider."""
    system: tuple[Message, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    dialect: Dialect = "openai"
    upstream: str = ""
    """Name of the upstream that serves the model. Messages that this upstream refused are left out."""
    without: Mapping[int, Refusal] = {}
    """Other refusals of messages and their parts, by `seq`."""
    loads: bool = False
    """True if the model has a tool to load the complete text of shortened tool results."""
    recall: Recall = Recall()
    """Text that may be recalled in the prompt, and its limits."""
    marker: str = ""
    """The session's marker, which is part of all text that Holdfast adds to the prompt; see `holdfast.context.escaping`."""
    unstored: tuple[Message, ...] = ()
    """Messages of `system` whose text must not be stored, because it has temporary values."""
    introduction: Introduction | None = None
    """Memories from earlier sessions, sent after `system`. They are left out if the conversation would not fit otherwise."""

    def with_marker(self, marker: str) -> Request:
        """Return the request with another marker, also in the perspective of its strategy."""
        strategy = self.strategy
        if strategy.perspective is not None:
            seen = msgspec.structs.replace(strategy.perspective, marker=marker)
            strategy = msgspec.structs.replace(strategy, perspective=seen)
        return msgspec.structs.replace(self, marker=marker, strategy=strategy)

    def list_leading_messages(self) -> tuple[Message, ...]:
        """Return the messages that are sent before the conversation: the system prompt and the introduction."""
        system = tuple(filter(has_content, self.system))
        return system if self.introduction is None else (*system, self.introduction.message)

    def count_overhead(self) -> int:
        """Count the tokens of the prompt without the conversation and the recalled block. The result is not cached."""
        return sum(self.count_overhead_parts())

    def count_overhead_parts(self) -> tuple[int, int, int, int]:
        """Count the tokens of the system prompt, the tool schemas, the introduction, and the start of the reply."""
        system = 0
        for message in self.system:
            content = message.content
            if type(content) is str and len(content) <= _SHORT and not (message.extra or message.name):
                system += _count_system(cast(Hashable, self.count), content)
            elif has_content(message):
                system += self.count.message(message)
        known = 0 if self.introduction is None else self.count.message(self.introduction.message)
        tools = self.count.tools(self.tools) if self.tools else 0
        return system, tools, known, PRIMING

    def compute_limit(self, overhead: int) -> int:
        """Return the maximum tokens of the conversation, after `overhead` and the tokens reserved for the recalled block are subtracted.

        Raises:
            BudgetTooSmall: the overhead alone takes the whole input budget.
        """
        left = self.input_budget - overhead
        if left <= 0:
            what = "system prompt and tool schemas alone"
            raise BudgetTooSmall(budget=self.input_budget, needed=overhead + 1, what=what)
        left -= self.recall.get_reserved_tokens(left)
        return left if self.strategy.budget is None else min(left, self.strategy.budget)

    def make_widest_room(self) -> Room:
        """Return the room of a window outside of a build. If the overhead needs headroom, the room has it.

        Raises:
            BudgetTooSmall: the overhead alone takes the largest input budget.
        """
        overhead = self.count_overhead()
        budgets = (self.input_budget, *(budget.counted for budget in self.larger_budgets))
        widest = next((tokens for tokens in budgets if tokens > overhead), self.input_budget)
        return self.make_room(msgspec.structs.replace(self, input_budget=widest).compute_limit(overhead))

    def make_room(self, limit: int) -> Room:
        """Return the token limit and counter of a window. The limit is `limit` minus a reserve for messages that the dialect may add."""
        reserve = 0 if self.dialect == "openai" else RESERVE
        kept_free = compute_session_share(limit) if self.strategy.recall else 0
        tokens, reads_items = max(1, limit - reserve), self.strategy.reads_items
        return Room(tokens, self.count, self.count.factor, self.loads, self.marker, kept_free, reads_items)


class FittedWindow(NamedTuple):
    """A window that fits its token limit, and the messages made from it."""

    window: Window
    conversation: list[Message]
    tokens: int
    """Tokens of the conversation, counted for the model."""
    refused: Mapping[int, str]
    """Messages that are replaced by a note because the provider refused them: the reason for each, by `seq`."""
    is_replaced: bool = False
    """True if messages or parts of them were replaced because the provider refused them."""


class PlacedBlock(NamedTuple):
    """The recalled block of a prompt, its index in the conversation, and the tokens of its message."""

    block: RecalledBlock
    at: int
    tokens: int


class Draft(NamedTuple):
    """A working set without its recalled block. The passages to recall are chosen later, because they depend on what was evicted."""

    request: Request
    fitted: FittedWindow
    view: FoldedView
    limit: int
    parts: tuple[int, int, int, int]
    """The result of `Request.count_overhead_parts`."""
    reduced: bool = False
    """True if the recall reserve or the introduction had to be left out to make the working set fit."""

    def step_early(self) -> Draft | None:
        """Return the draft with fewer messages, so that more tokens are free for recall; None if this is not possible."""
        room = self.request.make_room(self.limit)
        if self.reduced or not self.view.step_early(room):
            return None
        return _make_draft(self.request, self.view, self.limit, self.parts)

    @property
    def needs_recall(self) -> bool:
        """True if the caller should search the session for passages to recall.

        This is so if the strategy recalls, some messages are not sent verbatim, and the turn has not searched yet.
        """
        return self.request.strategy.recall and not self.request.recall.searched and self.fitted.window.has_left

    @property
    def session_room(self) -> int:
        """Maximum tokens of messages recalled from the session itself. If tools are declared, half is left for their results."""
        return self._divide_free_tokens()[2] // (2 if self.request.tools else 1)

    def _divide_free_tokens(self) -> tuple[int, int, int]:
        """Return the tokens that the other items of the recalled block want, those that they get, and those that the session's own get."""
        recall, used = self.request.recall, self.fitted.tokens
        left = self.request.input_budget - sum(self.parts)
        wanted = recall.get_wanted_tokens(left)
        room = min(wanted, left - used) if recall.spare else wanted
        own = min(self.limit - used, left - used - room) if self.request.strategy.recall else 0
        return wanted, room, max(0, own)

    def finish(self, found: Sequence[RecalledItem] = (), missed: Sequence[str] = ()) -> WorkingSet:
        """Return the working set with its recalled block. The messages before that block do not depend on `found`.

        Args:
            found: messages of this session that match the current message.
            missed: reasons why matching messages may be missing from `found`.
        """
        request, fitted = self.request, self.fitted
        known = request.recall
        recall = msgspec.structs.replace(known, items=(*known.items, *found), missed=(*known.missed, *missed))
        wanted, room, own = self._divide_free_tokens()
        request = msgspec.structs.replace(request, recall=recall)
        placed = _place_recalled(request, fitted, room, own)
        if placed is None and room < wanted and (recall.items or recall.block):
            recall = msgspec.structs.replace(recall, missed=(*recall.missed, NO_ROOM))
            request = msgspec.structs.replace(request, recall=recall)
        built = WorkingSet(request, fitted, self.view, budget=self.limit, parts=self.parts, placed=placed)
        built.reduced = self.reduced
        return built


class WorkingSet:
    """The messages for one model call, and the data that explains how they were chosen.

    Attributes:
        request: the inputs of the build.
        version: version of the session from which the prompt was built; None: it is not known.
        window: the window from which the messages were made. It changes when the view does.
        record: the record of the prompt, from which it is explained.
        texts: the texts to which the record refers, by id.
        messages: system prompt and conversation, ready to send.
        tokens: tokens of the conversation. The strategy's budget limits this number.
        total_tokens: tokens of the whole prompt, tool schemas included. The model's input budget limits this number.
        budget: maximum number of tokens that the conversation was allowed to take.
        recalled: the recalled block; None if nothing is recalled.
        recalled_tokens: tokens of the recalled block's message.
        view: the view from which the window was made.
        prefix: the common prefix of this prompt and the view's previous prompt.
        broken: the first difference from the previous prompt, and its reason. None if this prompt begins with the previous one, or if the
            previous prompt is not known.
    """

    def __init__(
        self,
        request: Request,
        fitted: FittedWindow,
        view: FoldedView,
        *,
        budget: int,
        parts: tuple[int, int, int, int],
        placed: PlacedBlock | None = None,
    ) -> None:
        self.request, self.reduced = request, False
        self.version: int | None = None
        self.window = fitted.window
        self.refused = fitted.refused
        self.view = view
        self.recalled: RecalledBlock | None = placed.block if placed else None
        self.recalled_tokens = placed.tokens if placed else 0
        before = view.last
        leading = request.list_leading_messages()
        self.messages: tuple[Message, ...] = (*leading, *fitted.conversation)
        at = None if placed is None else len(leading) + placed.at
        if placed is not None:
            self.messages = (*self.messages[:at], placed.block.message, *self.messages[at:])
        self.budget, self.overhead = budget, sum(parts)
        self.tokens = fitted.tokens
        self.total_tokens = fitted.tokens + self.overhead + self.recalled_tokens
        self.prefix = view.prefix_tracker.advance(self.messages, at or 0)
        self.record, self.texts = self._make_record(fitted, leading, parts, -1 if at is None else at)
        self.broken = find_break(self.prefix, before, self.record)
        view.last = self.record

    def _make_record(
        self, fitted: FittedWindow, leading: tuple[Message, ...], overhead: tuple[int, int, int, int], recalled_at: int
    ) -> tuple[PromptRecord, Mapping[int, PromptText]]:
        """Return the record of the prompt, which does not change when the view does, and the texts to which it refers."""
        request, window, tracker = self.request, fitted.window, self.view.part_tracker
        front = tracker.list_leading(leading, request.introduction, request.unstored)
        listed, marks = tracker.list_conversation(
            window,
            fitted.conversation,
            fitted.refused,
            is_adapted=request.dialect != "openai",
            is_replaced=fitted.is_replaced,
        )
        block, lines = (None, ()) if self.recalled is None else list_block(self.recalled, self.recalled_tokens)
        budget, last = request.budget, window.beyond or (window.units[-1].entries[-1] if window.units else None)
        record = PromptRecord(
            strategy=request.strategy.name,
            options={},
            agent=None,
            llm=request.upstream,
            dialect=request.dialect,
            limit=self.budget,
            tokens=self.tokens,
            input_budget=request.input_budget,
            overhead=overhead,
            reserves=() if budget is None else budget.convert_reserves(),
            messages=len(self.messages),
            common=-1 if self.prefix.before is None else self.prefix.messages,
            frontier=window.units[0].first if window.units else 0,
            slides=request.strategy.window_size is not None or bool(request.strategy.history),
            marks=marks,
            outside=(window.outside.before, window.outside.total) if window.outside else (0, 0),
            end=(last.seq, last.total) if last else (-1, 0),
            left_out=window.left_out,
            refused=dict(fitted.refused),
            marker=request.marker,
            recalled=explain.truncate_ids(self.recalled.ids) if self.recalled else (),
            recalled_tokens=self.recalled_tokens,
            missed=request.recall.missed,
            known=explain.truncate_ids(request.introduction.ids) if request.introduction else (),
            recalled_at=recalled_at,
            leading=tuple(front.parts),
            block=block,
            base=0,
            parts=tuple(listed.parts),
        )
        return record, ChainMap(front.texts, listed.texts, {text.id: text for text in lines})

    @cached_property
    def state(self) -> ViewState:
        """The state of the view, to save with the session. It is computed at the first access, which must come before the view changes."""
        return self.view.to_state()

    @property
    def hash(self) -> str:
        """Hash of the messages. The same log, strategy and budget always give the same hash."""
        return self.view.prefix_tracker.hash(self.messages)

    @property
    def leading(self) -> int:
        """Number of system messages at the beginning of the messages."""
        return len(self.record.leading)

    @property
    def is_whole(self) -> bool:
        """True if the prompt has every message of the conversation in whole."""
        return not (self.view.frontier or self.window.cuts)

    @property
    def through(self) -> int:
        """`seq` of the last entry in the working set; -1 if there is none."""
        return self.window.units[-1].last if self.window.units else -1

    def list_sources(self) -> tuple[Entry | None, ...]:
        """Return the log entry of each item of `messages`; None for a message without an entry, and for a task message that was shortened.

        The result is computed from `window`, so call this method before the view (the cached state of the prompt builder) changes.
        """
        entries, task = self._map_entries(), self.record.find_mark("task")
        return tuple(
            None if seq is None or (seq == task and part.form == "cut") else entries.get(seq)
            for part, seq in self.record.list_places()
        )

    def list_seqs(self) -> list[int | None]:
        """Return the `seq` of the log entry of each item of `messages`; None for a message without an entry."""
        return self.record.list_seqs()

    def show(self) -> ShownPrompt:
        """Return the prompt with its record. It does not change when the view does."""
        places = zip(self.messages, self.record.list_places(), strict=True)
        messages = [SentMessage(one, part, seq) for one, (part, seq) in places]
        return ShownPrompt(self.record, messages, self.texts, self._map_entries())

    def _map_entries(self) -> dict[int, Entry]:
        return {entry.seq: entry for unit in (*self.window.head, *self.window.units) for entry in unit.entries}

    def encode_record(self, settings: ContextSettings, agent: str | None) -> tuple[bytes, list[PromptText]]:
        """Return the record of this build as it is stored with the model call, and the texts to which it refers.

        Args:
            settings: the settings of the view.
            agent: name of the agent; None: there is none.
        """
        text, parts = self.view.part_tracker.share_base(self.record.parts)
        texts = [*self.texts.values(), *((text,) if text else ())]
        record = msgspec.structs.replace(
            self.record, options=settings.options, agent=agent, base=text.id if text else 0, parts=parts
        )
        return encode_record(record), texts

    def list_decisions(self) -> list[Run]:
        """Return what happened to every live entry of the log, in order; see `holdfast.context.explain.list_decisions`."""
        return explain.list_decisions(self.record)

    def sum_decisions(self) -> dict[str, int]:
        """Return the total tokens of each kind of decision, for example `kept` and `evicted`."""
        return explain.sum_decisions(self.record)

    def explain(self) -> Build:
        """Return how the prompt was built, with all options of the strategy and the calculation of the budget."""
        strategy = explain.describe_strategy(self.request.strategy)
        return explain.describe_build(
            self.record, self.hash, self.prefix, self.broken, strategy=strategy, budget=self._describe_budget()
        )

    def describe_count(self, provider: int | None = None) -> MeasuredCount:
        """Return the token count of the whole prompt, and its accuracy.

        Args:
            provider: the count that the provider reported; None if it reported none.
        """
        counted = self.request.measure.describe(self.total_tokens, margin=self.request.count.margin, provider=provider)
        if counted.how == "exact" and any(is_guessed(part) for message in self.messages for part in message.media):
            return msgspec.structs.replace(
                counted, how="estimate"
            )  # no margin: the estimate of media is an upper bound
        return counted

    def _describe_budget(self) -> dict[str, Any]:
        budget = self.request.budget
        shares = {name: getattr(budget, name) for name in budget.__slots__} if budget else {}
        reserve = self.request.recall.get_reserved_tokens(self.request.input_budget - self.overhead)
        return {
            **shares,
            "input": self.request.input_budget,
            "system_and_tools": self.overhead,
            **({"recalled": reserve} if reserve else {}),
            "conversation": self.budget,
            "used": self.tokens,
            "counter": self.request.count.name,
        }


def build(
    request: Request,
    state: ViewState | None,
    kept: Sequence[Entry],
    entries: Sequence[Entry],
    *,
    live: StoredCompaction | None = None,
    anchor: int | None = None,
) -> WorkingSet:
    """Build the working set of a session from its stored state.

    Args:
        request: strategy, budget and the other inputs.
        state: the saved state of the view; None if there is none.
        kept: the entries that `state.keep` names.
        entries: live entries, which are those not removed by an edit or a rewind. With a state: those from its frontier on. Without a state
            but with `live`: those that `make_summarized_view` needs. Without both: all live entries.
        live: the view's current summary. It is only used if `state` is None.
        anchor: `seq` of the task anchor. It is only used together with `live`.

    Raises:
        BudgetTooSmall: no valid working set fits; the message says how many tokens are needed.
    """
    return draft(request, state, kept, entries, live=live, anchor=anchor).finish()


def draft(
    request: Request,
    state: ViewState | None,
    kept: Sequence[Entry],
    entries: Sequence[Entry],
    *,
    live: StoredCompaction | None = None,
    anchor: int | None = None,
) -> Draft:
    """Build a working set without its recalled block. The arguments and errors are those of `build`."""
    return _draft_first_fitting(
        request, lambda one: _draft_from_store(one, state, kept, entries, live=live, anchor=anchor)
    )


def _draft_first_fitting(request: Request, make: Callable[[Request], Draft]) -> Draft:
    """Return the first draft that fits: the complete one, or one without the recall reserve, the introduction, or headroom.

    A prompt without recalled text or introduction is better than a failed call, and so is one that fills the window.
    """
    for number, one in enumerate(_iter_fallbacks(request)):
        try:
            return make(one)._replace(reduced=number > 0)
        except BudgetTooSmall as exc:
            if one.budget is request.budget:  # the error names the usual budget
                refused = exc
    raise refused


def _iter_fallbacks(request: Request) -> Iterator[Request]:
    """Yield the request, then the same request without the recall reserve, without the introduction, without both, and with less headroom."""
    yield request
    spare = least = msgspec.structs.replace(request, recall=msgspec.structs.replace(request.recall, spare=True))
    if request.recall.budgets:
        yield spare
    if request.introduction is not None:
        yield msgspec.structs.replace(request, introduction=None)
        least = msgspec.structs.replace(spare, introduction=None)
        if request.recall.budgets:
            yield least
    for budget in request.larger_budgets:
        yield msgspec.structs.replace(least, budget=budget, input_budget=budget.counted)


def _draft_from_store(
    request: Request,
    state: ViewState | None,
    kept: Sequence[Entry],
    entries: Sequence[Entry],
    *,
    live: StoredCompaction | None,
    anchor: int | None,
) -> Draft:
    parts = request.count_overhead_parts()
    limit = request.compute_limit(sum(parts))
    room = request.make_room(limit)
    if state is None and live is not None:
        view = make_summarized_view(
            request.strategy, room, load_compaction(live, room.count, room.marker), entries, anchor=anchor
        )
    else:
        view = make_view(request.strategy, room, state, kept, entries)
    return _make_draft(request, view, limit, parts)


def build_from_view(request: Request, view: FoldedView, *, reduced: bool = True) -> WorkingSet:
    """Build a working set from a view in memory that is up to date with the log.

    Args:
        request: strategy, budget and the other inputs.
        view: the view.
        reduced: True to leave out the recall reserve or the introduction if the working set does not fit otherwise. The view then differs
            from one that is loaded from the store, so callers that keep the view pass False, and load it again after an error.

    Raises:
        BudgetTooSmall: no valid working set fits.
    """
    return draft_from_view(request, view, reduced=reduced).finish()


def draft_from_view(request: Request, view: FoldedView, *, reduced: bool = True) -> Draft:
    """Build a working set without its recalled block. The arguments and errors are those of `build_from_view`."""

    def make(one: Request) -> Draft:
        parts = one.count_overhead_parts()
        return _make_draft(one, view, one.compute_limit(sum(parts)), parts)

    return _draft_first_fitting(request, make) if reduced else make(request)


def _make_draft(request: Request, view: FoldedView, limit: int, parts: tuple[int, int, int, int]) -> Draft:
    return Draft(request, fit(view.make_window(request.make_room(limit)), request, limit), view, limit, parts)


def _place_recalled(request: Request, fitted: FittedWindow, room: int, own: int) -> PlacedBlock | None:
    """Return the recalled block, with its index just before the current user message.

    Return None if nothing is recalled, or if the prompt has no current user message.

    Args:
        request: the inputs of the build, with the items to recall.
        fitted: the messages of the conversation.
        room: maximum tokens of the block.
        own: tokens that passages of this session may take in addition to `room`.
    """
    recall, at = request.recall, None
    if recall.items or recall.block:
        at = fitted.window.find_current()
    if at is None:
        return None
    said = (*request.list_leading_messages(), *fitted.conversation)
    content = PromptContent(fitted.window.list_whole_seqs(), [message.text.strip() for message in said])
    block = make_block(recall, room, request.count, content, marker=request.marker, own=own)
    if block is None:
        return None
    places = [place for place, message in enumerate(fitted.conversation) if not is_added(message)]
    return PlacedBlock(block, places[at], request.count.message(block.message))


def fit(window: Window, request: Request, limit: int) -> FittedWindow:
    """Return the messages of a window with their token count. Shrink the window first if the count exceeds `limit`.

    A window estimates tokens as stored counts times the counter's factor. For ordinary text this is an upper bound of the model's count.
    For other text, this function lowers the window's token limit until the exact count fits. The lower limit is valid for this build only.

    Raises:
        BudgetTooSmall: not even the smallest window fits.
    """
    for _ in range(_TRIES):
        fitted = _render_window(window, request)
        if fitted.tokens <= limit:
            return fitted
        smaller = min(window.room.tokens - 1, window.tokens * limit // fitted.tokens)
        window = window.with_room(msgspec.structs.replace(window.room, tokens=smaller))
        if not request.strategy.is_due(window):
            break
        window = request.strategy(window)
    least = _render_window(window.shrink_to_minimum() if request.strategy.bounded else window, request)
    if least.tokens <= limit:
        return least
    raise BudgetTooSmall(budget=limit, needed=least.tokens, what=_describe_minimum(request.strategy))


def _render_window(window: Window, request: Request) -> FittedWindow:
    found = find_refused(window, request.upstream, request.without)
    refused = {seq: refusal.reason for seq, refusal in found.items() if not refusal.parts}
    conversation = without_refused(window, found, request.marker) if found else window.list_messages()
    if request.dialect != "openai":
        conversation = adapt_messages(conversation, request.dialect, request.marker)
    if request.dialect == "openai" and request.count.exact and request.count.factor == 1.0 and not found:
        return FittedWindow(window, conversation, window.tokens, refused, bool(found))  # o200k, like the stored counts
    return FittedWindow(
        window, conversation, sum(request.count.message(message) for message in conversation), refused, bool(found)
    )


def _describe_minimum(strategy: Strategy) -> str:
    if not strategy.bounded:
        return f"strategy {strategy.name!r} sends everything"
    return f"task anchor, pins, current message and newest unit, each cut to about {MIN_CUT} tokens"
