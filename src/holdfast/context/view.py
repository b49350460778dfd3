"""A view: one agent's working state of a session, updated from build to build.

The log is folded unit by unit: each unit is added, and when the window has to change, the strategy changes it. The result is a `ViewState`,
saved with the session, so that a build reads only new entries and those that are sent. Folding a log at once or in pieces gives the same
state, which makes builds deterministic.
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
"""Version of the saved form and of the rules that produce it. A state of another version is rebuilt."""


class ViewState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a view, without the entries themselves."""

    version: int = VERSION
    through: int = -1
    """Entries up to this `seq` are folded in; their units can no longer change."""
    frontier: int = 0
    """`seq` of the first unit that is sent verbatim."""
    keep: tuple[int, ...] = ()
    """Entries before the frontier that are still sent."""
    anchor: int | None = None
    current: int | None = None
    cuts: dict[int, Cut] = {}
    summary: Compaction | None = None
    compaction: Compaction | None = None
    standing: tuple[int, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    pool: msgspec.Raw = msgspec.Raw(EMPTY)
    """The source of the next digest, encoded; decoded only when the frontier moves."""
    facts: Compaction | None = None
    candidates: msgspec.Raw = msgspec.Raw(NO_CANDIDATES)
    """The statements that the next block of facts can be made from; also decoded only when the frontier moves."""
    allotted: tuple[int, int] = (0, 0)
    """Tokens that the digest and the block of facts may take."""
    covered: tuple[int, int] = (-1, 0)
    """`seq` of the last entry that the digest covers, -1 for none, and the tokens of the live path up to and including it."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ViewState)


def encode_state(state: ViewState) -> bytes:
    """Encode a state for storage."""
    return _encoder.encode(state)


def decode_state(data: bytes) -> ViewState | None:
    """Return the saved state; None if it has another version and must be rebuilt from the whole log."""
    try:
        state = _decoder.decode(data)
    except msgspec.MsgspecError:
        return None
    return state if state.version == VERSION else None


class FoldedView:
    """A view in memory, updated as the log grows: restored once, then extended with new entries.

    Attributes:
        summary: the model's summary that it began with, even if there was no room for it later.
        prefix_tracker: the prompts that were built from it.
        mark: snapshot of its last prompt, for `holdfast.context.explain`.
        steps: number of changes other than new units at its end.

    Args:
        strategy: the view's strategy.
        room: the room of the first build.
        state: the saved state; None to start from the beginning of the log.
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
        """The frontier as it will be saved: `seq` of the first unit that is sent verbatim."""
        return self._window.units[0].first if self._window.units else 0

    @property
    def is_slow(self) -> bool:
        """True if a build blocks others noticeably, even if few entries are new."""
        return False

    def list_entries(self) -> list[Entry]:
        """Return the entries that it holds."""
        units = (*self._window.head, *self._window.units)
        return [*(entry for unit in units for entry in unit.entries), *self._open]

    def list_kept_seqs(self) -> list[int]:
        """Return the `seq` of each entry before the frontier that is still sent."""
        return [entry.seq for unit in self._window.head for entry in unit.entries]

    def estimate_bytes(self) -> int:
        """Estimate the bytes that it takes in addition to its entries."""
        window = self._window
        texts = [one.text for one in (window.summary, window.compaction, window.facts) if one is not None]
        cuts = sum(estimate_message_bytes(cut.message) for cut in window.cuts.values())
        return len(window.pool) + len(window.candidates) + cuts + sum(map(estimate_text_bytes, texts))

    def extend(self, entries: Iterable[Entry]) -> None:
        """Fold in new entries of the log. Units that can still change are held back until they are complete."""
        units = group_units([*self._open, *entries])
        settled = _count_settled(units)
        for unit in units[:settled]:
            self._through = unit.last
            self._take(unit, self._strategy.view_unit(unit))
        self._open = [entry for unit in units[settled:] for entry in unit.entries]

    def take(self, units: Sequence[Unit]) -> None:
        """Fold in units in the form in which the agent sees them; otherwise like `extend`."""
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

    def make_window(self, room: Room) -> Window:
        """Return the window for a build, the newest unit included. A changed room only takes effect when the window has to change."""
        self._window.room = room
        window = self._window.copy() if self._open else self._window
        for unit in group_units(self._open):
            _grow_window(self._strategy, window, unit, self._strategy.view_unit(unit))
        if not self._strategy.is_due(window):
            return window
        _ = (
            window.digest.saved
        )  # fold in evicted units now: otherwise it would be done twice, in this build and in the next
        return self._strategy(window)

    def apply_summary(self, summary: Compaction) -> bool:
        """Replace the log up to the summary's last entry by the summary; return False if the frontier is already beyond it."""
        window = self._window
        further = window.digest.last > summary.last
        if further or (window.summary is not None and window.summary.last >= summary.last):
            return False
        self._window, self.summary = self._strategy.apply_summary(window, summary), summary
        self.steps += 1
        return True

    def rate(self, importances: Mapping[int, float]) -> None:
        """Apply stored importances of messages, by `seq`. They take effect at the next step."""
        window = self._window
        window.head = tuple(unit.with_importances(importances) for unit in window.head)
        window.units = [unit.with_importances(importances) for unit in window.units]
        self._open = [entry for unit in group_units(self._open) for entry in unit.with_importances(importances).entries]

    def to_state(self) -> ViewState:
        """Return the state to save, without the newest unit while it can still change."""
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
    """Return how many of `units` can no longer change: calls at the end may still get results."""
    return len(units) - 1 if units and not units[-1].answered else len(units)


def _is_evaluated(unit: Unit) -> bool:
    """Return True if a model may be called right after `unit`: only then is it worth applying the strategy."""
    return unit.overrides is not None or unit.entries[0].kind != "assistant"


def _grow_window(strategy: Strategy, window: Window, unit: Unit, seen: Unit | None) -> None:
    """Add a unit to a window as the agent sees it, or note a unit that it does not see."""
    if seen is None:
        window.pass_over(unit, strategy.explain_omission(unit))
    else:
        window.grow(seen)


def _restore_window(
    strategy: Strategy, room: Room, state: ViewState, kept: Sequence[Entry], entries: Sequence[Entry]
) -> Window:
    """Return the window in its state after `state.through`."""
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
"""Messages from which building a window takes milliseconds."""


def make_view(
    strategy: Strategy, room: Room, state: ViewState | None, kept: Sequence[Entry], entries: Sequence[Entry]
) -> FoldedView:
    """Return the view of a strategy, restored from a saved state; see `FoldedView`."""
    kind = BufferedView if strategy.history else FoldedView
    return kind(strategy, room, state, kept, entries)


class BufferedView(FoldedView):
    """A view of the newest messages only. Its state is the first of these, and what stays from before."""

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
        """`seq` of the first message that it sees, except for what stays from before."""
        return self._units[0].first if self._units else 0

    @property
    def is_slow(self) -> bool:
        """True if it sees many messages: each build processes all of them."""
        return self._messages > LONG

    def list_entries(self) -> list[Entry]:
        units = [entry for unit in (*self._staying, *self._units) for entry in unit.entries]
        return [*units, *(entry for entry in self._newest if not units or entry.seq > units[-1].seq)]

    def list_kept_seqs(self) -> list[int]:
        return [entry.seq for unit in self._staying for entry in unit.entries]

    def estimate_bytes(self) -> int:
        """Return 0, because each window is rebuilt from its units."""
        return 0

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add new entries of the log, and evict the oldest in exchange."""
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

    def make_window(self, room: Room) -> Window:
        """Return the window that a log with only the visible messages would have at its end."""
        if self._made is None or self._made[0] != room:
            made = FoldedView(self._strategy, room, None, (), ())
            made.take([*self._staying, *self._units])
            self._made = (room, made)
        window = self._made[1].make_window(room).copy()
        window.beyond = self._beyond
        window.left_out = self._passed.left_out
        if self._units and self._units[0].first:
            first = self._units[0].entries[0]
            window.outside = OutsideRange(first.seq, first.total - first.tokens)
        return window

    def apply_summary(self, summary: Compaction) -> bool:
        """Return False: a summary would contain messages that this view must not see."""
        return False

    def rate(self, importances: Mapping[int, float]) -> None:
        self._staying = [unit.with_importances(importances) for unit in self._staying]
        self._units = deque(unit.with_importances(importances) for unit in self._units)
        self._newest = tuple(
            entry for unit in group_units(self._newest) for entry in unit.with_importances(importances).entries
        )
        self._made = None

    def to_state(self) -> ViewState:
        """Return the state to save: where it begins, and what stays from before."""
        return ViewState(
            frontier=self.frontier,
            keep=tuple(entry.seq for unit in self._staying for entry in unit.entries),
            anchor=self._anchor,
            current=self._current,
            standing=self._standing,
            left_out=self._passed.left_out,
        )
