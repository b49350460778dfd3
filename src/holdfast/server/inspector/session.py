"""The pages of one session: their frame with head and tabs, the transcript, one message, changes of the session, and live updates.

A page of a session is declared with `SessionPages`, and its tab is in `TABS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from holdfast.accounting import run_cpu
from holdfast.domain.objects import Count, NonEmpty
from holdfast.domain.session import PARENT, Entry, ModelCall, Session
from holdfast.errors import EntryNotFound, SessionNotFound
from holdfast.server.http import Call
from holdfast.server.inspector.access import redirect
from holdfast.server.inspector.frame import InspectorState, PageQuery, Pages, Values, hides_content, make_session_url
from holdfast.server.inspector.session_copies import make_continue_command, make_replay_commands, to_markdown
from holdfast.server.inspector.transcript import Block, LogPage, TurnGroup, group_turns, read_page
from holdfast.server.limits import INSPECTOR_MESSAGES
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply
from holdfast.server.routes import TEXT
from holdfast.sessions.carry_over import CARRIED_FROM
from holdfast.sessions.message_explanations import find_entries, get_text, quote_match
from holdfast.sessions.session_list import compute_cached_share, find_expiry_time, find_state
from holdfast.wire.openai import to_entry_json

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
        tab: last part of the path of the page's tab, such as `prompt`; empty: the transcript.
    """

    def __init__(self, call: Call, session: Session, tab: str) -> None:
        self.state = find_state(call.hf.engine, session)
        self.expires_at = find_expiry_time(call.hf.engine, session)
        self.cache_share = compute_cached_share(session)
        self.links = list(_find_links(session))
        self.warnings = list(_find_warnings(session, is_busy=self.state == "busy"))
        self.tabs = [(make_session_url(session, *filter(None, [name])), title, name == tab) for name, title in TABS]


