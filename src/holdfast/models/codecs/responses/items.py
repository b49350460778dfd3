"""Items of OpenAI's Responses API: conversion of a request's input to messages, and of messages to items.

Follows the API reference, "Create a model response". A reply in a log is one message. In the Responses API it is several items: reasoning,
text, and each call. So consecutive items of the assistant become one message, in which calls come last. A compaction item of a provider
becomes part of the message that follows it, if that is the assistant's, or a message of its own. Any other item without an equivalent is
stored whole in the `origin` of the message next to it, and never sent to a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.context.fitting import fit_id
from holdfast.domain.messages import UNSPOKEN_PARTS, Message, Part, ToolCall
from holdfast.domain.provider_items import CALLS, DETAILS, ENCRYPTED, FORMAT, is_provider_compaction, with_compactions
from holdfast.errors import InvalidMessage
from holdfast.models.codecs.responses.ids import Place, is_reference
from holdfast.models.codecs.responses.tools import INPUT, fit_name, make_function_name, wrap_input
from holdfast.numbers import is_whole
from holdfast.wire.openai import convert_parts, describe_left_out, parse_message

Item = dict[str, Any]
ITEMS: Final = "response_items"
"""Key in the `origin` of a message: the items from which it was made, if the message does not contain all of them."""
INPUT_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXTS: Final = frozenset({"input_text", "output_text", "text"})
_INPUTS: Final = ("input_text", "input_image", "input_file")
"""Types of parts of messages and outputs in a request to an upstream."""
_SILENT: Final = frozenset({"id", "status", "type"})
"""Fields of an item that a message need not contain."""
_ID_CHARS: Final = 64
"""Maximum length of the id of a call."""
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
}
"""Prefixes of ids by the type of the item."""


def parse_items(value: Any, where: str = "input") -> list[Message]:
    """Convert the input of a request to messages.

    Args:
        value: A text, or a list of items. References to stored items must have been replaced before.
        where: Name of the field, for errors.

    Raises:
        InvalidMessage: An item is not valid. The error names it and what is allowed.
    """
    if isinstance(value, str):
        return [Message(role="user", content=value)] if value else []
    if not isinstance(value, Sequence):
        raise InvalidMessage(f"{where} must be a string or a list of items", param=where)
    groups: list[_Group] = []
    for at, given in enumerate(value):
        item, made = _parse_item(given, f"{where}[{at}]")
        if not groups or _begins_message(item, made, groups[-1]):
            groups.append([])
        groups[-1].append((item, made))
    return [_make_message(group) for group in _join_unplaced(groups)]


_Group = list[tuple[Item, Message | ToolCall | None]]
"""Consecutive items that become one message, each with the message or call that it becomes. Some items have no equivalent."""


def _parse_item(given: Any, where: str) -> tuple[Item, Message | ToolCall | None]:
    if not isinstance(given, Mapping):
        raise InvalidMessage(f"{where} must be an object with a type", param=where)
    item = dict(given)
    kind = item.get("type", "message" if "role" in item else None)
    if not isinstance(kind, str):
        reason = "is missing" if kind is None else "must be a string"
        raise InvalidMessage(f"{where}.type {reason}: it names the kind of the item", param=f"{where}.type")
    item = {"type": kind, **item}
    if kind == "message":
        return item, _parse_message(item, where)
    if kind in CALLS:
        return item, _parse_call(item, where)
    return item, _parse_output(item, where) if kind in _OUTPUTS else None


def _begins_message(item: Item, made: Message | ToolCall | None, group: _Group) -> bool:
    """Return True if an item after a group begins a new one. Providers begin a reply with a compaction item, or with reasoning."""
    is_of_reply = made is not None or item["type"] == "reasoning"
    return _is_input(made) or is_foreign_compaction(item) or (_is_input(group[0][1]) and is_of_reply)


def _is_input(made: Message | ToolCall | None) -> bool:
    return isinstance(made, Message) and made.role != "assistant"


def _join_unplaced(groups: Sequence[_Group]) -> list[_Group]:
    """Return the groups that become messages. Items of the others are added to the group before them, or to the first one."""
    joined: list[_Group] = []
    unplaced: _Group = []
    for group in groups:
        if any(made is not None or is_foreign_compaction(item) for item, made in group):
            joined.append([*unplaced, *group])
            unplaced = []
        else:
            (joined[-1] if joined else unplaced).extend(group)
    return joined


def _make_message(group: _Group) -> Message:
    items = [item for item, _ in group]
    texts = [made for _, made in group if isinstance(made, Message)]
    calls = tuple(made for _, made in group if isinstance(made, ToolCall))
    compactions = [item for item in items if is_foreign_compaction(item)]
    if any(map(_is_input, texts)):
        message = texts[0]
    else:
        content: Any = tuple(part for text in texts for part in _list_parts(text)) if len(texts) > 1 else None
        content = texts[0].content if len(texts) == 1 else content
        message = with_compactions(Message(role="assistant", content=content, tool_calls=calls), compactions)
    rest = items[len(compactions) :]
    is_whole = all(map(_is_plain, rest)) and all(item["type"] == "function_call" for item in rest[1:])
    return message if is_whole else message.evolve(origin={ITEMS: items})


def is_foreign_compaction(item: Mapping[str, Any]) -> bool:
    """Return True for a compaction item that a provider made, and not Holdfast."""
    return is_provider_compaction(item) and not is_reference(item[ENCRYPTED])


def get_items(message: Message) -> list[Item]:
    """Return the items that are stored with a message because the message does not contain all of them."""
    found = message.origin.get(ITEMS) if isinstance(message.origin, Mapping) else None
    return [dict(item) for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _is_plain(item: Item) -> bool:
    """Return True for a call, or a text in its shortest form, which can be made again of the message that is made of it."""
    fields, kind = item.keys() - _SILENT, item["type"]
    if kind == "function_call":
        return fields == {"call_id", "name", "arguments"}
    name, others = ("output", {"call_id"}) if kind == "function_call_output" else ("content", {"role"})
    if fields != {name, *others}:
        return False
    parts, is_reply = item[name], item.get("role") == "assistant"
    if isinstance(parts, str):
        return True
    about = {"type": "output_text" if is_reply else "input_text"}
    texts = [{key: value for key, value in part.items() if value and key != "text"} for part in parts]
    return all(text == about for text in texts) and not (is_reply and len(parts) > 1)


def _list_parts(message: Message) -> tuple[Part, ...]:
    return message.content if isinstance(message.content, tuple) else (Part("text", message.text),)


def _parse_message(item: Item, where: str) -> Message:
    role = item.get("role")
    if role not in INPUT_ROLES:
        allowed = ", ".join(INPUT_ROLES)
        raise InvalidMessage(f"{where}.role is {role!r:.80}; it must be one of {allowed}", param=f"{where}.role")
    message = parse_message({"role": role, "content": item.get("content")}, where)
    if message.content is None:
        raise InvalidMessage(f"{where}.content is missing", param=f"{where}.content")
    return _simplify(message)


def _simplify(message: Message) -> Message:
    """Return a message with plain text parts. If it has nothing else, its content is one text."""
    if not isinstance(message.content, tuple):
        return message
    parts = tuple(Part("text", part.text) if part.type in _TEXTS else part for part in message.content)
    is_text = all(part.type == "text" for part in parts) and (len(parts) == 1 or message.role == "assistant")
    return message.evolve(content=message.text if is_text else parts)


def _parse_call(item: Item, where: str) -> ToolCall:
    custom = item["type"] == "custom_tool_call"
    argument = INPUT if custom else "arguments"
    for name in ("call_id", "name", argument, "namespace"):
        if not isinstance(item.get(name), str) and (name != "namespace" or item.get(name) is not None):
            raise InvalidMessage(f"{where}.{name} must be a string", param=f"{where}.{name}")
    arguments = wrap_input(item[INPUT]) if custom else item["arguments"]
    return ToolCall(
        id=item["call_id"], name=make_function_name(item["name"], item.get("namespace")), arguments=arguments
    )


def _parse_output(item: Item, where: str) -> Message:
    call_id, output = item.get("call_id"), item.get("output")
    if not isinstance(call_id, str) or not call_id:
        raise InvalidMessage(
            f"{where}.call_id must be the id of the call that this output answers", param=f"{where}.call_id"
        )
    if not isinstance(output, str | list):
        raise InvalidMessage(f"{where}.output must be a string or a list of parts", param=f"{where}.output")
    return _simplify(parse_message({"role": "tool", "tool_call_id": call_id, "content": output}, where))


# -- of a log ----------------------------------------------------------------------------


def make_input_items(message: Message, place: Place) -> list[Item]:
    """Return the items of a message of a log that is no reply, or was made from items that it does not contain.

    Args:
        message: The message. Its media are restored.
        place: Place of the message.
    """
    if stored := get_items(message):
        return [_identify({**item, **_list_content(item)}, place, at) for at, item in enumerate(stored)]
    content = _encode_content(convert_parts(message))
    if message.role == "tool":
        answer = {"call_id": message.tool_call_id, "output": content, "status": "completed"}
        return [_identify({"id": "", "type": "function_call_output", **answer}, place, 0)]
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    about = {"role": message.role, "status": "completed", "content": parts}
    return [_identify({"id": "", "type": "message", **about}, place, 0)]


def _identify(item: Item, place: Place, at: int) -> Item:
    """Return an item with the id that it has as the item number `at` of a message."""
    prefix = PREFIXES.get(str(item["type"]), "item")
    return {**item, "id": place._replace(number=place.number + at).make_id(prefix)}


def _list_content(item: Mapping[str, Any]) -> Item:
    """Return the content of a message item that a client sent as a text, as parts; empty if it needs no change."""
    content = item.get("content")
    if not isinstance(content, str):
        return {}
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    return {"content": [{"type": kind, "text": content}]}


def _encode_content(message: Message) -> str | list[Item]:
    content = message.content
    if isinstance(content, tuple):
        return [*map(_encode_part, content)]
    return content if isinstance(content, str) else ""


def _encode_part(part: Part) -> Item:
    """Convert a Chat Completions part to a part of an input message. Return parts without an equivalent unchanged."""
    media = part.extra.get(part.type)
    if part.type in _TEXTS:
        return {"type": "input_text", "text": part.text}
    if part.type == "image_url" and isinstance(media, Mapping):
        return {"type": "input_image", "image_url": media.get("url"), "detail": media.get("detail") or "auto"}
    if part.type == "file" and isinstance(media, Mapping):
        return {"type": "input_file", **media}
    return {"type": part.type, **({} if part.text is None else {part.type: part.text}), **part.extra}


def split_reply(message: Message) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yield the reasoning details of a reply in order, each with the text of the message item that it completes; at last, the rest of the text.

    A detail without a text completes no message item. If the text was changed, for example shortened, it is not split.
    """
    given, text = message.extra.get(DETAILS), message.content if isinstance(message.content, str) else ""
    details = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list | tuple) else []
    counts = [one["chars"] if is_whole(one.get("chars")) and one["chars"] > 0 else 0 for one in details]
    if len(list(filter(None, counts))) == 1:
        counts = [len(text) if count else 0 for count in counts]
    is_split, at = sum(counts) == len(text), 0
    for detail, count in zip(details, counts, strict=True):
        if is_split or not count:
            yield text[at : at + count], detail
            at += count
    if text[at:]:
        yield text[at:], None


