"""Strategies: rules that decide which units stay when a window exceeds its token limit or its number of messages.

A strategy is a pure function `Window -> Window`; `make_strategy` creates one from settings. It shrinks a window in a fixed order: clear old
tool results, evict old units, then cut the messages that must stay, oldest first. It may evict more than necessary, so that evictions are
rare. `holdfast.context.build.fit` refuses a window that is still too large.

An application can register strategies of its own: functions that choose which messages stay. Holdfast makes sure that the working set is
valid, complete and within its budget. See docs/custom-strategies.md.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

import msgspec

from holdfast.context import salience
from holdfast.context.agent_view import Perspective
from holdfast.context.cut import MIN_CUT, compute_cut_floor
from holdfast.context.digest.block import FACTS_SHARE, FIRM, YIELDING, add_digest, compute_reserve
from holdfast.context.settings import (
    BUILT_IN,
    CLEARING,
    RECALL,
    STRATEGIES,
    ContextSettings,
    add_strategy,
    is_recalling,
    remove_strategy,
)
from holdfast.context.standing_facts import add_facts, reserve_for_facts
from holdfast.context.truncation import Clearing, list_older_units, list_units, squeeze, with_room_to_choose, with_stub
from holdfast.context.units import Unit, list_messages
from holdfast.context.window import ANCHOR_SHARE, Compaction, Room, Window
from holdfast.domain.budget import Budget
from holdfast.domain.messages import Message
from holdfast.errors import InvalidRequest

RECENT_LEAST = 0.5
"""Lower bound for an eviction. The tail keeps at least `RECENT_LEAST * target * (token limit - tokens of the digest)` tokens."""
REPLY_PART, REPLY_LEAST_ROOM = 8, 768
"""Limits for keeping the assistant's last reply when the newest user message needs nearly the whole window.

