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

from typing import Final

from msgspec.structs import replace as evolve

from holdfast.domain.session import Ending, Session, SessionRef
from holdfast.errors import EndingNotFound
from holdfast.limits import ENDING_ERROR_CHARS
from holdfast.stores import checks
from holdfast.stores.logic.due import note_removed_session
from holdfast.stores.logic.handle import Handle, get_first, read_session_row, reads, writes
from holdfast.stores.logic.items import Items
from holdfast.stores.logic.rows import decode_session
from holdfast.stores.logic.steps import Query, Steps

_ENDINGS: Final = Items("ending", Ending, at="due_at", about="user_id")


class LifecycleStore(Handle):
    """Record when sessions are used and when they end, and find expired sessions.

    The module docstring describes what all methods promise.
    """

    @writes()
    def touch(self, ref: SessionRef, *, timestamp: int) -> Steps[None]:
        """Record that the session was used, without a write. Its version and `updated_at` stay the same; a closed session stays closed.

        Does nothing if `timestamp` is before `accessed_at`. Raises `SessionNotFound` if the session does not exist.
        """
        checks.check_ref(ref)
        row = yield from read_session_row(self.tenant, ref)
        yield Query("session_used", (row[0], timestamp))

    @writes()
    def end(self, ending: Ending, *, idle_since: int | None = None) -> Steps[bool]:
        """Close a session, or withdraw it so that its name is free; return True if this call did so.

        A closed session cannot be closed again, but it can be withdrawn. An ending with `hooks` is recorded.

        Args:
            ending: describes how the session ended; its id must be unique.
            idle_since: do nothing if the session was used after this time, in milliseconds since the epoch.

        Raises:
            SessionNotFound: no such session.
        """
        row = yield from read_session_row(self.tenant, SessionRef(ending.user_id, ending.session_id))
        session = decode_session(row)
        was_used = idle_since is not None and session.accessed_at > idle_since
        if was_used or (session.status == "closed" and not ending.withdrawn):
            return False
        yield from write_end(row[0], session, ending)
        return True

    @writes()
    def record_ending(self, ending: Ending) -> Steps[None]:
        """Record an ending that hooks must be notified of, without ending the session.

        Raises:
            SessionNotFound: the session does not exist.
        """
        session = decode_session(
            (yield from read_session_row(self.tenant, SessionRef(ending.user_id, ending.session_id)))
        )
        yield from _ENDINGS.put(self.tenant, evolve(ending, identity=session.identity), statement="item_new")

    @reads(single=True)
    def endings(self, *, due: int, limit: int = 100) -> Steps[tuple[Ending, ...]]:
        """Return the first recorded endings whose `due_at` is at most `due`, in order of `due_at`, then `ended_at`.

        `due` is in milliseconds since the epoch.
        """
        found = yield from _ENDINGS.list_until(self.tenant, due, limit)
        return tuple(sorted(found, key=lambda one: (one.due_at, one.ended_at)))

    @reads(single=True)
    def endings_of(self, user_id: str, *, after: str = "", limit: int = 100) -> Steps[tuple[Ending, ...]]:
        """Return all recorded endings of a user's sessions with ids after `after`, in order of id. Used to delete a user."""
        checks.check_id(user_id, "user_id")
        return (yield from _ENDINGS.list_after(self.tenant, after, limit, user_id))

    @writes()
    def settle(
        self,
        ending_id: str,
        *,
        delivered: str | None = None,
        due_at: int | None = None,
        error: str | None = None,
        expect_due: int | None = None,
    ) -> Steps[Ending]:
        """Record the result of notifying a hook of an ending, or claim the ending; return the updated ending.

        A process claims an ending by moving `due_at`. With `expect_due`, only one of several processes succeeds.

        Args:
            ending_id: id of the ending.
            delivered: name of a hook that was notified. The name is removed from `Ending.hooks`, so the hook is not notified again.
            due_at: time of the next attempt, in milliseconds since the epoch; None: unchanged.
            error: why the notification failed, cut to `ENDING_ERROR_CHARS`; it adds one to the number of attempts. None: no
                failure.
            expect_due: the `due_at` that the ending must have; None: any.

        Raises:
            EndingNotFound: the ending does not exist, for example because it was forgotten; or it has another `due_at` than expected.
        """
        checks.check_id(ending_id, "ending_id")
        old = yield from _ENDINGS.get(self.tenant, ending_id)
        if old is None or expect_due not in {None, old.due_at}:
            raise EndingNotFound(ending_id)
        ending = evolve(
            old,
            due_at=old.due_at if due_at is None else due_at,
            attempts=old.attempts + (error is not None),
            hooks=tuple(hook for hook in old.hooks if hook != delivered),
            error=None if error is None else error[:ENDING_ERROR_CHARS],
        )
        yield from _ENDINGS.put(self.tenant, ending)
        return ending

    @writes()
    def forget_ending(self, ending_id: str) -> Steps[None]:
        """Delete the record that a session ended. The session itself is not deleted."""
        checks.check_id(ending_id, "ending_id")
        yield from _ENDINGS.delete(self.tenant, ending_id)

    @reads()
    def idle(self, *, now: int, ttl: int | None, limit: int = 100) -> Steps[tuple[Session, ...]]:
        """Return active sessions that have expired: first those with a ttl of their own, then the others.

        Both groups are ordered by the time of expiry, earliest first.

        Args:
            now: milliseconds since the epoch.
            ttl: milliseconds after which sessions without a ttl of their own expire; None or 0: they never expire.
            limit: maximum number of sessions, 1 to `PAGE`.
        """
        rows = list((yield Query("sessions_expired", (self.tenant, now, limit))))
        if ttl:
            rows += yield Query("sessions_idle", (self.tenant, now - ttl, limit))
        return tuple(decode_session(row) for row in rows[:limit])

    async def oldest(self, *, limit: int = 100) -> tuple[Session, ...]:
        """Return active sessions, the least recently used first."""
        return await self._select(decode_session, "sessions_oldest", limit)

    async def active(self) -> int:
        """Count the active sessions. The cost may grow with their number, so do not call this in a turn."""
        return await self._select_one(get_first, "sessions_active") or 0


def write_end(pk: int, session: Session, ending: Ending) -> Steps[None]:
    """Close or withdraw a session, as `ending` says. If hooks must be notified, also record the ending."""
    ended = (pk, session.version + 1, ending.ended_at, ending.reason)
    yield Query("session_withdraw", (*ended, ending.id)) if ending.withdrawn else Query("session_end", ended)
    if ending.withdrawn:
        yield from note_removed_session(session.tenant, session.ref)
    if ending.hooks:
        yield from _ENDINGS.put(session.tenant, evolve(ending, identity=session.identity), statement="item_new")
