"""The part of the store contract about the lifecycle of sessions: their use, their end, and the hooks to notify.

A session is `active` until it ends. Then it is `closed` and keeps its name, or it is withdrawn and gives up its name. A closed
session becomes active again when an entry is appended. A withdrawn session is found only under its ref and is in no list; its name
is free. `accessed_at` is the time of the last write of entries, state or fields, or of the last `touch`.

- `end` decides in its transaction: of several callers one ends a session, and no caller ends one that was used after `idle_since`.
- An end with hooks is recorded with the change of the session, as an `Ending`, until it is forgotten; hooks that `settle` noted as
  delivered are never notified again.
- Readers decide whether an active session has been idle for too long (`Session.expired`); nothing changes by itself.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.domain.session import Ending, Session, SessionRef


class LifecycleStore(Protocol):
    """Record use and ends of sessions, and find sessions that are due to end. The module says what all methods promise."""

    async def touch(self, ref: SessionRef, *, timestamp: int) -> None:
        """Record that the session is in use. Its version and `updated_at` stay the same, and a closed session stays closed.

        A timestamp before `accessed_at` changes nothing. Raises `SessionNotFound`.
        """
        ...

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        """Close a session, or withdraw it from its name; return True if this call did it.

        A closed session can still be withdrawn, but not closed again. An end with `hooks` is recorded.

        Args:
            ending: a new one, with an id that no other caller uses.
            idle_since: do nothing if the session was used after this time, milliseconds since the epoch.

        Raises:
            SessionNotFound: no such session.
        """
        ...

    async def record_ending(self, ending: Ending) -> None:
        """Record an end that hooks are to be notified of, without ending the session. Raises `SessionNotFound`."""
        ...

    async def endings(self, *, due: int, limit: int = 100) -> tuple[Ending, ...]:
        """Return recorded ends that are due at `due`, milliseconds since the epoch, in order of `due_at`, then `ended_at`."""
        ...

    async def endings_of(self, user_id: str, *, after: str = "", limit: int = 100) -> tuple[Ending, ...]:
        """Return recorded ends of a user's sessions, due or not, in order of id, after `after`. Used to delete a user."""
        ...

    async def settle(
        self, ending_id: str, *, delivered: str | None = None, due_at: int | None = None, error: str | None = None
    ) -> Ending:
        """Record the outcome of notifying a hook of an end; return the updated end.

        Args:
            ending_id: id of the end.
            delivered: a hook that was notified; it is removed from `hooks` for good.
            due_at: when to try again, milliseconds since the epoch.
            error: why notifying failed; counts as an attempt. It is cut to `ENDING_ERROR_CHARS`.

        Raises:
            EndingNotFound: it was forgotten.
        """
        ...

    async def forget_ending(self, ending_id: str) -> None:
        """Delete a recorded end, but not the session that it withdrew."""
        ...

    async def idle(self, *, now: int, ttl: int | None, limit: int = 100) -> tuple[Session, ...]:
        """Return active sessions that have expired: first those with a ttl of their own, each group with the longest overdue first.

        Args:
            now: milliseconds since the epoch.
            ttl: milliseconds for sessions without a ttl of their own; None or 0: these do not expire.
            limit: 1 to `PAGE`.
        """
        ...

    async def oldest(self, *, limit: int = 100) -> tuple[Session, ...]:
        """Return active sessions, the least recently used first."""
        ...

    async def active(self) -> int:
        """Count active sessions. The cost may grow with their number, so it is not for a turn's path."""
        ...
