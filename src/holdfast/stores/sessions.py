"""The part of the store contract about sessions: their names and their own fields.

The name of a session consists of tenant, user and id, so two users may both have a session `support-42`. Each session also gets
its own `identity` from `NewSession` when it is created. A write that names an identity (`Append.identity`, an artifact, an
`Ending`) never reaches a later session of the same name.

**Version.** Every write to a session adds one to its `version`. `holdfast.stores.log` describes the exceptions.

**Replacing and removing.** `replace` and `remove` delete everything that belongs to a session: its log, media, origins, views,
compactions, model calls, idempotency keys, artifacts and records. State that sessions share, and memories, do not belong to a session
and are kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, Self

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.history import Past
from holdfast.domain.messages import Message
from holdfast.domain.origins import Origin
from holdfast.domain.record import PutRecord
from holdfast.domain.session import Ending, NewEntry, Receipt, Session, SessionRef
from holdfast.stores.log import Appended

OWN_FIELDS: Final = ("agent", "system_messages", "state", "metadata", "ttl")
"""The fields of a session that callers set and change. A copy of a session gets the same values."""


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session for `create` or `replace`."""

    id: str
    user_id: str
    timestamp: int
    """Time of the call, in milliseconds since the epoch."""
    agent: str | None = None
    identity: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    """A unique identifier; it becomes `Session.identity`."""
    system_messages: tuple[Message, ...] = ()
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    """The session's state. `create` writes keys with the prefix `user:` or `app:` to the state of the user or tenant; `replace`
    refuses such keys.
    """
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    ttl: int | None = None
    past: Past | None = None
    """For `replace` only: times, end, usage and model calls that the installed session gets from an earlier one; None: it gets none."""
    origins: tuple[Origin, ...] = ()
    """For `replace` only, if the session is a copy: the ranges of copied entries, see `holdfast.domain.origins`."""

    @classmethod
    def from_session(cls, session: msgspec.Struct, *, timestamp: int, **changes: Any) -> Self:
        """Create a `NewSession` with the user, the id and the own fields of an existing session.

        Args:
            session: the session, or another struct with these fields, such as an import.
            timestamp: time of the call, in milliseconds since the epoch.
            changes: values of fields that differ from those of `session`. The identity is new unless it is given.
        """
        copied = {name: getattr(session, name) for name in ("id", "user_id", *OWN_FIELDS)}
        return cls(timestamp=timestamp, **(copied | changes))

    @property
    def ref(self) -> SessionRef:
        """The session's reference."""
        return SessionRef(self.user_id, self.id)


class SessionPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a session's own fields; UNSET leaves a field unchanged."""

    agent: str | None | UnsetType = UNSET
    system_messages: tuple[Message, ...] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    """Replaces all metadata."""
    state: dict[str, Any] | UnsetType = UNSET
    """Changes of the state, in the format of `Append.state_delta`."""
    ttl: int | None | UnsetType = UNSET


class SessionPage(msgspec.Struct, frozen=True):
    """A page of sessions."""

    sessions: tuple[Session, ...]
    has_more: bool


class SessionStore(Protocol):
    """Create, read, list, change, replace and remove sessions. The module docstring describes what all methods promise."""

    async def create(self, new: NewSession) -> Session:
        """Create a session with an empty log. Raises `SessionExists` if a session with this id exists already."""
        ...

    async def get(self, ref: SessionRef) -> Session:
        """Return a session without its log. Raises `SessionNotFound` if the session does not exist."""
        ...

    async def find(self, session_id: str) -> Session:
        """Return the session with this id, regardless of the user that it belongs to.

        Raises:
            SessionNotFound: no user has such a session.
            AmbiguousSession: several users have one.
        """
        ...

    async def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        since: int | None = None,
        until: int | None = None,
        now: int | None = None,
        ttl: int | None = None,
        limit: int = 20,
        after: SessionRef | None = None,
        descending: bool = True,
    ) -> SessionPage:
        """List sessions in order of `updated_at`, then user, then id.

        Args:
            user_id: only sessions of this user.
            agent: only sessions of this agent.
            status: only sessions with this status, `active` or `closed`. If `now` is given, an active session that has expired
                is treated as closed (`Session.is_expired`), although its stored status is still `active`.
            since: only sessions whose `updated_at` is at this time or later, in milliseconds since the epoch.
            until: only sessions whose `updated_at` is before this time.
            now: the current time, in milliseconds since the epoch.
            ttl: milliseconds of idle time after which a session without its own ttl expires.
            limit: maximum number of sessions, 1 to `PAGE`.
            after: return the sessions after this one, at its present position in the list; raises `SessionNotFound` if it is
                gone.
            descending: if True, the newest session comes first.
        """
        ...

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        """Change a session's own fields.

        Raises:
            SessionNotFound: the session does not exist.
            StaleSession: `expect` is given, and the session has another version.
        """
        ...

    async def remove(
        self,
        ref: SessionRef,
        *,
        expect: int | None = None,
        artifacts: int | None = None,
        records: int | None = None,
    ) -> Receipt | None:
        """Delete a session and everything that belongs to it. Return counts of the deleted data, or None if there was no such session.

        Args:
            ref: the session.
            expect: the version that the session must have, else `StaleSession`; None: any.
            artifacts: the number of artifact versions that the session must have, else `Conflict`; None: any.
            records: the version that the session must have as an owner of records (`RecordPage.version`), else `Conflict`; None: any.
        """
        ...

    async def replace(
        self,
        new: NewSession,
        entries: Sequence[NewEntry],
        *,
        fresh: bool = False,
        ending: Ending | None = None,
        media: Mapping[bytes, bytes] = {},
        records: Sequence[PutRecord] = (),
    ) -> Appended:
        """Store a whole session. If a session of the same name exists, it is replaced.

        Nothing of the old session stays, but its version continues: a caller that expects an earlier version gets
        `StaleSession`.

        Args:
            new: the session. If `past` is set, times, end, usage and calls are taken from there, but the time of the last use is not
                before `timestamp`.
            entries: the whole log. An `OldEntry` may be retired or erased.
            fresh: if True, raise `SessionExists` if a session of that name exists.
            ending: if given, the old session is withdrawn with this ending instead of being deleted, unless it was used at
                `ended_at` or later.
            media: contents to which the entries refer, by SHA-256.
            records: records of the session, any number. They must not have an expected version.
        """
        ...

    async def fork(self, new: NewSession, source: Session, stop: int, *, pins: bool = True) -> Session | None:
        """Create a session that begins with copies of the entries before `stop` of another session of the same user.

        The copies have the same `seq` and origins as the entries, and the new session has its own media. Notes are copied. Compactions,
        views, calls and artifacts are not. Nothing is read into this process.

        Args:
            new: the new session, without origins.
            source: the other session, as last read.
            stop: the first `seq` that is not copied.
            pins: False to copy the entries without their pins.

        Returns:
            The session; None if the store cannot copy these entries as they are, so that the caller must use `replace`. A store may
            always return None. All stores do so if entries before `stop` were retired, because their copies get another `seq`.

        Raises:
            SessionNotFound: `source` does not exist any more.
            SessionExists: there is a session with the name of the new one.
            StaleSession: entries of `source` were retired, erased or pinned since it was read.
        """
        ...

    async def want(self, ref: SessionRef, holder: str) -> None:
        """Mark the session's claim as wanted, which asks its holder to stop.

        Do nothing if the claim does not belong to `holder`.

        Raises:
            SessionNotFound: no such session.
        """
        ...
