"""Send models the working set, which is a prompt within a token budget, instead of all contents."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types

import holdfast
from holdfast.adapters.adk.contents import ConvertedMessage, Json, convert_content


class _Source(NamedTuple):
    """A message, and the position of the content that it comes from."""

    converted: ConvertedMessage
    content: int


class WorkingSetPlugin(BasePlugin):
    """Replaces the contents of each model request by the working set. The session keeps all events.

    Contents that are sent in full are ADK's own objects, with thought signatures. Other fields of the request stay unchanged.

    Args:
        budget: maximum tokens of the conversation; None: as many as the model's context window allows.
        strategy: name of the strategy; None: `digest`.
        model: the model whose context window and tokenizer apply; None: the model of the request.
        name: name of the plugin.
    """

    def __init__(
        self,
        *,
        budget: int | None = None,
        strategy: str | None = None,
        model: str | None = None,
        name: str = "holdfast",
    ) -> None:
        super().__init__(name=name)
        self._budget = budget
        self._strategy = strategy
        self._model = model

    async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> None:
        """Fit the contents of a request into the budget."""
        model = self._model or llm_request.model or "gemini"
        system, tools = _read_config(llm_request)
        llm_request.contents = await asyncio.to_thread(
            fit_contents,
            list(llm_request.contents),
            budget=self._budget,
            strategy=self._strategy,
            model=model,
            system=system,
            tools=tools,
        )


def fit_contents(
    contents: Sequence[types.Content],
    *,
    budget: int | None = None,
    strategy: str | None = None,
    model: str = "gemini",
    system: str = "",
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[types.Content]:
    """Return the contents that a model should see, within a budget; see `holdfast.fit`.

    Contents that are returned in full are the same objects. Function results follow their calls.

    Args:
        contents: the whole conversation.
        budget: maximum tokens of the conversation; None: as many as the model's context window allows.
        strategy: name of the strategy; None: `digest`.
        model: the model whose context window and tokenizer apply.
        system: the system instruction, whose tokens count toward the context window.
        tools: the tool schemas, whose tokens count toward the context window.

    Raises:
        BudgetTooSmall: the messages that must be sent do not fit; the error says how many tokens are needed.
    """
    sources = _convert(contents)
    if not sources:
        return list(contents)
    prompt = [{"role": "system", "content": system}] if system else []
    messages = [*prompt, *(source.converted.message for source in sources)]
    context = holdfast.fit(messages, budget=budget, strategy=strategy, model=model, tools=tools)
    pairs = [
        (message, sources[source.seqs[0]] if source.kind == "entry" else None, source.verbatim)
        for message, source in zip(context.messages, context.sources, strict=True)
        if source.kind != "system"
    ]
    sizes = Counter(source.content for source in sources)
    kept = Counter(source.content for _, source, verbatim in pairs if source and verbatim)
    whole = {at for at, size in sizes.items() if kept[at] == size}
    if len(whole) == len(sizes):
        return list(contents)
    calls: dict[
        str, types.Part
    ] = {}  # by their ids in the working set, which differ from ADK's if ADK has no ids or repeats them
    fitted: list[types.Content] = []
    for message, source, verbatim in pairs:
        calls.update(_index_calls(message, source))
        if message["role"] == "tool" and (source is None or source.content not in whole):
            _add_result(fitted, _make_result(message, source, calls, is_unchanged=verbatim))
        elif source is None or source.content not in whole:
            fitted.append(_make_content(message, calls))
        elif not any(contents[source.content] is one for one in fitted):
            fitted.append(contents[source.content])
    return fitted


def _convert(contents: Sequence[types.Content]) -> list[_Source]:
    """Convert contents to messages. A result without an id belongs to the first call of the same function that has no result yet."""
    open_calls: list[tuple[str, str | None]] = []
    sources: list[_Source] = []
    for position, content in enumerate(contents):

        def name_call(part: types.Part, at: int, prefix: str = f"call-{position}") -> str:
            if part.function_call is not None:
                name = part.function_call.id or f"{prefix}-{at}"
                open_calls.append((name, part.function_call.name))
                return name
            result = part.function_response or types.FunctionResponse()
            known = [name for name, called in open_calls if result.id in (None, name) and called == result.name]
            name = result.id or next(iter(known), f"{prefix}-{at}")
            open_calls[:] = [one for one in open_calls if one[0] != name]
            return name

        sources += [
            _Source(one, position) for one in convert_content(content, name_call, is_user=content.role == "user")
        ]
    return sources


def _add_result(contents: list[types.Content], part: types.Part) -> None:
    """Add a function result to the contents. Results of calls that were made together share a content, as Gemini requires."""
    last = contents[-1] if contents else types.Content()
    if last.parts and all(one.function_response is not None for one in last.parts):
        contents[-1] = types.Content(role="user", parts=[*last.parts, part])
    else:
        contents.append(types.Content(role="user", parts=[part]))


def _make_result(
    message: Mapping[str, Any], source: _Source | None, calls: Mapping[str, types.Part], *, is_unchanged: bool
) -> types.Part:
    """Return ADK's own part with a function result, or a new part with the same id and name."""
    own = source.converted.parts[0] if source else None
    response = {"result": _join(message["content"])}
    if own is not None and own.function_response is not None:
        if is_unchanged:
            return own
        changed = own.function_response.model_copy(update={"response": response})
        return own.model_copy(update={"function_response": changed})
    called = calls[message["tool_call_id"]].function_call or types.FunctionCall()
    answer = types.FunctionResponse(id=called.id, name=called.name, response=response)
    return types.Part(function_response=answer)


