"""Kinds of facts about an LLM provider, and the checks of OpenAI-compatible Chat Completions APIs.

`providers.py` holds the facts of each provider and is the module to import.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]
Names = frozenset[str]


def split_names(text: str) -> Names:
    """Return the words of a text as a set."""
    return frozenset(text.split())


_FORMATS = split_names("png jpeg jpg gif webp")
_ROLES = split_names("system developer user assistant tool function")


@dataclass(frozen=True)
class ImageLimits:
    """Limits on the pictures of one request. None means that no limit is documented."""

    count: int | None = None
    bytes_each: int | None = None
    counts_base64: bool = False  # The limit applies to the encoded text instead of the decoded picture.
    pixels_per_side: int | None = None
    many_count: int | None = None  # Above this count, `many_pixels_per_side` applies.
    many_pixels_per_side: int | None = None
    total_pixels: int | None = None  # Width times height of one picture.
    total_base64: int | None = None  # Limit on a request with encoded pictures, in bytes.
    formats: Names = _FORMATS
    needs_data_url: bool = False


@dataclass(frozen=True)
class Provider:
    """Facts about what one provider's API refuses. The defaults are those of a lenient OpenAI-compatible server."""

    api: str = "chat"  # chat, messages, responses or generate
    error_form: str = "openai"
    words: Mapping[str, str] = field(default_factory=dict)  # Message templates by rule; they override `WORDS`.
    statuses: Mapping[str, int] = field(default_factory=dict)  # HTTP status by rule; 400 otherwise.
    roles: Names = _ROLES
    alternation: str = "none"  # none, neighbours (no equal neighbours) or template (rounds of calls are skipped)
    max_system: int | None = None
    is_system_first: bool = False
    is_user_first: bool = False
    # Roles that may follow a role. The key "call" lists the roles that may precede a message with calls.
    followers: Mapping[str, Names] = field(default_factory=dict)
    last_roles: Names | None = None  # A final assistant message with `prefix` is always accepted.
    call_id: str = r".+"
    call_id_length: int | None = None
    name: str | None = None
    tool_name: str = r"[a-zA-Z0-9_-]{1,64}"
    accepts_null_content: bool = True  # Only next to calls; null content is refused everywhere else.
    needs_content_field: bool = False
    text_required: Names = frozenset()  # Roles whose text must not be blank; an assistant message with calls is exempt.
    arguments: str = "string"  # any, string (a string) or object (a string that holds a JSON object)
    needs_call_type: bool = False
    accepts_empty_calls: bool = True
    fields: Mapping[str, Names] | None = None  # Message fields by role; None means that others are ignored.
    call_fields: Names | None = None
    parameters: Names | None = None  # Parameters of the request; None means that others are ignored.
    refused_parameters: Names = frozenset()
    max_tokens_refused: str | None = None  # Pattern of models that refuse `max_tokens`.
    parts: Mapping[str, Names] | None = None  # Part types by role; None means that every type is accepted.
    checks_pairs: bool = False  # Each call is answered directly after it and each result follows its call.
    has_unique_results: bool = False
    needs_tools_for_calls: bool = False
    choice_parameters: Names = frozenset()  # Parameters refused without `tools`.
    accepts_empty_tools: bool = True
    has_unique_tools: bool = False
    max_tools: int | None = None
    max_messages: int | None = None
    max_stops: int | None = None
    max_choices: int | None = None
    limits_metadata: bool = False
    schema: str = "any"  # any, items (arrays need items) or gemini (unknown keywords are refused as well)
    reasoning_models: str | None = None  # Models that need `reasoning_content` next to calls.
    signature_models: str | None = None  # Models that need a signature at the first call of the current turn.
    images: ImageLimits = ImageLimits()
    max_bytes: int | None = None
    accepts_surrogates: bool = False
    accepts_nul: bool = True


@dataclass(frozen=True)
class Fault:
    """One refused part of a request: the rule, the path to it and values for the message."""

    rule: str
    path: tuple[str | int, ...]
    values: Mapping[str, Any]


Faults = Iterator[Fault]
# Usual shapes: Anthropic "EqQB...", OpenAI "gAAAA..." (Fernet). Google also takes two stand-ins (Thought signatures,
# FAQ).
SIGNATURES = {"anthropic": r"E[\w+/=-]+", "openai": r"gAAAA[\w+/=-]+", "google": r"(?!gAAAA)[\w+/=-]+"}
_PREFIXES = {"anthropic": "Er", "openai": "gAAAAA", "google": "Cr"}


