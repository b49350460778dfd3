"""OpenAI's Chat Completions: conversion of messages and media in both directions, and entries in Holdfast's own routes.

The conversion is lossless. Fields that Holdfast does not know are kept in `extra`, and sent in the same position again.
Holdfast's own fields are accepted in requests and never sent upstream. Media are never downloaded. Content that Chat
Completions cannot express without loss is left unchanged.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.media.parts import get_frames, mark_origin, mark_part
from holdfast.domain.medium import DATA_FIELDS, Medium, find_medium
from holdfast.domain.messages import CHAT_PARTS, NOTE, ROLES, SYSTEM_ROLES, TEXT_PARTS, Content, Message, Part, ToolCall
from holdfast.domain.session import Entry
from holdfast.errors import InvalidMessage

Media = Medium
ORIGIN: Final = "origin"
"""Name of the field with a message's origin."""
CLIENT_ORIGIN: Final = "client_origin"
"""Name, in Holdfast's own routes and exports, of a field `origin` that a chat client sent in a message."""
FRAMES: Final = "[video{about}: Chat Completions take no such video]"
"""Text in place of a video that has neither a link nor complete data."""
_AUDIO_FORMATS: Final = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mp3": "mp3",
    "audio/mpeg": "mp3",
}
"""Name of the format in Chat Completions for each media type of audio that Chat Completions accept."""
LEFT_OUT: Final = "[a part of type {type} is left out here: this model does not take it]"
_KEPT: Final = ("cache_control",)
"""Fields of parts from other APIs. Gateways to models of these APIs also read the fields in Chat Completions."""


def read_medium(part: Part) -> Media | None:
    """Return the medium in a part; None if the part contains no medium that can be read."""
    return None if part.text is not None else find_medium(part.type, part.extra, part.held)


def convert_parts(message: Message) -> Message:
    """Convert the parts of other APIs to Chat Completions parts, if equivalent parts exist.

    This applies to Anthropic's images and documents, and to the parts of OpenAI's Responses API. A message without such
    parts is returned as the same object.
    """
    if not isinstance(message.content, tuple) or all(part.type in CHAT_PARTS for part in message.content):
        return message
    return message.evolve(content=tuple(made for part in message.content for made in _convert_part(part)))


def _convert_part(part: Part) -> Iterator[Part]:
    source = part.extra.get("source")
    found = read_medium(part)
    if part.type in CHAT_PARTS:
        yield part
    elif part.text is not None:
        yield msgspec.structs.replace(part, type="text") if part.type in TEXT_PARTS else part
    elif part.type == "document" and isinstance(source, Mapping) and source.get("type") == "content":
        content = source.get("content")
        if head := _join_lines(part.extra.get("title"), part.extra.get("context")):
            yield Part("text", head)
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content or ():
            yield from _convert_part(_parse_part(block, "document"))
    elif found is not None and (made := _make_part(found, part.extra)) is not None:
        kind, fields = made
        context = part.extra.get("context") if kind == "file" else None
        yield from (Part("text", context),) if isinstance(context, str) and context else ()
        text = None if fields is not None else _join_lines(found.name, part.extra.get("context"), "", found.words)
        yield Part(kind, text, {**(fields or {}), **{name: part.extra[name] for name in _KEPT if name in part.extra}})
    elif part.type == "video":
        frames = get_frames(part)
        yield Part("text", FRAMES.format(about=f": {len(frames)} frames" if frames else ""))
    else:
        yield part


def _join_lines(*lines: Any) -> str:
    return "\n".join(line for line in lines if isinstance(line, str)).strip("\n")


