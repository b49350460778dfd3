"""The REST API for voice agents: what was said, as records; what of a reply was heard; something said from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.heard import SPEAKING_RATE, heard_from
from holdfast.domain.session import Entry, SessionRef
from holdfast.media.leaving import whole_entries
from holdfast.server.http import Call
from holdfast.server.routes import BODY, ETAG, OF_SESSION, Routes, SessionQuery
from holdfast.sessions.history import history as read_history
from holdfast.sessions.interrupting import interrupt_reply
from holdfast.sessions.speaking import Speech, spoken
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
from holdfast.wire.openai import entry_to
from holdfast.wire.sessions import EntryJson
from holdfast.wire.voice import SOURCES, attributed, plain

routes = Routes("voice")
_ONE: Final = "/v1/sessions/{session_id}"
_encode = msgspec.json.Encoder().encode
_SOURCES: Final = "; ".join(f"{role}: {', '.join(sources)}" for role, sources in SOURCES.items())


class VoiceMetadata(OpenObject, kw_only=True):
    """Where it came from, how it was interrupted if it was, and what else its writer keeps here."""

    source: Annotated[
        str,
        json_schema(description=_SOURCES, enum=sorted({one for sources in SOURCES.values() for one in sources})),
    ]
    user: Any = UNSET
    """Who spoke."""
    interrupted: Literal[True] | UnsetType = UNSET
    """It was interrupted: `content` is what was delivered."""
    interrupt_timestamp: Time | UnsetType = UNSET
    original: str | UnsetType = UNSET
    """What was generated of it."""


class VoiceRecord(Answer, kw_only=True):
    """What was said, as voice agents keep it."""

    role: Literal["user", "assistant"]
    content: str
    turn_id: Count
    """Which turn it belongs to, from 0."""
    timestamp: Time
    agent: str | UnsetType = UNSET
    """Who said it, where that was another agent than the session's own."""
    metadata: Annotated[JsonObject, same_as(VoiceMetadata)]


class PlainRecord(Answer):
    """Role and content alone."""

    role: str
    content: str


class VoiceHistory(Answer):
    """The voice form."""

    contents: list[Annotated[Any, same_as(VoiceRecord)]]


class PlainHistory(Answer):
    """The plain form, with `view=plain`."""

    messages: list[Annotated[Any, same_as(PlainRecord)]]


class HistoryQuery(SessionQuery, kw_only=True):
    """Parameters of a history."""

    view: Literal["voice", "plain"] = "voice"
    """Which form."""


@routes.add("GET", f"{_ONE}/history", "read", fails=OF_SESSION, answer=(VoiceHistory, PlainHistory))
async def history(call: Call, query: HistoryQuery) -> VoiceHistory | PlainHistory:
    """What user and assistant said: as voice records, or role and content alone.

    No system messages, no tools; what was said next to tool calls is among it.
    """
    session = await call.session(shared=True)
    as_records = query.view == "voice"

    def encode(entries: Sequence[Entry]) -> list[msgspec.Raw]:
        items: Sequence[JsonObject] = attributed(entries, session.agent) if as_records else plain(entries)
        return [msgspec.Raw(_encode(item)) for item in items]

    found = await read_history(call.hf.store, session.ref, encode)
    return VoiceHistory(found) if as_records else PlainHistory(found)


# -- interruptions ---------------------------------------------------------------


class InterruptRequest(Request, kw_only=True):
    """What was heard of the last reply: one of `content`, `chars` and `ms`, or all that there is of it."""

    content: str | None = None
    """The text that was heard; how it sets its words apart does not matter."""
    chars: Count | None = None
    """How many characters of it were heard."""
    ms: Count | None = None
    """For how many milliseconds it was heard."""
    total_ms: Annotated[
        int | None,
        json_schema(
            description=f"how many the whole would have taken; unset: {SPEAKING_RATE} characters a second", minimum=1
        ),
    ] = None
    timestamp: Count | None = None
    """When that was, milliseconds since the epoch; unset: now."""
    turn_id: Count | None = None
    """The turn that the reply must be of; a later one that runs is left alone."""