def make_signature(family: str, text: str) -> str:
    """Return a signature or encrypted reasoning that only providers of `family` accept: anthropic, openai or google."""
    return _PREFIXES[family] + family.upper() + base64.urlsafe_b64encode(text.encode()).decode()


def is_own_signature(family: str, value: object) -> bool:
    """Return True if the value has the shape of the family and no mark of another family."""
    foreign = [name.upper() for name in SIGNATURES if name != family]
    if not isinstance(value, str) or not re.fullmatch(SIGNATURES[family], value):
        return False
    return not any(mark in value for mark in foreign)


def make_fault(rule: str, *path: str | int, **values: object) -> Fault:
    """Return a fault of the rule at the path."""
    return Fault(rule, path, values)


def to_items(value: object) -> list[Json]:
    """Return the objects of a list; anything else counts as absent."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def to_object(value: object) -> Json:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def to_camel(name: str) -> str:
    """Convert a snake_case field name to camelCase."""
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _strings(name)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def is_blank(value: object) -> bool:
    """Return True for a string without visible characters."""
    return isinstance(value, str) and not value.strip()


def _find_problem(arguments: str) -> str:
    """Return what keeps the arguments from being a JSON object, in the words of json and jinja2, or ""."""
    try:
        return "" if isinstance(json.loads(arguments), dict) else "Can only get item pairs from a mapping."
    except ValueError as error:
        return str(error)


def check_text(provider: Provider, body: Json) -> Faults:
    """Check the characters and the size of a request."""
    for text in _strings(body):
        if not provider.accepts_surrogates and re.search("[\ud800-\udfff]", text):
            yield make_fault("json")
        if not provider.accepts_nul and "\0" in text:
            yield make_fault("nul")
    if provider.max_bytes is not None and (size := len(json.dumps(body))) > provider.max_bytes:
        yield make_fault("request_bytes", size=size, limit=provider.max_bytes)


def check_parameters(provider: Provider, body: Json) -> Faults:
    """Check the top-level parameters of a request."""
    for name, value in body.items():
        is_unknown = provider.parameters is not None and name not in provider.parameters
        if is_unknown or (name in provider.refused_parameters and value is not None):
            yield make_fault("parameter", name, name=name, value=value)
    choices = body.get("n")
    if provider.max_choices is not None and isinstance(choices, int) and choices > provider.max_choices:
        yield make_fault("choices", "n", limit=provider.max_choices)
    for name in ("stop", "stop_sequences"):
        stops = body.get(name)
        if isinstance(stops, list) and provider.max_stops is not None and len(stops) > provider.max_stops:
            yield make_fault("array_length", name, limit=provider.max_stops, length=len(stops))
    length = len(to_items(body.get("messages")))
    if provider.max_messages is not None and length > provider.max_messages:
        yield make_fault("array_length", "messages", limit=provider.max_messages, length=length)
    is_refused = provider.max_tokens_refused and re.match(provider.max_tokens_refused, str(body.get("model")))
    if is_refused and body.get("max_tokens") is not None:
        yield make_fault("max_tokens", "max_tokens")
    if provider.limits_metadata:
        metadata = to_object(body.get("metadata"))
        if len(metadata) > 16:
            yield make_fault("metadata_count", "metadata", length=len(metadata))
        for key, value in metadata.items():
            if len(key) > 64 or not isinstance(value, str) or len(value) > 512:
                yield make_fault("metadata_value", "metadata", key, key=key)


def check_tools(provider: Provider, body: Json) -> Faults:
    """Check the declared tools and the parameters that depend on them."""
    tools = body.get("tools")
    for name in sorted(provider.choice_parameters):
        if tools is None and body.get(name) is not None:
            yield make_fault("choice", name, name=name)
    has_calls = any(m.get("role") == "tool" or m.get("tool_calls") for m in to_items(body.get("messages")))
    if provider.needs_tools_for_calls and has_calls and not tools:
        yield make_fault("tools_needed", "tools")
    if tools == [] and not provider.accepts_empty_tools:
        yield make_fault("empty_array", "tools")
    if provider.max_tools is not None and len(to_items(tools)) > provider.max_tools:
        yield make_fault("array_length", "tools", limit=provider.max_tools, length=len(to_items(tools)))
    seen: set[str] = set()
    for k, tool in enumerate(to_items(tools)):
        function = to_object(tool.get("function")) or tool
        path = ("tools", k, "function") if "function" in tool else ("tools", k)
        yield from check_function(provider, path, function, seen)


def check_function(provider: Provider, path: tuple[str | int, ...], function: Json, seen: set[str]) -> Faults:
    """Check one declared function; `seen` collects the names."""
    name = function.get("name")
    if not isinstance(name, str):
        return  # Tools that the provider runs itself need no name.
    if not re.fullmatch(provider.tool_name, name):
        yield make_fault("tool_name", *path, "name", name=name, pattern=provider.tool_name)
    if provider.has_unique_tools and name in seen:
        yield make_fault("tool_unique", *path, "name", name=name)
    seen.add(name)
    for key in ("parameters", "input_schema"):
        if provider.schema != "any" and key in function:
            yield from _check_schema(provider.schema == "gemini", (*path, key), function[key], name)


# Gemini API, generateContent, Schema object; `parametersJsonSchema` takes the other keywords.
_GEMINI_KEYWORDS = split_names(
    "type format title description nullable enum maxItems minItems properties required minProperties maxProperties "
    "minLength maxLength pattern example anyOf propertyOrdering default items minimum maximum"
)


def _check_schema(is_gemini: bool, path: tuple[str | int, ...], schema: object, name: str) -> Faults:
    node = to_object(schema)
    if node.get("type") in ("array", "ARRAY") and "items" not in node:
        yield make_fault("schema_items", *path, name=name)
    if is_gemini:
        for keyword in node:
            if to_camel(keyword) not in _GEMINI_KEYWORDS:
                yield make_fault("schema_keyword", *path, name=keyword)
        if node.get("enum") and str(node.get("type")).lower() != "string":
            yield make_fault("schema_enum", *path)
    for key, value in to_object(node.get("properties")).items():
        yield from _check_schema(is_gemini, (*path, "properties", key), value, name)
    if "items" in node:
        yield from _check_schema(is_gemini, (*path, "items"), node["items"], name)
    for k, value in enumerate(to_items(node.get("anyOf"))):
        yield from _check_schema(is_gemini, (*path, "anyOf", k), value, name)


def check_messages(provider: Provider, body: Json) -> Faults:
    """Check each message on its own."""
    for i, message in enumerate(to_items(body.get("messages"))):
        role = str(message.get("role"))
        if role not in provider.roles:
            yield make_fault("role", "messages", i, "role", role=role)
        allowed = None if provider.fields is None else provider.fields.get(role)
        for name in message:
            if allowed is not None and name not in allowed:
                yield make_fault("field", "messages", i, name, role=role, name=name, value=message[name])
        speaker = message.get("name")
        if provider.name is not None and isinstance(speaker, str) and not re.fullmatch(provider.name, speaker):
            yield make_fault("name", "messages", i, "name", pattern=provider.name, name=speaker)
        yield from _check_content(provider, i, role, message)
        yield from _check_calls(provider, i, role, message)


def _check_content(provider: Provider, i: int, role: str, message: Json) -> Faults:
    content, has_calls = message.get("content"), bool(message.get("tool_calls") or message.get("function_call"))
    if "content" not in message and provider.needs_content_field:
        yield make_fault("content_missing", "messages", i, "content", role=role)
    if content is None and not (provider.accepts_null_content and role == "assistant" and has_calls):
        yield make_fault("content_null", "messages", i, "content", role=role)
    is_required = role in provider.text_required and not (role == "assistant" and has_calls)
    if is_required and (is_blank(content) or content == []):
        yield make_fault("content_blank", "messages", i, "content", role=role)
    allowed = None if provider.parts is None else provider.parts.get(role, split_names("text"))
    for k, part in enumerate(to_items(content)):
        kind = str(part.get("type"))
        if allowed is not None and kind not in allowed:
            yield make_fault(
                "part", "messages", i, "content", k, role=role, name=kind, allowed=", ".join(sorted(allowed))
            )
        if role in provider.text_required and kind == "text" and is_blank(part.get("text")):
            yield make_fault("content_blank", "messages", i, "content", k, role=role)


def _check_calls(provider: Provider, i: int, role: str, message: Json) -> Faults:
    if message.get("tool_calls") == [] and not provider.accepts_empty_calls:
        yield make_fault("empty_array", "messages", i, "tool_calls")
    for k, call in enumerate(to_items(message.get("tool_calls"))):
        path, function = ("messages", i, "tool_calls", k), to_object(call.get("function"))
        yield from _check_id(provider, (*path, "id"), call.get("id"))
        if provider.needs_call_type and call.get("type") != "function":
            yield make_fault("call_type", *path, "type")
        for name in call if provider.call_fields is not None else ():
            if name not in (provider.call_fields or ()):
                yield make_fault("field", *path, name, role=role, name=name, value=call[name])
        called, arguments = function.get("name"), function.get("arguments")
        if not re.fullmatch(provider.tool_name, str(called)):
            yield make_fault("tool_name", *path, "function", "name", name=called, pattern=provider.tool_name)
        if provider.arguments != "any" and not isinstance(arguments, str):
            yield make_fault("arguments_type", *path, "function", "arguments", kind=type(arguments).__name__)
        elif provider.arguments == "object" and (problem := _find_problem(str(arguments))):
            yield make_fault("arguments", *path, "function", "arguments", problem=problem)
    if role == "tool":
        yield from _check_id(provider, ("messages", i, "tool_call_id"), message.get("tool_call_id"))


def _check_id(provider: Provider, path: tuple[str | int, ...], value: object) -> Faults:
    if not isinstance(value, str) or not re.fullmatch(provider.call_id, value):
        yield make_fault("call_id", *path, value=value, pattern=provider.call_id)
    elif provider.call_id_length is not None and len(value) > provider.call_id_length:
        yield make_fault("string_length", *path, limit=provider.call_id_length, length=len(value))


def check_order(provider: Provider, body: Json) -> Faults:
    """Check the order and number of roles."""
    messages = to_items(body.get("messages"))
    roles = [str(message.get("role")) for message in messages]
    systems = [i for i, role in enumerate(roles) if role in ("system", "developer")]
    if provider.max_system is not None and len(systems) > provider.max_system:
        yield make_fault("system_count", "messages", systems[provider.max_system])
    if provider.is_system_first and systems != list(range(len(systems))):
        yield make_fault("system_place", "messages", systems[-1])
    turns = [i for i in range(len(roles)) if i not in systems]
    if provider.is_user_first and turns and roles[turns[0]] != "user":
        yield make_fault("user_first", "messages", turns[0], role=roles[turns[0]])
    if provider.alternation == "template":
        # Mistral's published templates leave calls and results out when they check for alternation.
        turns = [i for i in turns if roles[i] != "tool" and not messages[i].get("tool_calls")]
        for place, i in enumerate(turns):
            if (roles[i] == "user") != (place % 2 == 0):
                yield make_fault("alternation", "messages", i)
    for i, (before, role) in enumerate(itertools.pairwise(roles), 1):
        if provider.alternation == "neighbours" and before == role and role in ("user", "assistant"):
            yield make_fault("alternation", "messages", i)
        if role not in provider.followers.get(before, provider.roles):
            yield make_fault("order", "messages", i, role=role, before=before)
    has_last_rule = provider.last_roles is not None and len(roles) > 1 and messages[-1].get("prefix") is not True
    if has_last_rule and roles[-1] not in (provider.last_roles or ()):
        yield make_fault("last_role", "messages", len(roles) - 1, role=roles[-1])


def check_pairs(provider: Provider, body: Json) -> Faults:
    """Check that calls and results belong together."""
    if not provider.checks_pairs:
        return
    calls: list[str] = []
    answered: list[str] = []
    before = "none"
    for i, message in enumerate([*to_items(body.get("messages")), {"role": "end"}]):
        if message.get("role") == "tool":
            result_id = str(message.get("tool_call_id"))
            if not calls:
                yield make_fault("result_orphan", "messages", i, "role", value=result_id, before=before)
            elif result_id not in calls:
                yield make_fault("result_unknown", "messages", i, "tool_call_id", value=result_id)
            elif result_id in answered and provider.has_unique_results:
                yield make_fault("result_twice", "messages", i, "tool_call_id", value=result_id)
            answered.append(result_id)
        else:
            if missing := [call_id for call_id in calls if call_id not in answered]:
                yield make_fault("call_unanswered", "messages", i, "role", value=", ".join(missing))
            calls, answered = [str(call.get("id")) for call in to_items(message.get("tool_calls"))], []
            if calls and provider.followers.get("call") and before not in provider.followers["call"]:
                yield make_fault("call_order", "messages", i)
        before = str(message.get("role"))


def check_reasoning(provider: Provider, body: Json) -> Faults:
    """Check required reasoning and thought signatures."""
    messages, model = to_items(body.get("messages")), str(body.get("model"))
    is_off = to_object(body.get("thinking")).get("type") == "disabled"
    is_on = to_object(body.get("thinking")).get("type") == "enabled"
    if provider.reasoning_models and not is_off and (is_on or re.search(provider.reasoning_models, model)):
        for i, message in enumerate(messages):
            if message.get("tool_calls") and not isinstance(message.get("reasoning_content"), str):
                yield make_fault("reasoning_missing", "messages", i, "reasoning_content")
    users = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    for i, message in enumerate(messages):
        for k, call in enumerate(to_items(message.get("tool_calls")) if provider.signature_models else []):
            signature = to_object(to_object(call.get("extra_content")).get("google")).get("thought_signature")
            is_current = k == 0 and (not users or i > users[-1])
            if signature is not None and not is_own_signature("google", signature):
                yield make_fault("signature", "messages", i, "tool_calls", k)
            elif signature is None and is_current and re.search(provider.signature_models or "", model):
                name = to_object(call.get("function")).get("name")
                yield make_fault("signature_missing", "messages", i, name=name, place=i + 1)


Picture = tuple[tuple[str | int, ...], str, str]  # path, format, base64 text ("" for a link)


def parse_data_url(path: tuple[str | int, ...], url: object) -> Picture:
    """Split a picture's data URL; a link has no format and no data."""
    match = re.match(r"data:(?:image/)?([\w.+-]*);base64,", str(url)[:64])
    return (path, match[1], str(url)[match.end() :]) if match else (path, "", "")


