"""Messages: what a model and its user say to each other, kept without loss.

A `Message` is frozen and holds everything its sender sent: fields Holdfast knows by name, all others in `extra`.
Two questions about a message are answered here and nowhere else: *what does it say* (`encode_canonical`, the form in which
messages are compared) and *what came before it* (`chain`, the digest that ties it to the log so far).

Shapes of the wire are in `holdfast.wire`; nothing here knows one.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.medium import DetachedData, build_identity

ROLES = ("system", "developer", "user", "assistant", "tool")
SYSTEM_ROLES = frozenset({"system", "developer"})
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
REASONING_PARTS = frozenset({"thinking", "redacted_thinking"})
"""Parts of a reply that hold its model's reasoning."""
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
    }
)
"""Parts of a reply that tell what tools of its provider's own did while it was made."""
UNSPOKEN_PARTS = REASONING_PARTS | SERVER_TOOL_PARTS
"""Parts of a reply that are none of its words: a client keeps them, or was never sent them."""
DIGEST_SIZE = 16
"""Bytes of a digest: 128 bits, enough that no two histories of a store meet by chance."""
UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""What encoding to JSON raises; a lone surrogate is a ValueError."""
GENESIS = bytes(DIGEST_SIZE)
"""What the first digest of a log is chained to."""


class Part(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One part of a multi-part content: text, or media passed through whole."""

    type: str
    text: str | None = None
    """The words, for a text part; None for media."""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Every other field of the part, unharmed."""
    held: tuple[DetachedData, ...] = ()
    """Data of its fields that are kept apart from it; see `holdfast.domain.media.parts`. Nobody's to set from outside."""


