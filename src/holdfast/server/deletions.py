"""REST API for the journal of deletions."""

from __future__ import annotations

from holdfast.domain.objects import NonEmpty, Page, Request
from holdfast.lifecycle.removal import RecordedDeletion
from holdfast.server.http import Call
from holdfast.server.routes import PageLimit, Routes

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


class DeletionList(Page[RecordedDeletion, str]):
    """A page of deletions."""


@routes.add("GET", "/v1/deletions", "shared admin")
async def list_deletions(call: Call, query: DeletionsQuery) -> DeletionList:
    """List deletions of sessions and users with their receipts, the newest first. The newest 10,000 of each kind are kept.

    The journal does not say whose data was deleted. With `user_id`, and with `session_id` too, it finds the deletions of an id that you
    know.
    """
    found = await call.hf.deletions(
        user_id=query.user_id, session_id=query.session_id, limit=query.limit, after=query.after
    )
    return DeletionList.of(found.deletions, has_more=found.has_more)
