"""REST API for voice agents: history as voice records, interruptions of replies, and texts for the agent to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.interruptions import SPEAKING_RATE, parse_heard
from holdfast.domain.objects import (
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
from holdfast.domain.session import Entry, Session
from holdfast.media.outgoing import restore_entries
from holdfast.server.http import Call
from holdfast.server.routes import ETAG, Routes, SessionQuery
from holdfast.sessions.interruption import Interruption as Outcome
from holdfast.sessions.interruption import interrupt_reply
from holdfast.sessions.session_log import read_history as read_records
from holdfast.sessions.speech import Speech, SpeechResult, deliver_speech
from holdfast.wire.openai import to_entry_json
from holdfast.wire.sessions import EntryJson, SessionObject
from holdfast.wire.voice import SOURCES, make_attributed_records, make_plain_records

routes = Routes("voice")
_ONE: Final = "/v1/sessions/{session_id}"
_encode = msgspec.json.Encoder().encode
_SOURCES: Final = "; ".join(f"{role}: {', '.join(sources)}" for role, sources in SOURCES.items())


class VoiceMetadata(OpenObject, kw_only=True):
    """Metadata of a voice record: the source of the text, details of an interruption, and fields of the application."""

    source: Annotated[
        str,
        json_schema(description=_SOURCES, enum=sorted({one for sources in SOURCES.values() for one in sources})),
    ]
    user: Any = UNSET
    """Speaker of the text."""
    interrupted: Literal[True] | UnsetType = UNSET
    """True if the reply was interrupted. `content` is then the part that was delivered."""
    interrupt_timestamp: Time | UnsetType = UNSET
    original: str | UnsetType = UNSET
    """Complete text of an interrupted reply, as it was generated."""


class VoiceRecord(Answer, kw_only=True):
    """A message in the format of voice agents."""

    role: Literal["user", "assistant"]
    content: str
    turn_id: Count
    """Number of the message's turn, from 0."""
    timestamp: Time
    agent: str | UnsetType = UNSET
    """Agent that wrote the message, if it is not the session's own agent."""
    metadata: Annotated[JsonObject, same_as(VoiceMetadata)]


class PlainRecord(Answer):
    """A message with its role and content only."""

    role: str
    content: str


class VoiceHistory(Answer):
    """History of a session as voice records."""

    contents: list[Annotated[Any, same_as(VoiceRecord)]]


class PlainHistory(Answer):
    """History of a session with `view=plain`."""

    messages: list[Annotated[Any, same_as(PlainRecord)]]


class HistoryQuery(SessionQuery, kw_only=True):
    """Query parameters of a history."""

    view: Literal["voice", "plain"] = "voice"
    """Format of the records. `voice`: voice records; `plain`: role and content only."""


@routes.add("GET", f"{_ONE}/history", "read", answer=(VoiceHistory, PlainHistory))
async def history(call: Call, query: HistoryQuery, session: Session) -> VoiceHistory | PlainHistory:
    """Return the messages of the user and the assistant in a session, as voice records or as role and content.

    System messages and tool messages are left out. The text of a message with tool calls is included.
    """
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
    """The part of the last reply that the user heard, as `content`, `chars` or `ms`.

    Without these fields, the user heard the whole reply.
    """

    content: str | None = None
    """Text that was heard, from the beginning of the reply. Differences in white space do not matter."""
    chars: Count | None = None
    """Number of characters that were heard."""
    ms: Count | None = None
    """Duration of what was heard, in milliseconds."""
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
    """Number of the reply's turn. Later turns are not interrupted."""
    return_session: bool = False
    """True: include `session` in the response."""


class SpokenChange(Answer, kw_only=True):
    """Result of a request that changes what the agent has said."""

    session_id: Id
    version: Count
    """Version of the session."""
    stopped: bool
    """True if a running turn was stopped."""
    entry: EntryJson | None
    """The reply after an interruption, or the recorded message; null if nothing was heard or said."""
    session: SessionObject | UnsetType = UNSET
    """With `return_session`: the session without its log."""


