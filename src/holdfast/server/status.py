"""REST API for the figures of a tenant that its operators look at: the index, the lifetime of sessions, and the activity."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.indexes.rebuild import IndexReport
from holdfast.server.activity import Activity, ActivityQuery, read_activity
from holdfast.server.http import Call
from holdfast.server.retention import Retention, read_retention
from holdfast.server.routes import STORE, Routes
from holdfast.wire.objects import Answer, JsonObject

routes = Routes("server")


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