class ToolCall(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One tool call of an assistant message. `id` is unique only within its unit."""

    id: str
    name: str
    arguments: str = ""
    """The arguments as the model wrote them: a JSON text, not always a valid one."""
    type: str = "function"
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields beside `id`, `type` and the function."""
    function_extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields inside the function, beside `name` and `arguments`."""


Content = str | tuple[Part, ...] | None | UnsetType


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One message. `content` is UNSET when its sender left the field out, None when the sender wrote null."""

    role: str
    content: Content = UNSET
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def text(self) -> str:
        """The words of the message, parts joined; empty when it has none."""
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
        """True for what a chat client shows and resends: no tool results, no assistant message with tool calls."""
        return self.role != "tool" and not self.tool_calls

    def evolve(self, **changes: Any) -> Message:
        """A copy with `changes`, fields as in the constructor."""
        return msgspec.structs.replace(self, **changes)


_encoder = msgspec.json.Encoder(order="sorted")
_payload_encoder = msgspec.json.Encoder()
_payload_decoder = msgspec.json.Decoder(Message)


def encode_payload(message: Message) -> bytes:
    """The bytes a store keeps for `message`; `decode_payload` gives an equal message back."""
    return _payload_encoder.encode(message)


def decode_payload(payload: bytes) -> Message:
    """The message in `payload`, as written by `encode_payload`."""
    return _payload_decoder.decode(payload)


def encode_canonical(message: Message) -> bytes:
    """What `message` says, as bytes: equal for messages that a reader would call the same.

    Text parts are joined, so `"x"` equals `[{"type": "text", "text": "x"}]`; media count by their kind and the hash of their
    decoded content, whatever part brought them, a link by itself; trailing white space, unknown fields, and a reply's
    `UNSPOKEN_PARTS` are ignored. Tool calls and the id a result answers count.
    """
    content = message.content
    if type(content) is str and not message.tool_calls:  # nearly every message, and compared in every turn
        text = content.rstrip()
        told: list[Any] = [message.role, [text] if text else []]
        return _encoder.encode(told if message.tool_call_id is None else [*told, message.tool_call_id])
    return _encoder.encode(_list_compared(message, _split_segments(_find_content(message))))


def _list_compared(message: Message, segments: list[Any]) -> list[Any]:
    told: list[Any] = [message.role, segments]
    if message.tool_calls:
        told.append([[call.id, call.name, _normalize_arguments(call.arguments)] for call in message.tool_calls])
    if message.tool_call_id is not None:
        told.append(message.tool_call_id)
    return told


def chain(previous: bytes, message: Message) -> bytes:
    """The digest of a history that was `previous` and went on with `message`."""
    return hashlib.blake2b(previous + encode_canonical(message), digest_size=DIGEST_SIZE).digest()


def make_alias(previous: bytes, message: Message, *, cut: bool = False) -> bytes | None:
    """A second digest by which `message` is found again where a client resends it otherwise than it is stored.

    Args:
        previous: the chain before it.
        message: as the client was sent it.
        cut: whether it was interrupted.

    Returns:
        Of a reply `said`, of an interrupted one `digest_cut_reply`, of tool calls `asked`, of another message with media `digest_without_media`;
        else None.
    """
    if message.tool_calls:
        return digest_calls(previous, message)
    if not message.visible:
        return None
    if message.role == "assistant":
        return digest_cut_reply(previous) if cut else digest_reply(message)
    return digest_without_media(previous, message) if message.media else None


def digest_reply(message: Message) -> bytes | None:
    """The digest of what a reply says, whatever came before it: for clients that leave out older messages. None: nothing."""
    return _digest(encode_canonical(message), b"said") if message.text.strip() or _has_visible_media(message) else None


def _has_visible_media(message: Message) -> bool:
    """Whether a reply has anything to be seen but words."""
    return any(part.type not in UNSPOKEN_PARTS for part in message.media)


def digest_cut_reply(previous: bytes) -> bytes:
    """The digest of any reply behind `previous` that was interrupted: how much of it the client saw, nobody knows."""
    return _digest(previous, b"cut")


def digest_calls(previous: bytes, message: Message) -> bytes:
    """The digest of tool calls behind `previous`, whatever their ids: for clients that run their tools before any reply."""
    return _digest(previous + encode_calls(message), b"asked")


def encode_calls(message: Message) -> bytes:
    """What the tool calls of `message` ask for, in order: clients give them ids of their own, and drop the text beside them."""
    calls = tuple(msgspec.structs.replace(call, id="") for call in message.tool_calls)
    return encode_canonical(Message(role="assistant", tool_calls=calls))


def digest_without_media(previous: bytes, message: Message) -> bytes:
    """The chain behind `previous` as if `message` had no media: for clients that resend the text alone."""
    return _digest(previous + encode_canonical(remove_media(message)), b"unseen")


def _digest(data: bytes, kind: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_SIZE, person=kind).digest()


def remove_media(message: Message) -> Message:
    """`message` without its media."""
    return message.evolve(content=message.text)


def list_former_chains(previous: bytes, message: Message) -> tuple[bytes, ...]:
    """The digests of a message that differ from today's, for logs of the time when they were the digest.

    Once its media counted as they were written; and longer than that a reply's unspoken parts counted, as media do.
    """
    written = any(_identify_media(part) for part in message.media) and not any(part.held for part in message.media)
    forms = [former for former, differs in ((False, has_unspoken_parts(message)), (True, written)) if differs]
    return tuple(_compute_former_chain(previous, message, former=former) for former in forms)


def chain_with_unspoken(previous: bytes, message: Message) -> bytes:
    """The chain as it was when a reply's unspoken parts counted: logs of that time are found by it."""
    return _compute_former_chain(previous, message) if has_unspoken_parts(message) else chain(previous, message)


def digest_reply_with_unspoken(message: Message) -> bytes | None:
    """`said` of that time; None where it is the same as today's."""
    if not has_unspoken_parts(message):
        return None
    return _digest(_encoder.encode(_list_compared(message, _split_segments(message.content))), b"said")


def has_unspoken_parts(message: Message) -> bool:
    """Whether `message` is a reply with parts that are none of its words."""
    return (
        message.role == "assistant"
        and isinstance(message.content, tuple)
        and any(part.type in UNSPOKEN_PARTS for part in message.content)
    )


def _compute_former_chain(previous: bytes, message: Message, *, former: bool = False) -> bytes:
    told = _list_compared(message, _split_segments(message.content, former=former))
    return hashlib.blake2b(previous + _encoder.encode(told), digest_size=DIGEST_SIZE).digest()


def _find_content(message: Message) -> Content:
    """What of the content counts."""
    if not has_unspoken_parts(message):
        return message.content
    assert isinstance(message.content, tuple), "it has parts"
    return tuple(part for part in message.content if part.type not in UNSPOKEN_PARTS)


def _split_segments(content: Content, *, former: bool = False) -> list[Any]:
    """Runs of text as strings, media as what they say, other parts as `{"media": hash}`, in order."""
    if isinstance(content, str):
        content = (Part("text", content),)
    segments: list[Any] = []
    for part in content if isinstance(content, tuple) else ():
        if part.text is None:
            segments.append((None if former else _identify_media(part)) or {"media": _hash_media(part)})
        elif segments and isinstance(segments[-1], str):
            segments[-1] += part.text
        else:
            segments.append(part.text)
    if segments and isinstance(segments[-1], str):
        segments[-1] = segments[-1].rstrip()
    return [segment for segment in segments if segment != ""]


def _identify_media(part: Part) -> dict[str, Any] | None:
    return build_identity(part.type, part.extra, part.held)


def _hash_media(part: Part) -> str:
    return hashlib.blake2b(_encoder.encode([part.type, part.extra]), digest_size=DIGEST_SIZE).hexdigest()


def _normalize_arguments(arguments: str) -> bytes | list[str]:
    """Arguments compared as JSON where they are JSON: clients reorder keys and change white space.

    What is no JSON stands in a list, so that it is never taken for the base64 that bytes become.
    """
    try:
        return _encoder.encode(msgspec.json.decode(arguments))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return [arguments]