- `REPLY_PART`: the reply is cut to this fraction (1/`REPLY_PART`) of the token limit.
- `REPLY_LEAST_ROOM`: smallest token limit with which the reply is kept.
"""
WITHOUT_MODEL = frozenset({"none", "offline"})
"""Values of `summarizer_llm` that select a digest instead of a model's summary."""
Chooser = Callable[[Window, "Strategy"], Container[int]]
"""A pure function that chooses which units stay in a window that exceeds its token limit. It returns the `Unit.first` of each.

The units that are never evicted (task anchor, pinned units, current message, newest unit) stay in any case, so it need not return them. If
the chosen units exceed the token limit, they are cut and evicted in the same way as by other strategies."""


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that decides which units stay: a pure function that shrinks a window.

    Shares are fractions of the window's token limit.

    Attributes:
        budget: maximum tokens of the conversation; None for all tokens that the model's input budget leaves.
        max_window: maximum tokens of the model's context window to use if `budget` is None; None for all of them.
        window_size: maximum number of messages of the tail; None for any number.
        preserve_recent: number of newest messages that are cut before they are evicted.
        target: share that is still used after an eviction; None to evict only as many units as necessary.
        threshold: share above which the window is shrunk; None for the whole token limit.
        anchored: True if the task anchor must stay; False if it is an ordinary unit.
        condense: True to condense evicted messages in a digest.
        facts: True to keep statements of the user when their messages are evicted.
        choose: chooses the units that stay; None to evict the oldest first.
        summarizer: the llm that writes summaries; "" for the agent's own llm, None for no summaries.
        summarize_at: share above which a summary is made.
        prompt: the summarizer's prompt; None for the built-in text.
        scorer: name of the scorer that rates the importance of messages; None for a rating by their text alone.
        clearing: the rule that clears tool results, which is applied before everything else; None for no clearing.
        history: number of newest messages of the log that the strategy sees, in addition to those that must stay; 0 for all.
        bounded: False for the strategy `none`, which never evicts anything, so that `fit` refuses a window that is too large.
        perspective: the form in which the agent sees other agents' messages; None to send every message of the log unchanged.
        recall: True if the prompt recalls evicted messages when the current message asks about them.
        reads_items: True if the model's provider reads its own compaction items.
    """

    name: str
    budget: int | None = None
    max_window: int | None = None
    window_size: int | None = None
    preserve_recent: int = 1
    target: float | None = None
    threshold: float | None = None
    anchored: bool = True
    condense: bool = False
    facts: bool = False
    choose: Chooser | None = None
    summarizer: str | None = None
    summarize_at: float = 1.0
    prompt: str | None = None
    scorer: str | None = None
    clearing: Clearing | None = None
    bounded: bool = True
    history: int = 0
    perspective: Perspective | None = None
    recall: bool = False
    reads_items: bool = False

    def cap(self, budget: Budget) -> Budget:
        """Return a model's budget, reduced to `max_window` tokens of the context window unless the strategy has its own budget."""
        if self.budget is not None or self.max_window is None or budget.context_window <= self.max_window:
            return budget
        return budget.cap_input(max(1, budget.input - budget.context_window + self.max_window))

    def view_unit(self, unit: Unit) -> Unit | None:
        """Return a unit in the form in which the agent sees it; None if the unit is hidden from the agent or has no content."""
        seen = unit if self.perspective is None else self.perspective.view_unit(unit)
        return seen if seen is not None and (seen.speaks or (self.reads_items and seen.compacts)) else None

    def view_units(self, units: Iterable[Unit]) -> Iterable[Unit]:
        """Return units in the form in which the agent sees them. Hidden units and units without content are left out."""
        return [seen for unit in units if (seen := self.view_unit(unit)) is not None]

    def explain_omission(self, unit: Unit) -> Literal["empty", "unreadable"] | None:
        """Return the reason why no prompt contains a unit; None if the unit belongs to another branch."""
        seen = unit if self.perspective is None else self.perspective.view_unit(unit)
        return None if seen is None else "unreadable" if seen.compacts else "empty"

    def is_due(self, window: Window) -> bool:
        """Return True if the window exceeds a limit, so that the strategy must be applied to it."""
        if self.window_size is not None and (_count_surplus(window, self.window_size) or _has_stale_head(window)):
            return True
        return self._is_over(window) or (
            self.clearing is not None and self.clearing.clear_results(window) is not window
        )

    def __call__(self, window: Window) -> Window:
        """Return the window reduced to the strategy's number of messages and to the token limit, as far as possible."""
        if self.clearing is not None:
            window = self.clearing.clear_results(window)
        if self.window_size is not None:
            window = with_stub(window.drop(_count_surplus(window, self.window_size)), self._compute_floor(window))
        if self._is_over(window):
            return self.step(window)
        if self.facts:
            window = add_facts(window, window.room.tokens - window.body, exact=not self.condense)
        return window if self.condense else window.without_digest()

    @property
    def steps_early(self) -> bool:
        """True if units may be evicted before the window is full, because the current message needs the tokens for recall."""
        return self.recall and self.condense and self.threshold is None and self.summarizer is None

    def step(self, window: Window) -> Window:
        """Return the window after an eviction, even if it is not full."""
        moved, reserved = self._take_step(window), window.room.without_reserve()
        if reserved is window.room or moved.allotted <= self._compute_limit(reserved):
            return moved
        return self._take_step(window.with_room(reserved)).with_room(window.room)

    def apply_summary(self, window: Window, summary: Compaction) -> Window:
        """Return the window with a model's summary in place of the units that it covers. The task anchor is cut to `ANCHOR_SHARE`."""
        window = window.drop_through(summary.last)
        if self.facts:
            window = add_facts(window, window.room.tokens - window.head_tokens)
        return with_stub(window.with_summary(summary), self._compute_floor(window))

    def _is_over(self, window: Window) -> bool:
        room = window.room.without_reserve() if window.has_left else window.room
        return self.bounded and window.allotted > self._compute_trigger(room)

    def _compute_trigger(self, room: Room) -> int:
        """Return the tokens of a window above which it is shrunk."""
        return room.tokens if self.threshold is None else int(self.threshold * room.tokens)

    def _compute_limit(self, room: Room) -> int:
        """Return the tokens of a window after it was shrunk, except for messages that must stay.

        With a threshold it is the share `target`, so that not every new message exceeds the threshold. A strategy of the application may
        always use the whole token limit.
        """
        if self.threshold is None or self.target is None or self.choose is not None:
            return room.tokens
        return int(self.target * room.tokens)

    def _take_step(self, window: Window) -> Window:
        """Evict and cut units until the window fits, and write the blocks that replace the evicted units."""
        window = self._move_frontier(window)
        limit = self._compute_limit(window.room)
        if self.facts:
            window = add_facts(window, limit - window.body, exact=not self.condense)
        return add_digest(window, limit) if self.condense else window.without_digest()

    def _move_frontier(self, window: Window) -> Window:
        """Evict units down to the target size. If the window still does not fit, cut the messages that must stay."""
        floor = self._compute_floor(window)
        stepped = self._cut_down(window, floor)
        if floor < MIN_CUT and stepped.body > window.room.tokens:
            # `fit` will refuse this window and report the budget that is needed. That budget must also be enough with the larger minimum
            # size of cut messages that applies to larger token limits.
            return self._cut_down(window, MIN_CUT)
        return stepped

    def _cut_down(self, window: Window, floor: int) -> Window:
        room, facts_tokens = window.room.tokens, reserve_for_facts(window) if self.facts else 0
        digest_tokens = compute_reserve(room, facts_tokens) if self.condense else 0
        allowed = room - facts_tokens - int(digest_tokens * FIRM)
        if self.choose is not None:
            chosen = with_stub(self._choose(window, self.choose, allowed), floor)
            if chosen.body > allowed:
                must = with_stub(self._choose(window, _choose_nothing, allowed), floor)
                shorter = with_room_to_choose(window, must, floor)
                chosen = with_stub(self._choose(shorter, self.choose, allowed), floor)
            if chosen.body <= allowed:
                return chosen
        goal = (
            allowed
            if self.target is None
            else self._compute_goal(room, digest_tokens + int(facts_tokens * FACTS_SHARE))
        )
        leaving = _count_expendable(window, goal, allowed, self.preserve_recent)
        if self.condense and (reply := _find_reply(window, leaving)) is not None:
            leaving, window = leaving - 1, window.cut({reply: room // REPLY_PART})
        window = with_stub(window.drop(leaving), floor)
        if window.body > allowed and window.summary is not None:
            # A summary that leaves no room for required messages is dropped: the log still has its source.
            window = window.without_summary()
        if window.body > allowed:
            # To its final size at once: otherwise each eviction would cut a long task a little shorter.
            window = with_stub(window, floor, everywhere=True)
        window = squeeze(window, allowed, floor, list_older_units)
        while window.body > allowed and len(window.units) > 1:
            window = with_stub(window.drop(1), floor)
        if window.units[-1].asks:  # let the digest shrink before the user's message is cut
            allowed = room - facts_tokens - int(digest_tokens * YIELDING)
        return squeeze(window, allowed, floor, list_units)

    def _choose(self, window: Window, choose: Chooser, allowed: int) -> Window:
        """Return the window with only the units that `choose` selects for `allowed` tokens, and those that must stay.

        The tail then begins after the newest evicted unit. Older chosen units move to the head.
        """
        room = msgspec.structs.replace(window.room, tokens=max(1, allowed))
        kept = choose(window.with_room(room), self)
        left = [
            at for at, unit in enumerate(window.units[:-1]) if not (unit.first in kept or window.is_protected(unit))
        ]
        return window.drop(left[-1] + 1 if left else 0, keeping=kept)

    def _compute_floor(self, window: Window) -> int:
        """Return the minimum size of a cut message, in tokens. With a digest it is smaller for a small window."""
        return compute_cut_floor(window.room.tokens) if self.condense else MIN_CUT

    def _compute_goal(self, room: int, digest_tokens: int) -> int:
        """Return the maximum tokens of the tail after an eviction.

        It is the share `target` of the token limit, minus `digest_tokens`, but not less than the lower bound that `RECENT_LEAST` sets.

        Args:
            room: the token limit.
            digest_tokens: tokens of the digest and a part of the tokens of the user's statements.
        """
        target = self.target or 0.0
        return max(int(target * room) - digest_tokens, int(target * (room - digest_tokens) * RECENT_LEAST))


def make_strategy(settings: ContextSettings) -> Strategy:
    """Return the strategy that `settings` describe. Missing options have the defaults in `STRATEGIES`."""
    return _make_cached(settings.strategy, msgspec.json.encode(settings.options, order="sorted"))


@lru_cache(maxsize=256)
def _make_cached(strategy: str, given: bytes) -> Strategy:
    """Return the strategy with this name and these options, encoded as JSON. Cached, because every turn needs one."""
    keys = STRATEGIES[strategy].keys
    options = {**{name: key.default for name, key in keys.items()}, **msgspec.json.decode(given)}
    clearing = options.pop(CLEARING, None)
    recall = is_recalling(strategy, options.pop(RECALL))
    if strategy == CLEARING:
        budget, max_window, facts = options.pop("budget"), options.pop("max_window"), options.pop("facts")
        target = STRATEGIES["digest"].keys["target"].default
        made = Strategy(
            name=strategy,
            budget=budget,
            max_window=max_window,
            target=target,
            condense=True,
            clearing=_make_clearing(options),
        )
        made = msgspec.structs.replace(made, facts=facts)
    else:
        options["clearing"] = _make_clearing(clearing)
        own = _choosers.get(strategy)
        made = _MAKERS[strategy](**options) if own is None else Strategy(name=strategy, choose=own, **options)
    return msgspec.structs.replace(made, recall=recall)


def _make_clearing(given: Any) -> Clearing | None:
    """Return the rule that clears tool results; None if `given` is None or False.

    Args:
        given: a mapping with the rule's options; True for their defaults.
    """
    if given is None or given is False:
        return None
    keys = {key: value for key, value in (given if isinstance(given, Mapping) else {}).items() if value is not None}
    for name in ("exclude_tools", "clear_inputs_of"):
        if name in keys:
            keys[name] = tuple(keys[name])
    return Clearing(**keys)


def _choose_important(window: Window, strategy: Strategy) -> Container[int]:
    return salience.choose_units(window, strategy.target)


def _choose_nothing(window: Window, strategy: Strategy) -> Container[int]:
    return ()


def _make_summary_buffer(threshold: float, summarizer_llm: str | None, **options: Any) -> Strategy:
    """Return the strategy `summary_buffer`.

    With a model, units are evicted when its summary is ready. The digest replaces them only if the window is full before that.
    """
    if summarizer_llm in WITHOUT_MODEL:
        return Strategy(name="summary_buffer", condense=True, threshold=threshold, **options)
    summarizer = summarizer_llm or ""
    return Strategy(name="summary_buffer", condense=True, summarizer=summarizer, summarize_at=threshold, **options)


_choosers: dict[str, Chooser] = {}
"""The choosers of strategies that the application registered, by the strategy's name."""


def set_chooser(name: str, choose: Chooser | None) -> None:
    """Set the chooser of an application's strategy; None removes the chooser."""
    if choose is None:
        _choosers.pop(name, None)
    else:
        _choosers[name] = choose
    _make_cached.cache_clear()


_MAKERS: Mapping[str, Callable[..., Strategy]] = {
    "none": partial(Strategy, name="none", bounded=False),
    "buffer_window": partial(Strategy, name="buffer_window", anchored=False),
    "head_tail": partial(Strategy, name="head_tail"),
    "token_window": partial(Strategy, name="token_window"),
    "digest": partial(Strategy, name="digest", condense=True),
    "salience": partial(Strategy, name="salience", choose=_choose_important),
    "summary_buffer": _make_summary_buffer,
}


# -- choosing what to evict ------------------------------------------------------


def _count_surplus(window: Window, window_size: int) -> int:
    """Return how many of the oldest units can be evicted if at least `window_size` messages must stay. Units are not split."""
    left = sum(len(unit.entries) for unit in window.units)
    for number, unit in enumerate(window.units):
        left -= len(unit.entries)
        if left < window_size:
            return number
    return 0


def _has_stale_head(window: Window) -> bool:
    """Return True if the head contains a unit that need not stay any more, such as a user message that is no longer the current one."""
    return not all(map(window.is_protected, window.head))


def _count_expendable(window: Window, goal: int, allowed: int, preserve_recent: int) -> int:
    """Return how many of the oldest units to evict.

    Args:
        window: the window.
        goal: maximum tokens of the tail.
        allowed: maximum tokens of head and tail.
        preserve_recent: number of newest messages that stay even if they exceed these limits.
    """
    keep_from = _find_first_recent(window, preserve_recent)
    tail, head = window.tail_tokens, _count_head_tokens(window)
    for number, (unit, size) in enumerate(zip(window.units, window.list_sizes(), strict=True)):
        within = tail <= goal and head + tail <= allowed
        if number >= keep_from or within:
            return number
        tail -= size
        if window.is_protected(unit):
            head += min(size, int(ANCHOR_SHARE * window.room.tokens)) if unit.first == window.anchor else size
    return len(window.units) - 1


def _find_reply(window: Window, leaving: int) -> int | None:
    """Return the `seq` of the assistant's reply just before the newest user message, if it should be kept in a shorter form.

    That is so if all units except the newest would be evicted and the token limit is at least `REPLY_LEAST_ROOM`. Otherwise return None.

    Args:
        window: the window.
        leaving: number of oldest units that would be evicted.
    """
    if window.room.tokens < REPLY_LEAST_ROOM or not 0 < leaving == len(window.units) - 1:
        return None
    reply, newest = window.units[-2].entries, window.units[-1]
    is_reply = len(reply) == 1 and reply[0].message.role == "assistant" and not reply[0].message.tool_calls
    return reply[0].seq if newest.asks and is_reply else None


def _find_first_recent(window: Window, messages: int) -> int:
    """Return the index of the oldest unit that contains one of the newest `messages` messages."""
    at = len(window.units)
    while at > 0 and messages > 0:
        at -= 1
        messages -= len(window.units[at].entries)
    return min(at, len(window.units) - 1)


def _count_head_tokens(window: Window) -> int:
    """Return the tokens of the units in the head that must still stay."""
    return sum(window.measure_unit(unit) for unit in window.head if window.is_protected(unit))


class StrategyUnit(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Messages that are kept or evicted together: one message, or a reply with tool calls and all their results."""

    seq: int
    """`seq` of the first message. The strategy function returns this number to keep the unit."""
    last: int
    """`seq` of the last message."""
    messages: tuple[Message, ...]
    """The messages as they would be sent if none were cut."""
    tokens: int
    """Tokens of the messages in the prompt, in which some may be cut."""
    importance: float | None
    """The highest rating of one of the messages by a caller or a scorer, from 0 to 1; None if no message is rated."""
    must_stay: bool
    """True if the unit is never evicted: the task, pinned messages, system messages in force, the current user message, the newest unit."""


StrategyFunction = Callable[[Sequence[StrategyUnit], int], Iterable[int]]
"""A function of the application that chooses which units stay in a prompt. It returns the `seq` of each.

The function gets all units that are still in the prompt, oldest first, and the maximum tokens that the remaining units may take together. It
must be deterministic. It is called only if the prompt would exceed its budget; until then, messages are only added at the end of the prompt."""


_registered: dict[str, tuple[StrategyFunction, int]] = {}
"""By the strategy's name, the function and the number of its registrations."""


def register_strategies(functions: Mapping[Any, Any]) -> None:
    """Register functions as strategies of this process.

    `holdfast.open(strategies=…)` registers its functions until it is closed. A name can refer to only one function at a time, because the
    whole process shares one table of strategies.

    Args:
        functions: the `StrategyFunction` of each strategy, by the strategy's name.

    Raises:
        InvalidRequest: a name is built in, is not an identifier, or is registered for another function; or a value is not a function.
    """
    if not isinstance(functions, Mapping):
        raise InvalidRequest(f"strategies must be an object, not {type(functions).__name__}", param="strategies")
    for name, function in functions.items():
        if name in BUILT_IN or not (isinstance(name, str) and name.isidentifier()):
            why = "is a built-in strategy" if name in BUILT_IN else "must be letters, digits and underscores"
            raise InvalidRequest(f"strategies: {name!r} {why}; choose another name", param="strategies")
        if not callable(function):
            message = f"strategies[{name!r}] must be a function, not {type(function).__name__}"
            raise InvalidRequest(message, param="strategies")
        if name in _registered and _registered[name][0] != function:
            message = f"strategies[{name!r}] is registered for another function in this process; use another name, or close what uses it"
            raise InvalidRequest(message, param="strategies")
    for name, function in functions.items():
        if name not in _registered:
            add_strategy(name)
            set_chooser(name, _make_chooser(name, function))
        _registered[name] = function, _registered.get(name, (function, 0))[1] + 1


def forget_strategies(names: Iterable[str]) -> None:
    """Undo one `register_strategies` call for each name. A strategy without any registration is removed."""
    for name in names:
        function, uses = _registered[name]
        if uses > 1:
            _registered[name] = function, uses - 1
        else:
            del _registered[name]
            remove_strategy(name)
            set_chooser(name, None)


def _make_chooser(name: str, function: StrategyFunction) -> Chooser:
    def choose(window: Window, strategy: Strategy) -> Container[int]:
        newest = window.units[-1]
        units = [*window.head, *window.units]
        shown = [
            StrategyUnit(
                seq=unit.first,
                last=unit.last,
                messages=tuple(message for _, message in list_messages(unit, window.room.marker)),
                tokens=window.measure_unit(unit),
                importance=max((one.importance for one in unit.entries if one.importance is not None), default=None),
                must_stay=unit is newest or window.is_protected(unit),
            )
            for unit in units
        ]
        chosen: Any = function(shown, window.room.tokens)
        try:
            return frozenset(chosen)
        except TypeError as exc:
            message = f"strategy {name!r} must return the seq of each unit that stays, not {type(chosen).__name__}"
            raise InvalidRequest(message, param="strategy") from exc

    return choose
