"""`POST /v1/messages/count_tokens`: count the tokens of a request, without running it. Nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.accounting import run_cpu
from holdfast.agents import Llm
from holdfast.context.dialects import adapt_messages
from holdfast.domain.calibration import MeasuredCount
from holdfast.domain.media.parts import show_to_model
from holdfast.domain.messages import Message
from holdfast.engine.redacting_store import mask_messages
from holdfast.errors import InvalidRequest
from holdfast.holdfast import Holdfast
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.server.apis.anthropic import Messages
from holdfast.server.chat import check_fields
from holdfast.server.chat_objects import AnthropicError, CountRequest, TokenCount
from holdfast.server.http import Call
from holdfast.server.routes import BODY, Routes
from holdfast.wire.anthropic_requests import convert_fields, drop_anthropic_fields
from holdfast.wire.objects import JsonObject, Request
from holdfast.wire.openai import convert_parts, split_system, to_chat_message

routes = Routes("chat")
_FORMAT: Final = Messages()


class CountQuery(Request):
    """Query parameters that Anthropic's client sends."""

    beta: str | None = None
    """Sent by Anthropic's client for beta features, and ignored."""


@routes.add(
    "POST",
    "/v1/messages/count_tokens",
    "read",
    error_statuses=(*BODY, 422),
    errors=(AnthropicError,),
    body=CountRequest,
)
async def count_tokens(call: Call, query: CountQuery, body: JsonObject) -> TokenCount:
    """Count the tokens of a request: its system prompt, messages and tools.

    The tokens are counted with the tokenizer of the request's model. If the model is configured with `count: provider`, the provider
    counts. Text that an agent or a session would add is not counted.
    """
    parsed = await run_cpu(_FORMAT.parse, body, call.request.headers, long=call.held.size > INLINE_BODY_BYTES)
    check_fields(parsed.body)
    if not parsed.messages:
        raise InvalidRequest("messages is missing or empty: send at least one message", param="messages")
    llm = call.hf.roster.find_responder(agent=parsed.body.get("agent"), model=parsed.body.get("model")).llm
    messages = await mask_messages(call.hf.guard, parsed.messages)
    counted = await _count_prompt(call.hf, llm, messages, parsed.body)
    return TokenCount(counted.tokens, counted.to_wire())


async def _count_prompt(hf: Holdfast, llm: Llm, messages: Sequence[Message], fields: dict[str, Any]) -> MeasuredCount:
    system, rest = split_system(messages)
    adapted_messages = [*system, *adapt_messages(rest, llm.dialect)]
    others = llm.dialect != "anthropic"
    tools = (convert_fields(fields, llm.model) if others else fields).get("tools") or []
    total = await run_cpu(_sum_tokens, llm, adapted_messages, tools)
    sent = [show_to_model(message, llm.inputs) for message in adapted_messages]
    sent = [drop_anthropic_fields(convert_parts(message)) for message in sent] if others else sent
    prompt = {"model": llm.model, "messages": [to_chat_message(message) for message in sent]}
    provider = await llm.count_prompt({**prompt, **({"tools": tools} if tools else {})}) if llm.count else None
    measure = llm.measure(await hf.engine.learning.get(llm))
    return measure.describe(total, margin=llm.counter.margin, provider=provider)


def _sum_tokens(llm: Llm, messages: Sequence[Message], tools: Sequence[Any]) -> int:
    return sum(map(llm.counter.message, messages)) + llm.counter.tools(tools)
