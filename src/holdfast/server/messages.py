"""REST API for the messages of a session: list, append, annotate and erase them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import errors
from holdfast.accounting import run_cpu
from holdfast.domain.log import erase_content
from holdfast.domain.messages import NOTE, Message
from holdfast.domain.objects import Count, JsonObject, Page, Request, json_schema, same_as
from holdfast.domain.session import Entry as LogEntry
from holdfast.domain.session import ModelCall, Session
from holdfast.engine.entries import count_tokens, make_entries
from holdfast.engine.erasure import erase_everywhere
from holdfast.limits import INLINE_BODY_BYTES, RECORD_CHANGES
from holdfast.media.outgoing import restore_entries
from holdfast.models.collect import read_usage
from holdfast.server.http import Call, mask_secrets
from holdfast.server.limits import STATE_CHANGES
from holdfast.server.records import DeleteRecordChange, PutRecordChange, make_changes
from holdfast.server.routes import ETAG, KEY, MATCH, Routes, SeqPageQuery, SessionQuery
from holdfast.server.schema import make_ref
from holdfast.server.sessions import check_state
from holdfast.server.state import StateOperation, read_changes
from holdfast.sessions.log_writes import annotate as annotate_message
from holdfast.sessions.log_writes import append_to_log, replace_entry
from holdfast.sessions.records import Records
from holdfast.stores.log import Append
from holdfast.wire.exports import parse_own_fields
from holdfast.wire.openai import parse_log_message, parse_log_messages, to_entry_json
from holdfast.wire.sessions import Entry, EntryJson, ErasedEntry, Importance, NewMessage, SessionObject
from holdfast.wire.voice import find_records

routes = Routes("messages")
_MESSAGES: Final = "/v1/sessions/{session_id}/messages"
_MESSAGE: Final = f"{_MESSAGES}/{{seq}}"
_NAMED: Final = "seq must be the number of a message"


class MessagesQuery(SeqPageQuery, kw_only=True):
    """Query parameters of the list of messages."""

    retired: bool = False
    """True: include retired entries: those that an edit, an interruption or a rewind took out of the conversation."""


class EntryList(Page[EntryJson, int]):
    """A page of messages."""

    version: Count
    """Version of the session."""


_OPERATIONS: Final = json_schema(minItems=1, description=f"at most {STATE_CHANGES} operations")
_Messages = Annotated[
    Any,
    json_schema(
        NewMessage, description="messages to append, at least one", type="array", items=make_ref(NewMessage), minItems=1
    ),
]


class NewMessages(Request, kw_only=True):
    """Messages to append. The field is `messages`, or its alias `contents`. Everything is written, or nothing."""

    messages: _Messages = None
    contents: _Messages | None = None
    retire_from: Count | None = None
    """Before the write, take the message with this seq and all later ones out of the conversation. They stay in the log. `messages` may
    then be empty."""
    changes: Annotated[list[StateOperation] | None, _OPERATIONS] = None
    """Operations on keys of the session's state, as in `POST …/state`. `messages` may then be empty."""
    records: Annotated[
        list[PutRecordChange | DeleteRecordChange] | None,
        json_schema(description=f"at most {RECORD_CHANGES} changes of different records"),
    ] = None
    """Changes to records of the session, as in `POST …/records`. `messages` may then be empty."""
    copy_of: list[Count | None] | None = None
    """For each message the `seq` of the message of this session that it repeats, or null. Erasing a message erases its copies too. Needs
    `If-Match`."""
    usage: JsonObject | None = None
    """Usage that the provider reported for the model call of a reply, in Chat Completions format. It is added to the session's usage."""
    expect_log: str | None = None
    """`log_marker` that the session must have, so that nobody has written to the log since you read it; otherwise the status is 412."""
    return_session: bool = False
    """True: include `session` in the response."""


class AppendedMessages(EntryList, kw_only=True):
    """The messages that were appended."""

    start: Count
    """Seq of the first message, or the next seq if there is no message."""
    log_marker: str
    """The session's `log_marker` now."""
    replayed: bool
    """True if the request repeats an earlier one with the same `Idempotency-Key`. Nothing was written then."""
    written_version: Count
    """Version of the session after the write. For a repeated request: after the first request."""
    session: SessionObject | UnsetType = UNSET
    """With `return_session`: the session without its log."""


