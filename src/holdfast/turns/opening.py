"""How a turn opens: what came is related to the log and written ahead, and the session is claimed, behind turns of other servers.

A request may come again because its client never had the end of the reply.

After a turn that ended between tools it goes on from the results that are stored.

A crash, or a client that went away, leaves a log that ends in tool messages: the calls of a reply that has no end. No tool
runs again for a call of these: one that has no result is told as such when the prompt is built.

After a turn that ended whole, but without its client, it is given the stored reply (see `holdfast.recognition.unheard`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.context.units import Unit, units_of
from holdfast.domain.messages import Message, canonical
from holdfast.domain.reconcile import Plan
from holdfast.domain.session import Entry, Session
from holdfast.engine.guarded import masked
from holdfast.turns.handover import resume
from holdfast.turns.prompting import check_body
from holdfast.turns.reconciling import answer_again, open_turn, reconcile
from holdfast.turns.session_mode import is_transcript
from holdfast.turns.turn import Turn

_PAGE: Final = 64
"""Entries that are read at a time on the way back to what was asked."""


async def opened(turn: Turn) -> None:
    """Open a turn that has come up in this process (`turn.lock`).

    Raises:
        SessionNotFound: no such session.
        SessionBusy: a turn of another server has it; this one is refused, or has waited for too long.
        TurnInterrupted: another turn asked for its place; what came is in the log.
    """

    async def opening() -> Session | None:
        await _related(turn)
        return turn.session if turn.answered is None else None

    await turn.lock.open(opening)


async def _related(turn: Turn) -> None:
    """Relate what came to the log, and open the turn: with what is new of it, or where its first try ended."""
    if turn.engine.unheard.of(turn.request.ref) and await _never_heard(turn):
        return
    if not await _join_attempt(turn):
        if not turn.request.voice.tools and not turn.request.voice.steps:
            await reconcile(turn)
            return
        if not await _asked_again(turn):
            await reconcile(turn)
    if turn.answered is not None and turn.answered.message.tool_calls:
        await _answer_behind(turn, turn.answered)


# -- the same message again ------------------------------------------------------


async def _never_heard(turn: Turn) -> bool:
    """Answer the turn with the log's last reply, where this request was answered by it and nobody was there to hear."""
    await turn.admit()
    store, request = turn.engine.store, turn.request
    session = (await store.get(request.ref)).require_intact()
    seq = turn.engine.unheard.taken(session, request.incoming, request.idempotency_key)
    last = [] if seq is None else await store.entries(request.ref, start=seq, limit=1)
    if not last or last[0].message.role != "assistant" or last[0].erased:
        return False
    turn.session, turn.plan = session, Plan("replayed")
    turn.answered, turn.closed = last[0], True
    return True


async def _join_attempt(turn: Turn) -> bool:
    """Open the turn where the first attempt at its request ended; False where that is not known, or never opened."""
    placement, request = turn.placement, turn.request
    if (
        placement is None
        or placement.kind != "retry"
        or placement.attempt is None
        or request.idempotency_key is not None
    ):
        return False
    start = placement.attempt.start
    if start is None:
        return False
    session = await turn.engine.store.get(request.ref)
    if session.identity != placement.attempt.identity:
        return False
    turn.learned = await turn.engine.learning.of(request.voice.llm)
    check_body(request.voice, request.body, turn.learned)
    await turn.admit()
    await resume(turn, session, Plan("replayed"))
    turn.plan, turn.session = Plan("replayed"), session
    placement.release()
    await answer_again(turn, start)
    return True


async def _asked_again(turn: Turn) -> bool:
    """Open the turn where the log ends in tools that ran for just these messages; False where it does not."""
    request = turn.request
    if not request.incoming:
        return False
    session = (await turn.engine.store.get(request.ref)).require_intact()
    if is_transcript(turn, session):
        return False
    if session.tail.last_kind not in {"calls", "result"}:
        return False
    incoming = await masked(turn.engine.guard, request.incoming)
    if not await _unanswered(turn, session, incoming):
        return False
    turn.learned = await turn.engine.learning.of(request.voice.llm)
    check_body(request.voice, request.body, turn.learned)
    await turn.admit()
    await open_turn(turn, session, Plan("replayed"), expect=None)
    return True


async def _unanswered(turn: Turn, session: Session, incoming: Sequence[Message]) -> bool:
    """Whether the log has `incoming`, and behind it nothing but calls that ran here, with what came of them."""
    tail: list[Entry] = []
    while True:
        stop = tail[0].seq if tail else None
        page = await turn.engine.store.entries(session.ref, stop=stop, limit=_PAGE, descending=True)
        tail = [*page[::-1], *tail]
        units = units_of(tail)
        while units and _ran_here(turn, units[-1]):
            units.pop()
            before = [entry for unit in units for entry in unit.entries][-len(incoming) :]
            if _same(before, incoming):
                return True
        begun = len(units) == 1 and units[0].entries[0].kind == "result"  # its calls are on the page before
        if (units and not begun) or len(page) < _PAGE:
            return False


def _ran_here(turn: Turn, unit: Unit) -> bool:
    calls = unit.entries[0].message.tool_calls
    return bool(calls) and not any(call.name in turn.client_tools for call in calls)


def _same(stored: Sequence[Entry], incoming: Sequence[Message]) -> bool:
    if incoming[-1].role == "assistant" or len(stored) != len(incoming):
        return False
    return all(canonical(entry.message) == canonical(sent) for entry, sent in zip(stored, incoming, strict=True))


# -- the same idempotency key again ----------------------------------------------


async def _answer_behind(turn: Turn, first: Entry) -> None:
    """Find the end of a reply that begins with calls; where there is none, the turn goes on behind what there is of it."""
    turn.answered, turn.closed = None, False
    behind = await turn.engine.store.entries(turn.request.ref, start=first.seq)
    for at, unit in enumerate(units := units_of(behind)):
        head = unit.entries[0]
        if head.message.tool_calls:
            if not any(call.name in turn.client_tools for call in head.message.tool_calls):
                continue
            if _ready(turn, unit):
                turn.answered, turn.closed = head, True
        elif head.message.role != "assistant":
            pass
        elif not (head.metadata or {}).get("interrupted"):
            turn.answered, turn.closed = head, True
        elif at == len(units) - 1:
            await turn.append((), plan=Plan("regenerated", retire_from=head.seq), keyed=False)
        return


def _ready(turn: Turn, unit: Unit) -> bool:
    """Whether all calls of a message that ran here have a result, so that the client was given its own."""
    answered = {entry.message.tool_call_id for entry in unit.entries[1:]}
    return all(call.id in answered for call in unit.entries[0].message.tool_calls if call.name not in turn.client_tools)
