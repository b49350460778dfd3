"""The rules that end and delete sessions, and what they would do now."""

from __future__ import annotations

from typing import Literal

from holdfast.lifecycle.retention import preview_retention
from holdfast.server.http import Call
from holdfast.wire.objects import Answer, Count


class DueCount(Answer, kw_only=True):
    """A bounded count of sessions."""

    count: Count
    more: bool
    """True if there may be more sessions than `count`."""


class Retention(Answer, kw_only=True):
    """The rules for the lifetime and number of a tenant's sessions, and the sessions to which they apply now."""

    object: Literal["retention"] = "retention"
    session_ttl: Count
    """Idle time in milliseconds after which a session without its own ttl ends; 0: never."""
    max_sessions: Count
    """Maximum number of active sessions; 0: no limit."""
    retention: Count
    """Milliseconds for which a closed session is kept before it is deleted; 0: it is never deleted."""
    sweep: bool
    """True if this server applies the rules in the background. False: it applies them only to sessions that are used."""
    ended: Literal["closed", "deleted"]
    """State of a session that has ended: its data stays until it is deleted or, with a store in memory, is deleted at once."""
    active: Count
    """Number of active sessions, expired ones included."""
    expired: DueCount
    """Active sessions that would end now, because they were idle for too long. At most 1,000 are counted."""
    surplus: DueCount
    """Active sessions that would end now, because there are too many. If not all expired sessions are counted, the number is unknown: 0,
    and `more` is true."""
    retired: DueCount
    """Closed sessions that would be deleted now. The oldest 1,000 closed sessions are examined."""


async def read_retention(call: Call) -> Retention:
    """Return the rules for the lifetime of sessions, and how many sessions they would end or delete now. Nothing is changed."""
    life = call.hf.engine.life
    preview = await preview_retention(life, call.hf.clock())
    return Retention.from_fields(
        life.settings,
        ended="closed" if life.durable else "deleted",
        active=preview.active,
        expired=DueCount.from_fields(preview.expired),
        surplus=DueCount.from_fields(preview.surplus),
        retired=DueCount.from_fields(preview.retired),
    )
