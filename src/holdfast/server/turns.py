"""REST API for turns in which the client calls the model: write the request's messages, and return the messages to send to the model.

The server keeps nothing of a turn between two requests; see docs/decisions.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from holdfast.accounting import run_cpu
from holdfast.context.sources import MessageSource
from holdfast.domain.objects import Answer, Count, Id, JsonObject, Request, json_schema
from holdfast.domain.session import Session
from holdfast.engine.session_lock import QueueMode
from holdfast.errors import InvalidRequest
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.log.align import Mode
from holdfast.server.context import Strategy
from holdfast.server.http import Call
from holdfast.server.routes import ETAG, KEY, Routes
from holdfast.server.schema import make_ref
from holdfast.wire.request_fields import PROVIDER_FIELDS, check_keywords
from holdfast.wire.sendable import parse_sendable
from holdfast.wire.sessions import MessageJson, NewMessage, SessionObject

routes = Routes("messages")
_RESERVED: Final = frozenset({"messages", "mode", "session_queue", "interrupt", "strategy", "budget", "recall"})


class NewTurn(Request, kw_only=True):
    """A turn to begin. Without `messages`, a turn to continue after the client appended the reply and tool results."""

    messages: Annotated[
        Any,
        json_schema(
            NewMessage,
            description="new messages, results of open calls, or the whole conversation; empty: the messages are in the log already",
            type=["array", "null"],
            items=make_ref(NewMessage),
        ),
    ] = None
    mode: Mode = "auto"
    """Content of `messages`: the whole conversation (`transcript`), or only new messages (`delta`). `auto`: Holdfast compares the
    messages with the log."""
    session_queue: QueueMode | None = None
    """Action if another turn of the session is running on the server: `queue`, `reject` or `interrupt`; default: the server's setting."""
    interrupt: JsonObject | None = None
    """Part of the last reply that the user heard, as in `POST …/interrupt`."""
    strategy: Strategy = None
    budget: int | None = None
    """Maximum number of tokens of the conversation in the prompt."""
    recall: str | bool | None = None
    """Search the session for messages that are no longer in the prompt, and add those that match: `auto`, `on` or `off`."""
    agent: str | None = None
    """Name of an agent of the configuration."""
    request: JsonObject | None = None
    """Other fields of the model call that reduce the budget: `tools`, `max_tokens`."""


class TurnPrompt(Answer, kw_only=True):
    """The messages to send to the model in a turn, with their token counts."""

    object: Literal["turn.prompt"] = "turn.prompt"
    session: SessionObject
    """The session without its log. Append the reply with the session's `log_marker` as `expect_log`: the append fails if another client
    wrote to the log in the meantime."""
    session_id: Id
    turn_id: Count
    """Number of the turn."""
    agent: str | None
    """Agent that answers."""
    messages: list[MessageJson]
    sources: list[MessageSource]
    """For each of `messages`: the log entries that it comes from."""
    conversation_tokens: Count
    """Tokens of the conversation, which `budget` limits."""
    budget: Count


@routes.add(
    "POST",
    "/v1/sessions/{session_id}/turns",
    "write",
    error_statuses=(422,),
    request_headers=(KEY,),
    response_headers=ETAG,
)
async def begin_turn(call: Call, session: Session, body: NewTurn) -> TurnPrompt:
    """Write the messages of a turn to the log, and return the messages to send to the model.

    You call the model, and append its reply with `POST …/messages`. To call the model again in the same turn, append the reply and the
    results of its tools, and repeat this request without `messages`. The server keeps nothing of the turn, so a client that stops in
    the middle blocks nothing.
    """
    handle = call.hf.handle(session, agent=body.agent)
    fields = body.request or {}
    if wrong := sorted(_RESERVED & fields.keys()):
        raise InvalidRequest(f"request cannot have {wrong[0]}: it is a field of the turn", param=f"request.{wrong[0]}")
    try:
        check_keywords(fields)
    except TypeError as exc:
        unknown = next(name for name in fields if name not in PROVIDER_FIELDS)
        raise InvalidRequest(f"request has the unknown field {unknown!r:.80}", param="request") from exc
    given = body.messages
    if given is not None and not isinstance(given, list):
        raise InvalidRequest("messages must be a list of messages", param="messages")
    parsed = await run_cpu(parse_sendable, given or [], long=call.body_size > INLINE_BODY_BYTES)
    turn = handle.turn(
        parsed,
        mode=body.mode,
        session_queue=body.session_queue,
        interrupt=body.interrupt,
        strategy=body.strategy,
        budget=body.budget,
        recall=body.recall,
        idempotency_key=call.get_header("idempotency-key") or None,
        **fields,
    )
    async with turn as opened:
        await opened.save_view()
        begun, built = opened.session, opened.working_set
        call.set_etag(begun.version)
        return TurnPrompt(
            session=SessionObject.from_session(begun),
            session_id=begun.id,
            turn_id=max(0, begun.tail.turn_id),
            agent=opened.agent,
            messages=opened.messages,
            sources=opened.sources,
            conversation_tokens=built.tokens,
            budget=built.budget,
        )
