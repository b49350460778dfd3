"""A view: one way of looking at a session, carried on from build to build.

The log is folded unit by unit: each is taken in, and when the window has to change, the strategy changes it. What has
been worked out is a `ViewState`, saved with the session, so that a build reads what is new and what is sent and
nothing else. Folding a log at once or in pieces gives the same state; that is what makes builds deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.context.digest.pool import EMPTY
from holdfast.context.prefix_diff import PrefixTracker
from holdfast.context.strategies import Strategy
from holdfast.context.units import Unit, group_units
from holdfast.context.window import NO_CANDIDATES, Block, Compaction, Cut, LeftOut, Room, Window
from holdfast.domain.session import Entry, estimate_message_bytes, estimate_text_bytes

if TYPE_CHECKING:
    from holdfast.context.prefix_diff import PromptSnapshot
from collections import deque

from holdfast.context.units import update_standing
from holdfast.context.window import OutsideRange

VERSION = 15
"""Of the saved form and of the rules behind it; a state of another version is made anew."""


class ViewState(msgspec.Struct, frozen=True, kw_only=True):
    """What a view has worked out: everything but the entries themselves."""

    version: int = VERSION
    through: int = -1
    """Entries up to this `seq` are folded in; no unit of theirs can change any more."""
    frontier: int = 0
    """`seq` of the first unit that is sent verbatim."""
    keep: tuple[int, ...] = ()
    """Entries before the frontier that stay."""
    anchor: int | None = None
    current: int | None = None
    cuts: dict[int, Cut] = {}
    summary: Compaction | None = None
    compaction: Compaction | None = None
    standing: tuple[int, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    pool: msgspec.Raw = msgspec.Raw(EMPTY)
    """What the next compaction can be made from; decoded only when the frontier moves."""
    facts: Compaction | None = None
    candidates: msgspec.Raw = msgspec.Raw(NO_CANDIDATES)
    """What the next statements can be chosen from; the same goes for it."""
    allotted: tuple[int, int] = (0, 0)
    """Tokens that the digest and the statements may take."""
    covered: tuple[int, int] = (-1, 0)
    """`seq` of the last entry that the digest stands for, -1 for none, and the tokens of the live path up to and with it."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ViewState)


def encode_state(state: ViewState) -> bytes:
    """The bytes that are saved for `state`."""
    return _encoder.encode(state)


def decode_state(data: bytes) -> ViewState | None:
    """The saved state, or None when it is of another version and has to be made anew from the whole log."""
    try:
        state = _decoder.decode(data)
    except msgspec.MsgspecError:
        return None
    return state if state.version == VERSION else None


