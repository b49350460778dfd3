"""A capability for agents of Pydantic AI: the run keeps all messages, the model gets fewer.

A call of the model gets the *working set*: the prompt that Holdfast builds within a token budget.

    agent = Agent("openai:gpt-5", capabilities=[HoldfastCapability(hf, user_id="ada")])
    history = await read_history(hf, "trip-7", user_id="ada")
    await agent.run("Where is my order?", conversation_id="trip-7", message_history=history)

Facts about Pydantic AI 2.68 that this module relies on:

- `wrap_model_request` may change `request_context.messages` for one request, and may call its handler once.
- `on_model_request_error` asks for another attempt with `RetryModelRequest`; `prepare_model_request` prepares each attempt, in the
  same context.
- Instructions are not part of the messages.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelContextWindowExceededError, RetryModelRequest
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext

import holdfast
from holdfast.errors import BudgetTooSmall, NotFound

__all__ = ["HoldfastCapability", "read_history"]

Json = dict[str, Any]
STEP: Final = 0.7
"""Fraction of the tokens to which a prompt is shortened after the provider rejected it as too long."""
STEPS: Final = 4
"""Maximum number of prompts that are tried for one request."""


@dataclasses.dataclass
class _Unit:
    """A message in Chat Completions format, and its source: a part of a request, or a response."""

    message: Json
    at: int
    """Index of the source's message in the run's messages."""
    own: Any
    """The source: the part of a `ModelRequest`, or the `ModelResponse`."""
    key: str = ""

    def __post_init__(self) -> None:
        self.key = _make_key(self.message)


_rejected: ContextVar[list[Exception]] = ContextVar("rejected")
"""Errors of the attempts of the current request whose prompts were too long."""


class HoldfastCapability(AbstractCapability[Any]):
    """Sends the model the working set of the conversation instead of all its messages, and stores the conversation.

    The run's own messages stay complete. Messages that are sent in full are the run's own objects, with signatures of thinking. If the
    provider rejects a prompt as too long, smaller ones are tried.

    Args:
        hf: an open `Holdfast`, or a `holdfast.Portal()` if the agent is used without `await` or from several event loops.
        strategy: name of the strategy; None: the strategy of `hf`, or `digest`.
        budget: maximum tokens of the conversation; None: the budget of `hf`, or as many tokens as the model's context window allows.
        session_id: the session, or a function that returns it for a run; None: the run's `conversation_id`.
        user_id: the user, or a function that returns it, for example `lambda ctx: ctx.deps.user_id`.
    """

    def __init__(
        self,
        hf: holdfast.Holdfast | holdfast.Portal,
        *,
        strategy: str | None = None,
        budget: int | None = None,
        session_id: str | Callable[[RunContext[Any]], str] | None = None,
        user_id: str | Callable[[RunContext[Any]], str] = "default",
    ) -> None:
        super().__init__()
        self._hf, self._session_id, self._user_id = hf, session_id, user_id
        given = {"strategy": strategy, "budget": budget}
        self._options = {name: value for name, value in given.items() if value is not None}

    async def wrap_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Store the request's new messages, send the working set, and store the reply."""
        messages = request_context.messages
        units = _split(messages)
        found = self._session_id(ctx) if callable(self._session_id) else self._session_id
        user_id = self._user_id(ctx) if callable(self._user_id) else self._user_id
        run, hf = find_runner(self._hf)
        first = next((at for at, unit in enumerate(units) if unit.message["role"] != "system"), len(units))
        system = [unit.message["content"] for unit in units[:first]] or None
        session = await run(hf.session, found or ctx.conversation_id, user_id=user_id, system=system)
        stored = (await run(session.info)).messages > 0
        replies = [at for at, message in enumerate(messages) if isinstance(message, ModelResponse)]
        first_new = replies[-1] + 1 if stored and replies else 0
        transcript = [_add_origin(unit, messages) if unit.at >= first_new else unit.message for unit in units[first:]]
        tools = [_to_tool(tool) for tool in request_context.model_request_parameters.function_tools]
        options = {**self._options, **({"tools": tools} if tools else {})}
        turn = await run(session.begin_turn, transcript, mode="transcript", **options)
        token = _rejected.set([])
        try:
            request_context.messages = _restore(turn.messages, units, messages)
            response = await handler(request_context)
            reply = _Unit(_to_reply(response), 0, response)
            turn.add(_add_origin(reply, [response]), usage=_to_usage(response))
        except BaseException as exc:
            await run(turn.abort, exc)
            raise
        finally:
            _rejected.reset(token)
        await run(turn.end)
        return response

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Make the prompt smaller once for each attempt that the provider has rejected as too long."""
        if rejected := _rejected.get([]):
            units = _split(request_context.messages)
            whole = [unit.message for unit in units]
            tokens = holdfast.fit(whole, budget=2**31).conversation_tokens
            try:
                smaller = holdfast.fit(whole, budget=max(1, int(tokens * STEP ** len(rejected))))
            except BudgetTooSmall:
                raise rejected[-1] from None
            request_context.messages = _restore(smaller.messages, units, request_context.messages)
        return request_context

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Ask for another attempt if the prompt was too long, up to `STEPS` in total."""
        rejected = _rejected.get([])
        if isinstance(error, ModelContextWindowExceededError) and len(rejected) < STEPS - 1:
            rejected.append(error)
            raise RetryModelRequest
        raise error