class Interruption(Answer, kw_only=True):
    """What became of the last reply."""

    object: Literal["interruption"] = "interruption"
    session_id: Id
    version: Count
    """The session's."""
    interrupted: bool
    """Whether it was interrupted: not where all of it was heard."""
    stopped: bool
    """Whether a turn was running, and was asked to stop."""
    entry: EntryJson | None
    """What is left of it; null: nothing."""


@routes.add("POST", f"{_ONE}/interrupt", "write", fails=(*BODY, *OF_SESSION, 422), gives=ETAG)
async def interrupt(call: Call, query: SessionQuery, body: InterruptRequest) -> Interruption:
    """Stop the session's turn if one runs, and keep of its last reply what was heard.

    That is `content`, or its first `chars` characters, or what was spoken in `ms` milliseconds: of `total_ms` that the whole
    would have taken, else at 15 characters a second, to the end of a word. Without any of them all that there is was heard.
    What was delivered is in the reply's place then, marked, in its turn, with what was generated as `original`; what came
    after it follows, and tool calls that were cut are dropped. Of a reply of which nothing was heard nothing stays. Of one that
    was heard to its end, all does: `interrupted` is false. A second interruption can only shorten.
    """
    heard = heard_from(msgspec.structs.asdict(body))
    session = await call.session()
    done = await interrupt_reply(call.hf.engine, session.ref, heard)
    call.tag(done.session.version)
    return Interruption(
        session_id=done.session.id,
        version=done.session.version,
        interrupted=done.interrupted,
        stopped=done.stopped,
        entry=await _show(call, session.ref, done.entry),
    )


# -- speech ----------------------------------------------------------------------


class SpeakRequest(Request, kw_only=True):
    """What the agent is to say."""

    text: NonEmpty | None = None
    """At most `gateway.max_speech` bytes; unset: the agent's own, by `source`."""
    priority: Annotated[str | None, json_schema(enum=["INTERRUPT", "APPEND", "IGNORE", None])] = None
    """While a turn runs: stop it first (the default), wait for it, or say nothing."""
    source: Annotated[str | None, json_schema(enum=["command", "greeting", "silence", None])] = None
    """What it is recorded as; unset: `command`."""
    interruptable: bool | None = None
    """False: an upstream that knows voice records is told that it may not be interrupted."""


class Spoken(Answer, kw_only=True):
    """What became of it."""

    object: Literal["speech"] = "speech"
    session_id: Id
    version: Count
    """The session's."""
    spoken: bool
    """False: a turn was running that was not to be disturbed."""
    stopped: bool
    """Whether a turn was running, and was asked to stop."""
    entry: EntryJson | None
    """What was said; null: nothing."""


@routes.add("POST", f"{_ONE}/speak", "write", fails=(*BODY, *OF_SESSION, 422), gives=ETAG)
async def speak(call: Call, query: SessionQuery, body: SpeakRequest) -> Spoken:
    """Have the agent say something from outside, in a turn of its own.

    While a turn of the session runs, `INTERRUPT` stops it first, `APPEND` waits for it, and `IGNORE` says nothing: then `spoken`
    is false. Without a `text` the agent's own `greeting` or `silence_message` is said, by its `source`.
    """
    speech = Speech(**{name: value for name, value in msgspec.structs.asdict(body).items() if value is not None})
    speech.check_size(call.most_speech)
    session = await call.session()
    done = await spoken(call.hf.engine, session.ref, call.hf.voice(session), speech)
    call.tag(done.session.version)
    return Spoken(
        session_id=done.session.id,
        version=done.session.version,
        spoken=done.entry is not None,
        stopped=done.stopped,
        entry=await _show(call, session.ref, done.entry),
    )


async def _show(call: Call, ref: SessionRef, entry: Entry | None) -> JsonObject | None:
    """Return an entry as it is in the log."""
    return None if entry is None else entry_to((await whole_entries(call.hf.store, ref, [entry]))[0])
