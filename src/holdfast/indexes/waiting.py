"""Sessions that wait to be indexed: by name only, each once however often it is written to, and soonest first."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from itertools import count

from holdfast.domain.session import Session, SessionRef
from holdfast.indexes.sources import Seen


class Told:
    """What is known of a session that waits.

    Attributes:
        ref: which one.
        since: when it was written to first, milliseconds since the epoch.
        entries: how many entries were written since.
        seen: what was done to it; None: not known.
        tries: how often it was tried in vain.
        due: when it is its turn, by the loop's time.
    """

    __slots__ = ("_over", "_tried", "due", "entries", "ref", "seen", "since", "tries")

    def __init__(self, ref: SessionRef, since: int, due: float) -> None:
        self.ref = ref
        self.since = since
        self.due = due
        self.entries = 0
        self.seen: Seen | None = None
        self.tries = 0
        self._tried = False
        self._over: asyncio.Event | None = None

    async def over(self) -> None:
        """Return when it was tried."""
        if self._tried:
            return
        if self._over is None:  # of very many that wait, a few are waited for
            self._over = asyncio.Event()
        await self._over.wait()

    def ended(self) -> None:
        """It was tried, or never will be."""
        self._tried = True
        if self._over is not None:
            self._over.set()

    def saw(self, session: Session, cut: int | None) -> None:
        """A write was seen, after which the session is this one."""
        version = session.version
        if self.seen is None or self.seen.last != version - 1:
            self.seen = Seen(version - 1, version)
        seen = self.seen
        seen.last = version
        if cut is not None:
            seen.cut = cut if seen.cut is None else min(seen.cut, cut)


class Waiting:
    """Who waits, and who is being worked on.

    Args:
        most: how many may wait; one more is refused.
        at_once: how many are worked on at a time.
        time: seconds, of the loop.
    """

    def __init__(self, most: int, at_once: int, time: Callable[[], float]) -> None:
        self._most = most
        self._at_once = at_once
        self._time = time
        self._told: dict[SessionRef, Told] = {}
        self._working: dict[SessionRef, Told] = {}
        self._of_user: dict[str, set[SessionRef]] = {}
        self._order: list[tuple[float, int, Told]] = []
        self._number = count()

    def __len__(self) -> int:
        return len(self._told) + len(self._working)

    def __iter__(self) -> Iterator[Told]:
        yield from self._working.values()
        yield from self._told.values()

    def add(self, ref: SessionRef, since: int, due: float) -> Told | None:
        """One more, or the one that waits already; None: too many do."""
        told = self._told.get(ref)
        if told is None:
            if len(self._told) >= self._most:
                return None
            told = self._told[ref] = Told(ref, since, due)
            self._of_user.setdefault(ref.user_id, set()).add(ref)
            self._push(told)
        return told

    def again(self, told: Told, due: float) -> None:
        """One that was tried in vain waits once more; what was seen of it does not count any more."""
        newer = self.add(told.ref, told.since, due)
        if newer is not None:
            newer.since = min(newer.since, told.since)
            newer.entries += told.entries
            newer.tries = told.tries + 1
            newer.seen = None
            self.move(newer, due)

    def move(self, told: Told, due: float) -> None:
        """Another time for one that waits."""
        told.due = due
        self._push(told)

    def of(self, user: str) -> list[Told]:
        """Those of a user, at work or not."""
        refs = self._of_user.get(user, ())
        return [told for ref in refs for told in (self._told.get(ref), self._working.get(ref)) if told is not None]

    def _push(self, told: Told) -> None:
        heapq.heappush(self._order, (told.due, next(self._number), told))

    def next(self) -> Told | None:
        """The one whose turn it is, which is worked on from now on; None: nobody's, or enough are worked on."""
        while self._order and len(self._working) < self._at_once:
            due, _, told = self._order[0]
            if self._told.get(told.ref) is not told or told.due != due:
                heapq.heappop(self._order)
            elif due > self._time():
                return None
            else:
                heapq.heappop(self._order)
                if told.ref not in self._working:  # else `ended` has it wait again
                    self._working[told.ref] = self._told.pop(told.ref)
                    return told
        return None

    def pause(self) -> float | None:
        """Seconds until somebody's turn comes; None: only when something ends."""
        if not self._order or len(self._working) >= self._at_once:
            return None
        return max(0.0, self._order[0][0] - self._time())

    def ended(self, told: Told) -> None:
        """It was worked on."""
        del self._working[told.ref]
        told.ended()
        newer = self._told.get(told.ref)
        if newer is not None:
            self._push(newer)
        else:
            refs = self._of_user[told.ref.user_id]
            refs.discard(told.ref)
            if not refs:
                del self._of_user[told.ref.user_id]

    def forget(self) -> None:
        """Nobody waits any more."""
        for told in self._told.values():
            told.ended()
        self._told.clear()
        self._order.clear()
        self._of_user = {told.ref.user_id: set() for told in self._working.values()}
        for told in self._working.values():
            self._of_user[told.ref.user_id].add(told.ref)
