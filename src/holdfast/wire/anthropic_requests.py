"""Requests between Chat Completions and Anthropic's Messages API, field by field, in both directions; and without what only Anthropic has.

Follows the API reference, "Create a Message". To Anthropic: fields that both APIs have are renamed; fields that only OpenAI has are
left out if they do not change the answer's shape, else refused before any call. All else is sent unchanged. The table is in
docs/upstreams.md; `holdfast.wire.anthropic` converts the messages.

From Anthropic: fields that Chat Completions have no name for keep their own, so that a request reaches Anthropic as it was sent. For other
upstreams, which mostly refuse unknown fields and parts, reasoning with its signature, what server tools did, and marks for the cache are
removed from what is sent; the log keeps them, and no words are lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.dialects import THINKING, adapted
from holdfast.context.units import is_blank
from holdfast.domain.budget import Budget
from holdfast.domain.messages import SERVER_TOOL_PARTS, UNSPOKEN_PARTS, Message, Part, ToolCall
from holdfast.errors import InvalidRequest
from holdfast.wire.anthropic import MARK, request_to, tool_name, tools_to
from holdfast.wire.openai import message_to, messages_from, split_system

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


_READ: Final = frozenset({"system", "messages", "contents", "stop_sequences", "tools", "tool_choice"})
"""Fields that are told otherwise, or elsewhere."""
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_FUNCTION: Final = {"name": "name", "description": "description", "input_schema": "parameters"}
"""Fields of a tool, and of the function that it is in Chat Completions."""


def fields_from(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request in Chat Completions' terms, but for `system` and `messages`.

    Raises:
        InvalidRequest: one that has to be told otherwise is not what the API takes; names it.
    """
    fields = {name: value for name, value in body.items() if name not in _READ}
    if body.get("stop_sequences"):
        fields["stop"] = _stop(body["stop_sequences"])
    if body.get("tools") is not None:
        fields["tools"] = tools_from(body["tools"])
    if body.get("tool_choice") is not None:
        fields |= _choice_from(body["tool_choice"])
    if body.get("metadata") is not None:
        user = _user(body["metadata"])
        fields |= {} if body.get("user") else user
    return fields


def tools_from(tools: Any) -> list[dict[str, Any]]:
    """Tools of the client's own as function tools; those that Anthropic runs or knows by their type as they came.

    Raises:
        InvalidRequest: something in the list is no tool.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequest("tools must be a list of tools", param="tools")
    return [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise InvalidRequest(f"{where} must be an object with a name and an input_schema", param=where)
    kind = tool.get("type")
    if not isinstance(kind, str | None):
        raise InvalidRequest(f"{where}.type must be a string", param=f"{where}.type")
    if kind not in (None, "custom"):
        return dict(tool)
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise InvalidRequest(f"{where}.name is missing: a tool has a name", param=f"{where}.name")
    if not isinstance(tool.get("input_schema"), Mapping):
        raise InvalidRequest(f"{where}.input_schema must be a JSON Schema, an object", param=f"{where}.input_schema")
    function = {theirs: tool[ours] for ours, theirs in _FUNCTION.items() if tool.get(ours) is not None}
    rest = {name: value for name, value in tool.items() if name not in _FUNCTION and name != "type"}
    return {"type": "function", "function": function, **rest}


def _stop(given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise InvalidRequest("stop_sequences must be a list of strings", param="stop_sequences")
    return given


def _choice_from(given: Any) -> dict[str, Any]:
    """`tool_choice`, and `parallel_tool_calls`, which stands in it."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "tool" and isinstance(given.get("name"), str):
        fields: dict[str, Any] = {"tool_choice": {"type": "function", "function": {"name": given["name"]}}}
    elif isinstance(kind, str) and kind in _CHOICES:
        fields = {"tool_choice": _CHOICES[kind]}
    else:
        wanted = "an object whose type is auto, any, none, or tool with a name"
        raise InvalidRequest(f"tool_choice must be {wanted}", param="tool_choice")
    return {**fields, "parallel_tool_calls": False} if given.get("disable_parallel_tool_use") is True else fields