class Replacement(Request, kw_only=True):
    """The new content of a message."""

    message: Annotated[Any, same_as(NewMessage)]
    erase: bool = False
    """True: erase the old content for good, also in sessions that share it. False: keep it in the log, as a retired message."""


class Annotation(Request, kw_only=True):
    """Properties of a message to change."""

    pinned: bool | None = None
    """True: keep the message in every prompt."""
    importance: Importance | None | msgspec.UnsetType = UNSET
    refused_by: list[str] | None = None
    """Names of upstreams to which the message is not sent."""


@routes.add("GET", _MESSAGES, "read")
async def list_messages(call: Call, query: MessagesQuery, session: Session) -> EntryList:
    """List the messages of a session."""
    descending = query.order == "desc"
    start, stop = 0, None
    if query.after is not None:
        start, stop = (0, query.after) if descending else (query.after + 1, None)
    found = await call.hf.store.entries(
        session.ref,
        start=start,
        stop=stop,
        limit=query.limit + 1,
        descending=descending,
        retired=query.retired,
        notes=True,
    )
    has_more = len(found) > query.limit
    items = await _to_json(call, session, found[: query.limit])
    return EntryList.of(items, has_more=has_more, by="seq", version=session.version)


@routes.add("POST", _MESSAGES, "write", error_statuses=(422,), request_headers=(KEY, MATCH), response_headers=ETAG)
async def append(call: Call, session: Session, body: NewMessages) -> AppendedMessages:
    """Append messages to the log of a session, and change the session's state and its records, in one write."""
    changes = None if body.changes is None else read_changes(body.changes)
    is_optional = changes is not None or body.retire_from is not None or bool(body.records)
    has_more = is_optional or body.usage is not None or bool(body.copy_of)
    given: Any = []
    name = "messages"
    if not is_optional or body.messages or body.contents:
        given, name = find_records({"messages": body.messages, "contents": body.contents})
    large = call.body_size > INLINE_BODY_BYTES
    messages, fields = await run_cpu(partial(_read_messages, given, name, is_optional=is_optional), long=large)
    key = call.get_header("idempotency-key") or None
    clean = await mask_secrets(call.hf, {"messages": given}, messages, hashed=key is not None)
    if has_more:
        clean |= {"retire_from": body.retire_from, "changes": body.changes, "usage": body.usage}
    for name in ("records", "copy_of"):  # left out if empty, so that keys of older requests keep their fingerprints
        clean |= {name: value} if (value := getattr(body, name)) else {}
    delta = {} if changes is None else check_state(call, changes.delta)
    owned = Records(call.hf.engine, session.ref, (), identity=session.identity)
    records = await run_cpu(make_changes, owned, body.records or (), "records", long=large)
    write = Append(
        entries=await make_entries(messages, fields, timestamp=call.hf.clock()),
        timestamp=call.hf.clock(),
        expect=call.get_expected_version(),
        retire_from=body.retire_from,
        state_delta=delta or None,
        calls=[] if body.usage is None else [_make_call_record(call, session, body.usage)],
        state_expect=changes.expect or None if changes else None,
        records=records,
        idempotency_key=key,
        fingerprint=hashlib.blake2b(msgspec.json.encode(clean, order="sorted"), digest_size=16).digest()
        if key
        else b"",
    )
    more: Any = {"log_marker": body.expect_log, "identity": session.identity, "copy_of": body.copy_of or ()}
    written = await append_to_log(call.hf.engine, session.ref, write, **more)
    items = await _to_json(call, session, written.entries)
    version = written.session.version
    call.set_etag(version)
    return AppendedMessages.of(
        items,
        has_more=False,
        by="seq",
        version=version,
        start=written.start,
        log_marker=written.session.log_marker,
        replayed=written.replayed,
        written_version=written.version,
        session=SessionObject.from_session(written.session) if body.return_session else UNSET,
    )


