"""REST API for voice agents: history as voice records, interruptions, and speech from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.interruptions import SPEAKING_RATE, parse_heard
from holdfast.domain.session import Entry, SessionRef
from holdfast.media.outgoing import restore_entries
from holdfast.server.http import Call
from holdfast.server.routes import BODY, ETAG, OF_SESSION, Routes, SessionQuery
from holdfast.sessions.history import read_history as read_records
from holdfast.sessions.interruption import interrupt_reply
from holdfast.sessions.speech import Speech, deliver_speech
from holdfast.wire.objects import (
    Answer,
    Count,
    Id,
    JsonObject,
    NonEmpty,
    OpenObject,
    Request,
    Time,
    json_schema,
    same_as,
)
from holdfast.wire.openai import to_entry_json
from holdfast.wire.sessions import EntryJson
from holdfast.wire.voice import SOURCES, make_attributed_records, make_plain_records

routes = Routes("voice")
_ONE: Final = "/v1/sessions/{session_id}"
_encode = msgspec.json.Encoder().encode
_SOURCES: Final = "; ".join(f"{role}: {', '.join(sources)}" for role, sources in SOURCES.items())


class VoiceMetadata(OpenObject, kw_only=True):
    """Source of the text, how it was interrupted, and fields of the application."""

    source: Annotated[
        str,
        json_schema(description=_SOURCES, enum=sorted({one for sources in SOURCES.values() for one in sources})),
    ]
    user: Any = UNSET
    """Speaker."""
    interrupted: Literal[True] | UnsetType = UNSET
    """The reply was interrupted: `content` is what was delivered."""
    interrupt_timestamp: Time | UnsetType = UNSET
    original: str | UnsetType = UNSET
    """The generated text."""


class VoiceRecord(Answer, kw_only=True):
    """A message in the format of voice agents."""

    role: Literal["user", "assistant"]
    content: str
    turn_id: Count
    """Turn of the message, from 0."""
    timestamp: Time
    agent: str | UnsetType = UNSET
    """Agent, if it was another one than the session's own."""
    metadata: Annotated[JsonObject, same_as(VoiceMetadata)]


class PlainRecord(Answer):
    """Role and content only."""

    role: str
    content: str


class VoiceHistory(Answer):
    """History as voice records."""

    contents: list[Annotated[Any, same_as(VoiceRecord)]]


class PlainHistory(Answer):
    """History with `view=plain`."""

    messages: list[Annotated[Any, same_as(PlainRecord)]]


class HistoryQuery(SessionQuery, kw_only=True):
    """Query parameters of a history."""

    view: Literal["voice", "plain"] = "voice"
    """Format of the records."""


@routes.add("GET", f"{_ONE}/history", "read", error_statuses=OF_SESSION, answer=(VoiceHistory, PlainHistory))
async def history(call: Call, query: HistoryQuery) -> VoiceHistory | PlainHistory:
    """Return the messages of user and assistant, as voice records or as role and content.

    System messages and tool messages are left out; text next to tool calls is included.
    """
    session = await call.get_session(shared=True)
    as_records = query.view == "voice"

    def encode(entries: Sequence[Entry]) -> list[msgspec.Raw]:
        items: Sequence[JsonObject] = (
            make_attributed_records(entries, session.agent) if as_records else make_plain_records(entries)
        )
        return [msgspec.Raw(_encode(item)) for item in items]

    found = await read_records(call.hf.store, session.ref, encode)
    return VoiceHistory(found) if as_records else PlainHistory(found)


# -- interruptions ---------------------------------------------------------------


class InterruptRequest(Request, kw_only=True):
    """The part of the last reply that the user heard: `content`, `chars` or `ms`; without any of them, all of it."""

    content: str | None = None
    """The text that was heard; white space does not matter."""
    chars: Count | None = None
    """Number of characters that were heard."""
    ms: Count | None = None
    """Milliseconds that were heard."""
    total_ms: Annotated[
        int | None,
        json_schema(
            description=f"duration of the whole reply in milliseconds; default: {SPEAKING_RATE} characters per second",
            minimum=1,
        ),
    ] = None
    timestamp: Count | None = None
    """Time of the interruption in milliseconds since the epoch; default: now."""
    turn_id: Count | None = None
    """Turn of the reply; later turns are not interrupted."""


