"""Messages in the forms that users of the library may give: texts, dicts, the SDK's objects, or `Message`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.domain.messages import NOTE, Message
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.exports import check_turns, parse_own_fields
from holdfast.wire.openai import parse_log_message, to_chat_message
from holdfast.wire.voice import find_records

Sendable = str | Mapping[str, Any] | Message | Any
"""One message: a user's text, a dict, a message of the SDK, or a `Message`. For several messages, it may also be
`{"contents": […]}` of voice records."""


class ParsedMessages(NamedTuple):
    """Messages that were already converted and validated."""

    messages: list[Message]
    own: list[dict[str, Any]]
    """Holdfast's own fields of each message. Only dicts can have such fields."""


def parse_sendable(given: Sendable | Sequence[Sendable] | ParsedMessages) -> ParsedMessages:
    """Convert messages in any accepted form to `Message`, with Holdfast's own fields, such as `pinned`.

    The messages are validated like messages of a request.
    """
    if isinstance(given, ParsedMessages):
        return given
    where = "messages"
    if isinstance(given, Mapping) and "role" not in given and "contents" in given:
        given, where = find_records(given)
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            raise InvalidMessage("contents must be a list of messages", param="contents")
    is_single = isinstance(given, str | Message | Mapping) or hasattr(given, "model_dump")
    if not is_single and not isinstance(given, Sequence):
        raise InvalidRequest(
            f"a message must be text, a dict or a Message, not {type(given).__name__}", param="messages"
        )
    items: Any = [given] if is_single else given
    places = [f"{where}[{at}]" for at in range(len(items))]
    messages = [
        to_message(item, "message" if is_single else place, text_role="user")
        for item, place in zip(items, places, strict=True)
    ]
    own = [
        parse_own_fields(item, place) if isinstance(item, Mapping) else {}
        for item, place in zip(items, places, strict=True)
    ]
    check_turns(own, where)
    return ParsedMessages(messages, own)


def to_message(given: Sendable, where: str, *, text_role: str) -> Message:
    """Convert one given message to `Message`. A text becomes a message with the role `text_role`.

    Raises:
        InvalidMessage: The message is invalid.
    """
    if isinstance(given, str):
        return parse_log_message({"role": text_role, "content": given}, where)
    if isinstance(given, Message):
        try:
            return parse_log_message({**to_chat_message(given), "origin": given.origin}, where)
        except (AttributeError, TypeError) as exc:
            raise InvalidMessage(f"{where} is a Message with fields of wrong types: {exc}", param=where) from exc
    return parse_log_message(given, where)


def make_note(payload: Any, where: str = "note") -> Message:
    """Return a note with this payload, a JSON value.

    Raises:
        InvalidMessage: The payload is not JSON.
    """
    return parse_log_message({"role": NOTE, "origin": payload}, where)


def refuse_notes(messages: Sequence[Message]) -> None:
    """Reject notes where only messages are allowed.

    Raises:
        InvalidMessage: One of the messages is a note.
    """
    for at, message in enumerate(messages):
        if message.role == NOTE:
            param = f"messages[{at}].role"
            raise InvalidMessage(f"{param} is {NOTE!r}: write notes with session.append() or turn.add()", param=param)


def check_text(value: Any, name: str, *, none: bool = False) -> None:
    """Reject a parameter that is not valid Unicode text.

    Raises:
        InvalidRequest: The value is not a string, or contains a lone surrogate.
    """
    if none and value is None:
        return
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {type(value).__name__}", param=name)
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"{name} contains a lone surrogate, which is not a Unicode character", param=name) from exc


def check_flag(value: Any, name: str) -> None:
    """Reject a parameter that is neither True nor False.

    Raises:
        InvalidRequest: The value is not a boolean.
    """
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {value!r:.80}", param=name)
