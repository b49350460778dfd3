"""A Chat Completions request as one of Anthropic's Messages API: its fields, one by one.

Follows the API reference, "Create a Message". What both have is written in Anthropic's words; what only OpenAI has and what does
not change the answer's shape is left out; what does is refused, before anything is asked. All else travels as it came: that
is how Anthropic's own fields arrive. The table is in docs/upstreams.md; the messages are `holdfast.wire.anthropic`'s business.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.context.dialects import adapted
from holdfast.context.reasoning import THINKING
from holdfast.domain.budget import Budget
from holdfast.errors import InvalidRequest
from holdfast.wire.anthropic import request_to, tool_name, tools_to
from holdfast.wire.anthropic_cache import MARK
from holdfast.wire.openai import messages_from, split_system

Body = Mapping[str, Any]
CHAT_ONLY: Final = frozenset(
    {"audio", "frequency_penalty", "logit_bias", "logprobs", "modalities", "n", "prediction", "presence_penalty"}
    | {
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "seed",
        "store",
        "stream_options",
        "top_logprobs",
    }
    | {"verbosity", "web_search_options"}
)
"""Fields of Chat Completions that Anthropic has nothing for."""
REWRITTEN: Final = frozenset(
    {"max_completion_tokens", "messages", "parallel_tool_calls", "reasoning_effort", "response_format", "stop", "user"}
    | {"betas", "cache_control", "tools"}
)
"""Fields that are told in other words, or elsewhere."""
USER_BYTES: Final = 16
MOST: Final = 1.0
"""The highest temperature; OpenAI's goes to 2."""
_TIERS: Final = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_THOUGHT: Final = {"minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768, "max": 32_768}
"""Tokens for reasoning, for models that want their number."""
_LEAST_THOUGHT: Final = 1_024
_VERSION: Final = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_THINKS: Final = (3, 7)
_ADAPTS: Final = (4, 6)
"""From this version on a model decides itself how long it thinks; before, it is told a number of tokens."""


def check(body: Body) -> None:
    """Refuse what would change the answer and what Anthropic has nothing for.

    Raises:
        InvalidRequest: says the field, and what would be right.
    """
    if body.get("n") not in (None, 1):
        raise InvalidRequest("n must be 1: Anthropic gives one answer a request", param="n")
    for name in ("functions", "function_call"):
        if body.get(name):
            instead = "tools" if name == "functions" else "tool_choice"
            raise InvalidRequest(f"{name} is not taken for Anthropic; use {instead}", param=name)
    _format(body.get("response_format"))
    _stops(body)
    tools = body.get("tools")
    _choice(body.get("tool_choice"), tools_to(tools) if tools else [])


def body_to(body: Body, *, max_tokens: int | None = None) -> dict[str, Any]:
    """The body of `POST /v1/messages` for a Chat Completions body.

    Args:
        body: with `model`, and `messages` that need not be adapted to Anthropic's dialect yet.
        max_tokens: of the reply, where the body does not say; None: what `Budget` keeps free for it.

    Raises:
        InvalidRequest: something in it has no place with Anthropic; see `check`.
    """
    check(body)
    front, rest = split_system(messages_from(list(body.get("messages") or ())))
    tools, choice = _tools(body)
    made: dict[str, Any] = {name: value for name, value in body.items() if name not in CHAT_ONLY | REWRITTEN}
    made.update(request_to([*front, *adapted(rest, "anthropic")], tools=tools, cache=_cache(body)))
    if not tools and (called := _called(made["messages"])):
        made["tools"], choice = called, {"type": "none"}
    made["tool_choice"] = choice if made.get("tools") else None
    made["stop_sequences"] = _stops(body)
    made["metadata"] = _metadata(body)
    made["service_tier"] = _TIERS.get(str(body.get("service_tier")))
    made["output_config"] = _output(body)
    if isinstance(warmth := made.get("temperature"), int | float):
        made["temperature"] = min(warmth, MOST)
    made["max_tokens"] = body.get("max_completion_tokens") or body.get("max_tokens")
    _think(
        made, str(body.get("reasoning_effort")), max_tokens or Budget.for_model(str(body.get("model"))).max_reply_tokens
    )
    return {name: value for name, value in made.items() if value is not None and value != {}}


def betas_in(body: Body) -> list[str]:
    """The `betas` of a request, which go into a header."""
    named = body.get("betas")
    return [str(name) for name in named] if isinstance(named, Sequence) and not isinstance(named, str) else []


# -- one by one ----------------------------------------------------------------


def _cache(body: Body) -> Mapping[str, Any] | None:
    """What a mark for the cache says: `cache_control`, false for none of ours."""
    said = body.get("cache_control")
    if said is False:
        return None
    return said if isinstance(said, Mapping) and said else MARK


def _stops(body: Body) -> list[str] | None:
    """Stop sequences; Anthropic refuses those of white space alone."""
    name = "stop_sequences" if body.get("stop_sequences") else "stop"
    given = body.get(name) or ()
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not all(isinstance(text, str) for text in listed):
        raise InvalidRequest(f"{name} must be a text or a list of texts", param=name)
    return [text for text in listed if text.strip()] or None


def _metadata(body: Body) -> dict[str, Any]:
    """Anthropic's one key, as it came; else the user, as nobody can read them, because Anthropic wants no names."""
    given = body.get("metadata")
    named = given.get("user_id") if isinstance(given, Mapping) else None
    if isinstance(named, str) and named:
        return {"user_id": named}
    user = body.get("user")
    if not isinstance(user, str) or not user:
        return {}
    return {"user_id": f"hf-{hashlib.blake2b(user.encode(errors='replace'), digest_size=USER_BYTES).hexdigest()}"}


def _output(body: Body) -> dict[str, Any]:
    given = body.get("output_config")
    made = dict(given) if isinstance(given, Mapping) else {}
    schema = _format(body.get("response_format"))
    return made if schema is None else {"format": {"type": "json_schema", "schema": schema}, **made}


def _format(given: Any) -> Mapping[str, Any] | None:
    """The schema that an answer has to have; None: it is text."""
    kind = given.get("type") if isinstance(given, Mapping) else given
    if kind in (None, "text"):
        return None
    about = given.get("json_schema") if isinstance(given, Mapping) else None
    schema = about.get("schema") if isinstance(about, Mapping) else None
    if kind != "json_schema" or not isinstance(schema, Mapping):
        right = "must be of type text, or json_schema with a schema: Anthropic has no other"
        raise InvalidRequest(f"response_format {right}", param="response_format")
    return schema


# -- tools ----------------------------------------------------------------------


def _tools(body: Body) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The tools, those that a choice leaves out aside, and the choice."""
    tools = tools_to(body.get("tools") or ())
    choice, allowed = _choice(body.get("tool_choice"), tools)
    if allowed is not None:
        tools = [tool for tool in tools if tool["name"] in allowed]
    if body.get("parallel_tool_calls") is False:
        choice = choice or {"type": "auto"}
        choice = choice if choice["type"] == "none" else {"disable_parallel_tool_use": True, **choice}
    return tools, choice


def _choice(given: Any, tools: Sequence[Body]) -> tuple[dict[str, Any] | None, frozenset[str] | None]:
    """Anthropic's `tool_choice`, and the names of the tools that may be called where not all may."""
    words = {"auto": "auto", "none": "none", "required": "any", "any": "any"}
    if given is None:
        return None, None
    if isinstance(given, str) and given in words:
        return {"type": words[given]}, None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind in ("auto", "any", "none", "tool"):
        return dict(given), None
    if kind == "function" and isinstance(name := _name(given), str):
        return {"type": "tool", "name": name}, None
    if kind == "allowed_tools":
        inner = given.get("allowed_tools", given)
        listed = inner.get("tools") if isinstance(inner, Mapping) else None
        names = frozenset(filter(None, map(_name, listed if isinstance(listed, Sequence) else ())))
        if known := names & {tool.get("name") for tool in tools}:
            return {"type": words.get(str(inner.get("mode")), "auto")}, frozenset(map(str, known))
    right = "auto, none, required, a function by its name, or allowed_tools that are among tools"
    raise InvalidRequest(f"tool_choice must be {right}", param="tool_choice")


def _name(tool: Any) -> str | None:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _called(messages: Sequence[Body]) -> list[dict[str, Any]]:
    """Tools for calls of a request that declares none: Anthropic refuses calls without any. No choice lets them be called."""
    blocks = [block for message in messages for block in message["content"]]
    names = dict.fromkeys(tool_name(block["name"]) for block in blocks if block["type"] == "tool_use")
    return [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in names]


# -- reasoning --------------------------------------------------------------------


def _think(made: dict[str, Any], effort: str, reply: int) -> None:
    """Have the model think as `reasoning_effort` says, unless the request says it in Anthropic's words.

    Args:
        made: the request; `max_tokens` is settled too, whose number the tokens for reasoning are part of.
        effort: as OpenAI has it.
        reply: tokens of the reply where the request does not say.
    """
    asked, thinking = made["max_tokens"], made.get("thinking")
    made["max_tokens"] = asked or reply
    if isinstance(thinking, Mapping):
        budget = thinking.get("budget_tokens")
        if not asked and type(budget) is int and budget > 0:
            made["max_tokens"] = reply + budget
        if thinking.get("type") == "enabled" and not _may_think(made["messages"]):
            del made["thinking"]
        return
    version, forced = _version(str(made.get("model"))), (made["tool_choice"] or {}).get("type") in ("any", "tool")
    if effort not in _EFFORTS or forced or version < _THINKS:
        return
    if version >= _ADAPTS:
        made["thinking"] = {"type": "adaptive"}
        made["output_config"] = {"effort": _EFFORTS[effort], **made["output_config"]}
    else:
        budget = min(_THOUGHT[effort], asked - 1) if asked else _THOUGHT[effort]
        if budget < _LEAST_THOUGHT or not _may_think(made["messages"]):
            return
        made["thinking"] = {"type": "enabled", "budget_tokens": budget}
        made["max_tokens"] = asked or reply + budget
    for name in ("temperature", "top_k", "top_p"):  # not taken beside reasoning
        made.pop(name, None)


def _may_think(messages: Sequence[Body]) -> bool:
    """Whether reasoning may be turned on: not in the middle of a tool round that began without it, which is refused."""
    if len(messages) < 2 or messages[-1]["content"][0]["type"] != "tool_result":
        return True
    return messages[-2]["content"][0]["type"] in THINKING


def _version(model: str) -> tuple[int, int]:
    """A model's version; one that its name does not tell counts as new."""
    found = _VERSION.search(model.lower())
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)
