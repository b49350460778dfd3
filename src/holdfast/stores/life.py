"""The part of the store contract that is about the life of sessions: their use, their ends, and who is to be told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.domain.session import Ending, Session, SessionRef


class LifeStore(Protocol):
    """What a store knows of the life of sessions; see `holdfast.stores.base`, **Life**."""

    async def touch(self, ref: SessionRef, *, timestamp: int) -> None:
        """Take note that the session is in use. Neither its version nor `updated_at` changes, nor does a closed one open.

        A timestamp before `accessed_at` changes nothing. Raises `SessionNotFound`.
        """
        ...

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        """Close a session, or withdraw it from its name; whether this call did.

        One that is closed already can be withdrawn, not closed again. An end with `hooks` is recorded.

        Args:
            ending: a new one, with an id that nobody else uses.
            idle_since: not if it was used after this time, milliseconds since the epoch.

        Raises:
            SessionNotFound: no such session.
        """
        ...

    async def record_ending(self, ending: Ending) -> None:
        """Record that hooks are to be told of a session as of an end, which leaves it as it is. Raises `SessionNotFound`."""

    async def endings(self, *, due: int, limit: int = 100) -> tuple[Ending, ...]:
        """Recorded ends that are due at that time, milliseconds since the epoch, in order of `due_at`, then `ended_at`."""
        ...

    async def endings_of(self, user_id: str, *, after: str = "", limit: int = 100) -> tuple[Ending, ...]:
        """Recorded ends of a user's sessions, due or not, in order of id, behind `after`: for who removes all of a user's."""
        ...

    async def settle(
        self, ending_id: str, *, delivered: str | None = None, due_at: int | None = None, error: str | None = None
    ) -> Ending:
        """Note what became of telling a hook of an end; the end as it is now.

        Args:
            ending_id: the end's.
            delivered: the hook that was told: it leaves `hooks` for good.
            due_at: when to try again, milliseconds since the epoch.
            error: why it failed; counts as an attempt. Longer than `ENDING_ERROR_CHARS` it is cut.

        Raises:
            EndingNotFound: it was forgotten.
        """
        ...

    async def forget_ending(self, ending_id: str) -> None:
        """Remove a recorded end. A session that it withdrew is not deleted by that."""
        ...

    async def idle(self, *, now: int, ttl: int | None, limit: int = 100) -> tuple[Session, ...]:
        """Active sessions that have expired: those with a ttl of their own first, each kind the longest overdue first.

        Args:
            now: milliseconds since the epoch.
            ttl: milliseconds for those without one of their own; None or 0: they do not expire.
            limit: 1 to `PAGE`.
        """
        ...

    async def oldest(self, *, limit: int = 100) -> tuple[Session, ...]:
        """Active sessions, the one that was used longest ago first."""
        ...

    async def active(self) -> int:
        """How many sessions are active. May cost as many steps: not for a turn's path."""
        ...

    async def tenants(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """Tenants that have sessions, or owners of memories, in order, behind `after`: for what is done once for all of a database.

        The one thing that is seen across tenants.
        """
        ...