def _make_part(found: Media, extra: dict[str, Any]) -> tuple[str, dict[str, Any] | None] | None:
    """Return the type and the fields of an equivalent part; None if no equivalent exists. For a text part, the fields are None."""
    match found.kind:
        case "image":
            url = found.url if found.url is not None else _make_data_url(found)
            detail = {"detail": extra["detail"]} if isinstance(extra.get("detail"), str) else {}
            return None if url is None else ("image_url", {"image_url": {"url": url, **detail}})
        case "file" if found.form == "plain":
            return "text", None
        case "file" if found.data is not None and (url := _make_data_url(found)) is not None:
            return "file", {"file": {"filename": found.name or "document.pdf", "file_data": url}}
        case "audio" if found.data is not None and found.mime in _AUDIO_FORMATS:
            return "input_audio", {"input_audio": {"data": found.data, "format": _AUDIO_FORMATS[found.mime]}}
        case "video" if (url := found.url or _make_data_url(found)) is not None:
            return "video_url", {"video_url": {"url": url}}
    return None


def describe_left_out(kind: str, fields: Mapping[str, Any]) -> str:
    """Return the words in place of a part that a model does not take: its type, and all its fields except data."""
    rest = _drop_data({name: value for name, value in fields.items() if name not in ("type", *_KEPT)})
    words = f"\n{msgspec.json.encode(rest).decode()}" if rest else ""
    return LEFT_OUT.format(type=kind) + words


def _drop_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {name: _drop_data(one) for name, one in value.items() if name not in DATA_FIELDS}
        return {name: one for name, one in kept.items() if one not in (None, "", {}, [])}
    if isinstance(value, list):
        return [_drop_data(one) for one in value]
    return None if isinstance(value, str) and value[:5].lower() == "data:" else value


def _make_data_url(found: Media) -> str | None:
    if found.data is None:
        return None
    if found.form == "base64" and found.start:
        return found.whole
    return f"data:{found.mime};base64,{found.data}" if found.mime else None


OWN_FIELDS = frozenset(
    {
        "seq",
        "turn_id",
        "unit",
        "timestamp",
        "tokens",
        "agent",
        "metadata",
        "importance",
        "pinned",
        "retired_by",
        "digest",
        "erased",
    }
)
"""Fields of an entry that Holdfast sets or reads itself. They are never kept in a message's `extra`."""
_PLAIN = frozenset({"role", "content"})
"""Fields of a message without special features. Nearly all messages have only these."""
_PLAIN_ROLES = frozenset(ROLES) - {"tool"}
_NAMED = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"}) | OWN_FIELDS


def parse_message(data: Any, where: str = "message") -> Message:
    """Parse a message from a decoded JSON object, or from a message of the SDK (an object with `model_dump`).

    Args:
        data: The object.
        where: Position of the object, for errors.

    Raises:
        InvalidMessage: The object is not a valid message. The error names the field and what is allowed.
    """
    if type(data) is dict and data.keys() == _PLAIN:
        role, content = data["role"], data["content"]
        if type(content) is str and type(role) is str and role in _PLAIN_ROLES:
            return Message(role=role, content=_repair_text(content))
    fields = _convert_function(_to_mapping(data, where), where)
    role = fields.get("role")
    if role not in ROLES:
        raise InvalidMessage(f"{where}.role is {role!r}; it must be one of {', '.join(ROLES)}", param=f"{where}.role")
    message = Message(
        role=role,
        content=_parse_content(fields.get("content", UNSET), f"{where}.content"),
        tool_calls=_parse_tool_calls(fields.get("tool_calls"), f"{where}.tool_calls"),
        tool_call_id=_check_optional_text(fields.get("tool_call_id"), f"{where}.tool_call_id"),
        name=_check_optional_text(fields.get("name"), f"{where}.name"),
        extra={key: value for key, value in fields.items() if key not in _NAMED},
    )
    _check_message(message, where)
    return message


