"""Request bodies: conversion between Chat Completions and Anthropic's Messages API, in both directions.

Follows the API reference, "Create a Message". `holdfast.wire.anthropic` converts the messages.

Conversion to Anthropic: fields that both APIs have are renamed. Fields that only OpenAI has are left out if they do not
change the form of the answer; otherwise the request is rejected before any call. All other fields are sent unchanged.
The table is in docs/anthropic-models.md.

Conversion from Anthropic: fields that Chat Completions do not have keep their names, so that a request reaches
Anthropic unchanged. Most other upstreams reject unknown fields and parts. So signed reasoning, blocks of server tools,
and cache marks are not sent to them. The log keeps them, and no text is lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from holdfast.context.dialects import THINKING, adapt_messages
from holdfast.context.units import is_blank
from holdfast.domain.budget import Budget
from holdfast.domain.messages import SERVER_TOOL_PARTS, UNSPOKEN_PARTS, Message, Part, ToolCall
from holdfast.errors import InvalidRequest
from holdfast.wire.anthropic import MARK, build_request, convert_tools, to_tool_name
from holdfast.wire.openai import (
    LEFT_OUT,
    describe_left_out,
    read_medium,
    split_system,
)

Body = Mapping[str, Any]
CHAT_ONLY: Final = frozenset(
    {"audio", "frequency_penalty", "logit_bias", "logprobs", "modalities", "n", "prediction", "presence_penalty"}
    | {"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "seed", "store", "stream_options"}
    | {"top_logprobs", "verbosity", "web_search_options"}
)
"""Fields of Chat Completions that have no counterpart in Anthropic's API."""
REWRITTEN: Final = frozenset(
    {"max_completion_tokens", "messages", "parallel_tool_calls", "reasoning_effort", "response_format", "stop", "user"}
    | {"betas", "cache_control", "tools"}
)
"""Fields that have another name or position in Anthropic's API."""
USER_BYTES: Final = 16
MAX_TEMPERATURE: Final = 1.0
"""Maximum temperature of Anthropic's API. OpenAI's maximum is 2."""
_TIERS: Final = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_THINKING_TOKENS: Final = {
    "minimal": 1_024,
    "low": 2_048,
    "medium": 8_192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 32_768,
}
"""Reasoning budget in tokens for each effort, for models that require a number."""
_MIN_THINKING_TOKENS: Final = 1_024
_VERSION: Final = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_THINKING_SINCE: Final = (3, 7)
_ADAPTIVE_SINCE: Final = (4, 6)
"""First version of models that decide themselves how long they reason. Earlier models need a token budget."""


def check(body: Body) -> None:
    """Reject fields that Anthropic does not support and that would change the answer.

    Raises:
        InvalidRequest: A field is not supported. The error names the field and what is allowed.
    """
    if body.get("n") not in (None, 1):
        raise InvalidRequest("n must be 1: Anthropic returns one answer per request", param="n")
    for name in ("functions", "function_call"):  # those that are valid together were converted
        if body.get(name):
            instead = "tools" if name == "functions" else "tool_choice"
            raise InvalidRequest(f"{name} is not supported for Anthropic; use {instead}", param=name)
    _parse_format(body.get("response_format"))
    _parse_stops(body)
    tools = body.get("tools")
    _convert_choice(body.get("tool_choice"), convert_tools(tools) if tools else [])


