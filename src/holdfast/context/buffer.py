"""The buffer: a policy that sees the newest messages of a log only, first in, first out (seed 000, `max_history_turns`).

What it sees is the last `history` live messages, in whole units, and before them what must stay: the task anchor, pins, and
the current user message. Its window is made anew from these for each build, so that it is the one that a log of nothing else
would have, and nothing that left can be told, in a digest neither. The log keeps all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from holdfast.context.policies import Policy
from holdfast.context.units import Unit, in_force, units_of
from holdfast.context.view import FoldedView, ViewState
from holdfast.context.window import Compaction, Outside, Room, Window
from holdfast.domain.session import Entry

LONG = 200
"""Messages from which making a window takes milliseconds."""


def folded(
    policy: Policy, room: Room, state: ViewState | None, kept: Sequence[Entry], entries: Sequence[Entry]
) -> FoldedView:
    """The view of a policy, carried on from a saved state; see `FoldedView`."""
    kind = BufferedView if policy.history else FoldedView
    return kind(policy, room, state, kept, entries)


class BufferedView(FoldedView):
    """A view of the newest messages. What is saved of it is where they begin, and what stays from before."""

    def __init__(
        self, policy: Policy, room: Room, state: ViewState | None, kept: Sequence[Entry], entries: Sequence[Entry]
    ) -> None:
        self._units: deque[Unit] = deque()
        self._messages = 0
        self._held: list[Unit] = [*policy.seen(units_of(kept))]
        self._newest: tuple[Entry, ...] = ()
        self._beyond: Entry | None = None
        self._passed = Window(room)
        if state is not None:
            self._passed.left_out = tuple(one for one in state.left_out if one.first < state.frontier)
        self._anchor = state.anchor if state else None
        self._current = state.current if state else None
        self._standing = state.standing if state else ()
        self._made: tuple[Room, FoldedView] | None = None
        super().__init__(policy, room, None, (), entries)

    @property
    def frontier(self) -> int:
        """`seq` of the first message that it sees, but for what stays from before."""
        return self._units[0].first if self._units else 0

    @property
    def long(self) -> bool:
        """See `FoldedView.long`: all that it sees is gone over."""
        return self._messages > LONG

    def entries(self) -> list[Entry]:
        """See `FoldedView.entries`."""
        units = [entry for unit in (*self._held, *self._units) for entry in unit.entries]
        return [*units, *(entry for entry in self._newest if not units or entry.seq > units[-1].seq)]

    def kept(self) -> list[int]:
        """See `FoldedView.kept`."""
        return [entry.seq for unit in self._held for entry in unit.entries]

    def overlay_bytes(self) -> int:
        """See `FoldedView.overlay_bytes`: each window is made anew from its units."""
        return 0

    def extend(self, entries: Iterable[Entry]) -> None:
        """Take in what the log grew by; the oldest leave for it."""
        units = units_of([*self._newest, *entries])
        if self._units and self._newest and self._units[-1].last == self._newest[-1].seq:
            self._messages -= len(self._units.pop().entries)
        for unit in units:
            seen = self._policy.sees(unit)
            self._beyond = unit.entries[-1] if seen is None else None
            if seen is not None:
                self._keep(seen)
            else:
                self._passed.pass_over(unit, self._policy.left_out(unit))
        self._newest = units[-1].entries if units else ()
        self._made = None

    def _keep(self, unit: Unit) -> None:
        if unit.asks:
            self._anchor = unit.first if self._anchor is None else self._anchor
            self._current = unit.first
        self._standing = in_force(self._standing, self._units[-1] if self._units else None, unit)
        self._units.append(unit)
        self._messages += len(unit.entries)
        while self._messages - len(self._units[0].entries) >= self._policy.history:
            oldest = self._units.popleft()
            self._messages -= len(oldest.entries)
            self._held.append(oldest)
            self.steps += 1
        self._held = [held for held in self._held if self._stays(held)]

    def _stays(self, unit: Unit) -> bool:
        anchored = self._policy.anchored and unit.first == self._anchor
        return (
            anchored
            or unit.first == self._current
            or unit.first in self._standing
            or any(entry.pinned for entry in unit.entries)
        )

    def window(self, room: Room) -> Window:
        """The window that a log of nothing but what it sees would have, at its end."""
        if self._made is None or self._made[0] != room:
            made = FoldedView(self._policy, room, None, (), ())
            made.take([*self._held, *self._units])
            self._made = (room, made)
        window = self._made[1].window(room).copy()
        window.beyond = self._beyond
        window.left_out = self._passed.left_out
        if self._units and self._units[0].first:
            first = self._units[0].entries[0]
            window.outside = Outside(first.seq, first.total - first.tokens)
        return window

    def summarize(self, summary: Compaction) -> bool:
        """No summary is laid: it would tell what has left."""
        return False

    def rate(self, importances: Mapping[int, float]) -> None:
        """See `FoldedView.rate`."""
        self._held = [unit.rated(importances) for unit in self._held]
        self._units = deque(unit.rated(importances) for unit in self._units)
        self._newest = tuple(entry for unit in units_of(self._newest) for entry in unit.rated(importances).entries)
        self._made = None

    def state(self) -> ViewState:
        """What is saved: where it begins, and what stays from before."""
        return ViewState(
            frontier=self.frontier,
            keep=tuple(entry.seq for unit in self._held for entry in unit.entries),
            anchor=self._anchor,
            current=self._current,
            standing=self._standing,
            left_out=self._passed.left_out,
        )
