"""Messages between users and models, stored without loss.

A `Message` is frozen and contains everything that its sender sent: fields that Holdfast knows by name, and all other
fields in `extra`. Two questions about messages are answered only in this module:

- Do two messages say the same? `encode_canonical` returns the form in which messages are compared.
- Does the same history precede them? `chain` returns the digest that connects a message to the log before it.

Wire formats are in `holdfast.wire`; this module does not depend on any of them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.medium import DetachedData, build_identity

ROLES = ("system", "developer", "user", "assistant", "tool")
SYSTEM_ROLES = frozenset({"system", "developer"})
NOTE = "note"
"""Role of a note, which is not a message: no model and no chat client ever receives it. Its payload is its `origin`."""
CHAT_PARTS = frozenset({"text", "refusal", "image_url", "input_audio", "file", "video_url"})
"""Types of message parts that exist in Chat Completions."""
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
REASONING_PARTS = frozenset({"thinking", "redacted_thinking"})
"""Types of parts of a reply that contain the model's reasoning."""
SERVER_TOOL_PARTS = frozenset(
    {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "compaction",
    }
)
"""Types of parts of a reply that describe the work of the provider's own tools, or its compaction of the conversation."""
UNSPOKEN_PARTS = REASONING_PARTS | SERVER_TOOL_PARTS
"""Types of parts of a reply that do not belong to its text. Some clients keep such parts, others never received them."""
DIGEST_SIZE = 16
"""Bytes of a digest. With 128 bits, two histories in a store practically never have the same digest."""
UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""Exceptions that encoding to JSON raises. A lone surrogate raises ValueError."""
GENESIS = bytes(DIGEST_SIZE)
"""The digest of an empty log, with which every chain of digests begins."""


class Part(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One part of a message's content: text, or media that are passed on unchanged."""

    type: str
    text: str | None = None
    """The text of a text part; None for media."""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """All other fields of the part, unchanged."""
    held: tuple[DetachedData, ...] = ()
    """References to data that were detached from the fields in `extra`; see `holdfast.domain.media.parts`. Never
    accepted from outside."""


