"""REST API for the figures of a tenant that its operators look at: the index, the lifetime of sessions, and the activity."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.domain.objects import Answer, Count, JsonObject, make_object
from holdfast.indexes.rebuild import IndexReport
from holdfast.lifecycle.retention import RetentionPreview, preview_retention
from holdfast.server.activity import Activity, ActivityQuery, read_activity
from holdfast.server.http import Call
from holdfast.server.routes import Routes

routes = Routes("server")


class Retention(RetentionPreview, frozen=True, kw_only=True):
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


async def read_retention(call: Call) -> Retention:
    """Return the rules for the lifetime of sessions, and how many sessions they would end or delete now. Nothing is changed."""
    life = call.hf.engine.life
    preview = msgspec.structs.asdict(await preview_retention(life, call.hf.clock()))
    return make_object(Retention, life.settings, ended="closed" if life.durable else "deleted", **preview)


class Status(Answer, kw_only=True):
    """Figures of a tenant."""

    object: Literal["status"] = "status"
    index: IndexReport | None
    """Size of the search index, and how much is not indexed yet; null if the index is disabled."""
    retention: Retention
    """The rules for the lifetime of sessions, and how many sessions they would end or delete now."""
    activity: Activity
    """Turns, model calls and tokens over time. Counts of other servers with the same database appear a minute late."""


@routes.add("GET", "/v1/status", "shared", answer=Status)
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