def parse_log_message(data: Any, where: str = "message") -> Message:
    """Parse a message that the owner of a log writes. Such a message may have an `origin`, and it may be a note.

    Chat requests are parsed with `parse_message`, so they can contain neither origins nor notes.

    Raises:
        InvalidMessage: The object is not a valid message or note. The error names the field and what is allowed.
    """
    if type(data) is dict and "origin" not in data and data.get("role") != NOTE:
        return parse_message(data, where)
    fields = _to_mapping(data, where)
    origin = fields.pop("origin", None)
    if fields.get("role") != NOTE:
        message = parse_message(fields, where)
        return message if origin is None else message.evolve(origin=origin)
    content = fields.get("content", UNSET)
    if content is not UNSET and not isinstance(content, str | None):
        raise InvalidMessage(f"{where}.content of a note must be a string, or left out", param=f"{where}.content")
    for name in fields:
        if name not in _OF_A_NOTE:
            place, allowed = f"{where}.{name}", "its payload in origin, content, metadata, agent and timestamp"
            raise InvalidMessage(f"{place}: a note has only {allowed}", param=place)
    text = _repair_text(content) if isinstance(content, str) else UNSET
    return Message(role=NOTE, content=text, origin=origin)


def parse_origin(value: Any, where: str = "origin") -> Any:
    """Return a copy of an origin as plain JSON values.

    Raises:
        InvalidMessage: The value cannot be written as JSON.
    """
    try:
        return _to_json_value(value, where)
    except RecursionError as exc:
        raise InvalidMessage(f"{where} is nested too deeply", param=where) from exc


_OF_A_NOTE = frozenset({"role", "content"}) | OWN_FIELDS - {"pinned", "importance"}


def parse_log_messages(data: Any, where: str = "messages") -> list[Message]:
    """Parse a list of messages and notes from the owner of a log; see `parse_log_message`.

    Raises:
        InvalidMessage: The data is not a list, or a message is invalid. The error names the first invalid one.
    """
    return _parse_list(data, where, parse_log_message)


def parse_messages(data: Any, where: str = "messages") -> list[Message]:
    """Parse a list of messages.

    Raises:
        InvalidMessage: The data is not a list, or a message is invalid. The error names the first invalid one.
    """
    return _parse_list(data, where, parse_message)


def _parse_list(data: Any, where: str, parse: Callable[[Any, str], Message]) -> list[Message]:
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        raise InvalidMessage(f"{where} must be a list of messages", param=where)
    return [parse(item, f"{where}[{at}]") for at, item in enumerate(data)]


def split_system(messages: Sequence[Message]) -> tuple[tuple[Message, ...], list[Message]]:
    """Split messages into the leading system messages, which are stored outside the log, and all others."""
    at = 0
    while at < len(messages) and messages[at].role in SYSTEM_ROLES:
        at += 1
    return tuple(messages[:at]), list(messages[at:])


def to_chat_message(message: Message) -> dict[str, Any]:
    """Return a message in Chat Completions format: role and content first, unknown fields last.

    Media data that are stored separately are replaced by a description. A caller that needs the data must restore them first
    (`holdfast.media.outgoing`).
    """
    content, calls, result_of = message.content, message.tool_calls, message.tool_call_id
    data: dict[str, Any] = {"role": message.role}
    if not isinstance(content, UnsetType):
        data["content"] = _format_content(content)
    if message.name is not None:
        data["name"] = message.name
    if calls:
        data["tool_calls"] = [_format_tool_call(call) for call in calls]
    if result_of is not None:
        data["tool_call_id"] = result_of
    return {**data, **message.extra} if message.extra else data


