"""What only Anthropic's API has in its requests and messages, taken out of what leaves for another one.

A log keeps all of it: reasoning with its signature, what server tools did, marks for the cache. Most Chat Completions upstreams refuse
a request for a field, or a part, that they do not know. Nothing that anybody said is lost by that: words stay where they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.contents import is_blank
from holdfast.domain.messages import SERVER_TOOL_PARTS, UNSPOKEN_PARTS, Message, Part, ToolCall
from holdfast.wire.openai import message_to

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
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_LOW_BUDGET, _MEDIUM_BUDGET = 4096, 16_384
"""Tokens of thinking up to which an effort is low, or medium."""


# -- messages ----------------------------------------------------------------


def plain_prompt(messages: Sequence[Message]) -> list[dict[str, Any]] | None:
    """Messages as Chat Completions has them, where every upstream takes all of them as they are; else None."""
    told: list[dict[str, Any]] = []
    for message in messages:
        content, calls, result_of = message.content, message.tool_calls, message.tool_call_id
        if type(content) is str and not (calls or result_of is not None or message.extra or message.name is not None):
            told.append({"role": message.role, "content": content})  # nearly all of a long prompt
        elif _is_plain(message):
            told.append(message_to(message))
        else:
            return None
    return told


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
    """Of a request that was written for Anthropic, as `holdfast.wire.anthropic_inbound` gives it, what a Chat Completions upstream is sent.

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
    if isinstance(effort, str) and effort in _EFFORTS:
        return _EFFORTS[effort]
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    if not isinstance(budget, int):
        return None
    return "low" if budget <= _LOW_BUDGET else "medium" if budget <= _MEDIUM_BUDGET else "high"
