"""Continue a conversation after one of its messages, only once; see `Placement.follows`.

If the message has a continuation already, the request gets another session. A continuation counts when its reply is complete. If a
request failed before that, its messages are in the log without a reply, or with a part of one. The same request then continues there, so
a client can always try again. Another request gets another session.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.messages import Message, encode_canonical
from holdfast.domain.reconcile import Plan
from holdfast.domain.session import NO_VERSION, Entry, Session, SessionRef
from holdfast.errors import StaleSession
from holdfast.overlays.session_cache import CachedSession
from holdfast.stores.base import Store
from holdfast.stores.walk import ENTRIES
from holdfast.turns.placement import MatchLost
from holdfast.turns.turn import INPUT_COUNT, Turn


async def check_continuation(turn: Turn) -> bool:
    """Return True if the message that the request follows has no complete continuation yet.

    Raises:
        MatchLost: it has one, or it is not in force any more, so the request gets another session.

    The error is not raised if the request has an idempotency key, because it may repeat the request that made the continuation.
    """
    return await _read_attempt(turn) is not None


async def plan_continuation(turn: Turn, session: Session) -> tuple[Plan, int]:
    """Return the changes to the log for a request that follows a message, and the version that the session must have.

    Raises:
        MatchLost: as `check_continuation`.
    """
    incoming = turn.request.incoming
    attempt = await _read_attempt(turn)
    if attempt is None:
        return Plan("delta", incoming), NO_VERSION  # only a repeated request is accepted at this version
    if not attempt:
        return (Plan("delta", incoming) if incoming else Plan("replayed")), session.version
    if incoming and _begins_with(attempt, incoming):
        rest = attempt[len(incoming) :]
        plan = Plan("regenerated", retire_from=rest[0].seq) if rest else Plan("replayed")
        return plan, session.version
    raise MatchLost


def explain_refusal(turn: Turn, error: StaleSession) -> Exception:
    """Return the error for a write that was refused because the session did not have the expected version."""
    is_refused = turn.follows is not None and error.expected == NO_VERSION
    return MatchLost() if is_refused else error


def plan_continuation_at_end(turn: Turn, warm: CachedSession) -> Plan | None:
    """Return the changes to the log if the message that the request follows is its last one; otherwise None. Nothing is read."""
    return Plan("delta", turn.request.incoming) if warm.session.tail.last_seq == turn.follows else None


async def _read_attempt(turn: Turn) -> list[Entry] | None:
    """Return the entries of an attempt to continue after the message that the request follows, as `read_attempt` does.

    Raises:
        MatchLost: there is no such attempt, and the request has no idempotency key, so it repeats none.
    """
    assert turn.follows is not None, "the request follows a message"
    attempt = await read_attempt(turn.engine.store, turn.request.ref, turn.follows)
    if attempt is None and turn.request.idempotency_key is None:
        raise MatchLost
    return attempt


async def read_attempt(store: Store, ref: SessionRef, follows: int) -> list[Entry] | None:
    """Return the live entries after a message if they are those of an attempt without a complete reply. If there are none, return an empty list.

    Return None if there is a complete reply, if there are messages that no such attempt wrote, or if the message is not in force any more.

    Args:
        store: the store.
        ref: the session.
        follows: `seq` of the message.
    """
    found, head, start, is_attempt = list[Entry](), None, follows, False
    while True:
        page = await store.entries(ref, start=start, limit=ENTRIES, notes=True)
        for entry in page:
            if head is None:
                head = entry
            elif entry.is_note:
                is_attempt = is_attempt or (entry.metadata or {}).get(INPUT_COUNT) == len(found)
            elif entry.message.role == "assistant" and is_complete(entry):
                return None
            else:
                found.append(entry)
        if len(page) < ENTRIES:
            break
        start = page[-1].seq + 1
    if head is None or head.seq != follows or (found and not is_attempt):
        return None
    return found


def is_complete(entry: Entry) -> bool:
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
