"""Sessions, messages and exports as the REST API and the command line show them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.session import EndReason, Session
from holdfast.limits import METADATA_BYTES, STATE_BYTES, SYSTEM_BYTES
from holdfast.wire.objects import Answer, Count, Id, JsonObject, NonEmpty, OpenObject, Time, json_schema, same_as
from holdfast.wire.openai import message_to

State = Annotated[JsonObject, json_schema(description=f"free, at most {STATE_BYTES} bytes")]
Metadata = Annotated[JsonObject, json_schema(description=f"free, at most {METADATA_BYTES} bytes")]
Ttl = Annotated[
    int | None,
    json_schema(
        description="milliseconds of idleness after which the session ends; 0: never; null: the server's setting",
        minimum=0,
    ),
]

# -- messages ------------------------------------------------------------------


class Part(OpenObject):
    """One part of a content: `text`, or media passed through whole. Fields that are not named here are kept, and come back as they were sent."""

    type: str
    text: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET


class FunctionCall(OpenObject):
    """The call of a function."""

    name: str
    arguments: str | UnsetType = UNSET
    """A JSON text; empty if it is left out."""


class CustomCall(OpenObject):
    """The call of a custom tool."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCall(OpenObject):
    """One tool call. Fields that are not named here are kept, and come back as they were sent."""

    id: str
    type: str | UnsetType = UNSET
    """`function`, or `custom`."""
    function: FunctionCall | UnsetType = UNSET
    """Unless `type` is `custom`."""
    custom: CustomCall | UnsetType = UNSET
    """Without `type: custom` it is an unknown field."""


class Message(OpenObject, kw_only=True):
    """A Chat Completions message. Fields that are not named here are kept, and come back as they were sent."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None | UnsetType = UNSET
    """Text, parts, or null; only an assistant's may be left out."""
    name: str | None | UnsetType = UNSET
    tool_calls: list[ToolCall] | None | UnsetType = UNSET
    """An assistant's."""
    tool_call_id: str | None | UnsetType = UNSET
    """Of a tool message: the call it answers."""


VoiceMetadata = Annotated[
    JsonObject | UnsetType,
    json_schema(
        description=f"free, at most {METADATA_BYTES} bytes; of a voice record `source`, `interrupted`, `interrupt_timestamp` and `original`"
        " are checked"
    ),
]
TurnId = Annotated[int, json_schema(description="which turn it belongs to", minimum=0)]
Importance = Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 1})]
Agent = Annotated[str | UnsetType, json_schema(description="who wrote it")]
Pinned = Annotated[bool | UnsetType, json_schema(description="never leaves the working set")]


class ChatMessage(Message, kw_only=True):
    """A Chat Completions message; of a voice record also when it was said, in which turn, and how. Fields that are not named here are kept, and come back as they were sent."""

    timestamp: Time | UnsetType = UNSET
    turn_id: TurnId | UnsetType = UNSET
    metadata: VoiceMetadata = UNSET


class NewMessage(ChatMessage, kw_only=True):
    """A message to be written to a log, with what Holdfast should know of it. Fields that are not named here are kept, and come back as they were sent."""

    agent: Agent = UNSET
    pinned: Pinned = UNSET
    importance: Importance | UnsetType = UNSET


class Entry(Message, kw_only=True):
    """A message in a log, with all that is known of it. Fields that are not named here are kept, and come back as they were sent."""

    seq: Count
    """Place in the log: from 0, gapless."""
    turn_id: TurnId
    timestamp: Time
    agent: Agent = UNSET
    metadata: VoiceMetadata = UNSET
    pinned: Pinned = UNSET
    importance: Importance | UnsetType = UNSET
    tokens: Count
    """The message's, o200k."""
    retired_by: Count | UnsetType = UNSET
    """Seq of what took its place; only in answers with retired entries."""
    erased: Literal[True] | UnsetType = UNSET
    """Its content was erased."""
    digest: str | UnsetType = UNSET
    """Of an erased one, in an export with `digests`: what stands for what it said, hexadecimal."""


class Copy(Answer):
    """The same message in a session that shared it."""

    session_id: str
    seq: Count


class ErasedEntry(Entry, kw_only=True):
    """What stays of an erased message."""

    deleted: Literal[True]
    copies: list[Copy]
    """Where else it was erased: forks of the session, and sessions that it is a fork of."""


MessageJson = Annotated[JsonObject, same_as(Message)]
"""A `Message` as a dict."""
EntryJson = Annotated[JsonObject, same_as(Entry)]
"""An `Entry` as a dict."""
NewMessageList = list[Annotated[Any, same_as(NewMessage)]]
SystemMessages = Annotated[
    Any,
    json_schema(
        description=f"the system prompt: messages, texts, or one text; at most {SYSTEM_BYTES} bytes",
        anyOf=[
            {"type": "string"},
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Message"}]}},
            {"type": "null"},
        ],
    ),
]

