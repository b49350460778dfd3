"""What a hook gets and promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol, runtime_checkable

from holdfast.domain.session import Ending, EndReason, Entry, Session, SessionRef
from holdfast.limits import PAGE
from holdfast.media.leaving import whole_entries
from holdfast.stores.base import Store
from holdfast.stores.log import Appended

Change = Literal["annotated", "erased", "replaced", "deleted"]
"""What becomes of something that was written: an entry's pin or importance, its content, a whole session, all of it."""


class EndedSession:
    """A session that has ended, still whole: what a hook is given.

    Attributes:
        session: its own fields, under its own name also where it has given that up.
        reason: why it ended.
        delivery_id: the same however often this hook is told of this end: whoever receives it twice knows by that.
        ended_at: milliseconds since the epoch.
        attempt: 1 for the first try.
    """

    def __init__(self, store: Store, session: Session, ending: Ending) -> None:
        self._store = store
        self._ref: SessionRef = ending.ref
        self.session = session
        self.reason: EndReason = ending.reason
        self.delivery_id = ending.id
        self.ended_at = ending.ended_at
        self.attempt = ending.attempts + 1

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.session.tenant

    @property
    def user_id(self) -> str:
        """Its owner."""
        return self.session.user_id

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session.id

    async def entries(self, *, start: int = 0, retired: bool = False, media: bool = False) -> AsyncIterator[Entry]:
        """Its messages in order, from `seq` `start` on, read page by page.

        Args:
            start: the first one.
            retired: those that left the live path too.
            media: with the data of images and other media, which is read message by message; else a mark tells of them.
        """
        while True:
            page = await self._store.entries(self._ref, start=start, limit=PAGE, retired=retired)
            for entry in page:
                yield (await whole_entries(self._store, self._ref, [entry]))[0] if media else entry
            if len(page) < PAGE:
                return
            start = page[-1].seq + 1


class Hook(Protocol):
    """Somebody who is told of ends, at least once each, and never again after a call that returned.

    `name` is an identifier that stays the same from start to start: what is left to be told is recorded by it.
    """

    name: str
    reasons: frozenset[EndReason]
    """The ends it is told of."""

    async def __call__(self, ended: EndedSession) -> Any:
        """Take note of an end. What it raises is recorded, and it is told again later."""
        ...


@runtime_checkable
class Keeper(Protocol):
    """A hook or observer that keeps something of sessions elsewhere, and gives it up when one is deleted."""

    async def forget(self, tenant: str, user_id: str, session_id: str) -> int:
        """Remove all that is kept of sessions of that name; how many files there were."""
        ...

    async def forget_user(self, tenant: str, user_id: str) -> int:
        """Remove all that is kept of a user's sessions, of whatever name, those that are gone included; how many files."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Somebody who follows what is written to sessions, off a turn's path. `holdfast.hooks.observing` tells it."""

    def begin(self, store: Store) -> None:
        """It is told from now on, of this store; in a running event loop. What cannot be used is told here, by raising."""
        ...

    def appended(self, tenant: str, ref: SessionRef, appended: Appended) -> None:
        """Entries were written. Returns at once and never raises: what takes time is done later, in a task of its own."""
        ...

    def changing(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """Something is about to change; `changed` follows, unless the process ends before. As `appended`."""
        ...

    def changed(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """It has changed, or that has failed: the store says which. As `appended`."""
        ...

    async def close(self) -> None:
        """Finish what was begun."""
        ...
