"""The part of the store contract about sessions: their names and their own fields.

A session is named by (tenant, user, id): two users may both have a `support-42`. Each created session has its own `identity`, which
`NewSession` sets. A write for one session (`Append.identity`, an artifact, an `Ending`) never reaches another session of the
same name.

**Version.** Every write to a session adds one to its `version`, except where `holdfast.stores.log` says otherwise.

**Replacing and removing.** `replace` and `remove` delete all that belongs to a session: its log, media, origins, views,
compactions, model calls, idempotency keys and artifacts. State that sessions share, and memories, belong to no session and stay.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.history import Past
from holdfast.domain.messages import Message
from holdfast.domain.origins import Origin
from holdfast.domain.session import Ending, NewEntry, RemovalCounts, Session, SessionRef
from holdfast.stores.log import Appended


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session to create or install."""

    id: str
    user_id: str
    timestamp: int
    """Milliseconds since the epoch."""
    agent: str | None = None
    identity: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    """See `Session.identity`."""
    system_messages: tuple[Message, ...] = ()
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys with `user:` and `app:` are written to those scopes. `replace` refuses such keys."""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    ttl: int | None = None
    past: Past | None = None
    """The past (times, end, usage, calls) of a session that `replace` installs; None: it has none."""
    origins: tuple[Origin, ...] = ()
    """Where its entries come from, if it is installed as a copy; see `holdfast.domain.origins`."""

    @property
    def ref(self) -> SessionRef:
        """The reference that the session will have."""
        return SessionRef(self.user_id, self.id)


class SessionPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a session's own fields; UNSET leaves a field unchanged."""

    agent: str | None | UnsetType = UNSET
    system_messages: tuple[Message, ...] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    """Replaces all metadata."""
    state: dict[str, Any] | UnsetType = UNSET
    """Changes as in `Append.state_delta`."""
    ttl: int | None | UnsetType = UNSET


class SessionPage(msgspec.Struct, frozen=True):
    """A page of sessions."""

    sessions: tuple[Session, ...]
    has_more: bool


class SessionStore(Protocol):
    """Create, read, list, change, replace and remove sessions. The module describes what all methods promise."""

    async def create(self, new: NewSession) -> Session:
        """Create a session with an empty log. Raises `SessionExists`."""
        ...

    async def get(self, ref: SessionRef) -> Session:
        """Return a session without its log. Raises `SessionNotFound`."""
        ...

    async def find(self, session_id: str) -> Session:
        """Return the one session of that id among all users of the tenant.

        Raises `SessionNotFound`, or `AmbiguousSession` if several users have one.
        """
        ...

    async def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        now: int | None = None,
        ttl: int | None = None,
        limit: int = 20,
        after: SessionRef | None = None,
        descending: bool = True,
    ) -> SessionPage:
        """List sessions by `updated_at`, then user, then id.

        Args:
            user_id: only sessions of this user.
            agent: only sessions of this agent.
            status: `active` or `closed`. With `now` and `ttl`, an active session that has expired counts as closed (`Session.expired`),
                although its row still says `active`.
            now: milliseconds since the epoch.
            ttl: milliseconds.
            limit: 1 to `PAGE`.
            after: continue after this session, at its present position in the list; `SessionNotFound` if it is gone.
            descending: newest first.
        """
        ...

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        """Change a session's own fields. Raises `SessionNotFound`, `StaleSession`."""
        ...

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> RemovalCounts | None:
        """Delete a session and all that belongs to it; return the counts of what was deleted, None if there was no such session.

        Args:
            ref: the session.
            expect: the version it must be at, else `StaleSession`; None: any.
            artifacts: the number of artifact versions it must have, else `Conflict`; None: any.
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
    ) -> Appended:
        """Install a whole session, in place of the one of the same name if there is one.

        Nothing of the old session stays, except that its version continues, so a caller that expects the old version gets `StaleSession`.

        Args:
            new: with a `past`, its times, end, usage and calls are those of the past; it counts as used at `timestamp`.
            entries: the whole log; an `OldEntry` may be retired or erased.
            fresh: raise `SessionExists` if there is a session of that name.
            ending: withdraw the old session with this ending instead of deleting it, unless it was used since `ended_at`.
            media: contents that the entries name, by SHA-256.
        """
        ...

    async def want(self, ref: SessionRef, holder: str) -> None:
        """Ask the holder of the session's claim to stop; do nothing if another holder has it. Raises `SessionNotFound`."""
        ...
