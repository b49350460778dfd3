"""Change a session from its pages: pages that ask for confirmation, and the actions of their forms."""

from __future__ import annotations

from typing import Final

from holdfast.server.http import Call
from holdfast.server.inspector.actions import declare_action
from holdfast.server.inspector.frame import HTML
from holdfast.server.inspector.session import MESSAGE, load_entry
from holdfast.server.inspector.session_frame import SESSION, SessionPageQuery, render_session
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes

routes = Routes("inspector")
_ONE: Final = "/v1/sessions/{session_id}"
_DONE: Final = "session_done.html"

declare_action(
    "pin_message",
    "PATCH",
    f"{_ONE}/messages/{{seq}}",
    "Pinned. The message is in every prompt from now on.",
    pinned="flag",
)
declare_action(
    "unpin_message",
    "PATCH",
    f"{_ONE}/messages/{{seq}}",
    "Unpinned. The message can leave the prompt again.",
    pinned="flag",
)
declare_action(
    "rate_message", "PATCH", f"{_ONE}/messages/{{seq}}", "The importance of the message was changed.", importance="json"
)
declare_action("erase_message", "DELETE", f"{_ONE}/messages/{{seq}}", "The content was erased.", template=_DONE)
declare_action("close_session", "POST", f"{_ONE}/close", "Closed. The next message opens it again.")
declare_action("delete_session", "DELETE", _ONE, "The session was deleted.", template=_DONE)
declare_action("fork_session", "POST", f"{_ONE}/fork", "The session was copied.", template=_DONE, at_turn="integer")
declare_action("rewind_session", "POST", f"{_ONE}/rewind", "The session was rewound.", at_turn="integer")
declare_action("move_session", "POST", f"{_ONE}/move", "The session was moved.", template=_DONE, agent="json")
declare_action("set_session_ttl", "PATCH", _ONE, "The expiry was changed.", ttl="json")


@routes.add("GET", f"{SESSION}/manage", "write", answer=HTML)
async def show_manage(call: Call, query: SessionPageQuery) -> Reply:
    """Return the page with which a session is closed, moved or deleted, and its expiry set."""
    session = await call.get_session()
    more = {"agents": list(call.hf.roster.agents), "is_durable": call.hf.store.durable}
    return await render_session(call, session, "session_manage.html", tab="", title="Manage", **more)


@routes.add("GET", f"{SESSION}/delete", "write", answer=HTML)
async def confirm_delete(call: Call, query: SessionPageQuery) -> Reply:
    """Return the page that asks whether to delete a session."""
    session = await call.get_session()
    return await render_session(call, session, "session_delete.html", tab="", title="Delete")


@routes.add("GET", f"{MESSAGE}/erase", "write", answer=HTML)
async def confirm_erase(call: Call, query: SessionPageQuery) -> Reply:
    """Return the page that asks whether to erase a message."""
    session = await call.get_session()
    entry = await load_entry(call, session)
    return await render_session(
        call, session, "session_erase.html", tab="", title=f"Erase message {entry.seq}", entry=entry
    )


@routes.add("GET", f"{SESSION}/turns/{{turn}}", "write", answer=HTML)
async def confirm_turn(call: Call, query: SessionPageQuery) -> Reply:
    """Return the page with which a session is forked at a turn or rewound to it."""
    session = await call.get_session()
    turn = call.get_path_number("turn", "turn must be the number of a turn")
    if turn >= session.turns:
        raise Refused(404, "not_found", f"the session has no turn {turn}")
    return await render_session(call, session, "session_turn.html", tab="", title=f"Turn {turn}", turn=turn)