class FoldedView:
    """A view in memory, carried on as the log grows: restored once, then fed what is new.

    Attributes:
        summary: the model's summary that it began with, also where there was no room for it later.
        trail: the prompts that were built from it.
        mark: what the last of them was made of, as `holdfast.context.explain` wants it.
        steps: how often it changed by more than new units at its end.

    Args:
        strategy: the view's strategy.
        room: what the first build may use.
        state: as saved; None: from the beginning of the log.
        kept: the entries that `state.keep` names.
        entries: the live path from `state.frontier` on.
    """

    def __init__(
        self, strategy: Strategy, room: Room, state: ViewState | None, kept: Sequence[Entry], entries: Sequence[Entry]
    ) -> None:
        state = state or ViewState()
        self.summary = state.summary
        self.prefix_tracker = PrefixTracker()
        self.mark: PromptSnapshot | None = None
        self.steps = 0
        self._strategy = strategy
        self._through = state.through
        self._window = _restore_window(strategy, room, state, kept, entries)
        self._open: list[Entry] = []
        self.extend([entry for entry in entries if entry.seq > state.through])

    @property
    def frontier(self) -> int:
        """`seq` of the first unit that is sent verbatim, as it will be saved."""
        return self._window.units[0].first if self._window.units else 0

    @property
    def is_slow(self) -> bool:
        """Whether a build takes long enough to keep others waiting, however little is new."""
        return False

    def entries(self) -> list[Entry]:
        """The entries that it holds."""
        units = (*self._window.head, *self._window.units)
        return [*(entry for unit in units for entry in unit.entries), *self._open]

    def list_kept_seqs(self) -> list[int]:
        """The `seq` of each entry from before its frontier that stays."""
        return [entry.seq for unit in self._window.head for entry in unit.entries]

    def estimate_bytes(self) -> int:
        """Bytes that it takes besides its entries, estimated."""
        window = self._window
        laid = [one.text for one in (window.summary, window.compaction, window.facts) if one is not None]
        cuts = sum(estimate_message_bytes(cut.message) for cut in window.cuts.values())
        return len(window.pool) + len(window.candidates) + cuts + sum(map(estimate_text_bytes, laid))

    def extend(self, entries: Iterable[Entry]) -> None:
        """Fold in what the log grew by. Units that can still change wait until they cannot."""
        units = group_units([*self._open, *entries])
        settled = _count_settled(units)
        for unit in units[:settled]:
            self._through = unit.last
            self._take(unit, self._strategy.view_unit(unit))
        self._open = [entry for unit in units[settled:] for entry in unit.entries]

    def take(self, units: Sequence[Unit]) -> None:
        """Fold in units that are as they are seen, like `extend` does entries of the log."""
        settled = _count_settled(units)
        for unit in units[:settled]:
            self._through = unit.last
            self._take(unit, unit)
        self._open = [entry for unit in units[settled:] for entry in unit.entries]

    def _take(self, unit: Unit, seen: Unit | None) -> None:
        _grow_window(self._strategy, self._window, unit, seen)
        if seen is not None and _is_evaluated(seen) and self._strategy.is_due(self._window):
            self._window = self._strategy(self._window)
            self.steps += 1

    def window(self, room: Room) -> Window:
        """The window for a build, the newest unit in it. A changed room takes effect where the window has to change."""
        self._window.room = room
        window = self._window.copy() if self._open else self._window
        for unit in group_units(self._open):
            _grow_window(self._strategy, window, unit, self._strategy.view_unit(unit))
        if not self._strategy.is_due(window):
            return window
        _ = window.digest.saved  # or what has left until now would be folded in twice: for this build, and for the next
        return self._strategy(window)

    def lay_summary(self, summary: Compaction) -> bool:
        """Lay a model's summary over the log up to its last entry; False where the frontier has gone further since."""
        window = self._window
        further = window.digest.last > summary.last
        if further or (window.summary is not None and window.summary.last >= summary.last):
            return False
        self._window, self.summary = self._strategy.lay_summary(window, summary), summary
        self.steps += 1
        return True

    def rate(self, importances: Mapping[int, float]) -> None:
        """Take in how much messages matter, by `seq`, as it was stored with them; it counts from the next step on."""
        window = self._window
        window.head = tuple(unit.with_importances(importances) for unit in window.head)
        window.units = [unit.with_importances(importances) for unit in window.units]
        self._open = [entry for unit in group_units(self._open) for entry in unit.with_importances(importances).entries]

    def state(self) -> ViewState:
        """What is saved: without the newest unit while that can still change."""
        window = self._window
        return ViewState(
            through=self._through,
            frontier=self.frontier,
            keep=tuple(entry.seq for unit in window.head for entry in unit.entries),
            anchor=window.anchor,
            current=window.current,
            cuts=window.cuts,
            summary=window.summary,
            compaction=window.compaction,
            standing=window.standing,
            left_out=window.left_out,
            pool=msgspec.Raw(window.pool),
            facts=window.facts,
            candidates=msgspec.Raw(window.candidates),
            allotted=(window.digest.most, window.statements.most),
            covered=(window.digest.last, window.digest.total),
        )


def _count_settled(units: Sequence[Unit]) -> int:
    """How many of `units` can no longer change: calls at the end may still get results."""
    return len(units) - 1 if units and not units[-1].answered else len(units)


def _is_evaluated(unit: Unit) -> bool:
    """Whether a model may be called right behind `unit`: only then is it worth asking the strategy."""
    return unit.overrides is not None or unit.entries[0].kind != "assistant"


def _grow_window(strategy: Strategy, window: Window, unit: Unit, seen: Unit | None) -> None:
    """Let a window take in a unit as it is seen, or note that there is one that is not."""
    if seen is None:
        window.pass_over(unit, strategy.explain_omission(unit))
    else:
        window.grow(seen)


def _restore_window(
    strategy: Strategy, room: Room, state: ViewState, kept: Sequence[Entry], entries: Sequence[Entry]
) -> Window:
    """The window as it was after `state.through`."""
    window = Window(room, anchor=state.anchor, anchored=strategy.anchored)
    window.cuts = dict(state.cuts)
    window.summary = state.summary
    window.left_out = tuple(one for one in state.left_out if one.first < state.frontier)
    (digest, statements), (last, total) = state.allotted, state.covered
    window.digest = Block(state.compaction, bytes(state.pool), most=digest, last=last, total=total)
    window.statements = Block(state.facts, bytes(state.candidates), most=statements)
    window.set_head(strategy.view_units(group_units(kept)))
    for unit in group_units([entry for entry in entries if entry.seq <= state.through]):
        _grow_window(strategy, window, unit, strategy.view_unit(unit))
    window.current = state.current
    window.standing = state.standing
    return window


LONG = 200
"""Messages from which making a window takes milliseconds."""