async def read_history(
    hf: holdfast.Holdfast | holdfast.Portal, session_id: str, *, user_id: str = "default"
) -> list[ModelMessage]:
    """Return the messages of a session, for `message_history` of a run. A session that does not exist has no messages.

    Args:
        hf: an open `Holdfast`, or a portal.
        session_id: the session.
        user_id: its user.
    """
    run, owner = find_runner(hf)
    try:
        session = await run(owner.get, session_id, user_id=user_id)
    except NotFound:
        return []
    system = [SystemPromptPart(message.text) for message in (await run(session.info)).system_messages]
    history: list[ModelMessage] = [ModelRequest(system)] if system else []
    names: dict[str, str] = {}
    for entry in await run(session.entries):
        if entry.is_note:
            continue
        message = entry.message
        names |= {call.id: call.name for call in message.tool_calls}
        loaded = ModelMessagesTypeAdapter.validate_python([message.origin]) if message.origin else []
        new = loaded[0] if loaded else _load_message(message, names)
        last = history[-1] if history else None
        if isinstance(new, ModelRequest) and isinstance(last, ModelRequest) and last.run_id in (None, new.run_id):
            history[-1] = dataclasses.replace(new, parts=[*last.parts, *new.parts])
        else:
            history.append(new)
    return history


async def _run_here(function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    return await function(*args, **kwargs)


def find_runner(hf: Any) -> tuple[Callable[..., Awaitable[Any]], Any]:
    """Return a function that runs functions in the event loop of a `Holdfast`, and the open `Holdfast`."""
    return (hf.run, hf.hf) if isinstance(hf, holdfast.Portal) else (_run_here, hf)


# -- messages ------------------------------------------------------------------


def _split(messages: Sequence[ModelMessage]) -> list[_Unit]:
    """Convert messages: each part of a request, and each response, is one message in Chat Completions format."""
    units: list[_Unit] = []
    for at, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            units.append(_Unit(_to_reply(message), at, message))
        else:
            units += [_Unit(made, at, part) for part in message.parts if (made := _to_chat(part)) is not None]
    return units


def _to_chat(part: Any) -> Json | None:
    """Convert a part of a request to Chat Completions format; None if the part is no message for the model."""
    if isinstance(part, SystemPromptPart):
        return {"role": "system", "content": part.content}
    if isinstance(part, UserPromptPart):
        if isinstance(part.content, str):
            return {"role": "user", "content": part.content}
        return {"role": "user", "content": [made for item in part.content if (made := _to_part(item))]}
    if isinstance(part, ToolReturnPart):
        text = part.model_response_str()
    elif hasattr(part, "model_response"):  # feedback on a reply, or on a call
        text = part.model_response()
    else:
        return None
    if getattr(part, "tool_name", None):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}
    return {"role": "user", "content": text}


def _to_part(item: Any) -> Json | None:
    if isinstance(item, str) or hasattr(item, "content"):
        return {"type": "text", "text": item if isinstance(item, str) else str(item.content)}
    if isinstance(item, ImageUrl):
        return {"type": "image_url", "image_url": {"url": item.url}}
    if isinstance(item, BinaryContent):
        url = f"data:{item.media_type};base64,{base64.b64encode(item.data).decode()}"
        if item.is_image:
            return {"type": "image_url", "image_url": {"url": url}}
        return {"type": "file", "file": {"filename": item.identifier, "file_data": url}}
    return {"type": "text", "text": f"[file: {item.url}]"} if hasattr(item, "url") else None


def _to_reply(response: ModelResponse) -> Json:
    texts, calls = [], []
    for part in response.parts:
        if isinstance(part, ToolCallPart):
            function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
            calls.append({"id": part.tool_call_id, "type": "function", "function": function})
        elif isinstance(part, TextPart):
            texts.append(part.content)
        elif not isinstance(part, ThinkingPart) and (content := getattr(part, "content", None)) is not None:
            texts.append(content if isinstance(content, str) else json.dumps(content, default=str))
    message: Json = {"role": "assistant", "content": "\n".join(texts)}
    return {**message, "tool_calls": calls} if calls else message