def build_body(messages: Sequence[Message], body: Body, *, max_tokens: int | None = None) -> dict[str, Any]:
    """Convert a request to a body of `POST /v1/messages`.

    Args:
        messages: The prompt. It need not be adapted to Anthropic's dialect yet.
        body: All other fields of a Chat Completions request, with `model`.
        max_tokens: Limit for the reply if the body sets none. Default: the tokens that `Budget` reserves for the reply.

    Raises:
        InvalidRequest: The body contains something that Anthropic does not support, as in `check`.
    """
    check(body)
    front, rest = split_system(messages)
    tools, choice = _select_tools(body)
    converted: dict[str, Any] = {name: value for name, value in body.items() if name not in CHAT_ONLY | REWRITTEN}
    converted.update(
        build_request([*front, *adapt_messages(rest, "anthropic")], tools=tools, cache=_get_cache_mark(body))
    )
    if not tools and (declared := _declare_called_tools(converted["messages"])):
        converted["tools"], choice = declared, {"type": "none"}
    converted["tool_choice"] = choice if converted.get("tools") else None
    converted["stop_sequences"] = _parse_stops(body)
    converted["metadata"] = _convert_metadata(body)
    converted["service_tier"] = _TIERS.get(str(body.get("service_tier")))
    converted["output_config"] = _build_output_config(body)
    if isinstance(temperature := converted.get("temperature"), int | float):
        converted["temperature"] = min(temperature, MAX_TEMPERATURE)
    converted["max_tokens"] = body.get("max_completion_tokens") or body.get("max_tokens")
    _set_thinking(
        converted,
        str(body.get("reasoning_effort")),
        max_tokens or Budget.for_model(str(body.get("model"))).max_reply_tokens,
    )
    return {name: value for name, value in converted.items() if value is not None and value != {}}


def list_betas(body: Body) -> list[str]:
    """Return the `betas` of a request. They are sent in a header."""
    named = body.get("betas")
    return [str(name) for name in named] if isinstance(named, Sequence) and not isinstance(named, str) else []


# -- one by one ----------------------------------------------------------------


def _get_cache_mark(body: Body) -> Mapping[str, Any] | None:
    """Return the request's `cache_control` as the value for cache marks.

    The value is `MARK` if the request does not set it. It is None, which means no marks, if the request sets it to
    false.
    """
    given = body.get("cache_control")
    if given is False:
        return None
    return given if isinstance(given, Mapping) and given else MARK


def _parse_stops(body: Body) -> list[str] | None:
    """Return the stop sequences; None if there are none.

    Stop sequences of only white space are dropped, because Anthropic rejects them.
    """
    name = "stop_sequences" if body.get("stop_sequences") else "stop"
    given = body.get(name) or ()
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not all(isinstance(text, str) for text in listed):
        raise InvalidRequest(f"{name} must be a string or a list of strings", param=name)
    return [text for text in listed if text.strip()] or None


def _convert_metadata(body: Body) -> dict[str, Any]:
    """Return Anthropic's `metadata` with a user id.

    If the request's metadata contains a user id, it is unchanged. Otherwise the id is a hash of the request's `user`,
    because Anthropic asks not to send names.
    """
    given = body.get("metadata")
    named = given.get("user_id") if isinstance(given, Mapping) else None
    if isinstance(named, str) and named:
        return {"user_id": named}
    user = body.get("user")
    if not isinstance(user, str) or not user:
        return {}
    return {"user_id": f"hf-{hashlib.blake2b(user.encode(errors='replace'), digest_size=USER_BYTES).hexdigest()}"}


def _build_output_config(body: Body) -> dict[str, Any]:
    given = body.get("output_config")
    made = dict(given) if isinstance(given, Mapping) else {}
    schema = _parse_format(body.get("response_format"))
    return made if schema is None else {"format": {"type": "json_schema", "schema": schema}, **made}


def _parse_format(given: Any) -> Mapping[str, Any] | None:
    """Return the JSON schema that the answer must match; None if the answer is text."""
    kind = given.get("type") if isinstance(given, Mapping) else given
    if kind in (None, "text"):
        return None
    about = given.get("json_schema") if isinstance(given, Mapping) else None
    schema = about.get("schema") if isinstance(about, Mapping) else None
    if kind != "json_schema" or not isinstance(schema, Mapping):
        right = "must be of type text, or json_schema with a schema: Anthropic supports no other type"
        raise InvalidRequest(f"response_format {right}", param="response_format")
    return schema


# -- tools ----------------------------------------------------------------------


def _select_tools(body: Body) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    tools = convert_tools(body.get("tools") or ())
    choice, allowed = _convert_choice(body.get("tool_choice"), tools)
    if allowed is not None:
        tools = [tool for tool in tools if tool["name"] in allowed]
    if body.get("parallel_tool_calls") is False:
        choice = choice or {"type": "auto"}
        choice = choice if choice["type"] == "none" else {"disable_parallel_tool_use": True, **choice}
    return tools, choice


