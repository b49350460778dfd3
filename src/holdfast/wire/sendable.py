"""What a user of the library may give as messages: texts, dicts, the SDK's own, or `Message`s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.domain.messages import Message
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.exports import own_fields
from holdfast.wire.openai import message_from, message_to

Sendable = str | Mapping[str, Any] | Message | Any
"""A user's text, a message as a dict, one of the SDK's own, or a `Message`."""


def messages_of(given: Sendable | Sequence[Sendable]) -> list[Message]:
    """What was given as messages, each checked as if it came over the wire."""
    one = _is_one(given)
    if not one and not isinstance(given, Sequence):
        raise InvalidRequest(f"a message is text, a dict or a Message, not {type(given).__name__}", param="messages")
    if one:
        return [message_of(given, "message", text_role="user")]
    items: Sequence[Any] = given  # type: ignore[assignment]  # `Any` among the kinds of one message hides what is left
    return [message_of(item, f"messages[{at}]", text_role="user") for at, item in enumerate(items)]


def own_of(given: Sendable | Sequence[Sendable]) -> list[dict[str, Any]]:
    """Holdfast's own fields of each message, where it is a dict."""
    items: Sequence[Any] = [given] if _is_one(given) else given  # type: ignore[assignment]  # see messages_of
    return [own_fields(item, f"messages[{at}]") if isinstance(item, Mapping) else {} for at, item in enumerate(items)]


def _is_one(given: Any) -> bool:
    return isinstance(given, str | Message | Mapping) or hasattr(given, "model_dump")


def message_of(given: Sendable, where: str, *, text_role: str) -> Message:
    """One of them; a text is of that role. Raises `InvalidMessage`."""
    if isinstance(given, str):
        return message_from({"role": text_role, "content": given}, where)
    if isinstance(given, Message):
        try:
            return message_from(message_to(given), where)
        except (AttributeError, TypeError) as exc:
            raise InvalidMessage(f"{where} is a Message whose fields are not of its types: {exc}", param=where) from exc
    return message_from(given, where)


def check_text(value: Any, name: str, *, none: bool = False) -> None:
    """Refuse a parameter that is no text, by its name. Raises `InvalidRequest`."""
    if not isinstance(value, str) and not (none and value is None):
        raise InvalidRequest(f"{name} must be a string, not {type(value).__name__}", param=name)
