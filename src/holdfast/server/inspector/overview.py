"""The overview: what this server stores and does."""

from __future__ import annotations

from holdfast.server.http import Call
from holdfast.server.inspector.actions import get_notice
from holdfast.server.inspector.frame import HTML, PageQuery, render
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes

routes = Routes("inspector")


@routes.add("GET", "/inspect/overview", "read", answer=HTML)
async def show_overview(call: Call, query: PageQuery) -> Reply:
    """Return the overview. Its public address is `/`."""
    return await render(call, "overview.html", title="Overview", notice=get_notice(query.notice))