def make_view(
    strategy: Strategy, room: Room, state: ViewState | None, kept: Sequence[Entry], entries: Sequence[Entry]
) -> FoldedView:
    """The view of a strategy, carried on from a saved state; see `FoldedView`."""
    kind = BufferedView if strategy.history else FoldedView
    return kind(strategy, room, state, kept, entries)


class BufferedView(FoldedView):
    """A view of the newest messages. What is saved of it is where they begin, and what stays from before."""

    def __init__(
        self, strategy: Strategy, room: Room, state: ViewState | None, kept: Sequence[Entry], entries: Sequence[Entry]
    ) -> None:
        self._units: deque[Unit] = deque()
        self._messages = 0
        self._staying: list[Unit] = [*strategy.view_units(group_units(kept))]
        self._newest: tuple[Entry, ...] = ()
        self._beyond: Entry | None = None
        self._passed = Window(room)
        if state is not None:
            self._passed.left_out = tuple(one for one in state.left_out if one.first < state.frontier)
        self._anchor = state.anchor if state else None
        self._current = state.current if state else None
        self._standing = state.standing if state else ()
        self._made: tuple[Room, FoldedView] | None = None
        super().__init__(strategy, room, None, (), entries)

    @property
    def frontier(self) -> int:
        """`seq` of the first message that it sees, but for what stays from before."""
        return self._units[0].first if self._units else 0

    @property
    def is_slow(self) -> bool:
        """See `FoldedView.is_slow`: all that it sees is gone over."""
        return self._messages > LONG

    def entries(self) -> list[Entry]:
        """See `FoldedView.entries`."""
        units = [entry for unit in (*self._staying, *self._units) for entry in unit.entries]
        return [*units, *(entry for entry in self._newest if not units or entry.seq > units[-1].seq)]

    def list_kept_seqs(self) -> list[int]:
        """See `FoldedView.list_kept_seqs`."""
        return [entry.seq for unit in self._staying for entry in unit.entries]

    def estimate_bytes(self) -> int:
        """See `FoldedView.estimate_bytes`: each window is made anew from its units."""
        return 0

    def extend(self, entries: Iterable[Entry]) -> None:
        """Take in what the log grew by; the oldest leave for it."""
        units = group_units([*self._newest, *entries])
        if self._units and self._newest and self._units[-1].last == self._newest[-1].seq:
            self._messages -= len(self._units.pop().entries)
        for unit in units:
            seen = self._strategy.view_unit(unit)
            self._beyond = unit.entries[-1] if seen is None else None
            if seen is not None:
                self._take_seen(seen)
            else:
                self._passed.pass_over(unit, self._strategy.explain_omission(unit))
        self._newest = units[-1].entries if units else ()
        self._made = None

    def _take_seen(self, unit: Unit) -> None:
        if unit.asks:
            self._anchor = unit.first if self._anchor is None else self._anchor
            self._current = unit.first
        self._standing = update_standing(self._standing, self._units[-1] if self._units else None, unit)
        self._units.append(unit)
        self._messages += len(unit.entries)
        while self._messages - len(self._units[0].entries) >= self._strategy.history:
            oldest = self._units.popleft()
            self._messages -= len(oldest.entries)
            self._staying.append(oldest)
            self.steps += 1
        self._staying = [held for held in self._staying if self._is_staying(held)]

    def _is_staying(self, unit: Unit) -> bool:
        anchored = self._strategy.anchored and unit.first == self._anchor
        return (
            anchored
            or unit.first == self._current
            or unit.first in self._standing
            or any(entry.pinned for entry in unit.entries)
        )

    def window(self, room: Room) -> Window:
        """The window that a log of nothing but what it sees would have, at its end."""
        if self._made is None or self._made[0] != room:
            made = FoldedView(self._strategy, room, None, (), ())
            made.take([*self._staying, *self._units])
            self._made = (room, made)
        window = self._made[1].window(room).copy()
        window.beyond = self._beyond
        window.left_out = self._passed.left_out
        if self._units and self._units[0].first:
            first = self._units[0].entries[0]
            window.outside = OutsideRange(first.seq, first.total - first.tokens)
        return window

    def lay_summary(self, summary: Compaction) -> bool:
        """No summary is laid: it would tell what has left."""
        return False

    def rate(self, importances: Mapping[int, float]) -> None:
        """See `FoldedView.rate`."""
        self._staying = [unit.with_importances(importances) for unit in self._staying]
        self._units = deque(unit.with_importances(importances) for unit in self._units)
        self._newest = tuple(
            entry for unit in group_units(self._newest) for entry in unit.with_importances(importances).entries
        )
        self._made = None

    def state(self) -> ViewState:
        """What is saved: where it begins, and what stays from before."""
        return ViewState(
            frontier=self.frontier,
            keep=tuple(entry.seq for unit in self._staying for entry in unit.entries),
            anchor=self._anchor,
            current=self._current,
            standing=self._standing,
            left_out=self._passed.left_out,
        )