class ToolCall(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A tool call in an assistant message. Its `id` is unique only within its unit: the message and its tool results."""

    id: str
    name: str
    arguments: str = ""
    """The arguments as the model wrote them: JSON text, which may be invalid."""
    type: str = "function"
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Other fields of the call: all except `id`, `type` and `function`."""
    function_extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Other fields of `function`: all except `name` and `arguments`."""


Content = str | tuple[Part, ...] | None | UnsetType


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """A message. If its sender left out the field `content`, the value is UNSET; if the sender wrote null, it is None."""

    role: str
    content: Content = UNSET
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    origin: Any = None
    """The message in the format of the program that wrote it, or the payload of a note: any JSON value. It is stored with the
    message, and never sent, counted, compared, searched or shown in prompts."""
    origin_held: tuple[DetachedData, ...] = ()
    """References to data that were detached from `origin`, like `Part.held`. Never accepted from outside."""

    @property
    def text(self) -> str:
        """The text of the message, with its text parts joined; empty if it contains no text."""
        if isinstance(self.content, str):
            return self.content
        if isinstance(self.content, tuple):
            return "".join(part.text for part in self.content if part.text is not None)
        return ""

    @property
    def media(self) -> tuple[Part, ...]:
        """The parts that are not text."""
        if isinstance(self.content, tuple):
            return tuple(part for part in self.content if part.text is None)
        return ()

    @property
    def visible(self) -> bool:
        """True for messages that chat clients show and resend: all except tool results, assistant messages with tool calls, and notes."""
        return self.role not in ("tool", NOTE) and not self.tool_calls

    def evolve(self, **changes: Any) -> Message:
        """Return a copy of the message with the given fields changed."""
        return msgspec.structs.replace(self, **changes)


_encoder = msgspec.json.Encoder(order="sorted")
_payload_encoder = msgspec.json.Encoder()
_payload_decoder = msgspec.json.Decoder(Message)


def encode_payload(message: Message) -> bytes:
    """Encode a message as bytes for a store; `decode_payload` returns an equal message."""
    return _payload_encoder.encode(message)


def decode_payload(payload: bytes) -> Message:
    """Decode a message from the bytes that `encode_payload` returned."""
    return _payload_decoder.decode(payload)


def encode_without_origin(message: Message) -> bytes:
    """Encode a message without its origin, to hash what a model receives."""
    return encode_payload(message if message.origin is None else message.evolve(origin=None, origin_held=()))


def encode_canonical(message: Message) -> bytes:
    """Return bytes that are equal for messages that a reader would consider the same.

    Text parts are joined, so `"x"` equals `[{"type": "text", "text": "x"}]`. Media are compared by kind and by the hash
    of their decoded content, regardless of the format of the part. Links are compared by their URL. Tool calls are
    compared, and so is the id of the call that a result belongs to. Trailing white space, unknown fields, and a reply's
    `UNSPOKEN_PARTS` are ignored.
    """
    content = message.content
    if (
        type(content) is str and not message.tool_calls
    ):  # a fast path for nearly every message, since each turn compares some
        text = content.rstrip()
        fields: list[Any] = [message.role, [text] if text else []]
        return _encoder.encode(fields if message.tool_call_id is None else [*fields, message.tool_call_id])
    return _encoder.encode(_list_compared(message, _split_segments(_find_content(message))))


def _list_compared(message: Message, segments: list[Any]) -> list[Any]:
    fields: list[Any] = [message.role, segments]
    if message.tool_calls:
        fields.append([[call.id, call.name, _normalize_arguments(call.arguments)] for call in message.tool_calls])
    if message.tool_call_id is not None:
        fields.append(message.tool_call_id)
    return fields


def chain(previous: bytes, message: Message) -> bytes:
    """Return the digest of a history after a message is appended to it.

    Args:
        previous: the digest of the history before the message.
        message: the message.
    """
    return hashlib.blake2b(previous + encode_canonical(message), digest_size=DIGEST_SIZE).digest()


def make_alias(previous: bytes, message: Message, *, cut: bool = False) -> bytes | None:
    """Return a second digest, by which a stored message is found if a client resends it in another form.

    Args:
        previous: the digest of the history before the message.
        message: the message as the client received it.
        cut: True if the message was interrupted.

    Returns:
        For a reply, `digest_reply`. For an interrupted reply, `digest_cut_reply`. For tool calls, `digest_calls`. For
        all other messages, None.
    """
    if message.tool_calls:
        return digest_calls(previous, message)
    if not message.visible or message.role != "assistant":
        return None
    return digest_cut_reply(previous) if cut else digest_reply(message)


def digest_reply(message: Message) -> bytes | None:
    """Return a digest of a reply that does not depend on the messages before it; None if the reply is empty.

    It is for clients that leave out older messages.
    """
    return _digest(encode_canonical(message), b"said") if message.text.strip() or _has_visible_media(message) else None


def _has_visible_media(message: Message) -> bool:
    """Return True if a reply contains anything visible that is not text."""
    return any(part.type not in UNSPOKEN_PARTS for part in message.media)


def digest_cut_reply(previous: bytes) -> bytes:
    """Return the digest of any interrupted reply after the history `previous`.

    It does not depend on the reply, because it is unknown how much of the reply the client saw.
    """
    return _digest(previous, b"cut")


def digest_calls(previous: bytes, message: Message) -> bytes:
    """Return the digest of tool calls after the history `previous`, ignoring the ids of the calls.

    It is for clients that run their tools before they have received any reply.
    """
    return _digest(previous + encode_calls(message), b"asked")


def encode_calls(message: Message) -> bytes:
    """Encode the tool calls of a message, in order.

    The ids of the calls and the text next to them are left out, because clients change both.
    """
    calls = tuple(msgspec.structs.replace(call, id="") for call in message.tool_calls)
    return encode_canonical(Message(role="assistant", tool_calls=calls))


def _digest(data: bytes, kind: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_SIZE, person=kind).digest()


def remove_media(message: Message) -> Message:
    """Return the message without its media."""
    return message.evolve(content=message.text)


def _find_content(message: Message) -> Content:
    """Return the part of a message's content that is compared."""
    if not (
        message.role == "assistant"
        and isinstance(message.content, tuple)
        and any(part.type in UNSPOKEN_PARTS for part in message.content)
    ):
        return message.content
    assert isinstance(message.content, tuple), "it has parts"
    return tuple(part for part in message.content if part.type not in UNSPOKEN_PARTS)


def _split_segments(content: Content) -> list[Any]:
    """Return the content as a list: joined text parts as strings, media by their identity, other parts as `{"media": hash}`."""
    if isinstance(content, str):
        content = (Part("text", content),)
    segments: list[Any] = []
    for part in content if isinstance(content, tuple) else ():
        if part.text is None:
            segments.append(build_identity(part.type, part.extra, part.held) or {"media": _hash_media(part)})
        elif segments and isinstance(segments[-1], str):
            segments[-1] += part.text
        else:
            segments.append(part.text)
    if segments and isinstance(segments[-1], str):
        segments[-1] = segments[-1].rstrip()
    return [segment for segment in segments if segment != ""]


def _hash_media(part: Part) -> str:
    return hashlib.blake2b(_encoder.encode([part.type, part.extra]), digest_size=DIGEST_SIZE).hexdigest()


def _normalize_arguments(arguments: str) -> bytes | list[str]:
    """Return arguments with normalized key order and white space, because clients change both.

    Arguments that are JSON are returned as bytes, which are encoded as base64 later. Arguments that are not JSON are
    returned in a list, so that they never equal such base64.
    """
    try:
        return _encoder.encode(msgspec.json.decode(arguments))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return [arguments]
