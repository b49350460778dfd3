"""Fields of requests: conversion between Chat Completions, whose names Holdfast uses, and Anthropic's Messages API.

Follows the API reference, "Create a Message". To Anthropic, fields that both APIs have are renamed. Fields that only
OpenAI has are left out if they do not change the form of the answer; otherwise the request is rejected before any call.
All other fields are sent unchanged. The table is in docs/anthropic-models.md. From Anthropic, fields that Chat
Completions do not have keep their names, so that a request reaches Anthropic unchanged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from holdfast.context.dialects import THINKING
from holdfast.context.fitting import adapt_messages
from holdfast.domain.budget import Budget
from holdfast.domain.messages import Message
from holdfast.errors import InvalidRequest
from holdfast.models.codecs.messages.blocks import encode_messages
from holdfast.models.codecs.messages.cache import MARK
from holdfast.models.codecs.messages.tools import declare_called_tools, decode_tools, encode_tools
from holdfast.wire.openai import split_system

Fields = Mapping[str, Any]
_OF_CHAT: Final = frozenset(
    {"audio", "frequency_penalty", "logit_bias", "logprobs", "modalities", "n", "prediction", "presence_penalty"}
    | {"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "seed", "store", "stream_options"}
    | {"top_logprobs", "verbosity", "web_search_options"}
    | {
        "max_completion_tokens",
        "messages",
        "parallel_tool_calls",
        "reasoning_effort",
        "response_format",
        "stop",
        "user",
    }
    | {"betas", "cache_control", "tools"}
)
"""Fields of Chat Completions that have no counterpart in Anthropic's API, or another name or position."""
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
"""Values of `tool_choice` in Anthropic's API, with their names in Chat Completions."""
_WORDS: Final = {"any": "any", **{chat: own for own, chat in _CHOICES.items()}}
_USER_BYTES: Final = 16
_MAX_TEMPERATURE: Final = 1.0
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


# -- to an upstream ----------------------------------------------------------------


def encode_request(messages: Sequence[Message], fields: Fields, *, max_tokens: int | None = None) -> dict[str, Any]:
    """Return the body of `POST /v1/messages` for a request.

    Args:
        messages: The prompt. It need not be adapted to Anthropic's dialect yet.
        fields: All other fields of a Chat Completions request, with `model`.
        max_tokens: Limit for the reply if the request sets none. Default: the tokens that `Budget` reserves for the reply.

    Raises:
        InvalidRequest: The request contains something that Anthropic does not support, as in `check`.
    """
    made = _encode_fields(fields)
    tools = made.pop("tools")
    front, rest = split_system(messages)
    adapted = [*front, *adapt_messages(rest, "anthropic")]
    body = {name: value for name, value in fields.items() if name not in _OF_CHAT}
    body |= encode_messages(adapted, tools=tools, cache=_get_cache_mark(fields))
    if not tools:
        body["tools"] = declare_called_tools(body["messages"]) or None
        made["tool_choice"] = {"type": "none"} if body["tools"] else None  # the model cannot call these tools
    body |= made
    if isinstance(temperature := body.get("temperature"), int | float):
        body["temperature"] = min(temperature, _MAX_TEMPERATURE)
    reply = max_tokens or Budget.for_model(str(fields.get("model"))).max_reply_tokens
    _set_thinking(body, str(fields.get("reasoning_effort")), reply)
    return {name: value for name, value in body.items() if value is not None and value != {}}


def check(fields: Fields) -> None:
    """Reject fields that Anthropic does not support and that would change the answer.

    Raises:
        InvalidRequest: A field is not supported. The error names the field and what is allowed.
    """
    _encode_fields(fields)


def get_betas(fields: Fields) -> list[str]:
    """Return the `betas` of a request. They are sent in a header."""
    named = fields.get("betas")
    return [str(name) for name in named] if isinstance(named, Sequence) and not isinstance(named, str) else []


