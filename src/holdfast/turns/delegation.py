"""Run an agent that another agent calls like a tool: a whole turn in a separate session, linked to the calling session.

    call -> create a session -> respond -> return changes of its state with the result -> end the session

The new session belongs to the same user. Its id has a special form, so that no transcript is matched with it. It is
deleted together with the calling session.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any, Final

from holdfast.agents import Responder
from holdfast.context.settings import RequestSettings
from holdfast.domain.messages import Message
from holdfast.domain.session import CHILD, PARENT, Session, SessionRef, make_child_id
from holdfast.domain.state import is_same_json
from holdfast.engine.initial_state import add_initial_state
from holdfast.engine.session_removal import remove_session
from holdfast.errors import HoldfastError, InvalidRequest, SessionNotFound
from holdfast.limits import AGENT_DEPTH
from holdfast.stores.sessions import NewSession
from holdfast.tools.context import ToolContext
from holdfast.turns.handover import may_share_key
from holdfast.turns.prompt import check_body
from holdfast.turns.respond import collect_reply
from holdfast.turns.turn import Turn, TurnRequest

_log = logging.getLogger("holdfast.turn")
_NOTHING: Final = "the agent said nothing"


async def delegate(turn: Turn, context: ToolContext, agent: str, request: str) -> str:
    """Let another agent do a task in a separate session, and return that agent's reply.

    Args:
        turn: the calling turn.
        context: the context of the tool call. `context.state` receives the called agent's changes of session state. The
            id of the created session is recorded in the context.
        agent: the name of the agent to call.
        request: the task.

    Raises:
        InvalidRequest: the turn may not call the agent, or the agent's model failed and a failure message replaced its
            reply.
        HoldfastError: the called agent's turn failed.
    """
    responder = turn.roster.find_responder(agent=agent)
    if turn.depth >= AGENT_DEPTH:
        raise InvalidRequest(f"agent calls are nested {AGENT_DEPTH} levels deep: answer without calling another agent")
    if not may_share_key(turn, responder):
        raise InvalidRequest(
            f"{agent} cannot be called: the user's own key may not be sent to the provider of its model"
        )
    check_body(responder, {})
    child = await _create_child(turn, context, responder, agent)
    context.marked[CHILD] = child.id
    limits = RequestSettings(limit=turn.request.settings.limit)
    turn_request = TurnRequest(
        ref=child.ref,
        responder=turn.roster.with_context(responder, limits.apply(responder.context)),
        settings=limits,
        incoming=(Message(role="user", content=request),),
        headers=turn.request.headers,
    )
    inner = Turn(turn.engine, turn_request)
    inner.depth = turn.depth + 1
    inner.root = turn.root or turn.request.ref.id
    inner.temp.update(copy.deepcopy(turn.temp))
    try:
        reply = (await collect_reply(inner)).build_message()
        if inner.failure is not None:
            raise InvalidRequest(f"the agent did not answer: {inner.failure['message']}")
    finally:
        await turn.settle(_end_child(turn, child.ref))
    for key, value in _find_changes(child.state, inner.session.state).items():
        context.state[key] = value
    return reply.text if reply.text.strip() else _NOTHING


async def _create_child(turn: Turn, context: ToolContext, responder: Responder, agent: str) -> Session:
    """Create the session of a called agent, with a copy of the calling session's own state and a reference to the call."""
    engine = turn.engine
    parent = {"session_id": context.session_id, "seq": context.call.unit, "call_id": context.call.id}
    new = NewSession.from_session(
        turn.session,
        timestamp=engine.clock(),
        id=make_child_id(engine.new_id()),
        agent=agent,
        system_messages=(),
        state=dict(turn.session.state),
        metadata={PARENT: parent},
        ttl=None,
    )
    return await engine.store.create(await add_initial_state(engine.store, new, responder.agent))


async def _end_child(turn: Turn, ref: SessionRef) -> None:
    """End the session of a called agent. If ending fails, the session expires by itself.

    If the calling session was deleted meanwhile, the called agent's session is deleted too, because no log refers to
    it.
    """
    engine = turn.engine
    try:
        await engine.end(ref)
        try:
            is_gone = (await engine.store.get(turn.session.ref)).identity != turn.session.identity
        except SessionNotFound:
            is_gone = True
        if is_gone:
            await remove_session(engine, ref)
    except HoldfastError as exc:
        _log.warning("the session %r of an agent's call was not ended: %s", ref.id, exc.code)


def _find_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed keys of a state with their new values. None as a value means that the key was deleted."""
    changed = {key: value for key, value in after.items() if key not in before or not is_same_json(before[key], value)}
    return {**changed, **{key: None for key in before if key not in after}}
