"""What `session_mode: auto` remembers: which client programs send a session's whole conversation with each request.

A single user message may be new, or a whole conversation whose first message was edited. Only what the client sent before
can decide that. It is kept in the session's metadata: every server reads it with the session, and it is written once for each
session and client.
"""

from __future__ import annotations

import logging
from typing import Final

from holdfast.domain.reconcile import mode_of
from holdfast.domain.session import Session
from holdfast.errors import HoldfastError
from holdfast.limits import CLIENTS_REMEMBERED
from holdfast.stores.sessions import SessionPatch
from holdfast.turns.turn import Turn
from holdfast.turns.turn_warnings import TurnWarning

TRANSCRIPT_CLIENTS: Final = "transcript_clients"
"""Key of a session's metadata: names of client programs that send whole conversations, the newest last."""
_log = logging.getLogger("holdfast.turn")


def is_transcript(turn: Turn, session: Session) -> bool:
    """Return True if the request's messages are to be read as the session's whole conversation."""
    request = turn.request
    if mode_of(request.incoming, request.mode) == "transcript":
        return True
    return is_remembered_transcript(turn, session)


def is_remembered_transcript(turn: Turn, session: Session) -> bool:
    """Return True if only the memory of the client makes a transcript of the request: it has user messages alone."""
    request = turn.request
    if request.mode != "auto" or not request.incoming or request.client not in _clients(session):
        return False
    return all(message.role == "user" for message in request.incoming)


def warn_of_retired(turn: Turn, session: Session) -> None:
    """Add a warning where a remembered mode, and nothing in the request, made messages leave the live path."""
    plan = turn.plan
    if plan is None or plan.retire_from is None or not is_remembered_transcript(turn, session):
        return
    message = (
        "this client has sent the session's whole conversation before, so the request was read as one: messages from"
        f" {plan.retire_from} on were retired. Send session_mode: delta if it only brought new messages"
    )
    turn.warnings.add(TurnWarning("remembered_transcript", message, param="session_mode"))


async def remember_client(turn: Turn) -> None:
    """Remember that the client sends whole conversations, where this request shows it and it is not known yet.

    The turn does not depend on it: a write that fails is left to the next request. A repeated request, which brings nothing
    new, writes nothing here either.
    """
    request, session = turn.request, turn.session
    if turn.plan is None or not turn.plan.append:
        return
    shows = turn.is_whole and request.mode == "auto" and any(one.role == "assistant" for one in request.incoming)
    if not shows or not request.client or request.guest or request.client in (known := _clients(session)):
        return
    metadata = {**session.metadata, TRANSCRIPT_CLIENTS: [*known, request.client][-CLIENTS_REMEMBERED:]}
    try:
        patch = SessionPatch(metadata=metadata)
        now = turn.engine.clock()
        turn.session = await turn.engine.store.update(session.ref, patch, timestamp=now, expect=session.version)
    except HoldfastError as exc:
        _log.info("the mode of a client could not be remembered: %s", exc)
        return
    turn.engine.warm.follow(session, turn.session)


def _clients(session: Session) -> list[str]:
    """Return the clients that are remembered; metadata is free, so anything may be there."""
    found = session.metadata.get(TRANSCRIPT_CLIENTS)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
