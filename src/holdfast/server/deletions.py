"""REST API for the journal of deletions."""

from __future__ import annotations

from typing import Literal

from holdfast.domain.session import Receipt
from holdfast.server.http import Call
from holdfast.server.routes import STORE, PageLimit, Routes
from holdfast.stores.deletions import DeletionKind
from holdfast.wire.objects import Answer, NonEmpty, Page, Request, Time

routes = Routes("sessions")


class DeletionsQuery(Request, kw_only=True):
    """Query parameters of the journal of deletions."""

    limit: PageLimit = 20
    after: NonEmpty | None = None
    """`last_id` of the previous page, after which this page begins."""
    user_id: NonEmpty | None = None
    """Only deletions of this user, and of this user's sessions."""
    session_id: NonEmpty | None = None
    """Only deletions of this session of the user in `user_id`."""


class DeletionObject(Answer, kw_only=True):
    """A deletion. The journal has no ids of users or sessions."""

    id: NonEmpty
    object: Literal["deletion"] = "deletion"
    deleted_at: Time
    kind: DeletionKind
    """`session`: one session, on request. `user`: all data of a user. `prune`: a session that was unchanged for long. `retention`: a
    closed session, after the retention time."""
    key_id: str | None
    """Id of the API key of the request, `jwt` for a token, or `upstream` for a model's key. Null: a program, the command line, the
    server itself, or a request that needed no key."""
    receipt: Receipt


class DeletionList(Page[DeletionObject, str]):
    """A page of deletions."""


@routes.add("GET", "/v1/deletions", "shared admin", error_statuses=STORE)
async def list_deletions(call: Call, query: DeletionsQuery) -> DeletionList:
    """List deletions of sessions and users with their receipts, the newest first. The newest 10,000 of each kind are kept.

    The journal does not say whose data was deleted. With `user_id`, and with `session_id` too, it finds the deletions of an id that you
    know.
    """
    found = await call.hf.deletions(
        user_id=query.user_id, session_id=query.session_id, limit=query.limit, after=query.after
    )
    return DeletionList.of([DeletionObject.from_fields(one) for one in found.deletions], has_more=found.has_more)
