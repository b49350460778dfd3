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
from typing import Any, Final, Self

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.history import Past
from holdfast.domain.messages import Message
from holdfast.domain.origins import Origin
from holdfast.domain.session import Session, SessionRef

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
