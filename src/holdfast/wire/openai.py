"""OpenAI's Chat Completions messages, media parts of every dialect in that form, and entries as Holdfast's own routes show them.

Lossless: fields that Holdfast does not know are kept in `extra` and sent in the same place again. Holdfast's own fields are
recognised on input and never sent upstream. Media are never fetched; what Chat Completions cannot express without a loss is left unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.media.parts import frames_of, mark_part
from holdfast.domain.medium import Medium, medium
from holdfast.domain.messages import ROLES, SYSTEM_ROLES, TEXT_PARTS, Content, Message, Part, ToolCall
from holdfast.domain.session import Entry
from holdfast.errors import InvalidMessage

Media = Medium
SHOWN_BEHIND: Final = "[media: shown behind the results]"
"""In a tool's result, where Chat Completions take no media."""
FROM_RESULT: Final = "[media in the result of {id}]"
"""Before these, where they stand instead."""
FRAMES: Final = "[video{about}: Chat Completions take no such video]"
"""In place of a video that has no link and no data as a whole."""
_AUDIO_FORMATS: Final = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mp3": "mp3",
    "audio/mpeg": "mp3",
}
"""What Chat Completions take."""
_NATIVE: Final = frozenset({"text", "refusal", "image_url", "input_audio", "file", "video_url"})
"""Types that are theirs already."""
_KEPT: Final = ("cache_control",)
"""Fields of other dialects' parts that gateways to their models read in Chat Completions too."""


def media_of(part: Part) -> Media | None:
    """The medium in `part`; None where it has none that can be read."""
    return None if part.text is not None else medium(part.type, part.extra, part.held)


def chat(message: Message) -> Message:
    """`message` with the parts of other dialects as Chat Completions have them, where they can say the same.

    Anthropic's images and documents, and the parts of OpenAI's Responses. The same object where there are none.
    """
    if not isinstance(message.content, tuple) or all(part.type in _NATIVE for part in message.content):
        return message
    return message.evolve(content=tuple(_chat_part(part) for part in message.content))


def behind_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with what Chat Completions do not take in a tool's result behind it: they take text alone there.

    Other parts stand in a message of the user's role, behind all results of the round, and the result says so.
    """
    told: list[Message] = []
    moved: list[Part] = []
    for message in messages:
        if message.role != "tool":
            told += [Message(role="user", content=tuple(moved))] if moved else []
            moved = []
        elif parts := [part for part in message.media if part.type in _NATIVE]:
            content = message.content if isinstance(message.content, tuple) else ()
            texts = [part for part in content if part not in parts]
            moved += [Part("text", FROM_RESULT.format(id=message.tool_call_id)), *parts]
            message = message.evolve(content=(*texts, Part("text", SHOWN_BEHIND)))  # noqa: PLW2901 - as it is sent
        told.append(message)
    return (*told, Message(role="user", content=tuple(moved))) if moved else tuple(told)


def _chat_part(part: Part) -> Part:
    if part.type in _NATIVE:
        return part
    if part.text is not None:
        return msgspec.structs.replace(part, type="text") if part.type in TEXT_PARTS else part
    found = media_of(part)
    made = None if found is None else _made(found, part.extra)
    if made is None and part.type == "video":
        frames = frames_of(part)
        return Part("text", FRAMES.format(about=f": {len(frames)} frames" if frames else ""))
    if made is None:
        return part
    kind, fields = made
    return Part(kind, None if fields is not None else _words(found), {**(fields or {}), **_beside(part.extra)})


def _made(found: Media, extra: dict[str, Any]) -> tuple[str, dict[str, Any] | None] | None:
    """Type and fields of a part that says the same; fields None: it is a text. None when there is no such part."""
    match found.kind:
        case "image":
            url = found.url if found.url is not None else _data_url(found)
            detail = {"detail": extra["detail"]} if isinstance(extra.get("detail"), str) else {}
            return None if url is None else ("image_url", {"image_url": {"url": url, **detail}})
        case "file" if found.form == "plain":
            return "text", None
        case "file" if found.data is not None and (url := _data_url(found)) is not None:
            return "file", {"file": {"filename": found.name or "document.pdf", "file_data": url}}
        case "audio" if found.data is not None and found.mime in _AUDIO_FORMATS:
            return "input_audio", {"input_audio": {"data": found.data, "format": _AUDIO_FORMATS[found.mime]}}
        case "video" if (url := found.url or _data_url(found)) is not None:
            return "video_url", {"video_url": {"url": url}}
    return None


def _words(found: Media | None) -> str | None:
    if found is None or found.words is None:
        return None
    return f"{found.name}\n\n{found.words}" if found.name else found.words


def _data_url(found: Media) -> str | None:
    if found.data is None:
        return None
    if found.form == "base64" and found.start:
        return found.whole
    return f"data:{found.mime};base64,{found.data}" if found.mime else None


def _beside(extra: dict[str, Any]) -> dict[str, Any]:
    return {name: extra[name] for name in _KEPT if name in extra}


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
"""Fields of an entry that Holdfast gives or reads itself; never kept in a message's `extra`."""
_PLAIN = frozenset({"role", "content"})
"""The fields of nearly every message."""
_PLAIN_ROLES = frozenset(ROLES) - {"tool"}
_NAMED = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"}) | OWN_FIELDS