def to_chat_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages in Chat Completions format, like `to_chat_message`."""
    return [
        {"role": message.role, "content": message.content}
        if type(message.content) is str
        and not (message.extra or message.tool_calls or message.name is not None or message.tool_call_id is not None)
        else to_chat_message(message)
        for message in messages  # nearly all of a long prompt are plain
    ]


def to_entry_json(entry: Entry) -> dict[str, Any]:
    """Return an entry with all its fields, as in Holdfast's own routes and exports."""
    message = entry.message
    data = {"seq": entry.seq, "turn_id": entry.turn_id, **to_chat_message(message), "timestamp": entry.timestamp}
    if ORIGIN in message.extra:  # a chat client's own field, which a reader of the log must not take for an origin
        data[CLIENT_ORIGIN] = data.pop(ORIGIN)
    if message.origin is not None:
        data[ORIGIN] = mark_origin(message) if message.origin_held else message.origin
    if entry.agent is not None:
        data["agent"] = entry.agent
    if entry.metadata:
        data["metadata"] = entry.metadata
    data["tokens"] = entry.tokens
    if entry.importance is not None:
        data["importance"] = entry.importance
    if entry.pinned:
        data["pinned"] = True
    if entry.replaced_by is not None:
        data["retired_by"] = entry.replaced_by
    if entry.erased:
        data["erased"] = True
    return data


# -- in ----------------------------------------------------------------------


def make_function_id(name: str) -> str:
    """Return the id of a call in OpenAI's deprecated `function_call`, which has none.

    A message has at most one such call, and results name the function. So the name is enough, and it is known when a
    stream begins, and the same when a client resends part of the history.
    """
    return f"call_{hashlib.blake2b(name.encode(errors='replace'), digest_size=12).hexdigest()}"


