"""The strategies: what stays in a working set that would be over its room, or over its number of messages.

A policy is a pure callable `Window -> Window`; `policy` makes one from settings (DESIGN.md, section 4). Every step has
the same order: drop what is old, cut what must stay, oldest first; what cannot be legal even then is refused by `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from holdfast.context.choosing import Shown
from holdfast.context.cut import MIN_CUT, least
from holdfast.context.digest import Pool, encoded, fold_in, opened, told
from holdfast.context.facts import asked_of
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.units import Unit, spoken
from holdfast.context.window import ANCHOR_SHARE, Compaction, Window
from holdfast.errors import InvalidRequest
from holdfast.messages import Message

DIGEST_SHARE, DIGEST_SMALL, DIGEST_MORE = 0.85, 512, 0.25
"""Part of the room that a digest may take: of its first tokens, how many those are, and of all others. What has to be told
of a session does not grow with the room, and a digest that fills a small one leaves no room for what comes next."""
DIGEST_MOST = 2000
"""Most tokens of a digest, however large the room."""
DIGEST_FIRM = 0.8
"""Part of the digest's share that it keeps when a long newest unit wants the room."""
RECENT_LEAST = 0.5
"""Part of `target` of the room beside the digest that the newest messages get at least."""
SHOWN = 12
"""Newest units that a digest is chosen beside: what they hold needs less telling."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of what stays: pure, from window to window.

    Attributes:
        budget: tokens of the conversation; None: all that the model's input budget leaves.
        window_size: most messages of the verbatim rest; None: any number.
        preserve_recent: newest messages that are cut before they are dropped.
        target: part of the room that is used after the frontier has moved; None: what is over leaves, no more.
        anchored: False where the task anchor is an ordinary unit.
        condense: whether what left is told in a digest.
        bounded: False for `none`: it never drops, and `fit` refuses what is too long.
    """

    name: str
    budget: int | None = None
    window_size: int | None = None
    preserve_recent: int = 1
    target: float | None = None
    anchored: bool = True
    condense: bool = False
    bounded: bool = True

    def due(self, window: Window) -> bool:
        """Whether the window has to change."""
        if self.window_size is not None and (_surplus(window, self.window_size) or _stale(window)):
            return True
        return self.bounded and window.tokens > window.room.tokens

    def __call__(self, window: Window) -> Window:
        """The window within its number of messages and its room, as far as that can be."""
        if self.window_size is not None:
            window = _with_stub(window.drop(_surplus(window, self.window_size)), self._floor(window))
        if self.bounded and window.tokens > window.room.tokens:
            window = self._stepped(window)
        return self._condensed(window) if self.condense else window.overlay(None, window.pool)

    def _stepped(self, window: Window) -> Window:
        """Move the frontier by a whole step, then cut what must stay if it is still too long."""
        floor = self._floor(window)
        stepped = self._cut_down(window, floor)
        if floor < MIN_CUT and _body(stepped) > window.room.tokens:
            # It will be refused: for what `fit` says is needed to be enough in a large room too, by its floor.
            return self._cut_down(window, MIN_CUT)
        return stepped

    def _cut_down(self, window: Window, floor: int) -> Window:
        room, reserve = window.room.tokens, self._reserve(window)
        allowed = room - int(reserve * DIGEST_FIRM)
        goal = allowed if self.target is None else self._goal(room, reserve)
        window = _with_stub(window.drop(_expendable(window, goal, allowed, self.preserve_recent)), floor)
        window = _squeezed(window, allowed, floor, _older)
        while _body(window) > allowed and len(window.units) > 1:
            window = _with_stub(window.drop(1), floor)
        return _squeezed(window, allowed, floor, _all)

    def _floor(self, window: Window) -> int:
        """Tokens below which no message is cut: fewer in a small room, if what is cut out is told in a digest."""
        return least(window.room.tokens) if self.condense else MIN_CUT

    def _goal(self, room: int, reserve: int) -> int:
        """Tokens that the rest may take after a step: what the digest leaves of `target`, or a little in a small room."""
        target = self.target or 0.0
        return max(int(target * room) - reserve, int(target * (room - reserve) * RECENT_LEAST))

    def _reserve(self, window: Window) -> int:
        """Tokens that a digest may take."""
        if not self.condense:
            return 0
        room = window.room.tokens
        share = DIGEST_SHARE * min(room, DIGEST_SMALL) + DIGEST_MORE * max(0, room - DIGEST_SMALL)
        return min(DIGEST_MOST, int(share))

    def _condensed(self, window: Window) -> Window:
        """A digest of what left and of what was cut, the earlier digest included."""
        if not window.left and window.compaction is None and not window.cuts:
            return window
        cut = _cut_units(window)
        reserve = self._reserve(window)
        pool = opened(window.pool)
        fold_in(pool, window.left, room=reserve)
        saved = encoded(pool)
        # What was cut is told only as long as it is cut: when it leaves, it is folded in like anything that leaves.
        if cut:
            fold_in(pool, cut, room=reserve)
        tokens = min(reserve, window.room.tokens - _body(window))
        return window.overlay(_digest(window, pool, cut, tokens), saved)


