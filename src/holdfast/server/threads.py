"""Find the messages that requests of Anthropic's API name: the message that a thread continues after.

The id of such a message contains its place in the log, as the ids of OpenAI's Responses API do, so every server finds it at once. See
`holdfast.wire.anthropic_threads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.context.cache_diagnosis import Comparison, make_comparison
from holdfast.domain.session import Entry, Session
from holdfast.errors import InvalidRequest, SessionNotFound
from holdfast.holdfast import Holdfast
from holdfast.server.apis.anthropic import MessagesContext
from holdfast.server.apis.api_format import ParsedRequest, Predecessor
from holdfast.server.apis.responses import make_secret
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.limits import THREAD_SETUP_BYTES
from holdfast.server.message_compaction import resolve_compaction
from holdfast.server.permissions import Refused
from holdfast.server.requester import RequestRules, continue_session, identify_requester, name_owner
from holdfast.server.stored_responses import get_last_message, read_calls, read_note_entry, read_replies
from holdfast.wire.anthropic import parse_system
from holdfast.wire.anthropic_requests import parse_tools
from holdfast.wire.anthropic_threads import CREATE_ONLY, MessageNote, ThreadRequest, ThreadSetup, parse_message_note
from holdfast.wire.anthropic_tool_changes import apply_tool_changes
from holdfast.wire.response_ids import parse_place


class StoredMessage(NamedTuple):
    """A message in a log whose id contains its place."""

    session: Session
    entry: Entry
    """The entry of the message's note."""
    note: MessageNote
    replies: Sequence[Entry]
    """Entries of the reply, with the calls and results of Holdfast's own tools."""

    @property
    def reply(self) -> Entry | None:
        """The message itself; None if it is not complete."""
        return get_last_message(self.replies)


async def find_message(hf: Holdfast, message_id: str, user_id: str | None) -> StoredMessage | None:
    """Return the message with an id, or None if the user has no such message, or its reply is not in force any more."""
    place = parse_place(message_id)
    if place is None or place.make_id("msg") != message_id:
        return None
    try:
        session = await get_session_by_id(hf, place.session_id, user_id)
    except (SessionNotFound, InvalidRequest):
        return None
    entry = await read_note_entry(hf, session, place.seq)
    note = None if entry is None else parse_message_note(entry.message.origin)
    if entry is None or note is None or note.secret != place.secret:
        return None
    replies, _ = await read_replies(hf, session, entry)
    return StoredMessage(session, entry, note, replies)


async def resolve_messages(call: Call, parsed: ParsedRequest, rules: RequestRules) -> ParsedRequest:
    """Replace the ids in a request: find its thread, and the message with whose prompt its prompt is compared.

    Raises:
        Refused: the thread does not exist.
        InvalidRequest: the request also names another session.
    """
    context: MessagesContext = parsed.context
    found = await _resolve_thread(call, await resolve_compaction(call, parsed, rules), rules)
    if not context.is_diagnosed:
        return found
    user_id = identify_requester(call, parsed.body, rules, parsed.api).user_id
    note = found.note or MessageNote(secret=make_secret()).to_origin()
    return found._replace(note=note, comparison=await _find_comparison(call.hf, context.compared, user_id))


async def _find_comparison(hf: Holdfast, message_id: str | None, user_id: str | None) -> Comparison:
    """Return the last model call of a message."""
    if message_id is None:
        return Comparison("none")
    stored = await find_message(hf, message_id, user_id)
    if stored is None:
        return Comparison("not found")
    end = stored.replies[-1].seq + 1 if stored.replies else stored.entry.seq + 1
    calls = await read_calls(hf, stored.session, stored.entry, end)
    return make_comparison(calls[0] if calls else None, stored.session.id)