def _convert_function(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Convert a message with a deprecated `function_call`, or with the role `function`, to a tool call or a result."""
    call = fields.get("function_call")
    if isinstance(call, dict) and isinstance(call.get("name"), str) and not fields.get("tool_calls"):
        del fields["function_call"]
        fields["tool_calls"] = [{"id": make_function_id(call["name"]), "type": "function", "function": call}]
    elif fields.get("role") == "function":
        name = fields.pop("name", None)
        if not isinstance(name, str) or not name:
            reason = "is missing: a message with the role function must name the function that was called"
            raise InvalidMessage(f"{where}.name {reason}", param=f"{where}.name")
        fields |= {"role": "tool", "tool_call_id": make_function_id(name)}
    return fields


def _to_mapping(data: Any, where: str) -> dict[str, Any]:
    data = dump_model(data)
    if not isinstance(data, Mapping):
        raise InvalidMessage(
            f"{where} must be an object with role and content, not {_describe_type(data)}", param=where
        )
    try:
        return {_check_field_name(key, where): _to_json_value(value, f"{where}.{key}") for key, value in data.items()}
    except RecursionError as exc:
        raise InvalidMessage(f"{where} is nested too deeply", param=where) from exc


def dump_model(data: Any) -> Any:
    """Convert an object of the SDK to JSON values. Return anything else unchanged."""
    return data.model_dump(mode="json", exclude_unset=True) if hasattr(data, "model_dump") else data


def _check_field_name(key: Any, where: str) -> str:
    if isinstance(key, str):
        return _repair_text(key)
    raise InvalidMessage(f"{where} has a field named {key!r}: field names must be strings", param=where)


def _to_json_value(data: Any, where: str) -> Any:
    """Return a copy of `data` as plain JSON values.

    Values that cannot be written as JSON are rejected here, before anything is stored.
    """
    if type(data) is str and data.isascii():
        return data  # fast path: nearly all of a long prompt
    data = dump_model(data)
    if isinstance(data, str):
        return _repair_text(data)
    if data is None or isinstance(data, bool | int):
        return data
    if isinstance(data, float) and math.isfinite(data):
        return data
    if isinstance(data, Mapping):
        return {_check_field_name(key, where): _to_json_value(value, f"{where}.{key}") for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_to_json_value(item, f"{where}[{at}]") for at, item in enumerate(data)]
    raise InvalidMessage(f"{where} cannot be written as JSON: {data!r:.80}", param=where)


def _repair_text(text: str) -> str:
    """Return a text with U+FFFD in place of each half of a surrogate pair, which no database and no provider accepts."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _parse_content(value: Any, where: str) -> Content:
    if value is None or isinstance(value, str | UnsetType):
        return value
    if isinstance(value, list):
        return tuple(_parse_part(item, f"{where}[{at}]") for at, item in enumerate(value))
    raise InvalidMessage(f"{where} must be a string, a list of parts or null, not {_describe_type(value)}", param=where)


def _parse_part(value: Any, where: str) -> Part:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise InvalidMessage(f"{where} must be an object with a type, for example text", param=where)
    kind = value["type"]
    text = value.get("refusal" if kind == "refusal" else "text") if kind in TEXT_PARTS else None
    if kind in TEXT_PARTS and not isinstance(text, str):
        raise InvalidMessage(f"{where} is a {kind} part without its text", param=where)
    known = {"type", "refusal" if kind == "refusal" else "text"} if text is not None else {"type"}
    return Part(kind, text, {key: item for key, item in value.items() if key not in known})


def _parse_tool_calls(value: Any, where: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidMessage(f"{where} must be a list of tool calls, not {_describe_type(value)}", param=where)
    return tuple(_parse_tool_call(item, f"{where}[{at}]") for at, item in enumerate(value))


_CUSTOM = ("custom", "custom", "input")
_FUNCTION = ("function", "function", "arguments")


def _parse_tool_call(value: Any, where: str) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise InvalidMessage(f"{where} must be an object with an id and a function", param=where)
    if not isinstance(value.get("type"), str | None):
        raise InvalidMessage(
            f"{where}.type must be a string, not {_describe_type(value['type'])}", param=f"{where}.type"
        )
    kind, key, arguments_key = _CUSTOM if value.get("type") == "custom" else _FUNCTION
    function = value.get(key)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidMessage(f"{where}.{key} must be an object with a name and {arguments_key}", param=f"{where}.{key}")
    return ToolCall(
        id=value["id"],
        name=function["name"],
        arguments=format_arguments(function.get(arguments_key)),
        type=kind if value.get("type") in (None, "", kind) else value["type"],  # the default is not stored
        extra={name: item for name, item in value.items() if name not in {"id", "type", key}},
        function_extra={name: item for name, item in function.items() if name not in {"name", arguments_key}},
    )


def format_arguments(value: Any) -> str:
    """Return the arguments of a call as text. Some clients send them as an object, but providers require text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _check_optional_text(value: Any, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidMessage(f"{where} must be a string, not {_describe_type(value)}", param=where)


def _check_message(message: Message, where: str) -> None:
    """Reject a message that no provider accepts in any context."""
    if message.tool_calls and message.role != "assistant":
        raise InvalidMessage(
            f"{where}.tool_calls: only assistant messages may have tool calls", param=f"{where}.tool_calls"
        )
    if message.role == "tool" and not message.tool_call_id:
        raise InvalidMessage(
            f"{where}.tool_call_id is missing: a tool message must name the call that it answers",
            param=f"{where}.tool_call_id",
        )
    if isinstance(message.content, UnsetType) and message.role != "assistant":
        raise InvalidMessage(f"{where}.content is missing", param=f"{where}.content")


def _describe_type(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, Mapping) else type(value).__name__)


# -- out ---------------------------------------------------------------------


def _format_content(content: str | tuple[Part, ...] | None) -> str | list[dict[str, Any]] | None:
    if not isinstance(content, tuple):
        return content
    return [_format_part(part) for part in content]


def _format_part(part: Part) -> dict[str, Any]:
    data: dict[str, Any] = {"type": part.type}
    if part.text is not None:
        data["refusal" if part.type == "refusal" else "text"] = part.text
    return {**data, **(mark_part(part) if part.held else part.extra)}


def _format_tool_call(call: ToolCall) -> dict[str, Any]:
    _, key, arguments_key = _CUSTOM if call.type == "custom" else _FUNCTION
    function = {"name": call.name, arguments_key: call.arguments, **call.function_extra}
    return {"id": call.id, "type": call.type, key: function, **call.extra}