def policy(settings: ContextSettings) -> Policy:
    """The policy that `settings` name, with the defaults of the table for keys that are not given.

    Raises:
        InvalidRequest: this version does not have the strategy yet.
    """
    made = _MAKERS.get(settings.strategy)
    if made is None:
        known = ", ".join(_MAKERS)
        raise InvalidRequest(f"strategy {settings.strategy!r} is not in this version; it has {known}", param="strategy")
    defaults = {name: key.default for name, key in STRATEGIES[settings.strategy].keys.items()}
    return made(**{**defaults, **settings.options})


def _none() -> Policy:
    return Policy(name="none", bounded=False)


def _buffer_window(window_size: int, budget: int | None) -> Policy:
    return Policy(name="buffer_window", window_size=window_size, budget=budget, anchored=False)


def _head_tail(window_size: int, budget: int | None) -> Policy:
    return Policy(name="head_tail", window_size=window_size, budget=budget)


def _token_window(budget: int | None, preserve_recent: int, target: float) -> Policy:
    return Policy(name="token_window", budget=budget, preserve_recent=preserve_recent, target=target)


def _digest_policy(budget: int | None, target: float) -> Policy:
    return Policy(name="digest", budget=budget, target=target, condense=True)


_MAKERS: Mapping[str, Callable[..., Policy]] = {
    "none": _none,
    "buffer_window": _buffer_window,
    "head_tail": _head_tail,
    "token_window": _token_window,
    "digest": _digest_policy,
}


# -- how much goes -----------------------------------------------------------


def _surplus(window: Window, window_size: int) -> int:
    """How many of the oldest units can go with `window_size` messages left: no unit is cut."""
    left = sum(len(unit.entries) for unit in window.units)
    for number, unit in enumerate(window.units):
        left -= len(unit.entries)
        if left < window_size:
            return number
    return 0


def _stale(window: Window) -> bool:
    """Whether the head holds what no longer belongs there: a user message that is not the current one any more."""
    return not all(map(window.protected, window.head))


def _expendable(window: Window, goal: int, allowed: int, preserve_recent: int) -> int:
    """How many of the oldest units go until the rest takes `goal`, or only recent messages are left."""
    keep_from = _recent(window, preserve_recent)
    tail, head = window.tail_tokens, _head_tokens(window)
    for number, (unit, size) in enumerate(zip(window.units, window.sizes(), strict=True)):
        within = tail <= goal and head + tail <= allowed
        if number >= keep_from or within:
            return number
        tail -= size
        if window.protected(unit):
            head += min(size, int(ANCHOR_SHARE * window.room.tokens)) if unit.first == window.anchor else size
    return len(window.units) - 1


def _recent(window: Window, messages: int) -> int:
    """Index of the first unit that the newest `messages` messages need."""
    at = len(window.units)
    while at > 0 and messages > 0:
        at -= 1
        messages -= len(window.units[at].entries)
    return min(at, len(window.units) - 1)


def _head_tokens(window: Window) -> int:
    """What the head takes once units that no longer belong there have left it."""
    return sum(window.size(unit) for unit in window.head if window.protected(unit))


