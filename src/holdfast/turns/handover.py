"""Decide which agent answers a request.

The requested agent answers, unless the conversation was transferred to another agent of its team. That happens in an
earlier turn or during this turn.

    resume -> build_call -> call_model -> run_tools (transfer) -> hand_over -> build_call …

The agent that answered last is read from the end of the session's log, and is stored nowhere else. So the result is
correct even after an edit, a rewind, a fork, or a crash during a turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec

from holdfast.agents import Agent, Responder
from holdfast.agents.team import Team
from holdfast.domain.session import TRANSFERRED, Entry, Session
from holdfast.errors import InvalidRequest
from holdfast.limits import SPEAKER_BEHIND, TRANSFERS
from holdfast.log.align import Plan
from holdfast.models.limited import get_upstream_origin
from holdfast.tools.tool import Toolset, relax_choice
from holdfast.turns.prompt import check_body
from holdfast.turns.turn import Turn

_PAGE: Final = 16
"""Number of entries in the first read of the store, if the session is not cached."""
_SPEECHES: Final = frozenset({"greeting", "command", "silence"})
"""Values of `metadata.source` in messages that agents say outside of turns. Such a message never transfers the
conversation.
"""


# -- the next turn ---------------------------------------------------------------


async def resume(turn: Turn, session: Session, plan: Plan) -> None:
    """Let the agent that answered last answer again, if it belongs to the team of the requested agent.

    This is called before the turn writes anything.

    Args:
        turn: the turn.
        session: the turn's session as last read.
        plan: the changes that the request's messages make to the log.

    Raises:
        InvalidRequest: the agent that answered last cannot answer this request; see `check_body`.
    """
    asked = turn.handover.asked
    if asked.team is None or asked.agent is None or asked.agent.workflow:
        return
    name = await _find_answering_agent(turn, asked.team, session, plan)
    now = turn.request.responder.agent
    if now is not None and name == now.name:
        return
    responder = asked if name == asked.agent.name else _make_responder(turn, asked.team, name)
    if not may_share_key(turn, responder):
        responder = asked
    learned = await turn.engine.learning.get(responder.llm)
    if responder is not asked:
        check_body(responder, turn.request.body, learned)
    turn.give_to(responder, learned)


async def _find_answering_agent(turn: Turn, team: Team[Agent], session: Session, plan: Plan) -> str:
    """Return the name of the agent that answers, according to the part of the log before the request's messages."""
    newest, unfinished = [*plan.restore[::-1]], not any(message.role == "user" for message in plan.append)
    found = _find_speaker(team, newest, unfinished=unfinished)
    if found is None:
        async for page in _read_pages(turn, session, plan):
            unfinished = unfinished and not any(entry.kind == "user" for entry in newest)
            newest = [*page]
            found = _find_speaker(team, newest, unfinished=unfinished)
            if found is not None:
                break
    return team.named if found is None else found


async def _read_pages(turn: Turn, session: Session, plan: Plan) -> AsyncIterator[Iterable[Entry]]:
    """Yield the entries before the request's messages, newest first, without replaced ones.

    The entries come from the cache first, then from the store. The number of entries read from the store is bounded.
    """
    stop, warm = plan.retire_from, turn.engine.warm.get(turn.request.ref)
    if stop is None and warm is not None and warm.is_at(session) and warm.last:
        yield reversed(warm.last)
        stop = warm.last[0].seq
        if len(warm.last) >= session.messages:
            return
    for limit in (_PAGE, SPEAKER_BEHIND):
        if stop is None and not session.messages:
            return
        page = await turn.engine.store.entries(turn.request.ref, stop=stop, limit=limit, descending=True)
        yield page
        if len(page) < limit:
            return
        stop = page[-1].seq


def _find_speaker(team: Team[Agent], newest: Iterable[Entry], *, unfinished: bool) -> str | None:
    """Return the name of the agent that has the conversation, or None if the given entries do not show it.

    Args:
        team: the agents of the session.
        newest: entries of the log, newest first, without replaced ones.
        unfinished: True if the request continues the log's last turn, because it contains a tool result or is repeated.
    """
    for entry in newest:
        metadata = entry.metadata or {}
        unfinished = unfinished and entry.kind != "user"
        if entry.kind == "result":
            if isinstance(target := metadata.get(TRANSFERRED), str):
                return team.resolve_handover(target)
        elif (
            entry.kind in ("assistant", "calls") and entry.agent is not None and metadata.get("source") not in _SPEECHES
        ):
            return (
                team.resolve_interrupted(entry.agent)
                if unfinished and entry.kind == "calls"
                else team.resolve_next(entry.agent)
            )
    return None


# -- during a turn -----------------------------------------------------------------


async def transfer(turn: Turn, name: str) -> None:
    """Let another agent answer as soon as the results of the current tool calls are written.

    Args:
        turn: the turn of the agent that transfers the conversation.
        name: the name of the other agent. The caller must have checked that the turn's agent may transfer to it.

    Raises:
        InvalidRequest: the other agent cannot take over. The error message is written for the model.
    """
    team = turn.request.responder.team
    assert team is not None, "only an agent of a team can transfer the conversation"
    if turn.handover.transfers >= TRANSFERS:
        raise InvalidRequest(f"this conversation was transferred {TRANSFERS} times in this turn: answer yourself now")
    responder = _make_responder(turn, team, name)
    if not may_share_key(turn, responder):
        raise InvalidRequest(
            f"{name} cannot take over: the user's own key may not be sent to the provider of its model"
        )
    learned = await turn.engine.learning.get(responder.llm)
    try:
        check_body(responder, turn.request.body, learned)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{name} cannot take over: {exc}") from exc
    if turn.handover.next is not None:  # checked after the last await, because calls of a message run concurrently
        taken = turn.handover.next[0].agent
        raise InvalidRequest(f"{taken.name if taken else 'another agent'} already takes over; only one agent can")
    turn.handover.next = responder, learned


def hand_over(turn: Turn) -> bool:
    """Let the agent that `transfer` registered answer from now on. Return False if no agent is registered.

    The results of the transfer are already in the log.
    """
    if turn.handover.next is None:
        return False
    (responder, learned), turn.handover.next = turn.handover.next, None
    turn.handover.transfers += 1
    turn.give_to(responder, learned)
    if responder.steps and (choice := turn.request.body.get("tool_choice")) is not None:
        body = {**turn.request.body, "tool_choice": relax_choice(choice)}
        turn.request = msgspec.structs.replace(turn.request, body=body)
    return True


def _make_responder(turn: Turn, team: Team[Agent], name: str) -> Responder:
    responder = turn.roster.make_member(team, name)
    return msgspec.structs.replace(responder, tools=Toolset()) if turn.request.tools_elsewhere else responder


def may_share_key(turn: Turn, responder: Responder) -> bool:
    """Return True if the caller's own API key may be sent with the calls of `responder`.

    The key may be sent only to the provider that it was meant for.
    """
    if not turn.request.headers:
        return True
    if responder.steps:
        return all(may_share_key(turn, step) for step in responder.steps)
    client = turn.handover.asked.llm.client
    place = get_upstream_origin(client)
    return responder.llm.client is client or (place is not None and get_upstream_origin(responder.llm.client) == place)
