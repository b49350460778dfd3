"""The transcript of a session, and the page of one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from holdfast.accounting import run_cpu
from holdfast.domain.objects import Count
from holdfast.domain.session import Entry, ModelCall, Session
from holdfast.errors import EntryNotFound
from holdfast.server.http import Call
from holdfast.server.inspector import json_tree as _json_tree  # noqa: F401  # adds a filter
from holdfast.server.inspector.access import redirect
from holdfast.server.inspector.frame import HTML, make_session_url
from holdfast.server.inspector.session_copies import make_continue_command, make_replay_commands, to_markdown
from holdfast.server.inspector.session_frame import (
    SESSION,
    SessionPageQuery,
    may_see_content,
    render_session,
)
from holdfast.server.inspector.transcript import Block, LogPage, TurnGroup, get_child, group_turns, read_page
from holdfast.server.limits import INSPECTOR_MESSAGES
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes
from holdfast.sessions.message_explanations import ExplainQuery, find_entries, get_text, quote_match
from holdfast.wire.openai import to_entry_json

routes = Routes("inspector")
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


class Hits(NamedTuple):
    """The result of a search in a session."""

    found: Sequence[tuple[Entry, str]]
    """Messages, newest first, each with the part of its text that matches."""
    before: int | None
    """Number of the message before which the next page of hits begins; None if there is none."""


@routes.add("GET", SESSION, "read", answer=HTML)
async def show_session(call: Call, query: TranscriptQuery) -> Reply:
    """Return the transcript of a session, by turns: the newest page, or the page with a message."""
    session = await call.get_session()
    if query.go is not None:
        view = None if query.view == "pretty" else query.view
        return redirect(f"{make_session_url(session, at=query.go, view=view)}#m-{query.go}")
    size = session.bytes * (INSPECTOR_MESSAGES + 1) // max(session.tail.next_seq, INSPECTOR_MESSAGES + 1)
    await call.admit(size)  # an estimate: the messages of the page, if all have the same size
    page = await read_page(call.hf.store, session.ref, session.tail.next_seq, query.at)
    calls = await _read_calls(call, session, page.entries)
    groups = group_turns(page, calls)
    return await render_session(
        call,
        session,
        "session.html",
        tab="",
        log=page,
        groups=groups,
        chosen=query.at,
        focus=_find_focus(query, page, groups),
        raw=query.view == "raw",
        words=query.q,
        hits=await _search(call, session, query),
        to_json=to_entry_json,
        to_block=Block,
        get_child=get_child,
        continue_command=make_continue_command(call, session),
    )


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


async def _search(call: Call, session: Session, query: TranscriptQuery) -> Hits | None:
    """Return the messages that contain the words of the query; None without words, or if the caller may not see what messages say."""
    if not query.q or not query.q.strip() or not may_see_content(call):
        return None
    wanted = ExplainQuery(text=query.q, before=query.before, limit=_HITS)
    wanted.check()
    found, before = await find_entries(call.hf.engine, session.ref, wanted)
    words = query.q
    return await run_cpu(lambda: Hits([(one, quote_match(get_text(one), words)) for one in found], before))


async def load_entry(call: Call, session: Session) -> Entry:
    """Return the entry with the number in the path. Raise `EntryNotFound` if there is none."""
    seq = call.get_path_number("seq", "seq must be the number of a message")
    found = await call.hf.store.entries(session.ref, start=seq, stop=seq + 1, retired=True)
    if not found:
        raise EntryNotFound(session.id, seq)
    return found[0]


@routes.add("GET", MESSAGE, "read", answer=HTML)
async def show_message(call: Call, query: SessionPageQuery) -> Reply:
    """Return the page of one message: as stored, copies in other formats, and what can be done with it."""
    session = await call.get_session()
    entry = await load_entry(call, session)
    return await render_session(
        call,
        session,
        "session_message.html",
        tab="",
        title=f"Message {entry.seq}",
        block=Block(entry, tuple((one, None) for one in entry.message.tool_calls)),
        entry=entry,
        as_stored=to_entry_json(entry),
        markdown=to_markdown(to_entry_json(entry)),
        commands=make_replay_commands(call, session, entry),
        to_json=to_entry_json,
        to_block=Block,
        get_child=get_child,
    )