def _body(window: Window) -> int:
    """Tokens without the compaction, which a step makes anew."""
    return window.head_tokens + window.tail_tokens


# -- cutting what must stay --------------------------------------------------


def _with_stub(window: Window, floor: int) -> Window:
    """The anchor in at most its share of the room, once it stands alone in the head."""
    most = max(floor, int(ANCHOR_SHARE * window.room.tokens))
    for unit in window.head:
        if window.anchored and unit.first == window.anchor and window.size(unit) > most:
            return window.cut({unit.first: most})
    return window


def _older(window: Window) -> Iterable[Unit]:
    return (*window.head, *window.units[:-1])


def _all(window: Window) -> Iterable[Unit]:
    return (*window.head, *window.units)


def _squeezed(window: Window, allowed: int, floor: int, which: Callable[[Window], Iterable[Unit]]) -> Window:
    """With the longest messages of some units cut, oldest first, until the body takes `allowed` tokens."""
    tried: dict[int, int] = {}
    while (over := _body(window) - allowed) > 0:
        caps = _caps(_cuttable(window, which(window), floor), over, tried, floor)
        if not caps:
            break
        tried |= caps
        window = window.cut(caps)
    return window


def _cuttable(window: Window, units: Iterable[Unit], floor: int) -> list[tuple[int, int]]:
    """`(seq, tokens)` of the messages in `units` that are long enough to be cut: results, then texts, each oldest first.

    What a result loses is told again in a digest, and shorter; what a person said is not.
    """
    units = tuple(units)
    results = {entry.seq for unit in units for entry in unit.entries if entry.kind == "result"}
    return sorted(window.cuttable(units, floor), key=lambda sized: sized[0] not in results)


def _caps(cuttable: Iterable[tuple[int, int]], over: int, tried: Mapping[int, int], floor: int) -> dict[int, int]:
    """How short to make which messages to save `over` tokens; one that did not get that short is asked for the least."""
    caps = {}
    for seq, tokens in cuttable:
        if over <= 0:
            break
        failed = tokens > tried.get(seq, tokens)
        if failed and tried[seq] == floor:
            continue
        caps[seq] = floor if failed else max(floor, tokens - over)
        over -= tokens - caps[seq]
    return caps


# -- the digest --------------------------------------------------------------


def _cut_units(window: Window) -> list[Unit]:
    return [unit for unit in _all(window) if _is_cut(window, unit)]


def _is_cut(window: Window, unit: Unit) -> bool:
    """Whether anything of `unit` is missing from what is sent."""
    found = (window.cuts.get(entry.seq) for entry in unit.entries)
    return any(cut is not None and not cut.whole for cut in found)


def _shown(window: Window) -> Shown:
    """What is sent beside the digest; of a long rest only the newest messages, which say what is talked about now."""
    shown = Shown()
    for unit in (*window.head, *window.units[-SHOWN:]):
        parts = []
        for seq, message in spoken(unit):
            sent = window.cuts[seq].message if seq in window.cuts else message
            text = "\n".join((sent.text, *(call.arguments for call in sent.tool_calls)))
            shown.add(unit.first, text, said=sent.role != "tool")
            parts.append(text)
            for call in sent.tool_calls:
                shown.asked.update(asked_of(call.arguments))
        if _is_cut(window, unit):
            shown.parts[unit.first] = "\n".join(parts)
    return shown


def _digest(window: Window, pool: Pool, cut: Sequence[Unit], tokens: int) -> Compaction | None:
    """The compaction for all that left: its range ends before the frontier, though what is cut behind it is told, too."""
    before = window.compaction
    covered = [(unit.first, unit.last) for unit in (*window.left, *cut)] + (
        [(before.first, before.last)] if before else []
    )
    if not covered:
        return None
    last = min(max(last for _, last in covered), max(0, window.units[0].first - 1))
    first = min(last, *(first for first, _ in covered))
    overhead = window.room.count.message(Message(role="user", content=""))
    text = told(pool, tokens - overhead, first=first, last=last, count=window.room.count, shown=_shown(window))
    if not text:
        return None
    size = window.room.count.message(Message(role="user", content=text))
    return Compaction(first, last, text, size) if size <= tokens else None