def _convert_choice(given: Any, tools: Sequence[Body]) -> tuple[dict[str, Any] | None, frozenset[str] | None]:
    """Return Anthropic's `tool_choice`, and the names of the allowed tools; None instead of names if all tools are allowed."""
    words = {"auto": "auto", "none": "none", "required": "any", "any": "any"}
    if given is None:
        return None, None
    if isinstance(given, str) and given in words:
        return {"type": words[given]}, None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind in ("auto", "any", "none", "tool"):
        return dict(given), None
    if kind == "function" and isinstance(name := _get_name(given), str):
        return {"type": "tool", "name": name}, None
    if kind == "allowed_tools":
        inner = given.get("allowed_tools", given)
        listed = inner.get("tools") if isinstance(inner, Mapping) else None
        names = frozenset(filter(None, map(_get_name, listed if isinstance(listed, Sequence) else ())))
        if known := names & {tool.get("name") for tool in tools}:
            return {"type": words.get(str(inner.get("mode")), "auto")}, frozenset(map(str, known))
    right = "auto, none, required, a function by its name, or allowed_tools that are among tools"
    raise InvalidRequest(f"tool_choice must be {right}", param="tool_choice")


def _get_name(tool: Any) -> str | None:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _declare_called_tools(messages: Sequence[Body]) -> list[dict[str, Any]]:
    """Return tool declarations for the calls in a request without tools, because Anthropic rejects calls without them.

    The model cannot call these tools, because the tool choice is none.
    """
    blocks = [block for message in messages for block in message["content"]]
    names = dict.fromkeys(to_tool_name(block["name"]) for block in blocks if block["type"] == "tool_use")
    return [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in names]


# -- reasoning --------------------------------------------------------------------


def _set_thinking(request: dict[str, Any], effort: str, reply: int) -> None:
    """Enable reasoning according to `reasoning_effort`, unless the request already has Anthropic's field `thinking`.

    Args:
        request: The request. Its `max_tokens` is set, too, because this limit includes the tokens for reasoning.
        effort: Effort in OpenAI's terms.
        reply: Tokens for the reply if the request sets no limit.
    """
    requested, thinking = request["max_tokens"], request.get("thinking")
    request["max_tokens"] = requested or reply
    if isinstance(thinking, Mapping):
        budget = thinking.get("budget_tokens")
        if not requested and type(budget) is int and budget > 0:
            request["max_tokens"] = reply + budget
        if thinking.get("type") == "enabled" and not _can_think(request["messages"]):
            del request["thinking"]
        return
    version, forced = (
        _parse_version(str(request.get("model"))),
        (request["tool_choice"] or {}).get("type") in ("any", "tool"),
    )
    if effort not in _EFFORTS or forced or version < _THINKING_SINCE:
        return
    if version >= _ADAPTIVE_SINCE:
        request["thinking"] = {"type": "adaptive"}
        request["output_config"] = {"effort": _EFFORTS[effort], **request["output_config"]}
    else:
        budget = min(_THINKING_TOKENS[effort], requested - 1) if requested else _THINKING_TOKENS[effort]
        if budget < _MIN_THINKING_TOKENS or not _can_think(request["messages"]):
            return
        request["thinking"] = {"type": "enabled", "budget_tokens": budget}
        request["max_tokens"] = requested or reply + budget
    for name in ("temperature", "top_k", "top_p"):  # not accepted together with reasoning
        request.pop(name, None)


def _can_think(messages: Sequence[Body]) -> bool:
    """Return True if reasoning may be enabled. Anthropic rejects reasoning in a tool round that began without reasoning."""
    if len(messages) < 2 or messages[-1]["content"][0]["type"] != "tool_result":
        return True
    return messages[-2]["content"][0]["type"] in THINKING


def _parse_version(model: str) -> tuple[int, int]:
    """Return a model's version. A model without a version in its name gets a version newer than all others."""
    found = _VERSION.search(model.lower())
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)