def message_from(data: Any, where: str = "message") -> Message:
    """The message in `data`, a decoded JSON object or an object with `model_dump` (the SDK's own messages).

    Args:
        data: what was sent.
        where: its place, for the error.

    Raises:
        InvalidMessage: it is no message; says the field and what would be right.
    """
    if type(data) is dict and data.keys() == _PLAIN:
        role, content = data["role"], data["content"]
        if type(content) is str and type(role) is str and role in _PLAIN_ROLES:
            return Message(role=role, content=_text(content, f"{where}.content"))
    fields = _mapping(data, where)
    role = fields.get("role")
    if role not in ROLES:
        raise InvalidMessage(f"{where}.role is {role!r}; it must be one of {', '.join(ROLES)}", param=f"{where}.role")
    message = Message(
        role=role,
        content=_content(fields.get("content", UNSET), f"{where}.content"),
        tool_calls=_tool_calls(fields.get("tool_calls"), f"{where}.tool_calls"),
        tool_call_id=_text_or_none(fields.get("tool_call_id"), f"{where}.tool_call_id"),
        name=_text_or_none(fields.get("name"), f"{where}.name"),
        extra={key: value for key, value in fields.items() if key not in _NAMED},
    )
    _check(message, where)
    return message


def messages_from(data: Any, where: str = "messages") -> list[Message]:
    """The messages in a list; `InvalidMessage` names the first that is none."""
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        raise InvalidMessage(f"{where} must be a list of messages", param=where)
    return [message_from(item, f"{where}[{at}]") for at, item in enumerate(data)]


def split_system(messages: Sequence[Message]) -> tuple[tuple[Message, ...], list[Message]]:
    """The leading system messages of a request, and the rest: a system prompt stands beside the log, not in it."""
    at = 0
    while at < len(messages) and messages[at].role in SYSTEM_ROLES:
        at += 1
    return tuple(messages[:at]), list(messages[at:])


def message_to(message: Message) -> dict[str, Any]:
    """`message` as Chat Completions has it: role and content first, unknown fields last.

    Data that are kept apart are told by a mark: whoever needs them puts them back first (`holdfast.media.outgoing`).
    """
    content, calls, result_of = message.content, message.tool_calls, message.tool_call_id
    data: dict[str, Any] = {"role": message.role}
    if not isinstance(content, UnsetType):
        data["content"] = _content_to(content)
    if message.name is not None:
        data["name"] = message.name
    if calls:
        data["tool_calls"] = [_tool_call_to(call) for call in calls]
    if result_of is not None:
        data["tool_call_id"] = result_of
    return {**data, **message.extra} if message.extra else data


def entry_to(entry: Entry) -> dict[str, Any]:
    """`entry` with all that Holdfast knows of it, as its own routes and exports show it."""
    data = {"seq": entry.seq, "turn_id": entry.turn_id, **message_to(entry.message), "timestamp": entry.timestamp}
    if entry.agent is not None:
        data["agent"] = entry.agent
    if entry.metadata:
        data["metadata"] = entry.metadata
    data["tokens"] = entry.tokens
    if entry.importance is not None:
        data["importance"] = entry.importance
    if entry.pinned:
        data["pinned"] = True
    if entry.retired_by is not None:
        data["retired_by"] = entry.retired_by
    if entry.erased:
        data["erased"] = True
    return data


def call_continued(delta: Mapping[str, Any], known: Sequence[tuple[Any, Any]]) -> int | None:
    """Which call of a streamed reply `delta` continues; None if it opens one.

    Gemini numbers all parallel calls 0, some gateways leave the number out, vLLM once gave each fragment an id of
    its own. So: another id *together with a name* is another call, whatever the number says.

    Args:
        delta: an item of a chunk's `tool_calls`.
        known: position and id of each call so far, as they were given.
    """
    position, call_id = delta.get("index"), delta.get("id")
    tool = delta.get("function", delta.get("custom"))
    named = isinstance(tool, Mapping) and bool(tool.get("name"))
    latest = range(len(known) - 1, -1, -1)
    if call_id:
        for at in latest:
            if known[at][1] == call_id and position in (None, known[at][0]):
                return at
    if isinstance(position, int):
        same = next((at for at in latest if known[at][0] == position), None)
        other = same is not None and call_id and known[same][1] not in (None, "", call_id)
        return None if other and named else same
    return None if named or not known else len(known) - 1


# -- in ----------------------------------------------------------------------


def _mapping(data: Any, where: str) -> dict[str, Any]:
    data = dumped(data)
    if not isinstance(data, Mapping):
        raise InvalidMessage(f"{where} must be an object with role and content, not {_kind(data)}", param=where)
    try:
        return {_field(key, where): _plain(value, f"{where}.{key}") for key, value in data.items()}
    except RecursionError as exc:
        raise InvalidMessage(f"{where} is nested too deeply", param=where) from exc