class SessionPages(Pages):
    """Pages of which those of one session have the parameter `session`, and templates that extend `session_base.html`."""

    def make_frame(self, call: Call, title: str, tab: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the head of the session, and its id as the title of pages without one."""
        session: Session | None = given.get("session")
        return {} if session is None else {"head": SessionHead(call, session, tab), "title": title or session.id}


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


routes = SessionPages()


# -- the transcript --------------------------------------------------------------

MESSAGE: Final = f"{SESSION}/messages/{{seq}}"
_CALLS: Final = 400
"""Model calls whose figures a page shows. If a turn has this many calls, the turns before it show no figures."""
_HITS: Final = 20
"""Hits of a search on one page."""


class TranscriptQuery(SessionPageQuery, kw_only=True):
    """Query parameters of the transcript."""

    at: Count | None = None
    """Number of a message: the page that contains it; default: the newest page."""
    go: Count | None = None
    """Number of a message to jump to: the browser is sent to the page that contains it."""
    q: str | None = None
    """Text to search for in the session."""
    before: Count | None = None
    """Search only messages before this number."""
    view: Literal["pretty", "raw"] = "pretty"
    """`raw`: show each message as JSON, as it is stored."""


@routes.page(SESSION, "read", "session.html")
async def show_session(call: Call, query: TranscriptQuery, session: Session) -> Values:
    """Return the transcript of a session, by turns: the newest page, or the page with a message."""
    if query.go is not None:
        view = None if query.view == "pretty" else query.view
        return redirect(f"{make_session_url(session, at=query.go, view=view)}#m-{query.go}")
    size = session.bytes * (INSPECTOR_MESSAGES + 1) // max(session.tail.next_seq, INSPECTOR_MESSAGES + 1)
    await call.admit(size)  # an estimate: the messages of the page, if all have the same size
    page = await read_page(call.hf.store, session.ref, session.tail.next_seq, query.at)
    calls = await _read_calls(call, session, page.entries)
    groups = group_turns(page, calls)
    return {
        "log": page,
        "groups": groups,
        "chosen": query.at,
        "focus": _find_focus(query, page, groups),
        "raw": query.view == "raw",
        "words": query.q,
        "hits": await _search(call, session, query),
        "continue_command": make_continue_command(call, session),
    }


def _find_focus(query: TranscriptQuery, page: LogPage, groups: Sequence[TurnGroup]) -> int | None:
    """Return the number of the message to which the browser scrolls: the chosen one, or the newest message of the newest page."""
    if query.at is not None or not page.is_newest or query.q or query.notice:
        return query.at
    seqs = [block.entry.seq for group in groups[-1:] for block in group.blocks if not block.retired]
    return seqs[-1] if seqs else None


async def _read_calls(call: Call, session: Session, entries: Sequence[Entry]) -> Sequence[ModelCall]:
    """Return the model calls of the turns of these entries, newest first."""
    if not entries:
        return ()
    turns = [entry.turn_id for entry in entries]
    return await call.hf.store.calls(session.ref, start=min(turns), stop=max(turns) + 1, limit=_CALLS)


async def _search(
    call: Call, session: Session, query: TranscriptQuery
) -> tuple[list[tuple[Entry, str]], int | None] | None:
    """Return the messages that contain the words of the query, and the number before which older ones are.

    Return None without words, or if the caller may not see what messages say.
    """
    if not query.q or not query.q.strip() or hides_content(call.request.scope, call.caller):
        return None
    words = query.q
    found, before = await find_entries(call.hf.engine, session.ref, text=words, before=query.before, limit=_HITS)
    return await run_cpu(lambda: ([(one, quote_match(get_text(one), words)) for one in found], before))


async def load_entry(call: Call, session: Session) -> Entry:
    """Return the entry with the number in the path. Raise `EntryNotFound` if there is none."""
    seq = call.get_path_number("seq", "seq must be the number of a message")
    found = await call.hf.store.entries(session.ref, start=seq, stop=seq + 1, retired=True)
    if not found:
        raise EntryNotFound(session.id, seq)
    return found[0]


@routes.page(MESSAGE, "read", "session_message.html")
async def show_message(call: Call, query: SessionPageQuery, session: Session) -> Values:
    """Return the page of one message: as stored, copies in other formats, and what can be done with it."""
    entry = await load_entry(call, session)
    return {
        "title": f"Message {entry.seq}",
        "block": Block(entry, tuple((one, None) for one in entry.message.tool_calls)),
        "entry": entry,
        "markdown": to_markdown(to_entry_json(entry)),
        "commands": make_replay_commands(call, session, entry),
    }


# -- changes ---------------------------------------------------------------------


@routes.page(f"{SESSION}/manage", "write", "session_manage.html", "Manage")
async def show_manage(call: Call, query: SessionPageQuery, session: Session) -> Values:
    """Return the page with which a session is closed, moved or deleted, and its expiry set."""
    return {"agents": list(call.hf.roster.agents), "is_durable": call.hf.store.durable}


@routes.page(f"{SESSION}/delete", "write", "session_delete.html", "Delete")
async def confirm_delete(call: Call, query: SessionPageQuery, session: Session) -> Values:
    """Return the page that asks whether to delete a session."""
    return {}


@routes.page(f"{MESSAGE}/erase", "write", "session_erase.html")
async def confirm_erase(call: Call, query: SessionPageQuery, session: Session) -> Values:
    """Return the page that asks whether to erase a message."""
    entry = await load_entry(call, session)
    return {"title": f"Erase message {entry.seq}", "entry": entry}


@routes.page(f"{SESSION}/turns/{{turn}}", "write", "session_turn.html")
async def confirm_turn(call: Call, query: SessionPageQuery, session: Session) -> Values:
    """Return the page with which a session is forked at a turn or rewound to it."""
    turn = call.get_path_number("turn", "turn must be the number of a turn")
    if turn >= session.turns:
        raise Refused(404, "not_found", f"the session has no turn {turn}")
    return {"title": f"Turn {turn}", "turn": turn}


# -- live updates ----------------------------------------------------------------


class EventsQuery(SessionPageQuery, kw_only=True):
    """Query parameters of live updates."""

    since: Count | None = None
    """Number of messages that the page shows; default: those that there are now."""


class LogMark(NamedTuple):
    """A mark that changes with every change of a session's log, and with no other write."""

    messages: int
    """Number of messages, with retired ones."""
    reshaped: int
    """Version at which earlier messages were last changed."""


@routes.add("GET", f"{SESSION}/events", "read", answer={"text/event-stream": TEXT})
async def follow_session(call: Call, query: EventsQuery, session: Session) -> Reply:
    """Send an event with the number of new messages whenever the log of a session changes, until the session is deleted."""
    state: InspectorState = call.request.app.state.inspector
    mark = _make_mark(session)

    async def read_mark() -> LogMark | None:
        try:
            found = await call.hf.store.get(session.ref)
        except SessionNotFound:
            return None
        return _make_mark(found) if found.identity == session.identity else None

    seen = mark if query.since is None else mark._replace(messages=query.since)
    # An earlier message may have changed, so something is always new.
    return state.live.watch(read_mark, seen=seen, count=lambda old, new: max(1, new.messages - old.messages))


def _make_mark(session: Session) -> LogMark:
    return LogMark(session.tail.next_seq, session.reshaped)
