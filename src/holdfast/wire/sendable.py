"""What a user of the library may give as messages: texts, dicts, the SDK's own, or `Message`s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.domain.messages import Message
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.exports import check_turns, own_fields
from holdfast.wire.openai import message_from, message_to
from holdfast.wire.voice import find_records

Sendable = str | Mapping[str, Any] | Message | Any
"""A user's text, a message as a dict, one of the SDK's own, or a `Message`; in place of several, `{"contents": […]}` of voice records."""


def messages_of(given: Sendable | Sequence[Sendable]) -> list[Message]:
    """What was given as messages, each checked as if it came over the wire."""
    if type(given) is str:
        return [message_of(given, "message", text_role="user")]
    given, where = _unwrap(given)
    one = _is_one(given)
    if not one and not isinstance(given, Sequence):
        raise InvalidRequest(f"a message is text, a dict or a Message, not {type(given).__name__}", param="messages")
    if one:
        return [message_of(given, "message", text_role="user")]
    items: Sequence[Any] = given
    return [message_of(item, f"{where}[{at}]", text_role="user") for at, item in enumerate(items)]


def own_of(given: Sendable | Sequence[Sendable]) -> list[dict[str, Any]]:
    """Holdfast's own fields of each message, where it is a dict."""
    if type(given) is str:
        return [{}]
    given, where = _unwrap(given)
    items: Sequence[Any] = [given] if _is_one(given) else given
    own = [own_fields(item, f"{where}[{at}]") if isinstance(item, Mapping) else {} for at, item in enumerate(items)]
    check_turns(own, where)
    return own


def _unwrap(given: Any) -> tuple[Any, str]:
    """Return the records in `{"contents": […]}`, anything else unchanged, and the name of the list for errors."""
    if not isinstance(given, Mapping) or "role" in given or "contents" not in given:
        return given, "messages"
    records, where = find_records(given)
    if not isinstance(records, Sequence) or isinstance(records, str | bytes):
        raise InvalidMessage("contents must be a list of messages", param="contents")
    return records, where


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
    """Refuse a parameter that is no Unicode text, by its name. Raises `InvalidRequest`."""
    if none and value is None:
        return
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {type(value).__name__}", param=name)
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"{name} has a lone surrogate, which is no Unicode character", param=name) from exc


def check_flag(value: Any, name: str) -> None:
    """Refuse a parameter that is neither True nor False, by its name. Raises `InvalidRequest`."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {value!r:.80}", param=name)
