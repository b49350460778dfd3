"""A view: the window of one agent's strategy over a session's log, updated as the log grows.

A view adds the log's units to its window one by one. Whenever the window exceeds a limit, the strategy shrinks it. The view's `ViewState`
is saved with the session, so that the next build only reads the new entries and those that are sent. Adding a log at once or in pieces
gives the same state, so builds are deterministic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.context.digest.pool import EMPTY
from holdfast.context.parts import PartTracker, PromptRecord
from holdfast.context.prefix_diff import PrefixTracker
from holdfast.context.strategies import Strategy
from holdfast.context.units import Unit, group_units, update_standing
from holdfast.context.window import NO_CANDIDATES, Block, Compaction, Cut, LeftOut, OutsideRange, Room, Window
from holdfast.domain.session import Entry, estimate_message_bytes, estimate_text_bytes

VERSION = 17
"""Version of the encoded state and of the rules that produce it. A view saved by another version is rebuilt from the log."""


class ViewState(msgspec.Struct, frozen=True, kw_only=True):
    """The saved state of a view. It refers to entries by `seq`, and does not contain them."""

    version: int = VERSION
    through: int = -1
    """The view contains the entries up to this `seq`. Their units can no longer change."""
    frontier: int = 0
    """`seq` of the first entry of the tail, the newest units, which are sent without gaps."""
    keep: tuple[int, ...] = ()
    """`seq` of each entry before the frontier that is still sent."""
    anchor: int | None = None
    current: int | None = None
    compacting: int | None = None
    cuts: dict[int, Cut] = {}
    summary: Compaction | None = None
    compaction: Compaction | None = None
    standing: tuple[int, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    pool: msgspec.Raw = msgspec.Raw(EMPTY)
    """The encoded facts from which the next digest is made. They are decoded only when units are evicted."""
    facts: Compaction | None = None
    candidates: msgspec.Raw = msgspec.Raw(NO_CANDIDATES)
    """The encoded statements from which the next `facts` is made. They are decoded only when units are evicted."""
    allotted: tuple[int, int] = (0, 0)
    """Maximum tokens of the digest, and maximum tokens of `facts`."""
    covered: tuple[int, int] = (-1, 0)
    """`seq` of the last entry that the digest covers (-1 if there is none), and the stored tokens of all live entries up to that entry."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ViewState)


def encode_state(state: ViewState) -> bytes:
    """Encode a state for storage."""
    return _encoder.encode(state)


def decode_state(data: bytes) -> ViewState | None:
    """Return a saved state; None if another version saved it, so that the view must be rebuilt from the log."""
    try:
        state = _decoder.decode(data)
    except msgspec.MsgspecError:
        return None
    return state if state.version == VERSION else None