def dumped(data: Any) -> Any:
    """An object of the SDK as the JSON it stands for; anything else as it is."""
    return data.model_dump(mode="json", exclude_unset=True) if hasattr(data, "model_dump") else data


def _field(key: Any, where: str) -> str:
    if isinstance(key, str):
        return key if key.isascii() else _text(key, where)
    raise InvalidMessage(f"{where} has a field named {key!r}: names of fields are strings", param=where)


def _plain(data: Any, where: str) -> Any:
    """A copy of `data` that is JSON and nobody else's; refuses what no JSON body can carry before any of it is stored."""
    if type(data) is str and data.isascii():
        return data  # nearly all of a long prompt
    data = dumped(data)
    if isinstance(data, str):
        return _text(data, where)
    if data is None or isinstance(data, bool | int):
        return data
    if isinstance(data, float) and math.isfinite(data):
        return data
    if isinstance(data, Mapping):
        return {_field(key, where): _plain(value, f"{where}.{key}") for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(item, f"{where}[{at}]") for at, item in enumerate(data)]
    raise InvalidMessage(f"{where} cannot be written as JSON: {data!r:.80}", param=where)


def _text(text: str, where: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidMessage(f"{where} has half of a surrogate pair, which is no character", param=where) from exc
    return text


def _content(value: Any, where: str) -> Content:
    if value is None or isinstance(value, str | UnsetType):
        return value
    if isinstance(value, list):
        return tuple(_part(item, f"{where}[{at}]") for at, item in enumerate(value))
    raise InvalidMessage(f"{where} must be a string, a list of parts or null, not {_kind(value)}", param=where)


def _part(value: Any, where: str) -> Part:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise InvalidMessage(f"{where} must be an object with a type, for example text", param=where)
    kind = value["type"]
    text = value.get("refusal" if kind == "refusal" else "text") if kind in TEXT_PARTS else None
    if kind in TEXT_PARTS and not isinstance(text, str):
        raise InvalidMessage(f"{where} is a {kind} part without its text", param=where)
    known = {"type", "refusal" if kind == "refusal" else "text"} if text is not None else {"type"}
    return Part(kind, text, {key: item for key, item in value.items() if key not in known})


def _tool_calls(value: Any, where: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidMessage(f"{where} must be a list of tool calls, not {_kind(value)}", param=where)
    return tuple(_tool_call(item, f"{where}[{at}]") for at, item in enumerate(value))


_CUSTOM = ("custom", "custom", "input")
_FUNCTION = ("function", "function", "arguments")


def _tool_call(value: Any, where: str) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise InvalidMessage(f"{where} must be an object with an id and a function", param=where)
    if not isinstance(value.get("type"), str | None):
        raise InvalidMessage(f"{where}.type must be a string, not {_kind(value['type'])}", param=f"{where}.type")
    kind, key, arguments_key = _CUSTOM if value.get("type") == "custom" else _FUNCTION
    function = value.get(key)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidMessage(f"{where}.{key} must be an object with a name and {arguments_key}", param=f"{where}.{key}")
    return ToolCall(
        id=value["id"],
        name=function["name"],
        arguments=_arguments(function.get(arguments_key)),
        type=kind if value.get("type") in (None, "", kind) else value["type"],  # what is the default is not stored
        extra={name: item for name, item in value.items() if name not in {"id", "type", key}},
        function_extra={name: item for name, item in function.items() if name not in {"name", arguments_key}},
    )


def _arguments(value: Any) -> str:
    """Some clients send the parsed arguments; providers want the text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _text_or_none(value: Any, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidMessage(f"{where} must be a string, not {_kind(value)}", param=where)


def _check(message: Message, where: str) -> None:
    """Refuse what no provider takes, whatever stands around it."""
    if message.tool_calls and message.role != "assistant":
        raise InvalidMessage(f"{where}.tool_calls: only an assistant message has them", param=f"{where}.tool_calls")
    if message.role == "tool" and not message.tool_call_id:
        raise InvalidMessage(
            f"{where}.tool_call_id is missing: a tool message names the call it answers", param=f"{where}.tool_call_id"
        )
    if isinstance(message.content, UnsetType) and message.role != "assistant":
        raise InvalidMessage(f"{where}.content is missing", param=f"{where}.content")


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, Mapping) else type(value).__name__)


# -- out ---------------------------------------------------------------------


def _content_to(content: str | tuple[Part, ...] | None) -> str | list[dict[str, Any]] | None:
    if not isinstance(content, tuple):
        return content
    return [_part_to(part) for part in content]


def _part_to(part: Part) -> dict[str, Any]:
    data: dict[str, Any] = {"type": part.type}
    if part.text is not None:
        data["refusal" if part.type == "refusal" else "text"] = part.text
    return {**data, **(mark_part(part) if part.held else part.extra)}


def _tool_call_to(call: ToolCall) -> dict[str, Any]:
    _, key, arguments_key = _CUSTOM if call.type == "custom" else _FUNCTION
    function = {"name": call.name, arguments_key: call.arguments, **call.function_extra}
    return {"id": call.id, "type": call.type, key: function, **call.extra}