def _user(given: Any) -> dict[str, Any]:
    """`metadata.user_id` as the end user, where `user` does not say; it stays where it is as well."""
    if not isinstance(given, Mapping):
        raise InvalidRequest("metadata must be an object", param="metadata")
    user = given.get("user_id")
    if not isinstance(user, str | None):
        raise InvalidRequest("metadata.user_id must be a string", param="metadata.user_id")
    return {"user": user} if user else {}


_IN_MESSAGES: Final = frozenset({"thinking_blocks", "content_blocks", "is_error", "cache_control", "toolset_name"})
"""Fields beside a message's own."""
_IN_PARTS: Final = frozenset({"cache_control", "citations"})
_IN_CALLS: Final = frozenset({"cache_control", "caller", "toolset_name"})
_ANTHROPICS: Final = frozenset(
    {"search_result", "container_upload", "tool_reference", "browser_state", "document", "image"}
)
"""Parts that Chat Completions do not have; of documents and images those that nobody else can get at."""
ELSEWHERE: Final = "[a part of type {type} is left out here: only Anthropic can read it]"
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
"""Fields with the same meaning wherever Chat Completions are spoken."""
_REASONS: Final = re.compile(r"(?:.*/)?(?:o[1-9]|gpt-[5-9])")
"""OpenAI's models that reason: they take an effort, and know the length of a reply by another name."""
_OPENAI_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_LOW_BUDGET, _MEDIUM_BUDGET = 4096, 16_384
"""Tokens of thinking up to which an effort is low, or medium."""


# -- messages ----------------------------------------------------------------


def plain_prompt(messages: Sequence[Message]) -> list[dict[str, Any]] | None:
    """Messages as Chat Completions has them, where every upstream takes all of them as they are; else None."""
    plain = [
        # Nearly all of a long prompt is text alone.
        {"role": one.role, "content": one.content}
        if type(one.content) is str
        and not (one.tool_calls or one.extra)
        and one.tool_call_id is None
        and one.name is None
        else message_to(one)
        if _is_plain(one)
        else None
        for one in messages
    ]
    return None if None in plain else plain  # type: ignore[return-value]  # there is no None in it


def _is_plain(message: Message) -> bool:
    """Text and calls alone."""
    if message.extra or isinstance(message.content, tuple):
        return False
    if message.role == "tool":
        return message.content is not None
    return not message.tool_calls or not any(call.extra for call in message.tool_calls)


def without_anthropics(message: Message) -> Message:
    """`message` for a Chat Completions upstream that does not know Anthropic's fields; the same where it has none of them.

    Args:
        message: its media have been written as Chat Completions have them already.
    """
    changes: dict[str, Any] = {}
    if message.extra and not _IN_MESSAGES.isdisjoint(message.extra):
        changes["extra"] = _beside(message.extra)
    if isinstance(message.content, tuple):
        parts = tuple(_parts(message.content))
        if parts != message.content:
            # Null is for replies with calls: of a result it is refused.
            changes["content"] = parts or (None if message.tool_calls else "")
    elif message.role == "tool" and message.content is None:
        changes["content"] = ""
    if any(call.extra and not _IN_CALLS.isdisjoint(call.extra) for call in message.tool_calls):
        changes["tool_calls"] = tuple(map(_call, message.tool_calls))
    if (
        message.role == "assistant"
        and not message.tool_calls
        and changes
        and is_blank(changes.get("content", message.content))
    ):
        changes["content"] = ELSEWHERE.format(type=_served(message))  # a reply without content is refused
    return message.evolve(**changes) if changes else message


