"""Sessions, messages and exports in the REST API and on the command line."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.objects import (
    Answer,
    Count,
    JsonObject,
    NonEmpty,
    OpenObject,
    Time,
    json_schema,
    make_object,
    same_as,
)
from holdfast.domain.session import CallFields, Metadata, Session, SessionFields, State, Ttl
from holdfast.limits import METADATA_BYTES, SYSTEM_BYTES
from holdfast.wire.openai import to_chat_message
from holdfast.wire.records import RecordObject

# -- messages ------------------------------------------------------------------


class Part(OpenObject):
    """One part of a content: `text`, or media that are passed on unchanged. Unknown fields are kept and returned unchanged."""

    type: str
    text: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET


class FunctionCall(OpenObject):
    """Name and arguments of a function that the model calls."""

    name: str
    arguments: str | UnsetType = UNSET
    """Arguments as JSON text; empty if left out."""


class CustomCall(OpenObject):
    """Name and input of a custom tool that the model calls."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCall(OpenObject):
    """One tool call. Unknown fields are kept and returned unchanged."""

    id: str
    type: str | UnsetType = UNSET
    """`function` or `custom`."""
    function: FunctionCall | UnsetType = UNSET
    """The call, unless `type` is `custom`."""
    custom: CustomCall | UnsetType = UNSET
    """The call, if `type` is `custom`. For other types, this is an unknown field."""


class Message(OpenObject, kw_only=True):
    """A Chat Completions message. Unknown fields are kept and returned unchanged."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None | UnsetType = UNSET
    """Text, parts, or null. Only an assistant's message may leave it out."""
    name: str | None | UnsetType = UNSET
    tool_calls: list[ToolCall] | None | UnsetType = UNSET
    """Tool calls of an assistant message."""
    tool_call_id: str | None | UnsetType = UNSET
    """Id of the call that a tool message answers."""


VoiceMetadata = Annotated[
    JsonObject | UnsetType,
    json_schema(
        description=f"free, at most {METADATA_BYTES} bytes; in a voice record `source`, `interrupted`, `interrupt_timestamp` and `original`"
        " are checked"
    ),
]
TurnId = Annotated[int, json_schema(description="the turn that it belongs to", minimum=0)]
Importance = Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 1})]
Agent = Annotated[str | UnsetType, json_schema(description="the agent that wrote it")]
Pinned = Annotated[bool | UnsetType, json_schema(description="if true, it is never evicted from the working set")]


LogRole = Literal["system", "developer", "user", "assistant", "tool", "note"]
Origin = Annotated[
    Any,
    json_schema(
        description="the message in the format of the program that wrote it, or the payload of a note: any JSON. It is stored"
        " with the message and never sent"
    ),
]


class ChatMessage(Message, kw_only=True):
    """A Chat Completions message. Unknown fields are kept and returned unchanged.

    A message that is a voice record also has time, turn and metadata.
    """

    timestamp: Time | UnsetType = UNSET
    turn_id: TurnId | UnsetType = UNSET
    metadata: VoiceMetadata = UNSET


class NewMessage(ChatMessage, kw_only=True):
    """A message to append to a log, with Holdfast's own fields. Unknown fields are kept and returned unchanged.

    With the role `note`, it is a note: a payload in `origin` that the log keeps, and that is never sent.
    """

    role: LogRole  # type: ignore[assignment]  # one role more
    origin: Origin = UNSET
    agent: Agent = UNSET
    pinned: Pinned = UNSET
    importance: Importance | UnsetType = UNSET


class Entry(Message, kw_only=True):
    """A message in a log, with all its fields. Unknown fields are kept and returned unchanged. With the role `note`, it is a note."""

    role: LogRole  # type: ignore[assignment]  # one role more
    origin: Origin = UNSET
    seq: Count
    """Position in the log: from 0, without gaps."""
    turn_id: TurnId
    timestamp: Time
    agent: Agent = UNSET
    metadata: VoiceMetadata = UNSET
    pinned: Pinned = UNSET
    importance: Importance | UnsetType = UNSET
    tokens: Count
    """Tokens of the message, counted with o200k."""
    retired_by: Count | UnsetType = UNSET
    """`seq` of the entry that replaced this one; only in responses that include retired entries."""
    erased: Literal[True] | UnsetType = UNSET
    """True if the content was erased."""
    digest: str | UnsetType = UNSET
    """Digest of the erased content, hexadecimal; only in an export with `digests`."""


class Copy(Answer):
    """A copy of the message in another session: a fork, or the session it was forked from.

    A copy can also be in the same session, because replacing a message writes all later messages again.
    """

    session_id: str
    seq: Count


class ErasedEntry(Entry, kw_only=True):
    """An erased message, as it stays in the log."""

    deleted: Literal[True]
    copies: list[Copy]
    """Copies of the message that were erased, too: in forks of the session, and in the session that it was forked from."""