class FoldedView:
    """A view in memory. It is restored from a saved state once, and then extended with new entries.

    Attributes:
        summary: the newest summary of the view. It stays here even if it had to be left out of the window for lack of tokens.
        prefix_tracker: compares each prompt of the view with the previous one.
        part_tracker: lists the parts of each prompt of the view.
        last: the record of the last prompt, used to explain why the next prompt does not begin with it.
        steps: number of changes of the window, not counting units added at its end.

    Args:
        strategy: the view's strategy.
        room: token limit and counter of the first build.
        state: the saved state; None to start from the beginning of the log.
        kept: the entries that `state.keep` names.
        entries: the live entries from `state.frontier` on.
    """

    def __init__(
        self, strategy: Strategy, room: Room, state: ViewState | None, kept: Sequence[Entry], entries: Sequence[Entry]
    ) -> None:
        state = state or ViewState()
        self.summary = state.summary
        self.prefix_tracker = PrefixTracker()
        self.part_tracker = PartTracker()
        self.last: PromptRecord | None = None
        self.steps = 0
        self._strategy = strategy
        self._through = state.through
        self._window = _restore_window(strategy, room, state, kept, entries)
        self._open: list[Entry] = []
        self.extend([entry for entry in entries if entry.seq > state.through])

    @property
    def frontier(self) -> int:
        """`seq` of the first entry of the tail; 0 if the tail is empty."""
        return self._window.units[0].first if self._window.units else 0

    @property
    def is_slow(self) -> bool:
        """True if each build takes milliseconds, even if few entries are new, so that the caller should run it outside the event loop."""
        return False

    def list_entries(self) -> list[Entry]:
        """Return the entries that the view has in memory."""
        units = (*self._window.head, *self._window.units)
        return [*(entry for unit in units for entry in unit.entries), *self._open]

    def list_kept_seqs(self) -> list[int]:
        """Return the `seq` of each entry that is still sent although it is older than the tail."""
        return [entry.seq for unit in self._window.head for entry in unit.entries]

    def estimate_bytes(self) -> int:
        """Estimate the memory of the view in bytes, its entries not counted."""
        window = self._window
        texts = [one.text for one in (window.summary, window.compaction, window.facts) if one is not None]
        cuts = sum(estimate_message_bytes(cut.message) for cut in window.cuts.values())
        return len(window.pool) + len(window.candidates) + cuts + sum(map(estimate_text_bytes, texts))

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add new entries of the log. The last unit is held back while it can still get tool results."""
        units = group_units([*self._open, *entries])
        settled = _count_settled(units)
        for unit in units[:settled]:
            self._through = unit.last
            self._take(unit, self._strategy.view_unit(unit))
        self._open = [entry for unit in units[settled:] for entry in unit.entries]

    def take(self, units: Sequence[Unit]) -> None:
        """Add units like `extend`. The units must already have the form in which the agent sees them."""
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
        """Return the window for a build, with the newest unit even if it is incomplete.

        The strategy shrinks the window only if it exceeds the limits of `room`. A higher limit does not bring evicted units back.
        """
        self._window.room = room
        window = self._window.copy() if self._open else self._window
        for unit in group_units(self._open):
            _grow_window(self._strategy, window, unit, self._strategy.view_unit(unit))
        if not self._strategy.is_due(window):
            return window
        _ = (
            window.digest.saved
        )  # add the evicted units to the pool now: otherwise this build and the next one would both do it
        return self._strategy(window)

    def step_early(self, room: Room) -> bool:
        """Evict units as if the window were full, and return True; False if the view cannot do that now."""
        if self._open or not self._strategy.steps_early:
            return False
        self._window.room = room
        self._window = self._strategy.step(self._window)
        self.steps += 1
        return True

    def apply_summary(self, summary: Compaction) -> bool:
        """Replace the units up to the summary's last entry by the summary, and return True.

        Return False and change nothing if the digest or an earlier summary already covers as much.
        """
        window = self._window
        further = window.digest.last > summary.last
        if further or (window.summary is not None and window.summary.last >= summary.last):
            return False
        self._window, self.summary = self._strategy.apply_summary(window, summary), summary
        self.steps += 1
        return True

    def rate(self, importances: Mapping[int, float]) -> None:
        """Set the importances of messages that have none, by `seq`. They matter the next time that units are evicted."""
        window = self._window
        window.head = tuple(unit.with_importances(importances) for unit in window.head)
        window.units = [unit.with_importances(importances) for unit in window.units]
        self._open = [entry for unit in group_units(self._open) for entry in unit.with_importances(importances).entries]

    def to_state(self) -> ViewState:
        """Return the state to save. It does not include the newest unit while that unit can still get tool results."""
        window = self._window
        return ViewState(
            through=self._through,
            frontier=self.frontier,
            keep=tuple(entry.seq for unit in window.head for entry in unit.entries),
            anchor=window.anchor,
            current=window.current,
            compacting=window.compacting,
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
    """Return how many of `units` can no longer change. The last one still can if its tool calls may get results."""
    return len(units) - 1 if units and not units[-1].answered else len(units)


def _is_evaluated(unit: Unit) -> bool:
    """Return True if a model may be called right after `unit`. The strategy is applied only at such points."""
    return unit.overrides is not None or unit.entries[0].kind != "assistant"


def _grow_window(strategy: Strategy, window: Window, unit: Unit, seen: Unit | None) -> None:
    """Add a unit to a window in the form `seen`, or record it as left out if `seen` is None."""
    if seen is None:
        window.pass_over(unit, strategy.explain_omission(unit))
    else:
        window.grow(seen)


def _restore_window(
    strategy: Strategy, room: Room, state: ViewState, kept: Sequence[Entry], entries: Sequence[Entry]
) -> Window:
    """Return the window as it was when entry `state.through` had been added."""
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
    window.compacting = state.compacting
    window.standing = state.standing
    return window


LONG = 200
"""Number of messages above which building a window takes milliseconds."""


def make_view(
    strategy: Strategy, room: Room, state: ViewState | None, kept: Sequence[Entry], entries: Sequence[Entry]
) -> FoldedView:
    """Create a view and restore it from a saved state: a `BufferedView` if the strategy has `history`, otherwise a `FoldedView`.

    The arguments are those of `FoldedView`.
    """
    kind = BufferedView if strategy.history else FoldedView
    return kind(strategy, room, state, kept, entries)


class BufferedView(FoldedView):
    """A view whose strategy sees only the newest `Strategy.history` messages, and older ones that must stay.

    Each build makes its window anew from these messages. The saved state only says where they begin, and which older ones stay.
    """

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
        self._compacting = state.compacting if state else None
        self._standing = state.standing if state else ()
        self._made: tuple[Room, FoldedView] | None = None
        super().__init__(strategy, room, None, (), entries)

    @property
    def frontier(self) -> int:
        """`seq` of the first of the newest messages that the strategy sees; 0 if there are none."""
        return self._units[0].first if self._units else 0

    @property
    def is_slow(self) -> bool:
        """True if the view has more than `LONG` messages, because each build processes all of them."""
        return self._messages > LONG

    def list_entries(self) -> list[Entry]:
        units = [entry for unit in (*self._staying, *self._units) for entry in unit.entries]
        return [*units, *(entry for entry in self._newest if not units or entry.seq > units[-1].seq)]

    def list_kept_seqs(self) -> list[int]:
        return [entry.seq for unit in self._staying for entry in unit.entries]

    def estimate_bytes(self) -> int:
        """Return 0: each build makes the window anew, so the view keeps only its entries."""
        return 0

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add new entries of the log, and evict the oldest messages that exceed the number of visible messages."""
        units = group_units([*self._newest, *entries])
        if self._units and self._newest and self._units[-1].last == self._newest[-1].seq:
            self._messages -= len(self._units.pop().entries)
        for unit in units:
            seen = self._strategy.view_unit(unit)
            self._compacting = unit.first if unit.compacts else self._compacting
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
            or unit.first in (self._current, self._compacting)
            or unit.first in self._standing
            or any(entry.pinned for entry in unit.entries)
        )

    def make_window(self, room: Room) -> Window:
        """Return the window that a `FoldedView` would have if the log consisted of the visible messages only."""
        if self._made is None or self._made[0] != room:
            made = FoldedView(self._strategy, room, None, (), ())
            made.take([*self._staying, *self._units])
            self._made = (room, made)
        window = self._made[1].make_window(room).copy()
        window.beyond = self._beyond
        window.compacting = self._compacting
        window.left_out = self._passed.left_out
        if self._units and self._units[0].first:
            first = self._units[0].entries[0]
            window.outside = OutsideRange(first.seq, first.total - first.tokens)
        return window

    def step_early(self, room: Room) -> bool:
        """Return False and change nothing: the window is made anew for each build."""
        return False

    def apply_summary(self, summary: Compaction) -> bool:
        """Return False and change nothing: a summary would show messages that this view must not see."""
        return False

    def rate(self, importances: Mapping[int, float]) -> None:
        self._staying = [unit.with_importances(importances) for unit in self._staying]
        self._units = deque(unit.with_importances(importances) for unit in self._units)
        self._newest = tuple(
            entry for unit in group_units(self._newest) for entry in unit.with_importances(importances).entries
        )
        self._made = None

    def to_state(self) -> ViewState:
        """Return the state to save: where the visible messages begin, and which older messages stay."""
        return ViewState(
            frontier=self.frontier,
            keep=tuple(entry.seq for unit in self._staying for entry in unit.entries),
            anchor=self._anchor,
            current=self._current,
            compacting=self._compacting,
            standing=self._standing,
            left_out=self._passed.left_out,
        )
