"""The part of the store contract about the lifecycle of sessions: recording when they are used and when they end.

A session is `active` until it ends. A session ends in one of two ways. If it is closed, it keeps its name; appending an entry
makes it active again. If it is withdrawn, it gives up its name, which another session can then use. A withdrawn session is in
no list and is found only by a `SessionRef` with its `withdrawn` id. `accessed_at` is the time of the last write of entries,
state or fields, or of the last `touch`.

- `end` checks the session in its own transaction. So of several callers only one ends the session, and none ends a session that
  was used after `idle_since`.
- An ending (`Ending`) describes how a session ended, and names the hooks that must be notified. If it names hooks, it is stored
  in the transaction that ends the session, and kept until `forget_ending`. `settle` removes each hook that was notified, so
  that this hook is not notified again.
- No session expires by itself in the store. Readers decide whether an active session has been idle for too long
  (`Session.is_expired`).
"""

from __future__ import annotations

from typing import Protocol

from holdfast.domain.session import Ending, Session, SessionRef


class LifecycleStore(Protocol):
    """Record when sessions are used and when they end, and find expired sessions.

    The module docstring describes what all methods promise.
    """

    async def touch(self, ref: SessionRef, *, timestamp: int) -> None:
        """Record that the session was used, without a write. Its version and `updated_at` stay the same; a closed session stays closed.

        Does nothing if `timestamp` is before `accessed_at`. Raises `SessionNotFound` if the session does not exist.
        """
        ...

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        """Close a session, or withdraw it so that its name is free; return True if this call did so.

        A closed session cannot be closed again, but it can be withdrawn. An ending with `hooks` is recorded.

        Args:
            ending: describes how the session ended; its id must be unique.
            idle_since: do nothing if the session was used after this time, in milliseconds since the epoch.

        Raises:
            SessionNotFound: no such session.
        """
        ...

    async def record_ending(self, ending: Ending) -> None:
        """Record an ending that hooks must be notified of, without ending the session.

        Raises:
            SessionNotFound: the session does not exist.
        """
        ...

    async def endings(self, *, due: int, limit: int = 100) -> tuple[Ending, ...]:
        """Return recorded endings whose `due_at` is at most `due`, in order of `due_at`, then `ended_at`.

        `due` is in milliseconds since the epoch.
        """
        ...

    async def endings_of(self, user_id: str, *, after: str = "", limit: int = 100) -> tuple[Ending, ...]:
        """Return all recorded endings of a user's sessions with ids after `after`, in order of id. Used to delete a user."""
        ...

    async def settle(
        self, ending_id: str, *, delivered: str | None = None, due_at: int | None = None, error: str | None = None
    ) -> Ending:
        """Record the result of notifying a hook of an ending; return the updated ending.

        Args:
            ending_id: id of the ending.
            delivered: name of a hook that was notified. The name is removed from `Ending.hooks`, so the hook is not notified again.
            due_at: time of the next attempt, in milliseconds since the epoch; None: unchanged.
            error: why the notification failed, cut to `ENDING_ERROR_CHARS`; it adds one to the number of attempts. None: no
                failure.

        Raises:
            EndingNotFound: the ending does not exist; it may have been forgotten.
        """
        ...

    async def forget_ending(self, ending_id: str) -> None:
        """Delete the record that a session ended. The session itself is not deleted."""
        ...

    async def idle(self, *, now: int, ttl: int | None, limit: int = 100) -> tuple[Session, ...]:
        """Return active sessions that have expired: first those with a ttl of their own, then the others.

        Both groups are ordered by the time of expiry, earliest first.

        Args:
            now: milliseconds since the epoch.
            ttl: milliseconds after which sessions without a ttl of their own expire; None or 0: they never expire.
            limit: maximum number of sessions, 1 to `PAGE`.
        """
        ...

    async def oldest(self, *, limit: int = 100) -> tuple[Session, ...]:
        """Return active sessions, the least recently used first."""
        ...

    async def active(self) -> int:
        """Count the active sessions. The cost may grow with their number, so do not call this in a turn."""
        ...