def _find_chat_pictures(body: Json) -> Iterator[Picture]:
    for i, message in enumerate(to_items(body.get("messages"))):
        for k, part in enumerate(to_items(message.get("content"))):
            if part.get("type") == "image_url":
                image = part.get("image_url")
                url = image.get("url") if isinstance(image, Mapping) else image
                yield parse_data_url(("messages", i, "content", k, "image_url", "url"), url)


def _read_png_size(data: str) -> tuple[int, int]:
    """Return width and height of a PNG, or zeros if the data is another format."""
    try:
        head = base64.b64decode(data[:32])
        return struct.unpack(">II", head[16:24]) if head.startswith(b"\x89PNG\r\n\x1a\n") else (0, 0)
    except (binascii.Error, struct.error, ValueError):
        return 0, 0


def check_pictures(limits: ImageLimits, pictures: list[Picture]) -> Faults:
    """Check number, size and format of pictures."""
    if limits.count is not None and len(pictures) > limits.count:
        yield make_fault("image_count", length=len(pictures), limit=limits.count)
    total = sum(len(data) for _, _, data in pictures)
    if limits.total_base64 is not None and total > limits.total_base64:
        yield make_fault("request_bytes", size=total, limit=limits.total_base64)
    is_many = limits.many_count is not None and len(pictures) > limits.many_count
    side = limits.many_pixels_per_side if is_many else limits.pixels_per_side
    for path, kind, data in pictures:
        if (data and kind not in limits.formats) or (limits.needs_data_url and not data):
            yield make_fault("image_format", *path, name=kind)
        size = len(data) if limits.counts_base64 else len(data) * 3 // 4
        if limits.bytes_each is not None and size > limits.bytes_each:
            yield make_fault("image_bytes", *path, size=size, limit=limits.bytes_each)
        width, height = _read_png_size(data)
        if side is not None and max(width, height) > side:
            yield make_fault("image_many_pixels" if is_many else "image_pixels", *path, limit=side)
        if limits.total_pixels is not None and width * height > limits.total_pixels:
            yield make_fault("image_pixels", *path, limit=limits.total_pixels)


def check_chat_pictures(provider: Provider, body: Json) -> Faults:
    """Check the pictures of a Chat Completions request."""
    yield from check_pictures(provider.images, list(_find_chat_pictures(body)))
