"""The part of the store contract about the lifecycle of sessions: their use, their end, and the hooks to notify of it.

A session is `active` until it ends: then it is `closed` and stays, or it is withdrawn and gives up its name. A closed session is
active again as soon as an entry is appended. A withdrawn session is found under its ref alone, is in no list, and its name is
free. `accessed_at` is the time of the last write of entries, state or fields, or of the last `touch`.

- `end` decides in its transaction: of several callers one ends a session, and no caller ends one that was used after `idle_since`.
- An end with hooks is recorded with it, as an `Ending`, until it is forgotten; what `settle` noted as delivered stays so.
- Readers decide whether an active session has been idle for too long (`Session.expired`); nothing changes by itself.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.domain.session import Ending, Session, SessionRef


class LifecycleStore(Protocol):
    """Record use and ends of sessions, and find sessions that are due to end. The module says what all methods promise."""

    async def touch(self, ref: SessionRef, *, timestamp: int) -> None:
        """Record that the session is in use. Neither its version nor `updated_at` changes, nor does a closed one open.

        A timestamp before `accessed_at` changes nothing. Raises `SessionNotFound`.
        """
        ...

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        """Close a session, or withdraw it from its name; return whether this call did.

        One that is closed already can be withdrawn, not closed again. An end with `hooks` is recorded.

        Args:
            ending: a new one, with an id that no other caller uses.
            idle_since: not if it was used after this time, milliseconds since the epoch.

        Raises:
            SessionNotFound: no such session.
        """
        ...

    async def record_ending(self, ending: Ending) -> None:
        """Record an end that hooks are to be notified of, without ending the session. Raises `SessionNotFound`."""
        ...

    async def endings(self, *, due: int, limit: int = 100) -> tuple[Ending, ...]:
        """Return recorded ends that are due at that time, milliseconds since the epoch, in order of `due_at`, then `ended_at`."""
        ...

    async def endings_of(self, user_id: str, *, after: str = "", limit: int = 100) -> tuple[Ending, ...]:
        """Return recorded ends of a user's sessions, due or not, in order of id, after `after`: for the deletion of a user."""
        ...

    async def settle(
        self, ending_id: str, *, delivered: str | None = None, due_at: int | None = None, error: str | None = None
    ) -> Ending:
        """Record the outcome of notifying a hook of an end; return the end after it.

        Args:
            ending_id: the end's.
            delivered: the hook that was notified: it leaves `hooks` for good.
            due_at: when to try again, milliseconds since the epoch.
            error: why it failed; counts as an attempt. Longer than `ENDING_ERROR_CHARS` it is cut.

        Raises:
            EndingNotFound: it was forgotten.
        """
        ...

    async def forget_ending(self, ending_id: str) -> None:
        """Delete a recorded end. A session that it withdrew is not deleted by that."""
        ...

    async def idle(self, *, now: int, ttl: int | None, limit: int = 100) -> tuple[Session, ...]:
        """Return active sessions that have expired: those with a ttl of their own first, each kind the longest overdue first.

        Args:
            now: milliseconds since the epoch.
            ttl: milliseconds for those without one of their own; None or 0: they do not expire.
            limit: 1 to `PAGE`.
        """
        ...

    async def oldest(self, *, limit: int = 100) -> tuple[Session, ...]:
        """Return active sessions, the least recently used first."""
        ...

    async def active(self) -> int:
        """Count active sessions. This may cost as many steps: not for a turn's path."""
        ...