def _add_origin(unit: _Unit, messages: Sequence[ModelMessage]) -> Json:
    """Return the Chat Completions message of a unit with a field `origin`, from which `read_history` restores the original.

    `origin` is a Pydantic AI message as JSON: the response, or a request that contains only the part of this unit.
    """
    message = messages[unit.at]
    if isinstance(message, ModelRequest):
        message = dataclasses.replace(message, parts=[unit.own])
    return {**unit.message, "origin": ModelMessagesTypeAdapter.dump_python([message], mode="json")[0]}


def _load_message(message: holdfast.Message, names: dict[str, str]) -> ModelMessage:
    """Convert a message that another program wrote."""
    if message.role == "assistant":
        text = [TextPart(message.text)] if message.text else []
        return ModelResponse(
            [*text, *(ToolCallPart(call.name, call.arguments, call.id) for call in message.tool_calls)]
        )
    if message.role == "tool":
        call_id = message.tool_call_id or ""
        return ModelRequest([ToolReturnPart(names.get(call_id, "unknown"), message.text, call_id)])
    return ModelRequest([UserPromptPart(message.text) if message.role == "user" else SystemPromptPart(message.text)])


# -- working set -> messages ----------------------------------------------------


def _restore(
    working_set: Sequence[Json], units: Sequence[_Unit], messages: Sequence[ModelMessage]
) -> list[ModelMessage]:
    """Convert a working set to messages. Messages that are sent in full are the run's own objects."""
    groups: list[tuple[int | None, list[Any]]] = []  # parts of one request, with its index; or one response
    for message, unit in zip(working_set, _match(working_set, units), strict=True):
        part, at = (unit.own, unit.at) if unit else _make_part(message, units)
        is_request = not isinstance(part, ModelResponse)
        if is_request and at is not None and groups and groups[-1][0] == at:
            groups[-1][1].append(part)
        else:
            groups.append((at, [part]))
    restored: list[ModelMessage] = []
    for at, parts in groups:
        own = None if at is None else messages[at]
        if isinstance(parts[0], ModelResponse):
            restored.append(parts[0])
        elif not isinstance(own, ModelRequest):
            restored.append(ModelRequest(parts))
        else:
            convertible = [part for part in own.parts if _to_chat(part) is not None]
            whole = len(parts) == len(convertible) and all(a is b for a, b in zip(parts, convertible, strict=True))
            restored.append(own if whole else dataclasses.replace(own, parts=parts))
    return restored


def _match(working_set: Sequence[Json], units: Sequence[_Unit]) -> list[_Unit | None]:
    """Return the equal unit for each message of a working set, or None if there is none.

    Both lists have the same order. The search goes from the newest message to the oldest.
    """
    found: list[_Unit | None] = []
    end = len(units)
    for message in reversed(working_set):
        key = _make_key(message)
        at = next((at for at in range(end - 1, -1, -1) if units[at].key == key), None)
        found.append(None if at is None else units[at])
        end = end if at is None else at
    return found[::-1]


def _make_key(message: Json) -> str:
    return json.dumps({name: value for name, value in message.items() if value not in (None, "", [])}, sort_keys=True)


def _make_part(message: Json, units: Sequence[_Unit]) -> tuple[Any, int | None]:
    """Convert a message that was shortened or generated for the prompt to a part or a response.

    Also return the index of the request to which the part belongs; None if there is no such request.
    """
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    if message["role"] == "assistant":
        calls = message.get("tool_calls") or ()
        made = [ToolCallPart(one["function"]["name"], one["function"]["arguments"], one["id"]) for one in calls]
        return ModelResponse([*([TextPart(text)] if text or not made else []), *made]), None
    if message["role"] == "tool":
        call_id = message["tool_call_id"]
        for unit in reversed(units):
            if getattr(unit.own, "tool_call_id", None) == call_id:
                return ToolReturnPart(unit.own.tool_name, text, call_id), unit.at
        return ToolReturnPart("unknown", text, call_id), None
    if message["role"] == "user":
        return UserPromptPart(text if isinstance(content, str) else [_load_part(part) for part in content]), None
    return SystemPromptPart(text), None


def _load_part(part: Json) -> Any:
    if part["type"] != "image_url":
        return str(part.get("text") or part)
    url = part["image_url"]["url"]
    return BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url)


def _to_tool(tool: Any) -> Json:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
    return {"type": "function", "function": function}


def _to_usage(response: ModelResponse) -> Json | None:
    usage = response.usage
    if not usage.input_tokens and not usage.output_tokens:
        return None
    cached = {"cached_tokens": usage.cache_read_tokens}
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "prompt_tokens_details": cached,
    }