# -- for upstreams -----------------------------------------------------------------------


def mark_upstream(address: str) -> str:
    """Return the hash of an upstream's address that is stored with its own items, because other models also see the message."""
    return hashlib.blake2b(address.encode(), digest_size=6).hexdigest()


def encode_prompt(messages: Iterable[Message], upstream: str, declared: Collection[Any] = ()) -> Iterator[Item]:
    """Yield the items of a prompt.

    Args:
        messages: The prompt.
        upstream: Address of the upstream. Only its own items and fields are sent.
        declared: Names of the request's tools.
    """
    custom: set[Any] = set()
    """Ids of calls of custom tools, whose results have another type."""
    mark = mark_upstream(upstream)
    for message in messages:
        if message.role == "assistant":
            yield from _encode_reply(message, mark)
            for call in message.tool_calls:
                custom |= {call.id} if call.type == "custom" else set()
                yield {**_encode_call(call, declared), **_find_own_fields(message, mark, "call_id", call.id)}
            continue
        content = _encode_content(message)
        if isinstance(content, list):
            content = [part if part["type"] in _INPUTS else _describe(part["type"], part) for part in content]
        if message.role == "tool":
            kind = "custom_tool_call_output" if message.tool_call_id in custom else "function_call_output"
            yield {"type": kind, "call_id": fit_id(message.tool_call_id or "", longest=_ID_CHARS), "output": content}
            continue
        if message.role == "user" and (name := (message.name or "").strip()):  # the API has no field for the speaker
            texts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
            content = [{"type": "input_text", "text": f"{name}:"}, *texts]
        yield {"type": "message", "role": message.role, "content": content}


