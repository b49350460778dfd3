"""Count the tokens of a request, without running it: `count_tokens` of Anthropic's API, `input_tokens` of OpenAI's. Nothing is stored."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Llm
from holdfast.context.build import build
from holdfast.context.fitting import adapt_messages
from holdfast.context.settings import CLEARING, ContextSettings
from holdfast.domain.calibration import Learned, MeasuredCount
from holdfast.domain.log import extend
from holdfast.domain.media.parts import show_to_model
from holdfast.domain.messages import Message
from holdfast.domain.objects import Answer, Count, JsonObject, Request
from holdfast.domain.session import Tail
from holdfast.engine.entries import is_long, make_entries
from holdfast.engine.redacting_store import mask_messages
from holdfast.errors import InvalidRequest
from holdfast.holdfast import Holdfast
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.models.base import ModelRequest
from holdfast.models.codecs.messages.context_management import FIELD
from holdfast.models.codecs.messages.foreign import convert_fields, drop_foreign_fields
from holdfast.models.codecs.messages.tools import replace_typed_tools
from holdfast.server.apis.anthropic import Messages
from holdfast.server.apis.responses import Responses, to_responses_error
from holdfast.server.chat import check_fields, read_settings
from holdfast.server.chat_objects import AnthropicError, CountRequest, CreateResponse, EditedCount, TokenCount
from holdfast.server.http import Call
from holdfast.server.message_compaction import merge_clearing
from holdfast.server.requester import drop_own_fields
from holdfast.server.responses import find_place
from holdfast.server.routes import Routes
from holdfast.sessions.prompt_lookup import build_unsent_prompt
from holdfast.stores.session_changes import make_session
from holdfast.stores.sessions import NewSession
from holdfast.turns.prompt import check_body, count_by_provider
from holdfast.turns.turn import TurnRequest
from holdfast.wire.openai import convert_parts, split_system

routes = Routes("chat")
_FORMAT: Final = Messages()
_RESPONSES: Final = Responses()
_NO_LIMIT: Final = 2**31
"""Token limit of a prompt that is only counted."""


class CountQuery(Request):
    """Query parameters that Anthropic's client sends."""

    beta: str | None = None
    """Sent by Anthropic's client for beta features, and ignored."""


@routes.add(
    "POST", "/v1/messages/count_tokens", "read", error_statuses=(422,), errors=(AnthropicError,), body=CountRequest
)
async def count_tokens(call: Call, query: CountQuery, body: JsonObject) -> TokenCount:
    """Count the tokens of a request: its system prompt, messages and tools.

    The tokens are counted with the tokenizer of the request's model. If the model is configured with `count: provider`, the provider
    counts. Text that an agent or a session would add is not counted.
    """
    parsed = await run_cpu(_FORMAT.parse, body, call.request.headers, long=call.body_size > INLINE_BODY_BYTES)
    check_fields(parsed.body)
    if not parsed.messages:
        raise InvalidRequest("messages is missing or empty: send at least one message", param="messages")
    responder = call.hf.roster.find_responder(agent=parsed.body.get("agent"), model=parsed.body.get("model"))
    llm = responder.llm
    clearing = parsed.clearing if llm.dialect == "anthropic" else merge_clearing(parsed)
    messages = await mask_messages(call.hf.guard, parsed.messages)
    counted = await _count_prompt(call.hf, llm, messages, parsed.body)
    if body.get(FIELD) is None:
        return TokenCount(counted.tokens, counted)
    original = counted.tokens
    if clearing is not None:
        clearing = {"keep": _NO_LIMIT, **clearing} if clearing.keys() == {"keep_thinking"} else clearing
        system, conversation = split_system(messages)
        settings = ContextSettings("none", {CLEARING: clearing})
        made = msgspec.structs.replace(responder, context=settings, history=0).make_request(Learned(), None, ())
        made = msgspec.structs.replace(made, input_budget=_NO_LIMIT, system=system, marker=secrets.token_hex(4))
        entries, _ = extend(Tail(), await make_entries(conversation, [{}] * len(conversation), timestamp=0))
        built = await run_cpu(build, made, None, (), entries, long=is_long(conversation))
        messages = built.messages
        counted = await _count_prompt(call.hf, llm, messages, parsed.body)
    return TokenCount(counted.tokens, counted, EditedCount(original))


