"""The frame of the pages of one session: its head and its tabs.

A page of a session extends `session_base.html` and is rendered with `render_session`. Its tab is in `TABS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from holdfast.config.inspector import Inspector
from holdfast.domain.objects import NonEmpty
from holdfast.domain.session import PARENT, Session
from holdfast.server.http import Call
from holdfast.server.inspector.frame import PageQuery, make_session_url, render
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply
from holdfast.sessions.carry_over import CARRIED_FROM
from holdfast.sessions.session_list import compute_cached_share, find_expiry_time, find_state

SESSION: Final = "/inspect/sessions/{session_id}"
"""Path of the pages of a session."""
TABS: Final = (
    ("", "Transcript"),
    ("prompt", "Prompt"),
    ("forgotten", "Why forgotten"),
    ("compactions", "Compactions"),
    ("state", "State and files"),
)
"""Last part of the path, and title."""


class SessionPageQuery(PageQuery, kw_only=True):
    """Query parameters of every page of a session."""

    user_id: NonEmpty | None = None
    """User of the session; default: the key's user, or the only user with such a session."""


class SessionLink(NamedTuple):
    """Another session to which the head of a session links."""

    label: str
    id: str
    user_id: str
    seq: int | None = None


class SessionHead:
    """The data in the head of a session's page. Templates know it as `head`.

    Args:
        call: the request.
        session: the session.
        path: path of the page.
    """

    def __init__(self, call: Call, session: Session, path: str = "") -> None:
        self.state = find_state(call.hf.engine, session)
        self.expires_at = find_expiry_time(call.hf.engine, session)
        self.cache_share = compute_cached_share(session)
        self.links = list(_find_links(session))
        self.warnings = list(_find_warnings(session, is_busy=self.state == "busy"))
        self.tabs = [(make_session_url(session, *filter(None, [name])), title, name == path) for name, title in TABS]


async def render_session(
    call: Call, session: Session, template: str, *, tab: str, title: str = "", **values: Any
) -> Reply:
    """Return a page of a session.

    Args:
        call: the request.
        session: the session.
        template: name of a template that extends `session_base.html`.
        tab: last part of the path of the page's tab, such as `prompt`.
        title: title of the page; empty: the session's id.
        values: variables of the template.
    """
    head = SessionHead(call, session, tab)
    return await render(call, template, title=title or session.id, session=session, head=head, **values)


def may_see_content(call: Call) -> bool:
    """Return True if the caller may see what messages say."""
    settings: Inspector = call.request.app.state.inspector.settings
    return call.principal.role not in settings.hide_content


def check_content(call: Call) -> None:
    """Raise `Refused` if the caller may not see what messages say."""
    if not may_see_content(call):
        raise Refused(403, "content_hidden", f"keys with the role {call.principal.role!r} see no content here")


def _find_links(session: Session) -> Iterator[SessionLink]:
    """Yield the sessions from which a session was made."""
    for key, label in (("forked_from", "forked from"), (CARRIED_FROM, "continues"), (PARENT, "called by")):
        origin = session.metadata.get(key)
        if not isinstance(origin, Mapping):
            continue
        name, user, seq = origin.get("session_id", origin.get("id")), origin.get("user_id"), origin.get("seq")
        if isinstance(name, str) and name:
            owner = user if isinstance(user, str) and user else session.user_id
            yield SessionLink(label, name, owner, seq if isinstance(seq, int) else None)


def _find_warnings(session: Session, *, is_busy: bool) -> Iterator[str]:
    if session.damaged:
        yield f"{', '.join(session.damaged)}: cannot be decoded. The session can only be listed, closed and deleted."
    if session.tail.open_calls and not is_busy:
        count = len(session.tail.open_calls)
        yield f"{count} tool call{'s have' if count > 1 else ' has'} no result yet."