class Interruption(Answer, kw_only=True):
    """Result of an interruption."""

    object: Literal["interruption"] = "interruption"
    session_id: Id
    version: Count
    """Version of the session."""
    interrupted: bool
    """False if the whole reply was heard."""
    stopped: bool
    """True if a running turn was stopped."""
    entry: EntryJson | None
    """The shortened reply; null if nothing was heard."""


@routes.add("POST", f"{_ONE}/interrupt", "write", error_statuses=(*BODY, *OF_SESSION, 422), response_headers=ETAG)
async def interrupt(call: Call, query: SessionQuery, body: InterruptRequest) -> Interruption:
    """Stop the session's running turn and keep only what was heard of its last reply.

    The heard part is `content`, the first `chars` characters, or what was spoken in `ms` milliseconds (of `total_ms`, by default at
    15 characters per second, rounded up to a word). Without these fields the whole text counts as heard. The reply is replaced by
    the delivered text, marked as interrupted, with the generated text as `original`; later messages follow it, and tool calls
    that were cut are dropped. A reply of which nothing was heard is removed; one heard to its end does not change, and
    `interrupted` is false. Repeated interruptions can only shorten the reply.
    """
    heard = parse_heard(msgspec.structs.asdict(body))
    session = await call.get_session()
    done = await interrupt_reply(call.hf.engine, session.ref, heard)
    call.set_etag(done.session.version)
    return Interruption(
        session_id=done.session.id,
        version=done.session.version,
        interrupted=done.interrupted,
        stopped=done.stopped,
        entry=await _show(call, session.ref, done.entry),
    )


# -- speech ----------------------------------------------------------------------


class SpeakRequest(Request, kw_only=True):
    """Text for the agent to say."""

    text: NonEmpty | None = None
    """Text, at most `gateway.max_speech` bytes; default: the agent's own text for `source`."""
    priority: Annotated[str | None, json_schema(enum=["INTERRUPT", "APPEND", "IGNORE", None])] = None
    """While a turn runs: stop it (default), wait for it, or say nothing."""
    source: Annotated[str | None, json_schema(enum=["command", "greeting", "silence", None])] = None
    """Source in the record; default: `command`."""
    interruptable: bool | None = None
    """False: upstreams that read voice records must not let it be interrupted."""


class Spoken(Answer, kw_only=True):
    """Result of speaking."""

    object: Literal["speech"] = "speech"
    session_id: Id
    version: Count
    """Version of the session."""
    spoken: bool
    """False if a turn was running that was not to be interrupted."""
    stopped: bool
    """True if a running turn was stopped."""
    entry: EntryJson | None
    """The recorded message; null if nothing was said."""


@routes.add("POST", f"{_ONE}/speak", "write", error_statuses=(*BODY, *OF_SESSION, 422), response_headers=ETAG)
async def speak(call: Call, query: SessionQuery, body: SpeakRequest) -> Spoken:
    """Let the agent say a text in a turn of its own.

    While a turn of the session runs, `INTERRUPT` stops it first, `APPEND` waits for it, and `IGNORE` says nothing: then `spoken`
    is false. Without `text`, the agent's `greeting` or `silence_message` is said, depending on `source`.
    """
    speech = Speech(**{name: value for name, value in msgspec.structs.asdict(body).items() if value is not None})
    speech.check_size(call.most_speech)
    session = await call.get_session()
    done = await deliver_speech(call.hf.engine, session.ref, call.hf.find_responder(session), speech)
    call.set_etag(done.session.version)
    return Spoken(
        session_id=done.session.id,
        version=done.session.version,
        spoken=done.entry is not None,
        stopped=done.stopped,
        entry=await _show(call, session.ref, done.entry),
    )


async def _show(call: Call, ref: SessionRef, entry: Entry | None) -> JsonObject | None:
    """Convert an entry with its media to JSON."""
    return None if entry is None else to_entry_json((await restore_entries(call.hf.store, ref, [entry]))[0])