async def _count_prompt(hf: Holdfast, llm: Llm, messages: Sequence[Message], fields: dict[str, Any]) -> MeasuredCount:
    system, rest = split_system(messages)
    adapted_messages = [*system, *adapt_messages(rest, llm.dialect)]
    others = llm.dialect != "anthropic"
    tools = (convert_fields(replace_typed_tools(fields), llm.model) if others else fields).get("tools") or []
    total = await run_cpu(lambda: sum(map(llm.counter.message, adapted_messages)) + llm.counter.tools(tools))
    limits = hf.roster.find_profile(llm, hf.clock())
    sent = [show_to_model(message, limits.inputs) for message in adapted_messages]
    sent = [drop_foreign_fields(convert_parts(message)) for message in sent] if others else sent
    request = ModelRequest(sent, {"model": llm.model, "tools": tools})
    provider = None if llm.count is None else await llm.count.count_prompt(request)
    measure = llm.measure(await hf.engine.learning.get(llm))
    return measure.describe(total, margin=llm.counter.margin, provider=provider)


# -- OpenAI ------------------------------------------------------------------------


class InputTokensRequest(CreateResponse):
    """A request of the Responses API whose tokens are counted."""


class InputTokens(Answer, kw_only=True):
    """Token count of the prompt that a request would lead to."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: Count
    counted: MeasuredCount


@routes.add("POST", "/v1/responses/input_tokens", "read", error_statuses=(404, 422), body=InputTokensRequest)
async def count_input_tokens(call: Call, body: JsonObject) -> InputTokens:
    """Count the tokens of the prompt that a request to `/v1/responses` would lead to. Nothing is stored, and no session is created.

    The prompt is built as for the request itself: with the session that the request names, by the strategy, within the budget. Without a
    session, the messages of the request are counted as a new session. Memories that the turn would search for are not counted.
    """
    call.request.scope.setdefault("state", {})["shaped"] = to_responses_error
    hf, gateway = call.hf, call.request.app.state.gateway
    parsed = await run_cpu(_RESPONSES.parse, body, call.request.headers, long=call.body_size > INLINE_BODY_BYTES)
    check_fields(parsed.body)
    place = await find_place(call, parsed, gateway)
    fields, settings = parsed.body, read_settings(call, parsed)
    system, incoming = split_system(await mask_messages(hf.guard, place.parsed.messages))
    new = NewSession(
        id=hf.engine.new_id(), user_id=place.user_id, timestamp=hf.engine.clock(), agent=fields.get("agent")
    )
    session = place.session or make_session(hf.store.tenant, new)
    responder = hf.find_responder(session, agent=fields.get("agent"), model=fields.get("model"))
    settings.check(responder.context, gateway.allowed_strategies)
    if not incoming and place.session is None:
        raise InvalidRequest("input is missing or empty: send at least one message", param="input")
    request = TurnRequest(
        ref=session.ref,
        responder=hf.roster.with_context(responder, settings.apply(responder.context)),
        incoming=tuple(incoming),
        system=system,
        body=drop_own_fields(fields),
    )
    check_body(request.responder, request.body)
    is_stored = place.session is not None
    built = await build_unsent_prompt(hf.engine, session, request, is_stored=is_stored, stop=place.stop)
    provider = await count_by_provider(hf.engine, session.ref, request.responder.llm, built)
    llm = request.responder.llm
    counted = built.request.measure.describe(built.total_tokens, margin=llm.counter.margin, provider=provider)
    return InputTokens(input_tokens=counted.tokens, counted=counted)
