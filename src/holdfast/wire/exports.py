"""Sessions as Holdfast's own routes and files show them: in lists, exported whole, and imported again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.messages import Message
from holdfast.session import Entry, Session
from holdfast.wire.openai import entry_to, message_from, message_to, messages_from, split_system


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an export says, checked: a session's own fields, and its messages with the fields that are Holdfast's."""

    id: str | None
    user_id: str | None
    agent: str | None
    system_messages: tuple[Message, ...]
    state: dict[str, Any]
    metadata: dict[str, Any]
    ttl: int | None
    messages: tuple[Message, ...]
    fields: tuple[dict[str, Any], ...]
    """For each message, arguments of `NewEntry` beside the message itself."""


def session_to(session: Session) -> dict[str, Any]:
    """A session without its log. Times are milliseconds since the epoch."""
    return {
        "id": session.id,
        "object": "session",
        "user_id": session.user_id,
        "agent": session.agent,
        "status": session.status,
        "version": session.version,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "ttl": session.ttl,
        "turns": session.tail.turn_id + 1,
        "message_count": session.messages,
        "tokens": session.tokens,
        "bytes": session.bytes,
        "usage": msgspec.structs.asdict(session.usage),
        "system_messages": [message_to(message) for message in session.system_messages],
        "state": session.state,
        "metadata": session.metadata,
    }


def export_to(session: Session, entries: Sequence[Entry]) -> dict[str, Any]:
    """A session whole, as `PUT /v1/sessions/{id}` and `sessions import` take it."""
    return {**session_to(session), "messages": [entry_to(entry) for entry in entries], "images": [], "videos": []}


def import_from(data: Mapping[str, Any]) -> Imported:
    """The session in an export, a recording or a bare `{"messages": […]}`. Keys that nobody knows are passed over.

    Raises:
        InvalidRequest: `messages` is missing, or a field is not what it must be; says which.
    """
    if "messages" not in data:
        raise InvalidRequest("messages is missing: a session is imported with its messages", param="messages")
    raw = data["messages"]
    messages = messages_from(raw)
    # An export says beside the log what the system prompt is; a recording says it by its first messages.
    given = data.get("system_messages")
    leading, rest = split_system(messages) if given is None else ((), messages)
    fields = [own_fields(item, f"messages[{at}]") for at, item in enumerate(raw)]
    _check_turns(fields)
    return Imported(
        id=_optional(data, "id", str, "a string"),
        user_id=_optional(data, "user_id", str, "a string"),
        agent=_optional(data, "agent", str, "a string"),
        system_messages=leading if given is None else system_messages_from(given),
        state=_optional(data, "state", dict, "an object") or {},
        metadata=_optional(data, "metadata", dict, "an object") or {},
        ttl=milliseconds(data, "ttl"),
        messages=tuple(rest),
        fields=tuple(fields[len(leading) :]),
    )


def system_messages_from(value: Any) -> tuple[Message, ...]:
    """System messages as a list of messages, or of texts, or one text."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence):
        raise InvalidRequest("system_messages must be a list of messages or texts", param="system_messages")
    texts = [{"role": "system", "content": item} if isinstance(item, str) else item for item in value]
    messages = tuple(message_from(item, f"system_messages[{at}]") for at, item in enumerate(texts))
    for at, message in enumerate(messages):
        if message.role not in ("system", "developer"):
            place = f"system_messages[{at}].role"
            raise InvalidMessage(f"{place} is {message.role!r}; it must be system or developer", param=place)
    return messages


def own_fields(data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Holdfast's own fields of a message that may be given from outside, as arguments of `NewEntry`."""
    prefix = f"{where}." if where else ""
    found = {}
    for name, (fits, words) in _OWN.items():
        value = data.get(name)
        if value is None:
            continue
        if not fits(value):
            raise InvalidMessage(f"{prefix}{name} must be {words}, not {value!r}"[:300], param=prefix + name)
        found[name] = float(value) if name == "importance" else value
    return found


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


_OWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "timestamp": (_whole, "milliseconds since the epoch"),
    "turn_id": (_whole, "a whole number from 0"),
    "agent": (lambda value: isinstance(value, str), "a string"),
    "metadata": (lambda value: isinstance(value, dict), "an object"),
    "pinned": (lambda value: isinstance(value, bool), "true or false"),
    "importance": (
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1,
        "a number from 0 to 1",
    ),
}


def _check_turns(fields: Sequence[dict[str, Any]]) -> None:
    last = 0
    for at, own in enumerate(fields):
        turn_id = own.get("turn_id", last)
        if turn_id < last:
            place = f"messages[{at}].turn_id"
            raise InvalidMessage(f"{place} is {turn_id}, after a message of turn {last}", param=place)
        last = turn_id


def milliseconds(data: Mapping[str, Any], name: str) -> int | None:
    """A span of milliseconds in a body, or None."""
    value = data.get(name)
    if value is None:
        return None
    if not _whole(value) or value == 0:
        raise InvalidRequest(f"{name} must be a number of milliseconds above 0, or null", param=name)
    return int(value)


def _optional(data: Mapping[str, Any], name: str, kind: type, words: str) -> Any:
    value = data.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(f"{name} must be {words}", param=name)
    return value