async def _to_json(call: Call, session: Session, entries: Sequence[LogEntry]) -> list[JsonObject]:
    """Return entries of a log as JSON objects."""
    return [to_entry_json(entry) for entry in await restore_entries(call.hf.store, session.ref, entries)]


def _make_call_record(call: Call, session: Session, usage: JsonObject) -> ModelCall:
    """Return the record of a model call that the client made. The record has no prompt, because the prompt is unknown."""
    tokens = read_usage(usage)
    call.hf.engine.activity.count_further_call(tokens)
    return ModelCall(
        model=call.hf.find_responder(session).llm.model,
        timestamp=call.hf.clock(),
        prompt_tokens=tokens.prompt_tokens,
        completion_tokens=tokens.completion_tokens,
        cached_tokens=tokens.cached_tokens,
        turn_id=max(0, session.tail.turn_id),
    )


def _read_messages(given: Any, name: str, *, is_optional: bool) -> tuple[list[Message], list[dict[str, Any]]]:
    """Return the messages in a request body, and for each message the fields that Holdfast adds, such as `pinned`.

    Args:
        given: list of messages in the body.
        name: name of the list, for errors.
        is_optional: True if there may be no messages.

    Raises:
        InvalidRequest: a message is not valid, or there are none.
    """
    messages = parse_log_messages(given, name)
    if not messages and not is_optional:
        raise errors.InvalidRequest(f"{name} is empty", param=name)
    return messages, [parse_own_fields(item, f"{name}[{at}]") for at, item in enumerate(given)]


@routes.add("PUT", _MESSAGE, "write", error_statuses=(422,), answer=Entry)
async def replace(call: Call, query: SessionQuery, body: Replacement) -> JsonObject:
    """Replace a message of the conversation, and return its new entry, which has a new `seq`.

    Later messages follow it in the same order, with new numbers. The new message has the turn of the old one and, unless the request
    sets them, its agent and its pin. The status is 413 if more than 1,000 messages or 32 MiB follow the message.
    """
    message = await run_cpu(parse_log_message, body.message, "message", long=call.body_size > INLINE_BODY_BYTES)
    if message.role == NOTE:
        raise errors.InvalidMessage("message.role is 'note': a note cannot replace a message", param="message.role")
    fields = parse_own_fields(body.message, "message")
    ref = (await call.get_session()).ref
    seq = call.get_path_number("seq", _NAMED)
    entry = await replace_entry(call.hf.engine, ref, seq, message, fields, erase=body.erase)
    return to_entry_json((await restore_entries(call.hf.store, ref, [entry]))[0])


@routes.add("PATCH", _MESSAGE, "write", answer=Entry)
async def annotate(call: Call, session: Session, body: Annotation) -> JsonObject:
    """Pin a message, set its importance, or set the upstreams (model providers) that must not receive the message."""
    given = {"pinned": body.pinned, **({} if body.importance is UNSET else {"importance": body.importance})}
    own = parse_own_fields(given)
    entry = await annotate_message(
        call.hf.store,
        session.ref,
        call.get_path_number("seq", _NAMED),
        pinned=own.get("pinned"),
        importance=UNSET if body.importance is UNSET else own.get("importance"),
        refused_by=body.refused_by,
    )
    return to_entry_json((await restore_entries(call.hf.store, session.ref, [entry]))[0])


@routes.add("DELETE", _MESSAGE, "write", answer=ErasedEntry)
async def erase(call: Call, query: SessionQuery) -> JsonObject:
    """Erase the content of a message, and of its copies in forks of the session.

    The message keeps its number in the log. `copies` lists `session_id` and `seq` of the copies that were erased.
    """
    ref, seq = (await call.get_session()).ref, call.get_path_number("seq", _NAMED)
    found = await call.hf.store.entries(ref, start=seq, stop=seq + 1, retired=True)
    if not found:
        raise errors.EntryNotFound(ref.id, seq)
    tokens = (await count_tokens([erase_content(found[0].message)]))[0]
    done = await erase_everywhere(call.hf.engine, ref, seq, tokens=tokens)
    copies = [{"session_id": session_id, "seq": at} for session_id, at in done.copies]
    return {**to_entry_json(done.entry), "deleted": True, "copies": copies}