async def _resolve_thread(call: Call, parsed: ParsedRequest, rules: RequestRules) -> ParsedRequest:
    """Turn a request of a thread into one that names a session, with the thread's system prompt and tools."""
    context: MessagesContext = parsed.context
    thread = context.thread
    if thread is None:
        return parsed
    if thread.previous is None:
        return _begin_thread(call, parsed, context.setup)
    user_id = identify_requester(call, parsed.body, rules, parsed.api).user_id
    stored = await _find_thread_message(call.hf, thread, name_owner(call, parsed.body, user_id))
    setup = await _read_setup(call.hf, stored)
    if setup is None:
        raise _refuse_unknown(thread)
    _check_fixed_fields(context.setup, setup)
    changed = apply_tool_changes(setup, context.changes) if context.changes else setup
    body = continue_session(parsed.body, stored.session, user_id)
    body["session_queue"] = body.get("session_queue") or "reject"
    if changed.tools:
        body["tools"] = parse_tools(changed.tools)
    system = parse_system(changed.system)
    note = MessageNote(secret=make_secret(), is_thread=True, setup=_check_size(changed))
    if changed is setup and not thread.fork:
        at = stored.entry.seq if stored.note.setup_at is None else stored.note.setup_at
        note = MessageNote(secret=note.secret, is_thread=True, setup_at=at)
    return parsed._replace(
        body=body,
        messages=[*system, *parsed.messages],
        own=({},) * len(system) + parsed.own if parsed.own else (),
        note=note.to_origin(),
        predecessor=_make_predecessor(call.hf, stored, thread),
        leading=len(system),
    )


async def _find_thread_message(hf: Holdfast, thread: ThreadRequest, user_id: str | None) -> StoredMessage:
    stored = await find_message(hf, str(thread.previous), user_id)
    if stored is None or stored.reply is None:
        raise _refuse_unknown(thread)
    return stored


def _refuse_unknown(thread: ThreadRequest) -> Refused:
    message = f"No thread of this user has the message {thread.previous!r:.200}: send the whole conversation with thread {{type: create}}."
    return Refused(404, "thread_not_found", message)


def _make_predecessor(hf: Holdfast, stored: StoredMessage, thread: ThreadRequest) -> Predecessor:
    async def find_again() -> Predecessor:
        found = await _find_thread_message(hf, thread, stored.session.user_id)
        return _make_predecessor(hf, found, thread)

    return Predecessor(
        stored.session,
        stored.replies[-1].seq,
        stored.entry.turn_id,
        find_again,
        is_forked=thread.fork,
        is_refused_later=not thread.fork,
    )


def _begin_thread(call: Call, parsed: ParsedRequest, setup: ThreadSetup) -> ParsedRequest:
    """Return a request that creates a thread. It never continues a session that it does not name, because that could be another thread."""
    body, note = parsed.body, MessageNote(secret=make_secret(), is_thread=True, setup=_check_size(setup))
    if body.get("session_match") is None and call.get_header("x-session-match") is None:
        body = {**body, "session_match": "off"}
    return parsed._replace(body=body, note=note.to_origin(), leading=len(parse_system(setup.system)))


def _check_size(setup: ThreadSetup) -> ThreadSetup:
    if len(msgspec.json.encode(setup)) > THREAD_SETUP_BYTES:
        raise _UnsupportedInThread(
            f"system and tools of a thread can have at most {THREAD_SETUP_BYTES:,} bytes: send the whole conversation without thread",
            CREATE_ONLY,
        )
    return setup


class _UnsupportedInThread(Refused):
    """A request that cannot be part of a thread. The client should send the whole conversation without `thread`."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(400, "thread_unsupported_request", message)
        self.details = {"unsupported": [*names]}


async def _read_setup(hf: Holdfast, stored: StoredMessage) -> ThreadSetup | None:
    """Return the fields of a thread; None if the message belongs to no thread, or the note with the fields was erased."""
    if not stored.note.is_thread:
        return None
    if stored.note.setup_at is None:
        return stored.note.setup or ThreadSetup()
    entry = await read_note_entry(hf, stored.session, stored.note.setup_at)
    note = None if entry is None else parse_message_note(entry.message.origin)
    return None if note is None else note.setup or ThreadSetup()


def _check_fixed_fields(sent: ThreadSetup, setup: ThreadSetup) -> None:
    """Check that a request does not change the fields that a thread keeps.

    Raises:
        Refused: it does.
    """
    for name in CREATE_ONLY:
        value = getattr(sent, name)
        if value and value != getattr(setup, name):
            message = f"{name} of a thread cannot change: leave it out, or send the whole conversation with thread {{type: create}}"
            raise Refused(400, "thread_fingerprint_mismatch", message)