def map_items(messages: Iterable[Message], upstream: str) -> list[int]:
    """Return the index of the message from which each item of a request comes."""
    return [at for at, message in enumerate(messages) for _ in encode_prompt([message], upstream)]


def _describe(kind: str, fields: Mapping[str, Any]) -> Item:
    return {"type": "input_text", "text": describe_left_out(kind, fields)}


def _encode_reply(message: Message, mark: str) -> Iterator[Item]:
    """Yield the items of a reply without its calls.

    They include reasoning that this upstream encrypted, the calls of tools that it ran, and compactions. Compaction items that a client sent
    name no upstream.
    """
    if isinstance(message.content, str) and not message.extra:  # nearly every reply
        yield from [_make_reply_item([_make_text(message.content)])] if message.content else ()
        return
    said = ""
    for text, detail in split_reply(message):
        about = {} if detail is None or detail.get("format") != FORMAT else detail
        item = about["item"] if isinstance(about.get("item"), Mapping) else {}
        own = about.get("upstream") == mark
        if text and own:
            yield from [_make_reply_item([_make_text(said)])] if said else []
            part: Item = next(iter(item.get("content") or ()), {})
            yield {**item, **_make_reply_item([{**part, **_make_text(text)}])}
            said = ""
        said += "" if own else text
        if about.get("type") == "reasoning.encrypted" and own and about.get("data"):
            summary = [{"type": "summary_text", "text": text} for text in about.get("summaries") or ()]
            name = {"id": about["id"]} if about.get("id") else {}
            more = _find_own_fields(message, mark, "id", about.get("id"))
            yield {"type": "reasoning", **name, "summary": summary, ENCRYPTED: about["data"], **more}
        elif (is_provider_compaction(item) and about.get("upstream") in (None, mark)) or (
            own and item.get("type") not in (None, *PREFIXES)
        ):  # the provider stores nothing, so it would not find the item by its id
            yield {name: value for name, value in item.items() if name != "id"}
    parts = [_make_text(said)] if said else []
    parts += map(_encode_reply_part, message.content) if isinstance(message.content, tuple) else ()
    parts += [{"type": "refusal", "refusal": message.extra["refusal"]}] if message.extra.get("refusal") else []
    if parts:
        yield _make_reply_item(parts)


