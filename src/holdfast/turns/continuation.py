"""Continue a conversation after one of its messages, only once; see `Placement.follows`.

If the message has a continuation already, the request is refused or gets another session; its placement decides that. A continuation
counts when its reply is complete. If a request failed before that, its messages are in the log without a reply, or with a part
of one. The same request then continues there, and another request replaces them. So a client can always try again.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.messages import Message, encode_canonical
from holdfast.domain.reconcile import Plan
from holdfast.domain.session import NO_VERSION, Entry, Session
from holdfast.errors import StaleSession, ThreadAlreadyContinued
from holdfast.overlays.session_cache import CachedSession
from holdfast.stores.walk import ENTRIES
from holdfast.turns.placement import MatchLost
from holdfast.turns.turn import INPUT_COUNT, Turn


async def check_continuation(turn: Turn) -> bool:
    """Return True if the message that the request follows has no complete continuation yet.

    Raises:
        ThreadAlreadyContinued: it has one, or it is not in force any more, and the request gets no other session.
        MatchLost: the same, and the request gets another session.

    Neither is raised if the request has an idempotency key, because it may repeat the request that made the continuation.
    """
    try:
        await _read_attempt(turn)
    except (ThreadAlreadyContinued, MatchLost):
        if turn.request.idempotency_key is None:
            raise
        return False
    return True


async def plan_continuation(turn: Turn, session: Session) -> tuple[Plan, int]:
    """Return the changes to the log for a request that follows a message, and the version that the session must have.

    Raises:
        ThreadAlreadyContinued, MatchLost: as `check_continuation`.
    """
    incoming = turn.request.incoming
    try:
        attempt = await _read_attempt(turn)
    except (ThreadAlreadyContinued, MatchLost):
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
    is_refused = turn.follows is not None and error.expected == NO_VERSION
    return _explain_continued(turn) if is_refused else error


def plan_continuation_at_end(turn: Turn, warm: CachedSession) -> Plan | None:
    """Return the changes to the log if the message that the request follows is its last one; otherwise None. Nothing is read."""
    return Plan("delta", turn.request.incoming) if warm.session.tail.last_seq == turn.follows else None


def _explain_continued(turn: Turn) -> Exception:
    assert turn.placement is not None, "the request follows a message"
    return turn.placement.explain_continued()


async def _read_attempt(turn: Turn) -> list[Entry]:
    """Return the live entries after the message that the request follows: those of an attempt without a complete reply.

    Raises:
        ThreadAlreadyContinued, MatchLost: there is a complete reply, or there are messages that no such attempt wrote.
    """
    ref, follows = turn.request.ref, turn.follows
    assert follows is not None, "the request follows a message"
    found, head, start, is_attempt = list[Entry](), None, follows, False
    while True:
        page = await turn.engine.store.entries(ref, start=start, limit=ENTRIES, notes=True)
        for entry in page:
            if head is None:
                head = entry
            elif entry.is_note:
                is_attempt = is_attempt or (entry.metadata or {}).get(INPUT_COUNT) == len(found)
            elif entry.message.role == "assistant" and _is_complete(entry):
                raise _explain_continued(turn)
            else:
                found.append(entry)
        if len(page) < ENTRIES:
            break
        start = page[-1].seq + 1
    if head is None or head.seq != follows or (found and not is_attempt):
        raise _explain_continued(turn)
    return found


def _is_complete(entry: Entry) -> bool:
    """Return True for a reply that its client has received, or can receive by repeating its request."""
    metadata = entry.metadata or {}
    if metadata.get("interrupted"):
        return False
    return not entry.message.tool_calls or metadata.get("returned") is None or bool(metadata["returned"])


def _begins_with(entries: Sequence[Entry], messages: Sequence[Message]) -> bool:
    if len(entries) < len(messages):
        return False
    return all(
        encode_canonical(entry.message) == encode_canonical(message)
        for entry, message in zip(entries, messages, strict=False)
    )
