"""`POST /v1/responses/compact`: compact a conversation, and return the items that replace it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from holdfast.accounting import run_cpu
from holdfast.domain.compaction import CompactionOrder
from holdfast.domain.objects import Answer, Count, JsonObject, OpenObject, json_schema
from holdfast.domain.session import Session
from holdfast.holdfast import Holdfast
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.models.codecs.responses.encoder import format_usage, make_compaction_item
from holdfast.models.codecs.responses.ids import Place
from holdfast.server.apis.responses import Responses, make_secret, to_responses_error
from holdfast.server.chat import open_turn
from holdfast.server.http import Call
from holdfast.server.responses import resolve_request
from holdfast.server.routes import Routes
from holdfast.server.stored_responses import iterate_items
from holdfast.turns.prompt import build_prompt
from holdfast.turns.scope import TurnScope

routes = Routes("responses")
_FORMAT: Final = Responses()


class CompactRequest(OpenObject, kw_only=True):
    """A conversation to compact: its items, or the last response of a stored conversation."""

    model: str | None = None
    """Name of an agent, of an llm, or of a model, whose prompts will contain the summary."""
    input: Any = None
    """Text, or the items of the conversation. After `previous_response_id`, items to add before the conversation is compacted."""
    instructions: Annotated[Any, json_schema(type=["string", "array", "null"])] = None
    """System prompt of the conversation, which counts towards the budget."""
    previous_response_id: str | None = None
    prompt_cache_key: Annotated[str | None, json_schema(maxLength=64)] = None
    prompt_cache_options: JsonObject | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    agent: str | None = None


class CompactedResponse(Answer, kw_only=True):
    """The items that replace a conversation."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: Count
    output: list[JsonObject]
    """Every user message, unchanged, and then one `compaction` item, which stands for everything else."""
    usage: JsonObject
    """Tokens of the model that wrote the summary; 0 without a model."""
    session_id: str
    compaction_id: int | None
    """Id of the summary in `GET /v1/sessions/{id}/compactions`; null if there was nothing to summarize."""


@routes.add("POST", "/v1/responses/compact", "write", error_statuses=(404, 409, 422), body=CompactRequest)
async def compact(call: Call, body: JsonObject) -> CompactedResponse:
    """Compact a conversation, and return the items to send in its place.

    A request with the returned items continues the same session, on any server of the same database. The conversation is stored as by a
    request to `/v1/responses`, but no model answers. The summary is written by the model that the strategy has for summaries, or without
    a model. It is used in the prompts of the session, and can be listed and dropped like every compaction.
    """
    call.request.scope.setdefault("state", {})["shaped"] = to_responses_error
    state, hf = call.request.app.state, call.hf
    given = body.get("input")
    long = call.body_size > INLINE_BODY_BYTES
    parsed = await run_cpu(_FORMAT.parse, {**body, "store": False}, call.request.headers, long=long)
    sent = list(given) if isinstance(given, list) else given
    parsed = await resolve_request(call, parsed, state.gateway)
    parsed = parsed._replace(compaction=CompactionOrder(is_alone=True))
    turn = await open_turn(call, dict(body), parsed, state.gateway)
    async with TurnScope(turn):
        await build_prompt(turn)
        session, done = turn.session, turn.compacted
    assert done is not None, "the request asks for a compaction"
    users = await _list_user_items(hf, session, sent, is_stored=bool(body.get("previous_response_id")))
    secret = make_secret()
    item = make_compaction_item(Place(session.id, done.through, secret), done.reference)
    made = hf.clock() // 1000
    usage = format_usage(done.usage)
    assert usage is not None, "usage is a mapping"
    return CompactedResponse(
        id=Place(session.id, done.through, secret).make_id("cmpr"),
        created_at=made,
        output=[*users, item],
        usage=usage,
        session_id=session.id,
        compaction_id=None if done.made is None else done.made.id,
    )


async def _list_user_items(hf: Holdfast, session: Session, sent: Any, *, is_stored: bool) -> list[JsonObject]:
    """Return the user messages of a conversation: as the client sent them, or from the log if it names a stored response."""
    if is_stored:
        return [item async for item in iterate_items(hf, session) if _is_user_message(item)]
    if isinstance(sent, str):
        sent = [{"role": "user", "content": sent}]
    return [_complete(item, at) for at, item in enumerate(sent or ()) if _is_user_message(item)]


def _is_user_message(item: Mapping[str, Any]) -> bool:
    return item.get("type", "message") == "message" and item.get("role") == "user"


def _complete(item: Mapping[str, Any], at: int) -> JsonObject:
    """Return a message of the input as an item of the output, which clients parse as one with an id, a status and parts."""
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    made = {"id": f"msg_{at}", "status": "completed", **item, "type": "message", "content": parts}
    return {name: value for name, value in made.items() if value is not None}
