"""Continue a conversation after one of its messages, only once; see `TurnRequest.follows`.

A continuation counts when its reply is complete. If a request failed before that, its messages are in the log without a reply, or with a part
of one. The same request then continues there, and another request replaces them. So a client can always try again.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.messages import Message, encode_canonical
from holdfast.domain.reconcile import Plan
from holdfast.domain.session import NO_VERSION, Entry, Session
from holdfast.errors import StaleSession, ThreadAlreadyContinued
from holdfast.stores.walk import ENTRIES
from holdfast.turns.turn import INPUT_COUNT, Turn


async def check_continuation(turn: Turn) -> None:
    """Check that the message that the request follows has no complete continuation yet.

    A request with an idempotency key is not checked: it may repeat the one that made the continuation.

    Raises:
        ThreadAlreadyContinued: it has one, or it is not in force any more.
    """
    if turn.request.idempotency_key is None:
        await _read_attempt(turn)


async def plan_continuation(turn: Turn, session: Session) -> tuple[Plan, int]:
    """Return the changes to the log for a request that follows a message, and the version that the session must have.

    Raises:
        ThreadAlreadyContinued: the message has a complete continuation, or is not in force any more.
    """
    incoming = turn.request.incoming
    try:
        attempt = await _read_attempt(turn)
    except ThreadAlreadyContinued:
        if turn.request.idempotency_key is None:
            raise
        return Plan("delta", incoming), NO_VERSION  # only a repeated request is accepted at this version
    if not attempt:
        return (Plan("delta", incoming) if incoming else Plan("replayed")), session.version
    if _begins_with(attempt, incoming):
        rest = attempt[len(incoming) :]
        plan = Plan("regenerated", retire_from=rest[0].seq) if rest else Plan("replayed")
        return plan, session.version
    return Plan("edited", incoming, retire_from=attempt[0].seq), session.version


def explain_refusal(turn: Turn, error: StaleSession) -> Exception:
    """Return the error for a write that was refused because the session did not have the expected version."""
    is_refused = turn.request.follows is not None and error.expected == NO_VERSION
    return ThreadAlreadyContinued(turn.request.ref.id) if is_refused else error


async def _read_attempt(turn: Turn) -> list[Entry]:
    """Return the live entries after the message that the request follows: those of an attempt without a complete reply.

    Raises:
        ThreadAlreadyContinued: there is a complete reply, or there are messages that no such attempt wrote.
    """
    request = turn.request
    assert request.follows is not None, "the request follows a message"
    found, start, is_attempt = list[Entry](), request.follows, False
    while True:
        page = await turn.engine.store.entries(request.ref, start=start, limit=ENTRIES, notes=True)
        for entry in page:
            if entry.is_note:
                written = (entry.metadata or {}).get(INPUT_COUNT)
                is_attempt = is_attempt or (bool(found) and written == len(found) - 1)
            elif entry.message.role == "assistant" and found and _is_complete(entry):
                raise ThreadAlreadyContinued(request.ref.id)
            elif not (found and _is_own_result(found[0], entry)):
                found.append(entry)
        if len(page) < ENTRIES:
            break
        start = page[-1].seq + 1
    if not found or found[0].seq != request.follows or (len(found) > 1 and not is_attempt):
        raise ThreadAlreadyContinued(request.ref.id)
    return found[1:]


def _is_complete(entry: Entry) -> bool:
    """Return True for a reply that its client has received, or can receive by repeating its request."""
    metadata = entry.metadata or {}
    if metadata.get("interrupted"):
        return False
    return not entry.message.tool_calls or metadata.get("returned") is None or bool(metadata["returned"])


def _is_own_result(reply: Entry, entry: Entry) -> bool:
    """Return True for the result of a call in a reply that Holdfast ran, so that it belongs to the reply."""
    returned = (reply.metadata or {}).get("returned")
    if entry.message.role != "tool" or not isinstance(returned, list):
        return False
    ours = {call.id for at, call in enumerate(reply.message.tool_calls) if at not in returned}
    return entry.message.tool_call_id in ours


def _begins_with(entries: Sequence[Entry], messages: Sequence[Message]) -> bool:
    if len(entries) < len(messages):
        return False
    return all(
        encode_canonical(entry.message) == encode_canonical(message)
        for entry, message in zip(entries, messages, strict=False)
    )
