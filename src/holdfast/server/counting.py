"""`POST /v1/messages/count_tokens`: how many tokens a request's own messages would be. Nothing is called, nothing stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.accounting import run_cpu
from holdfast.agents import Llm
from holdfast.context.dialects import adapted
from holdfast.domain.calibration import Counted
from holdfast.domain.media.parts import seen
from holdfast.domain.messages import Message
from holdfast.engine.redacting_store import mask_messages
from holdfast.errors import InvalidRequest
from holdfast.holdfast import Holdfast
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.server.chat import check
from holdfast.server.chat_objects import AnthropicError, CountRequest, TokenCount
from holdfast.server.doors.messages import Messages
from holdfast.server.http import Call
from holdfast.server.routes import BODY, Routes
from holdfast.wire.anthropic_requests import fields_for_others, without_anthropics
from holdfast.wire.objects import JsonObject, Request
from holdfast.wire.openai import chat, message_to, split_system

routes = Routes("chat")
_DOOR: Final = Messages()


class CountQuery(Request):
    """Parameters of Anthropic's client."""

    beta: str | None = None
    """What Anthropic's client adds for what is in beta; means nothing here."""


@routes.add(
    "POST",
    "/v1/messages/count_tokens",
    "read",
    fails=(*BODY, 422),
    errors=(AnthropicError,),
    body=CountRequest,
)
async def count_tokens(call: Call, query: CountQuery, body: JsonObject) -> TokenCount:
    """Tokens of the request's own system prompt, messages and tools, as its model counts them.

    What an agent or a session would add is not among them. By the provider's own count where the model has `count: provider`.
    """
    said = await run_cpu(_DOOR.read, body, call.request.headers, long=call.held.size > INLINE_BODY_BYTES)
    check(said.body)
    if not said.messages:
        raise InvalidRequest("messages is missing or empty; send at least one", param="messages")
    llm = call.hf.roster.voice(agent=said.body.get("agent"), model=said.body.get("model")).llm
    messages = await mask_messages(call.hf.guard, said.messages)
    counted = await _counted(call.hf, llm, messages, said.body)
    return TokenCount(counted.tokens, counted.to_wire())


async def _counted(hf: Holdfast, llm: Llm, messages: Sequence[Message], fields: dict[str, Any]) -> Counted:
    system, rest = split_system(messages)
    told = [*system, *adapted(rest, llm.dialect)]
    others = llm.dialect != "anthropic"
    tools = (fields_for_others(fields, llm.model) if others else fields).get("tools") or []
    total = await run_cpu(_total, llm, told, tools)
    sent = [seen(message, llm.inputs) for message in told]
    sent = [without_anthropics(chat(message)) for message in sent] if others else sent
    prompt = {"model": llm.model, "messages": [message_to(message) for message in sent]}
    provider = await llm.prompt_tokens({**prompt, **({"tools": tools} if tools else {})}) if llm.count else None
    measure = llm.measure(await hf.engine.learning.of(llm))
    return measure.describe(total, margin=llm.counter.margin, provider=provider)


def _total(llm: Llm, messages: Sequence[Message], tools: Sequence[Any]) -> int:
    return sum(map(llm.counter.message, messages)) + llm.counter.tools(tools)
