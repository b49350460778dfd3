"""Validate the session fields that callers may set, in the library and in the REST API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from holdfast.domain.messages import Message
from holdfast.domain.state import Change, check_delta, get_scope
from holdfast.errors import InvalidRequest
from holdfast.wire.exports import parse_milliseconds, parse_system_messages
from holdfast.wire.openai import to_chat_message
from holdfast.wire.sendable import check_text, to_message


def check_session_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check session fields, and return them converted to the types that a store accepts.

    Args:
        given: some of `agent`, `system_messages`, `state`, `metadata` and `ttl`. Fields with the value UNSET are left out.

    Raises:
        InvalidRequest: a value has the wrong type or range; `param` names the field.
        InvalidMessage: one of the system messages is not a system message.
    """
    fields = {name: value for name, value in given.items() if value is not UNSET}
    if "agent" in fields:
        check_text(fields["agent"], "agent", none=True)
    if "ttl" in fields:
        fields["ttl"] = parse_milliseconds(fields, "ttl")
    if "system_messages" in fields:
        fields["system_messages"] = to_system_messages(fields["system_messages"])
    for name in ("state", "metadata"):
        if name in fields:
            fields[name] = _to_object(fields[name], name)
    return fields


def to_system_messages(value: Any) -> tuple[Message, ...]:
    """Convert one text, or a list of texts, dicts or `Message`s, to system messages. Raises `InvalidMessage` if that is impossible."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [to_message(item, f"system_messages[{at}]", text_role="system") for at, item in enumerate(value)]
        value = [to_chat_message(item) for item in items]
    return parse_system_messages(value)


def to_state_delta(state: Mapping[str, Any] | None) -> dict[str, Change]:
    """Convert values of the state to changes for the store. `temp:` keys, which exist only during a turn, are left out."""
    delta = check_session_fields({"state": state})["state"]
    check_delta(delta)
    return {key: change for key, change in delta.items() if get_scope(key) != "temp"}


def _to_object(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be an object, not {type(value).__name__}", param=name)
    return dict(value)