def _encode_fields(fields: Fields) -> dict[str, Any]:
    """Return the fields of a request that have another form in Anthropic's API; those that are left out are None or empty."""
    if fields.get("n") not in (None, 1):
        raise InvalidRequest("n must be 1: Anthropic returns one answer per request", param="n")
    for name, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if fields.get(name):  # those that are valid together were converted
            raise InvalidRequest(f"{name} is not supported for Anthropic; use {instead}", param=name)
    output_config, stops = _encode_output_config(fields), _encode_stops(fields)
    tools, choice = _encode_choice(fields)
    return {
        "tools": tools,
        "tool_choice": choice,
        "stop_sequences": stops,
        "metadata": _encode_user(fields),
        "service_tier": _TIERS.get(str(fields.get("service_tier"))),
        "output_config": output_config,
        "max_tokens": fields.get("max_completion_tokens") or fields.get("max_tokens"),
    }


def _get_cache_mark(fields: Fields) -> Mapping[str, Any] | None:
    """Return the request's `cache_control` as the value for cache marks.

    The value is `MARK` if the request does not set it. It is None, which means no marks, if the request sets it to
    false.
    """
    given = fields.get("cache_control")
    if given is False:
        return None
    return given if isinstance(given, Mapping) and given else MARK


def _encode_stops(fields: Fields) -> list[str] | None:
    """Return the stop sequences; None if there are none.

    Stop sequences of only white space are dropped, because Anthropic rejects them.
    """
    name = "stop_sequences" if fields.get("stop_sequences") else "stop"
    given = fields.get(name) or ()
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not all(isinstance(text, str) for text in listed):
        raise InvalidRequest(f"{name} must be a string or a list of strings", param=name)
    return [text for text in listed if text.strip()] or None


def _encode_user(fields: Fields) -> dict[str, Any]:
    """Return Anthropic's `metadata` with a user id.

    If the request's metadata contains a user id, it is unchanged. Otherwise the id is a hash of the request's `user`,
    because Anthropic asks not to send names.
    """
    given = fields.get("metadata")
    named = given.get("user_id") if isinstance(given, Mapping) else None
    if isinstance(named, str) and named:
        return {"user_id": named}
    user = fields.get("user")
    if not isinstance(user, str) or not user:
        return {}
    return {"user_id": f"hf-{hashlib.blake2b(user.encode(errors='replace'), digest_size=_USER_BYTES).hexdigest()}"}


def _encode_output_config(fields: Fields) -> dict[str, Any]:
    """Return Anthropic's `output_config` with the JSON schema of `response_format`, if there is one."""
    config = fields.get("output_config")
    made = dict(config) if isinstance(config, Mapping) else {}
    given = fields.get("response_format")
    kind = given.get("type") if isinstance(given, Mapping) else given
    if kind in (None, "text"):
        return made
    about = given.get("json_schema") if isinstance(given, Mapping) else None
    schema = about.get("schema") if isinstance(about, Mapping) else None
    if kind != "json_schema" or not isinstance(schema, Mapping):
        right = "must be of type text, or json_schema with a schema: Anthropic supports no other type"
        raise InvalidRequest(f"response_format {right}", param="response_format")
    return {"format": {"type": "json_schema", "schema": schema}, **made}


def _encode_choice(fields: Fields) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the tools that the model may call, and Anthropic's `tool_choice`."""
    given: Any = fields.get("tool_choice")
    tools = encode_tools(fields.get("tools") or ())
    kind = given.get("type") if isinstance(given, Mapping) else None
    choice: dict[str, Any] | None = None
    if isinstance(given, str) and given in _WORDS:
        choice = {"type": _WORDS[given]}
    elif kind in ("auto", "any", "none", "tool"):
        choice = dict(given)
    elif kind == "function" and (name := _get_name(given)) is not None:
        choice = {"type": "tool", "name": name}
    elif kind == "allowed_tools" and (allowed := _list_allowed(inner := given.get("allowed_tools", given), tools)):
        choice, tools = {"type": _WORDS.get(str(inner.get("mode")), "auto")}, allowed
    elif given is not None:
        right = "auto, none, required, a function by its name, or allowed_tools that are among tools"
        raise InvalidRequest(f"tool_choice must be {right}", param="tool_choice")
    if fields.get("parallel_tool_calls") is False and (choice is None or choice["type"] != "none"):
        choice = {"disable_parallel_tool_use": True, **(choice or {"type": "auto"})}
    return tools, choice