def _make_content(message: Mapping[str, Any], calls: Mapping[str, types.Part]) -> types.Content:
    """Convert a message that ADK did not make to a content. Function calls keep the ids and signatures of ADK's parts."""
    content = message.get("content")
    said = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    parts = [_make_part(one) for one in said if one.get("text") != ""]
    parts += [_make_call(call, calls.get(call["id"])) for call in message.get("tool_calls") or ()]
    return types.Content(role="model" if message["role"] == "assistant" else "user", parts=parts)


def _make_part(part: Mapping[str, Any]) -> types.Part:
    """Convert a part of a message to a part of a content: a text, or the bytes in a data URL from `convert_content`."""
    if part["type"] == "text":
        return types.Part(text=part["text"])
    url = part["image_url"]["url"] if part["type"] == "image_url" else part["file"]["file_data"]
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return types.Part.from_bytes(data=base64.b64decode(data), mime_type=kind)


def _make_call(call: Json, own: types.Part | None) -> types.Part:
    try:
        arguments = json.loads(call["function"]["arguments"] or "{}")
    except ValueError:  # shortened
        arguments = {"arguments": call["function"]["arguments"]}
    if own is None or own.function_call is None:
        made = types.FunctionCall(id=call["id"], name=call["function"]["name"], args=arguments)
        return types.Part(function_call=made)
    return own.model_copy(update={"function_call": own.function_call.model_copy(update={"args": arguments})})


def _index_calls(message: Mapping[str, Any], source: _Source | None) -> dict[str, types.Part]:
    """Return ADK's parts with function calls, by the ids of these calls in a message."""
    called = message.get("tool_calls") or ()
    parts = source.converted.parts if source else ()
    return {call["id"]: part for call, part in zip(called, parts, strict=False)}


def _join(content: Any) -> str:
    """Return the text of a tool message's content."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part.get("type") == "text")


def _read_config(request: LlmRequest) -> tuple[str, list[Json]]:
    """Return the system instruction and the tools of a request, to count their tokens."""
    instruction = request.config.system_instruction
    tools = [tool for tool in request.config.tools or () if isinstance(tool, types.Tool)]
    declared = [one for tool in tools for one in tool.function_declarations or ()]
    return instruction if isinstance(instruction, str) else "", [
        {"type": "function", "function": one.model_dump(mode="json", exclude_none=True)} for one in declared
    ]