def _served(message: Message) -> str:
    """Return the type of the first part of a reply that only tells what tools of its provider did."""
    blocks = message.extra.get("content_blocks")
    kinds = [part.type for part in message.media if part.type in SERVER_TOOL_PARTS]
    kinds += (
        [str(block.get("type")) for block in blocks if isinstance(block, Mapping)] if isinstance(blocks, list) else []
    )
    return next((kind for kind in kinds if kind in SERVER_TOOL_PARTS), "unknown")


def _beside(extra: Mapping[str, Any]) -> dict[str, Any]:
    # Reasoning is told twice there, in words and as blocks: whoever does not know the one gets neither.
    blocks = {"reasoning_content"} if {"thinking_blocks", "content_blocks"} & extra.keys() else set()
    return {name: value for name, value in extra.items() if name not in _IN_MESSAGES | blocks}


def _parts(content: Iterable[Part]) -> Iterable[Part]:
    for part in content:
        if part.type in UNSPOKEN_PARTS:
            continue
        if part.type in _ANTHROPICS:
            yield Part("text", _words(part))
        elif not _IN_PARTS.isdisjoint(part.extra):
            rest = {name: value for name, value in part.extra.items() if name not in _IN_PARTS}
            yield msgspec.structs.replace(part, extra=rest)
        else:
            yield part


def _words(part: Part) -> str:
    """A search result's title, source and text; of anything else, what it was."""
    if part.type != "search_result":
        return ELSEWHERE.format(type=part.type)
    blocks = part.extra.get("content")
    texts = [block.get("text") for block in blocks if isinstance(block, Mapping)] if isinstance(blocks, list) else []
    told = [part.extra.get("title"), part.extra.get("source"), *texts]
    return "\n".join(text for text in told if isinstance(text, str) and text) or ELSEWHERE.format(type=part.type)


def _call(call: ToolCall) -> ToolCall:
    rest = {name: value for name, value in call.extra.items() if name not in _IN_CALLS}
    return msgspec.structs.replace(call, extra=rest)


# -- fields --------------------------------------------------------------------


def fields_for_others(fields: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Of a request that was written for Anthropic, as `holdfast.wire.anthropic_requests` gives it, what a Chat Completions upstream is sent.

    Args:
        fields: the request's.
        model: what the upstream calls its model: some want a field by another name.
    """
    told = {name: value for name, value in fields.items() if name in _ELSEWHERE}
    if "tools" in told:
        functions = [tool for tool in told.pop("tools") or () if isinstance(tool.get("function"), Mapping)]
        if functions:
            told["tools"] = [_function(tool) for tool in functions]
        else:  # a choice among none is refused
            told.pop("tool_choice", None)
            told.pop("parallel_tool_calls", None)
    config = fields.get("output_config")
    config = config if isinstance(config, Mapping) else {}
    if (form := _response_format(config.get("format"))) is not None:
        told["response_format"] = form
    if _REASONS.match(model.lower()):
        if "max_tokens" in told:
            told["max_completion_tokens"] = told.pop("max_tokens")
        if (effort := _effort(fields.get("thinking"), config.get("effort"))) is not None:
            told["reasoning_effort"] = effort
    return told


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    strict = {"strict": tool["strict"]} if tool.get("strict") is not None else {}
    return {"type": "function", "function": {**tool["function"], **strict}}


def _response_format(form: Any) -> dict[str, Any] | None:
    if (
        not isinstance(form, Mapping)
        or form.get("type") != "json_schema"
        or not isinstance(form.get("schema"), Mapping)
    ):
        return None
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": form["schema"], "strict": True}}


def _effort(thinking: Any, effort: Any) -> str | None:
    """How hard a model of OpenAI's is to think; None: as it does by itself."""
    if isinstance(effort, str) and effort in _OPENAI_EFFORTS:
        return _OPENAI_EFFORTS[effort]
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    if not isinstance(budget, int):
        return None
    return "low" if budget <= _LOW_BUDGET else "medium" if budget <= _MEDIUM_BUDGET else "high"