def _list_allowed(given: Any, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    listed = given.get("tools") if isinstance(given, Mapping) else None
    names = {*map(_get_name, listed if isinstance(listed, Sequence) else ())}
    return [tool for tool in tools if tool.get("name") and tool["name"] in names]


def _get_name(tool: Any) -> str | None:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


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
    # A model without a version in its name counts as newer than all others.
    found = _VERSION.search(str(request.get("model")).lower())
    version = (int(found[1]), int(found[2] or 0)) if found else (99, 0)
    forced = (request["tool_choice"] or {}).get("type") in ("any", "tool")
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


def _can_think(messages: Sequence[Fields]) -> bool:
    """Return True if reasoning may be enabled. Anthropic rejects reasoning in a tool round that began without reasoning."""
    if len(messages) < 2 or messages[-1]["content"][0]["type"] != "tool_result":
        return True
    return messages[-2]["content"][0]["type"] in THINKING


# -- from a client -----------------------------------------------------------------

_READ: Final = frozenset({"system", "messages", "contents", "stop_sequences", "tools", "tool_choice"})
"""Fields that are converted, or that are read elsewhere."""


def decode_fields(body: Fields) -> dict[str, Any]:
    """Convert the fields of an Anthropic request to fields of Chat Completions, except for `system` and `messages`.

    Raises:
        InvalidRequest: A field that is converted has an invalid value. The error names the field.
    """
    fields = {name: value for name, value in body.items() if name not in _READ}
    if (stops := body.get("stop_sequences")) not in (None, []):
        if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
            raise InvalidRequest("stop_sequences must be a list of strings", param="stop_sequences")
        fields["stop"] = stops
    if body.get("tools") is not None:
        fields["tools"] = decode_tools(body["tools"])
    if body.get("tool_choice") is not None:
        fields |= _decode_choice(body["tool_choice"])
    if (metadata := body.get("metadata")) is not None:  # it is kept
        if not isinstance(metadata, Mapping):
            raise InvalidRequest("metadata must be an object", param="metadata")
        user = metadata.get("user_id")
        if not isinstance(user, str | None):
            raise InvalidRequest("metadata.user_id must be a string", param="metadata.user_id")
        if user and not body.get("user"):
            fields["user"] = read_user(user)
    return fields


def _decode_choice(given: Any) -> dict[str, Any]:
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


def read_user(given: str) -> str:
    """Return the user that `metadata.user_id` names.

    Claude Code puts a device, an account and a session into it, as `user_DEVICE_account_ACCOUNT_session_SESSION` or, in
    later versions, as JSON. The account is the user, or without one the device. Any other value is returned unchanged.
    """
    parts = _parse_claude_code(given)
    return given if parts is None else parts.account_uuid or parts.device_id or given


def read_scope(given: str) -> str | None:
    """Return the session of Claude Code that `metadata.user_id` names, which all its requests share; None: it names none."""
    parts = _parse_claude_code(given)
    return None if parts is None else parts.session_id or None


def _parse_claude_code(given: str) -> _ClaudeCodeUser | None:
    """Return the parts of an id of Claude Code; None for any other value."""
    if found := _CLAUDE_CODE.fullmatch(given):
        return _ClaudeCodeUser(**found.groupdict())
    with suppress(msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(given, type=_ClaudeCodeUser)
    return None


class _ClaudeCodeUser(msgspec.Struct):
    session_id: str
    device_id: str = ""
    account_uuid: str = ""


_CLAUDE_CODE: Final = re.compile(
    r"user_(?P<device_id>[0-9a-f]+)_account_(?P<account_uuid>[^_]*)_session_(?P<session_id>[^_]+)"
)
