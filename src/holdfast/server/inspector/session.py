"""The transcript of a session."""

from __future__ import annotations

from holdfast.server.http import Call
from holdfast.server.inspector.actions import get_notice
from holdfast.server.inspector.frame import HTML
from holdfast.server.inspector.session_frame import SESSION, SessionPageQuery, load_session, render_session
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes

routes = Routes("inspector")


@routes.add("GET", SESSION, "read", answer=HTML)
async def show_session(call: Call, query: SessionPageQuery) -> Reply:
    """Return the transcript of a session."""
    session = await load_session(call)
    return await render_session(call, session, "session.html", tab="", notice=get_notice(query.notice))
