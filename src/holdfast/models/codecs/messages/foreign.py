"""Conversations of Anthropic's clients and models for upstreams with another API.

Most other upstreams reject unknown fields and parts. So signed reasoning, blocks of server tools, and cache marks are not
sent to them. The log keeps them, and no text is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from holdfast.context.units import is_blank
from holdfast.domain.messages import SERVER_TOOL_PARTS, UNSPOKEN_PARTS, Message, Part
from holdfast.wire.openai import LEFT_OUT, describe_left_out, read_medium

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


def are_plain(messages: Iterable[Message]) -> bool:
    """Return True if messages have only text and tool calls, so that they contain nothing specific to a provider."""
    for message in messages:  # one function for all, because each turn checks its whole prompt
        if message.extra or isinstance(message.content, tuple):
            return False
        if message.content is None and message.role == "tool":
            return False
        for call in message.tool_calls:
            if call.extra:
                return False
    return True


def drop_foreign_fields(message: Message, *, files: bool = False) -> Message:
    """Return a message without Anthropic's own fields, and with words in place of parts that its model does not take.

    A message without such fields and parts is returned as the same object.

    Args:
        message: The message. Its media are already in Chat Completions format.
        files: True if the upstream has the Responses API, which takes links to files, and ids of files that it stores.
    """
    content, extra = message.content, message.extra
    if type(content) is str and not extra and not message.tool_calls:  # nearly every message of a long prompt
        return message
    if isinstance(content, tuple):
        # Null is allowed for replies with calls, but rejected for results.
        content = tuple(_drop_parts(content, files=files)) or (None if message.tool_calls else "")
    elif message.role == "tool" and content is None:
        content = ""
    if not _IN_MESSAGES.isdisjoint(extra):
        # Reasoning is present both as text and as blocks. An upstream that does not know the blocks gets neither.
        blocks = {"reasoning_content"} if {"thinking_blocks", "content_blocks"} & extra.keys() else set()
        extra = _leave_out(extra, _IN_MESSAGES | blocks)
    calls = message.tool_calls
    if any(not _IN_CALLS.isdisjoint(call.extra) for call in calls):
        calls = tuple(msgspec.structs.replace(call, extra=_leave_out(call.extra, _IN_CALLS)) for call in calls)
    made = message.evolve(content=content, extra=extra, tool_calls=calls)
    if made == message:
        return message
    if message.role == "assistant" and not calls and is_blank(content):  # a reply without content is rejected
        return made.evolve(content=LEFT_OUT.format(type=_get_server_tool_type(message)))
    return made


def _leave_out(fields: Mapping[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _get_server_tool_type(message: Message) -> str:
    """Return the type of the first server tool block of a reply that contains no other content."""
    blocks = message.extra.get("content_blocks")
    listed = blocks if isinstance(blocks, list) else ()
    kinds = [part.type for part in message.media]
    kinds += [str(block.get("type")) for block in listed if isinstance(block, Mapping)]
    return next((kind for kind in kinds if kind in SERVER_TOOL_PARTS), "unknown")


def _drop_parts(content: Iterable[Part], *, files: bool) -> Iterator[Part]:
    for part in content:
        if part.type in UNSPOKEN_PARTS:
            continue
        if part.type in _ANTHROPICS | _OF_RESPONSES and not (files and part.type in _OF_RESPONSES):
            yield from _replace_part(part, files=files)
        elif not _IN_PARTS.isdisjoint(part.extra):
            yield msgspec.structs.replace(part, extra=_leave_out(part.extra, _IN_PARTS))
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


# -- fields --------------------------------------------------------------------


def convert_fields(fields: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Convert the fields of an Anthropic request to fields that a Chat Completions upstream accepts.

    Args:
        fields: Fields of the request, as returned by `decode_fields`.
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
