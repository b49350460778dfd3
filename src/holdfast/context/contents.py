"""Contents of messages: which messages have any, and how one without is sent so that a provider takes it.

A log keeps every message as it came. Replies without content (null, empty, white space, only a refusal or only reasoning) and
system messages without content are left out of prompts. A user message or a tool result cannot be left out, so it says that
it is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UnsetType

from holdfast.domain.media.parts import picture_in
from holdfast.domain.messages import REASONING_PARTS, SYSTEM_ROLES, Message, Part

EMPTY: Final = "[empty message]"
"""What a user message without a word says where providers refuse empty ones."""
CONTENT_BLOCKS: Final = "content_blocks"
"""Field of a reply of Anthropic's with its blocks as they came; see `holdfast.wire.anthropic`."""


def has_content(message: Message) -> bool:
    """Return False for a reply or a system message that providers refuse because nothing is in it."""
    content = message.content
    if isinstance(content, str) and content and not content.isspace():
        return True
    if message.role not in SYSTEM_ROLES and message.role != "assistant":
        return True
    if isinstance(content, tuple) and any(_says(part) for part in content):
        return True
    return message.role == "assistant" and (bool(message.tool_calls) or _says_elsewhere(message.extra))


def is_guessed(part: Part) -> bool:
    """Return True if what a part costs is not known to the token: media other than pictures, and pictures of unknown size."""
    picture = picture_in(part)
    return picture.size is None and picture.detail != "low"


def is_sendable(message: Message) -> bool:
    """Return True if the content can be sent unchanged; of a message that `has_content`."""
    content = message.content
    if isinstance(content, str):
        return True
    if isinstance(content, tuple):
        return bool(content) and all(part.text != "" for part in content) and any(map(_says, content))
    return message.role == "assistant"


def with_content(message: Message) -> Message:
    """Return `message` with a content that providers take; the same object if it has one."""
    if is_sendable(message):
        return message
    parts = tuple(part for part in message.content if part.text != "") if isinstance(message.content, tuple) else ()
    if any(map(_says, parts)):
        return message.evolve(content=parts)
    if message.role == "assistant":
        return message.evolve(content=parts or None)
    return message.evolve(content="" if message.role == "tool" else EMPTY)


def _says(part: Part) -> bool:
    """Return True for a text with a word in it, and for anything else that is no reasoning."""
    return part.type not in REASONING_PARTS if part.text is None else bool(part.text.strip())


def _says_elsewhere(extra: Mapping[str, Any]) -> bool:
    """Return True if a reply's content is in another field: a call of the old form, a recording, blocks of server tools."""
    if not extra:
        return False
    audio, blocks = extra.get("audio"), extra.get(CONTENT_BLOCKS)
    spoken = isinstance(audio, Mapping) and (audio.get("id") or audio.get("transcript"))
    served = isinstance(blocks, list) and any(
        isinstance(block, Mapping) and block.get("type") not in (*REASONING_PARTS, "text") for block in blocks
    )
    return bool(spoken or served or isinstance(extra.get("function_call"), Mapping))


def is_blank(content: str | tuple[Part, ...] | UnsetType | None) -> bool:
    """Return True if there is neither a word nor a medium in `content`."""
    if isinstance(content, tuple):
        return not any(part.text is None or part.text.strip() for part in content)
    return not (isinstance(content, str) and content.strip())