# -- sessions ------------------------------------------------------------------


class SessionUsage(Answer):
    """Sums over the session's model calls."""

    calls: Count
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count


class SessionObject(Answer, kw_only=True):
    """A session without its log."""

    id: Id
    object: Literal["session"] = "session"
    user_id: Id
    agent: str | None
    """Who answers; null: the default."""
    status: Literal["active", "closed"]
    version: Count
    """Grows by one with every write to the session."""
    created_at: Time
    updated_at: Time
    ended_at: Time | None
    end_reason: EndReason | None
    """Why it was closed."""
    ttl: Ttl
    turns: Count
    """How many there were."""
    message_count: Count
    """Live messages."""
    tokens: Count
    """Of the live messages, o200k."""
    bytes: Count
    """Of all messages, retired ones too."""
    usage: SessionUsage
    system_messages: list[MessageJson]
    state: State
    metadata: Metadata
    damaged: list[str] | UnsetType = UNSET
    """Only of a damaged session: fields that cannot be decoded; they are empty here."""

    @classmethod
    def from_session(cls, session: Session, **more: Any) -> Self:
        """Show a session; `more` are fields of the subclass."""
        return cls.from_fields(
            session,
            message_count=session.messages,
            usage=SessionUsage.from_fields(session.usage),
            system_messages=[message_to(message) for message in session.system_messages],
            damaged=list(session.damaged) or UNSET,
            **more,
        )


# -- exports and imports -------------------------------------------------------


class Medium(Answer, kw_only=True):
    """A medium in a message; it travels inside of that."""

    seq: Count
    """The message's place in the log."""
    part: Count
    """Which part of its content."""
    type: str
    """The part's."""
    mime_type: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    """Where it lies, if that is elsewhere."""
    sha256: str | UnsetType = UNSET
    """Of its data, hexadecimal; of what is no base64, `raw:` and that of the text."""
    bytes: Count | UnsetType = UNSET
    """Of its data."""
    size: list[Count] | UnsetType = UNSET
    """Of an image: width and height, pixels."""
    frames: Count | UnsetType = UNSET
    """Of a video that came as images: how many."""
    fps: Any = UNSET
    """Of such a video, as it came."""
    total_num_frames: Any = UNSET
    """Of such a video, as it came."""
    sampled_indices: Any = UNSET
    """Of such a video, as it came."""


class ExportedCall(Answer, kw_only=True):
    """A model call."""

    model: str
    timestamp: Time
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    turn_id: Count
    through: Annotated[int, json_schema(minimum=-1)]
    """Seq of the last message that its prompt was built from; -1: none."""
    view: str
    """Key of the view that built its prompt."""
    hash: str
    """Of the messages sent, hexadecimal."""
    build: str
    """How its prompt was built, base64."""


SchemaVersion = Annotated[int, json_schema(description="version of the export's form", minimum=1)]


class SessionExport(SessionObject, kw_only=True):
    """A session whole, as `PUT /v1/sessions/{session_id}` takes it."""

    schema: SchemaVersion
    messages: list[EntryJson]
    images: list[Medium]
    videos: list[Medium]
    audios: list[Medium]
    files: list[Medium]
    artifacts: list[JsonObject]
    """What there is of each: name, version, type, size, hash; the content is not part of it."""
    calls: list[ExportedCall] | UnsetType = UNSET
    """With `calls=true` alone."""


ImportedMedium = Annotated[
    JsonObject | Annotated[str, json_schema(description="base64")],
    json_schema(description="names its message by `seq`, or has frames"),
]


class SessionImport(OpenObject, kw_only=True):
    """An export, a recording, or bare messages. Leading system messages are the session's, unless `system_messages` is given.

    Fields that are not named here are ignored.
    """

    schema: SchemaVersion | None = None
    id: NonEmpty | UnsetType = UNSET
    """Unset: a new one is made."""
    user_id: NonEmpty | UnsetType = UNSET
    """Whose session; unset: `default`."""
    agent: str | None = None
    """An agent of the configuration."""
    system_messages: SystemMessages = None
    state: State | None = None
    metadata: Metadata | None = None
    ttl: Ttl = None
    ended_at: Any = None
    """Of an export, with `schema`: when it ended."""
    end_reason: Any = None
    """Of an export, with `schema`: why it ended."""
    messages: NewMessageList | UnsetType = UNSET
    contents: NewMessageList | UnsetType = UNSET
    """The same list, as voice records name it."""
    images: list[ImportedMedium] | UnsetType = UNSET
    """Of an export; or as mistral.rs has them, one for each placeholder."""
    videos: list[ImportedMedium] | UnsetType = UNSET
    """The same."""
