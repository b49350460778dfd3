"""What this process remembers of sessions it has just served, so that their next turn reads nothing.

What is remembered is used only where it is proven to be the log: a write says which version it found, and the digest of what it
wrote is chained to all that was said before. Where somebody else wrote in between, it is dropped and the store is
read. Several servers on one database need not know of each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from holdfast.context.view import FoldedView
from holdfast.domain.log import as_sent
from holdfast.domain.messages import chain
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.stores.log import Append, Appended

MOST = 256
"""Sessions remembered; the one that was idle longest goes first."""
MOST_TOKENS = 4_000_000
"""Tokens of all that is remembered, roughly 40 MB."""
LAST = 8
"""Newest entries remembered of each: enough to recognise a retry."""


LONG_ENTRIES, LONG_TOKENS = 2_000, 100_000
"""Entries, or tokens of them, from which folding takes long enough to keep others waiting."""


def heavy(entries: Sequence[Entry]) -> bool:
    """Whether folding `entries` is better done off the event loop."""
    return len(entries) > LONG_ENTRIES or sum(entry.tokens for entry in entries) > LONG_TOKENS


class WarmSession:
    """One session as it stood after the last write or read of this process.

    Attributes:
        session: at that version.
        last: its newest live entries, in order.
        key: of the view that is carried on.
        saved: the view's frontier as the store has it.
        counted: its tokens among those of all that is remembered.
    """

    def __init__(self, session: Session, last: Sequence[Entry], key: str, view: FoldedView, saved: int) -> None:
        self.session = session
        self.last = tuple(last[-LAST:])
        self.key = key
        self._view = view
        self._behind: list[Entry] = []
        self._ratings: dict[int, float] = {}
        self.saved = saved
        self.counted = 0

    @property
    def view(self) -> FoldedView:
        """A view that has everything up to the version; what was written since the last look is folded in now."""
        behind, self._behind = self._behind, []
        self._view.extend(behind)
        if self._ratings:
            ratings, self._ratings = self._ratings, {}
            self._view.rate(ratings)
        return self._view

    def rate(self, importances: Mapping[int, float]) -> None:
        """Take in what a scorer said of messages; the view learns it with its next build, which may run in a thread."""
        self._ratings |= importances

    @property
    def heavy(self) -> bool:
        """Whether what has to be folded in yet is better folded off the event loop."""
        return self._view.long or heavy(self._behind)

    @property
    def tokens(self) -> int:
        """Tokens of what is held in memory."""
        return self._view.tokens

    def holds(self, session: Session) -> bool:
        """Whether it is that very session, at that version: one that was made anew under its name begins anew."""
        return (self.session.identity, self.session.version) == (session.identity, session.version)

    def take(self, appended: Appended, write: Append) -> bool:
        """Take a write of this process in; False when it does not continue what is remembered."""
        if any(one.status == "live" for one in appended.compactions):
            return False  # what is remembered does not know it
        same = appended.session.identity == self.session.identity
        follows = same and appended.version == self.session.version + 1 == appended.session.version
        if not follows or appended.replayed or write.retire_from is not None or not self._proven(appended):
            return False
        self.session = appended.session
        self.last = (*self.last, *appended.entries)[-LAST:]
        if appended.entries:  # of a change of the state nothing may be noted while a thread builds from the view
            self._behind += appended.entries
        self.saved = write.views[self.key].frontier if write.views and self.key in write.views else self.saved
        return True

    def _proven(self, appended: Appended) -> bool:
        """Whether what was written stands right behind what is remembered, by place and by digest."""
        before = self.session.tail
        if not appended.entries:
            return appended.session.tail == before
        first = appended.entries[0]
        return first.seq == before.next_seq and first.digest == chain(
            before.digest, as_sent(first.message, first.metadata)
        )


class WarmSessions:
    """Those of one store handle, by reference."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[SessionRef, WarmSession] = OrderedDict()
        self._tokens = 0

    def get(self, ref: SessionRef) -> WarmSession | None:
        """What is remembered of a session, which is in use by that."""
        warm = self._sessions.get(ref)
        if warm is not None:
            self._sessions.move_to_end(ref)
        return warm

    def put(self, ref: SessionRef, warm: WarmSession) -> None:
        """Remember a session, in place of what was remembered of it."""
        self.forget(ref)
        self._sessions[ref] = warm
        self._count(warm)
        while len(self._sessions) > MOST or (self._tokens > MOST_TOKENS and len(self._sessions) > 1):
            self._tokens -= self._sessions.popitem(last=False)[1].counted

    def rate(self, ref: SessionRef, importances: Mapping[int, float]) -> None:
        """Take in what a scorer said of a session's messages, where the session is remembered."""
        warm = self._sessions.get(ref)
        if warm is not None:
            warm.rate(importances)

    def forget(self, ref: SessionRef) -> None:
        """Drop what is remembered of a session."""
        if (warm := self._sessions.pop(ref, None)) is not None:
            self._tokens -= warm.counted

    def take(self, ref: SessionRef, appended: Appended, write: Append) -> None:
        """Take a write in, or drop what is remembered and does not go on with it."""
        warm = self._sessions.get(ref)
        if warm is None:
            return
        if warm.take(appended, write):
            self._count(warm)
        else:
            self.forget(ref)

    def follow(self, before: Session, after: Session) -> None:
        """Take over a session whose own fields this process changed from `before` to `after`; its log is the same."""
        warm = self._sessions.get(before.ref)
        if warm is None:
            return
        if warm.holds(before) and (after.identity, after.version) == (before.identity, before.version + 1):
            warm.session = after
        else:
            self.forget(before.ref)

    def _count(self, warm: WarmSession) -> None:
        """Have the sum know how much a session has grown: to go over all of them would cost each new one a tenth of its turn."""
        self._tokens += warm.tokens - warm.counted
        warm.counted = warm.tokens