C = TypeVar("C", bound=SpokenChange)


class Interruption(SpokenChange, kw_only=True):
    """Result of an interruption."""

    object: Literal["interruption"] = "interruption"
    interrupted: bool
    """False if the whole reply was heard."""


@routes.add("POST", f"{_ONE}/interrupt", "write", error_statuses=(422,), response_headers=ETAG)
async def interrupt(call: Call, session: Session, body: InterruptRequest) -> Interruption:
    """Stop the session's running turn, and keep only what the user heard of the last reply.

    The heard part is `content`, or the first `chars` characters, or the part that was spoken in `ms` of `total_ms` milliseconds, rounded up
    to a word. Without `total_ms`, the rate is 15 characters per second. Without any of these fields, the whole text counts as heard.

    The reply is replaced by the heard part and marked as interrupted. The generated text is kept as `original`. Messages after the reply
    stay after it. Tool calls that were cut are dropped. If nothing was heard, the reply is removed. If all of it was heard, it does not
    change, and `interrupted` is false. A repeated interruption can only shorten the reply further.
    """
    heard = parse_heard(_get_given(body))
    done = await interrupt_reply(call.hf.engine, session.ref, heard)
    return await _show(call, Interruption, done, body, interrupted=done.interrupted)


# -- speech ----------------------------------------------------------------------


class SpeakRequest(Request, kw_only=True):
    """A text for the agent to say."""

    text: NonEmpty | None = None
    """The text, at most 16 KiB; default: the agent's own text for `source`."""
    priority: Annotated[str | None, json_schema(enum=["INTERRUPT", "APPEND", "IGNORE", None])] = None
    """Action if a turn is running. `INTERRUPT`, the default: stop it; `APPEND`: wait for it; `IGNORE`: say nothing."""
    source: Annotated[str | None, json_schema(enum=["command", "greeting", "silence", None])] = None
    """Source of the text in its voice record; default: `command`."""
    interruptable: bool | None = None
    """False: an upstream that reads voice records must not let the text be interrupted."""
    agent: str | None = None
    """Agent that says the text; default: the session's agent."""
    return_session: bool = False
    """True: include `session` in the response."""


class Spoken(SpokenChange, kw_only=True):
    """Result of a request to say a text."""

    object: Literal["speech"] = "speech"
    spoken: bool
    """False if a turn was running, and the priority was `IGNORE`."""


@routes.add("POST", f"{_ONE}/speak", "write", error_statuses=(422,), response_headers=ETAG)
async def speak(call: Call, session: Session, body: SpeakRequest) -> Spoken:
    """Let the agent say a text. The text is recorded as a reply in its own turn.

    `priority` decides what happens if another turn of the session is running. `INTERRUPT` stops that turn, `APPEND` waits for it, and
    `IGNORE` says nothing; `spoken` is then false. Without `text`, the agent's `greeting` or `silence_message` is said, depending on
    `source`.
    """
    given = _get_given(body)
    agent = given.pop("agent", None)
    speech = Speech(**given)
    speech.check_size()
    responder = call.hf.find_responder(session, agent=agent)
    done = await deliver_speech(call.hf.engine, session.ref, responder, speech)
    return await _show(call, Spoken, done, body, spoken=done.entry is not None)


def _get_given(body: InterruptRequest | SpeakRequest) -> dict[str, Any]:
    """Return the fields of a request that are set, without those that only change the response."""
    given = msgspec.structs.asdict(body)
    del given["return_session"]
    return {name: value for name, value in given.items() if value is not None}


async def _show(
    call: Call, kind: type[C], done: Outcome | SpeechResult, body: InterruptRequest | SpeakRequest, **more: Any
) -> C:
    session, entry = done.session, done.entry
    shown = None if entry is None else (await restore_entries(call.hf.store, session.ref, [entry]))[0]
    call.set_etag(session.version)
    return kind(
        session_id=session.id,
        version=session.version,
        stopped=done.stopped,
        entry=None if shown is None else to_entry_json(shown),
        session=SessionObject.from_session(session) if body.return_session else UNSET,
        **more,
    )