MessageJson = Annotated[JsonObject, same_as(Message)]
"""A `Message` as a dict."""
EntryJson = Annotated[JsonObject, same_as(Entry)]
"""An `Entry` as a dict."""
NewMessageList = list[Annotated[Any, same_as(NewMessage)]]
SystemMessages = Annotated[
    Any,
    json_schema(
        Message,
        description=f"the system prompt: messages, texts, or one text; at most {SYSTEM_BYTES} bytes",
        anyOf=[
            {"type": "string"},
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Message"}]}},
            {"type": "null"},
        ],
    ),
]

# -- sessions ------------------------------------------------------------------


class SessionObject(SessionFields, frozen=True, kw_only=True):
    """A session without its log."""

    object: Literal["session"] = "session"
    log_marker: str | UnsetType = UNSET
    """Text that changes with every change of the log, and only then. Pass it as `expect_log` of an append, to write only if the log is
    unchanged. Exports leave it out."""
    turns: Count
    """Number of turns so far."""
    message_count: Count
    """Number of messages, without retired ones."""
    tokens: Count
    """Tokens of the messages without retired ones, counted with o200k."""
    system_messages: list[MessageJson]
    damaged: list[str] | UnsetType = UNSET
    """Names of the fields that cannot be decoded and are empty here. Only for a damaged session."""

    @classmethod
    def from_session(cls, session: Session, **more: Any) -> Self:
        return make_object(
            cls,
            session,
            message_count=session.messages,
            system_messages=[to_chat_message(message) for message in session.system_messages],
            damaged=list(session.damaged) or UNSET,
            **more,
        )


# -- exports and imports -------------------------------------------------------


class Medium(Answer, kw_only=True):
    """Position and properties of an image, video or other medium in a message. The message contains the data."""

    seq: Count
    """`seq` of the message in the log."""
    part: Count
    """Index of the part in the message's content."""
    type: str
    """Type of the part."""
    mime_type: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    """Link to the data, if they are stored elsewhere."""
    sha256: str | UnsetType = UNSET
    """SHA-256 of the data, hexadecimal. For data that are not base64: `raw:` and the hash of the text."""
    bytes: Count | UnsetType = UNSET
    """Size of the data in bytes."""
    size: list[Count] | UnsetType = UNSET
    """Width and height of an image in pixels."""
    frames: Count | UnsetType = UNSET
    """Number of frames of a video that consists of images."""
    fps: Any = UNSET
    """Given for a video that consists of images; unchanged."""
    total_num_frames: Any = UNSET
    """Given for a video that consists of images; unchanged."""
    sampled_indices: Any = UNSET
    """Given for a video that consists of images; unchanged."""


class ExportedCall(CallFields, frozen=True, kw_only=True):
    """A model call."""

    hash: str
    """Hash of the messages that were sent, hexadecimal."""
    build: str
    """Opaque record of the parts of the prompt, base64."""
    texts: list[JsonObject] | UnsetType = UNSET
    """Texts of the session's prompts that are no messages of the log. The first call has them."""


SchemaVersion = Annotated[int, json_schema(description="version of the export format", minimum=1)]


class SessionExport(SessionObject, frozen=True, kw_only=True):
    """A complete session, as `PUT /v1/sessions/{session_id}` accepts it."""

    schema: SchemaVersion
    messages: list[EntryJson]
    images: list[Medium]
    videos: list[Medium]
    audios: list[Medium]
    files: list[Medium]
    artifacts: list[JsonObject]
    """Name, version, type, size and hash of each artifact, without its content."""
    calls: list[ExportedCall] | UnsetType = UNSET
    """The model calls; only with `calls=true`."""
    records: list[RecordObject] | UnsetType = UNSET
    """The records that the session owns, if it has any."""


ImportedMedium = Annotated[
    JsonObject | Annotated[str, json_schema(description="base64")],
    json_schema(description="refers to its message by `seq`, or has frames"),
]


class SessionImport(OpenObject, kw_only=True):
    """An export, a recording, or bare messages. Unknown fields are ignored.

    Leading system messages become the session's system messages, unless `system_messages` is given.
    """

    schema: SchemaVersion | None = None
    id: NonEmpty | UnsetType = UNSET
    """Id of the session. If it is left out, a new id is created."""
    user_id: NonEmpty | UnsetType = UNSET
    """Owner of the session; `default` if it is left out."""
    agent: str | None = None
    """Name of an agent in the configuration."""
    system_messages: SystemMessages = None
    state: State | None = None
    metadata: Metadata | None = None
    ttl: Ttl = None
    ended_at: Any = None
    """Time of the session's end. Read only in an export, which has `schema`."""
    end_reason: Any = None
    """Reason for the session's end. Read only in an export, which has `schema`."""
    records: list[JsonObject] | UnsetType = UNSET
    """Records that the session owns. Read only in an export, which has `schema`."""
    messages: NewMessageList | UnsetType = UNSET
    contents: NewMessageList | UnsetType = UNSET
    """The messages, under the name that voice records use."""
    images: list[ImportedMedium] | UnsetType = UNSET
    """Images as listed in an export; or, as mistral.rs exports them, one image for each placeholder."""
    videos: list[ImportedMedium] | UnsetType = UNSET
    """Videos, in the same two forms as `images`."""
