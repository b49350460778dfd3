"""REST API for the figures of a tenant that its operators look at: the index, the lifetime of sessions, and the activity."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.indexes.rebuild import IndexReport
from holdfast.lifecycle.retention import preview_retention
from holdfast.server.activity import Activity, ActivityQuery, read_activity
from holdfast.server.http import Call
from holdfast.server.routes import STORE, Routes
from holdfast.wire.objects import Answer, Count, JsonObject

routes = Routes("server")


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


class Status(Answer, kw_only=True):
    """Figures of a tenant."""

    object: Literal["status"] = "status"
    index: IndexReport | None
    """Size of the search index, and how much is not indexed yet; null if the index is disabled."""
    retention: Retention
    """The rules for the lifetime of sessions, and how many sessions they would end or delete now."""
    activity: Activity
    """Turns, model calls and tokens over time. Counts of other servers with the same database appear a minute late."""


@routes.add("GET", "/v1/status", "shared", error_statuses=STORE, answer=Status)
async def read(call: Call, query: ActivityQuery) -> JsonObject:
    """Return figures of the tenant: its search index, the lifetime of its sessions, and its activity over time.

    The parameters select the time range of the activity. Nothing is changed.
    """
    index = None if call.hf.index is None else msgspec.to_builtins(await call.hf.index.status())
    return {
        "object": "status",
        "index": index,
        "retention": msgspec.to_builtins(await read_retention(call)),
        "activity": msgspec.to_builtins(await read_activity(call, query)),
    }