_READ: Final = frozenset({"system", "messages", "contents", "stop_sequences", "tools", "tool_choice"})
"""Fields that are converted, or that are read elsewhere."""
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_FUNCTION: Final = {"name": "name", "description": "description", "input_schema": "parameters"}
"""Fields of an Anthropic tool, with their names in a Chat Completions function."""


def parse_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields of an Anthropic request to fields of Chat Completions, except for `system` and `messages`.

    Raises:
        InvalidRequest: A field that is converted has an invalid value. The error names the field.
    """
    fields = {name: value for name, value in body.items() if name not in _READ}
    if body.get("stop_sequences") not in (None, []):
        fields["stop"] = _check_stops(body["stop_sequences"])
    if body.get("tools") is not None:
        fields["tools"] = parse_tools(body["tools"])
    if body.get("tool_choice") is not None:
        fields |= _parse_choice(body["tool_choice"])
    if body.get("metadata") is not None:
        user = _parse_user(body["metadata"])
        fields |= {} if body.get("user") else user
    return fields


def parse_tools(tools: Any) -> list[dict[str, Any]]:
    """Convert the client's own tools to function tools.

    Tools that Anthropic runs, or knows by their type, are returned unchanged.

    Raises:
        InvalidRequest: An item of the list is not a valid tool.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequest("tools must be a list of tools", param="tools")
    return [_parse_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _parse_tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise InvalidRequest(f"{where} must be an object with a name and an input_schema", param=where)
    kind = tool.get("type")
    if not isinstance(kind, str | None):
        raise InvalidRequest(f"{where}.type must be a string", param=f"{where}.type")
    if kind not in (None, "custom"):
        return dict(tool)
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise InvalidRequest(f"{where}.name is missing: a tool must have a name", param=f"{where}.name")
    if not isinstance(tool.get("input_schema"), Mapping):
        raise InvalidRequest(f"{where}.input_schema must be a JSON Schema, an object", param=f"{where}.input_schema")
    function = {theirs: tool[ours] for ours, theirs in _FUNCTION.items() if tool.get(ours) is not None}
    rest = {name: value for name, value in tool.items() if name not in _FUNCTION and name != "type"}
    return {"type": "function", "function": function, **rest}


def _check_stops(given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise InvalidRequest("stop_sequences must be a list of strings", param="stop_sequences")
    return given


def _parse_choice(given: Any) -> dict[str, Any]:
    """Return the fields `tool_choice` and `parallel_tool_calls`. In Anthropic's API, the latter is part of the former."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "tool" and isinstance(given.get("name"), str):
        fields: dict[str, Any] = {"tool_choice": {"type": "function", "function": {"name": given["name"]}}}
    elif isinstance(kind, str) and kind in _CHOICES:
        fields = {"tool_choice": _CHOICES[kind]}
    else:
        allowed = "an object whose type is auto, any, none, or tool with a name"
        raise InvalidRequest(f"tool_choice must be {allowed}", param="tool_choice")
    return {**fields, "parallel_tool_calls": False} if given.get("disable_parallel_tool_use") is True else fields


def _parse_user(given: Any) -> dict[str, Any]:
    """Return a dict with the field `user` from `metadata.user_id`, empty if there is no user id. `metadata` itself is kept."""
    if not isinstance(given, Mapping):
        raise InvalidRequest("metadata must be an object", param="metadata")
    user = given.get("user_id")
    if not isinstance(user, str | None):
        raise InvalidRequest("metadata.user_id must be a string", param="metadata.user_id")
    return {"user": read_user(user)} if user else {}


def read_user(given: str) -> str:
    """Return the user that `metadata.user_id` names.

    Claude Code puts a device, an account and a session into it, as `user_DEVICE_account_ACCOUNT_session_SESSION` or, in
    later versions, as JSON. The account is the user, or without one the device. Any other value is returned unchanged.
    """
    if found := _CLAUDE_CODE.fullmatch(given):
        return found["account"] or found["device"]
    with suppress(msgspec.MsgspecError, ValueError):
        parts = msgspec.json.decode(given, type=_ClaudeCodeUser)
        return parts.account_uuid or parts.device_id or given
    return given


class _ClaudeCodeUser(msgspec.Struct):
    session_id: str
    device_id: str = ""
    account_uuid: str = ""


_CLAUDE_CODE: Final = re.compile(r"user_(?P<device>[0-9a-f]+)_account_(?P<account>[^_]*)_session_[^_]+")

_IN_MESSAGES: Final = frozenset({"thinking_blocks", "content_blocks", "is_error", "cache_control", "toolset_name"})
"""Fields of a message that only Anthropic knows."""
_IN_PARTS: Final = frozenset({"cache_control", "citations"})
_IN_CALLS: Final = frozenset({"cache_control", "caller", "toolset_name"})
_ANTHROPICS: Final = frozenset(
    {"search_result", "container_upload", "tool_reference", "browser_state", "document", "image"}
)
"""Types of parts that Chat Completions do not have, including documents and images that only Anthropic can access."""
_OF_RESPONSES: Final = frozenset({"input_file", "input_image"})
"""Types of parts of OpenAI's Responses API that name a stored file or a link, which Chat Completions do not take."""
_ELSEWHERE: Final = frozenset(
    {
        "model",
        "stream",
        "max_tokens",
        "temperature",
        "top_p",
        "stop",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "user",
        "interruptable",
    }
)
"""Fields that have the same meaning in all Chat Completions APIs."""
_REASONS: Final = re.compile(r"(?:.*/)?(?:o[1-9]|gpt-[5-9])")
"""Matches the names of OpenAI's reasoning models. These models accept an effort, and have another name for the field that limits the
reply."""
_OPENAI_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_LOW_BUDGET, _MEDIUM_BUDGET = 4096, 16_384
"""Highest reasoning budgets in tokens for a low effort and for a medium effort."""


# -- messages ----------------------------------------------------------------


def is_plain(message: Message) -> bool:
    """Return True if a message has only text and tool calls, so that it contains nothing specific to a provider."""
    if message.extra or isinstance(message.content, tuple):
        return False
    if message.role == "tool":
        return message.content is not None
    return not message.tool_calls or not any(call.extra for call in message.tool_calls)


def drop_foreign_fields(message: Message, *, files: bool = False) -> Message:
    """Return a message without Anthropic's own fields, and with words in place of parts that its model does not take.

    A message without such fields and parts is returned as the same object.

    Args:
        message: The message. Its media are already in Chat Completions format.
        files: True if the upstream has the Responses API, which takes links to files, and ids of files that it stores.
    """
    changes: dict[str, Any] = {}
    if message.extra and not _IN_MESSAGES.isdisjoint(message.extra):
        changes["extra"] = _drop_fields(message.extra)
    if isinstance(message.content, tuple):
        parts = tuple(_drop_parts(message.content, files=files))
        if parts != message.content:
            # Null is allowed for replies with calls, but rejected for results.
            changes["content"] = parts or (None if message.tool_calls else "")
    elif message.role == "tool" and message.content is None:
        changes["content"] = ""
    if any(call.extra and not _IN_CALLS.isdisjoint(call.extra) for call in message.tool_calls):
        changes["tool_calls"] = tuple(map(_drop_call_fields, message.tool_calls))
    if (
        message.role == "assistant"
        and not message.tool_calls
        and changes
        and is_blank(changes.get("content", message.content))
    ):
        # A reply without content is rejected.
        changes["content"] = LEFT_OUT.format(type=_get_server_tool_type(message))
    return message.evolve(**changes) if changes else message


def _get_server_tool_type(message: Message) -> str:
    """Return the type of the first server tool block of a reply that contains no other content."""
    blocks = message.extra.get("content_blocks")
    listed = blocks if isinstance(blocks, list) else ()
    kinds = [part.type for part in message.media] + [
        block.get("type") for block in listed if isinstance(block, Mapping)
    ]
    return next((str(kind) for kind in kinds if kind in SERVER_TOOL_PARTS), "unknown")


def _drop_fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    # Reasoning is present both as text and as blocks. An upstream that does not know the blocks gets neither.
    blocks = {"reasoning_content"} if {"thinking_blocks", "content_blocks"} & extra.keys() else set()
    return {name: value for name, value in extra.items() if name not in _IN_MESSAGES | blocks}


def _drop_parts(content: Iterable[Part], *, files: bool) -> Iterator[Part]:
    for part in content:
        if part.type in UNSPOKEN_PARTS:
            continue
        if part.type in _OF_RESPONSES and files:
            yield part
        elif part.type in _ANTHROPICS | _OF_RESPONSES:
            yield from _replace_part(part, files=files)
        elif not _IN_PARTS.isdisjoint(part.extra):
            rest = {name: value for name, value in part.extra.items() if name not in _IN_PARTS}
            yield msgspec.structs.replace(part, extra=rest)
        else:
            yield part


def _replace_part(part: Part, *, files: bool) -> Iterator[Part]:
    """Yield a link to a file as a part of the Responses API, the texts of a search result, or the words in place of any other part."""
    extra, medium = part.extra, read_medium(part)
    if files and part.type == "document" and medium is not None and medium.url is not None:
        if context := extra.get("context"):
            yield Part("text", context)
        name = {"filename": medium.name} if medium.name else {}
        yield Part("input_file", extra={"file_url": medium.url, **name})
        return
    texts: list[Any] = []
    if part.type == "search_result" and isinstance(blocks := extra.get("content"), list):
        texts = [extra.get("title"), extra.get("source"), *(block.get("text") for block in blocks)]
    lines = [text for text in texts if isinstance(text, str) and text]
    yield Part("text", "\n".join(lines) or describe_left_out(part.type, extra))


def _drop_call_fields(call: ToolCall) -> ToolCall:
    rest = {name: value for name, value in call.extra.items() if name not in _IN_CALLS}
    return msgspec.structs.replace(call, extra=rest)


# -- fields --------------------------------------------------------------------


def convert_fields(fields: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Convert the fields of an Anthropic request to fields that a Chat Completions upstream accepts.

    Args:
        fields: Fields of the request, as returned by `parse_fields`.
        model: Name of the model at the upstream. Some models have another name for a field.
    """
    converted = {name: value for name, value in fields.items() if name in _ELSEWHERE}
    if "tools" in converted:
        functions = [tool for tool in converted.pop("tools") or () if isinstance(tool.get("function"), Mapping)]
        if functions:
            converted["tools"] = [_convert_function(tool) for tool in functions]
        else:  # a choice without tools is rejected
            converted.pop("tool_choice", None)
            converted.pop("parallel_tool_calls", None)
    config = fields.get("output_config")
    config = config if isinstance(config, Mapping) else {}
    if (form := _convert_format(config.get("format") or fields.get("output_format"))) is not None:
        converted["response_format"] = form
    if _REASONS.match(model.lower()):
        if "max_tokens" in converted:
            converted["max_completion_tokens"] = converted.pop("max_tokens")
        if (effort := _choose_effort(fields.get("thinking"), config.get("effort"))) is not None:
            converted["reasoning_effort"] = effort
    return converted


def _convert_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    strict = {"strict": tool["strict"]} if tool.get("strict") is not None else {}
    return {"type": "function", "function": {**tool["function"], **strict}}


def _convert_format(form: Any) -> dict[str, Any] | None:
    if (
        not isinstance(form, Mapping)
        or form.get("type") != "json_schema"
        or not isinstance(form.get("schema"), Mapping)
    ):
        return None
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": form["schema"], "strict": True}}


def _choose_effort(thinking: Any, effort: Any) -> str | None:
    """Return the reasoning effort for one of OpenAI's models; None for the model's default."""
    if isinstance(effort, str) and effort in _OPENAI_EFFORTS:
        return _OPENAI_EFFORTS[effort]
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    if not isinstance(budget, int):
        return None
    return "low" if budget <= _LOW_BUDGET else "medium" if budget <= _MEDIUM_BUDGET else "high"