def _make_text(text: str) -> Item:
    return {"type": "output_text", "text": text}


def _make_reply_item(parts: list[Item]) -> Item:
    return {"type": "message", "role": "assistant", "content": parts}


def _find_own_fields(message: Message, mark: str, name: str, value: Any) -> Item:
    """Return the fields that only this upstream has in an item with an equivalent in Chat Completions: a call, or reasoning."""
    for detail in message.extra.get(DETAILS) or () if message.extra else ():
        item = detail.get("item") if isinstance(detail, Mapping) and detail.get("upstream") == mark else None
        if isinstance(item, Mapping) and item.get("type") in ("reasoning", *CALLS) and item.get(name) == value:
            return {field: one for field, one in item.items() if field not in ("type", "id", "call_id")}
    return {}


def _encode_reply_part(part: Part) -> Item:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.text or ""}
    if part.text is None and part.type not in UNSPOKEN_PARTS:
        return _make_text(describe_left_out(part.type, part.extra))
    return _make_text(part.text or "")


def _encode_call(call: ToolCall, declared: Collection[Any]) -> Item:
    # A call by another model may have a name that only that model's provider accepts.
    about = {
        "call_id": fit_id(call.id, longest=_ID_CHARS),
        "name": call.name if call.name in declared else fit_name(call.name),
    }
    if call.type == "custom":
        return {"type": "custom_tool_call", **about, INPUT: call.arguments}
    return {"type": "function_call", **about, "arguments": call.arguments or "{}"}
