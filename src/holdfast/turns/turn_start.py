"""Begin a turn: compare the request with the log, write the new messages, and claim the session.

After that, the turn is *open*.

A client that never received the end of a reply may send the same request again:

- If a turn ended between tools, the new turn continues from the stored results.
- After a crash, or if the client disconnected, the log ends in the tool messages of an unfinished reply. The calls in
  this reply are not run again. The prompt says which of these calls have no result.
- A request with the key of an earlier one, or that says that it is repeated, gets the stored reply if it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Final

import msgspec

from holdfast.context.units import Unit, group_units
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, Session, SessionRef, is_unplaced
from holdfast.errors import Conflict, InvalidMessage, InvalidRequest, SessionNotFound, StaleSession
from holdfast.limits import CALL_LOOKBACK
from holdfast.log.align import (
    LogRemainder,
    Plan,
    align_delta,
    align_rest,
    begins_with,
    detect_mode,
    drop_known_results,
    find_unseen_calls,
    is_complete,
    is_cut,
    is_from_user,
    is_reply,
    show_to_client,
)
from holdfast.overlays.session_cache import CachedSession, read_view
from holdfast.stores.base import Store
from holdfast.stores.walk import read_entries_until
from holdfast.turns.handover import resume
from holdfast.turns.interruptions import apply_interruption, is_interrupting
from holdfast.turns.place import MatchLost, count_known_messages, plan_history
from holdfast.turns.prompt import check_body
from holdfast.turns.request_keys import continue_turn, find_known_turn
from holdfast.turns.turn import MARK, OPENED_BY, Turn, TurnWarning

_PAGE: Final = 64
"""Number of entries that are read at a time while the user's message is searched backwards from the end of the log."""


_NOTE_PAGES: Final = 16
"""Maximum number of pages in which the note of a reply is searched. There are two messages per tool call in between."""


async def open_turn(turn: Turn) -> None:
    """Begin a turn that is the first in its session's queue in this process (`turn.lock`).

    Raises:
        SessionNotFound: the session does not exist.
        SessionBusy: another server runs a turn of the session, and this turn is refused or has waited for too long.
        TurnInterrupted: another turn interrupted this one. The request's messages are in the log.
    """
    await turn.lock.open(partial(_relate, turn))


async def _relate(turn: Turn) -> Session | None:
    """Compare the request with the log, and begin the turn.

    The turn of a new request begins with writing its new messages. The turn of a repeated request continues where the
    first attempt ended.

    Returns:
        The session; None if the log already contains the reply to the request.
    """
    try:
        await reconcile(turn)
    except SessionNotFound:
        if turn.place is not None and turn.place.kind == "matched" and turn.place.find_again is not None:
            raise MatchLost from None  # it was deleted, and the request did not name it
        raise
    answered = turn.answered
    if answered is not None and answered.message.tool_calls and _runs_tools(turn):
        await _answer_after(turn, answered)
    return turn.session if turn.answered is None else None


def _runs_tools(turn: Turn) -> bool:
    return bool(turn.request.responder.tools or turn.request.responder.steps)


# -- the same message again ------------------------------------------------------


async def find_note(store: Store, ref: SessionRef, reply: Entry) -> Entry | None:
    """Return the note that the turn of a reply began with, or None if there is none."""
    mark = (reply.metadata or {}).get(OPENED_BY)
    stop = reply.seq
    for _ in range(_NOTE_PAGES if mark is not None else 0):
        page = await store.entries(ref, stop=stop, limit=_PAGE, descending=True, notes=True)
        for entry in page:
            if entry.is_note and (entry.metadata or {}).get(MARK) == mark:
                return entry
        if len(page) < _PAGE:
            break
        stop = page[-1].seq
    return None


async def _answer_after(turn: Turn, first: Entry) -> None:
    """Find the message that ends a stored reply which begins with tool calls.

    If the log contains none, the turn continues the reply.
    """
    turn.answered, turn.closed = None, False
    later = await turn.engine.store.entries(turn.request.ref, start=first.seq)
    for at, unit in enumerate(units := group_units(later)):
        head = unit.entries[0]
        if head.message.tool_calls:
            if not any(call.name in turn.client_tools for call in head.message.tool_calls):
                continue
            if _is_ready(turn, unit):
                turn.answered, turn.closed = head, True
        elif head.message.role != "assistant":
            pass
        elif not (head.metadata or {}).get("interrupted"):
            turn.answered, turn.closed = head, True
        elif at == len(units) - 1:
            await turn.append((), plan=Plan("regenerated", retire_from=head.seq))
        return


def _is_ready(turn: Turn, unit: Unit) -> bool:
    """Return True if each of the message's calls that Holdfast runs has a result.

    Only then did the client receive the calls that it runs itself.
    """
    answered = {entry.message.tool_call_id for entry in unit.entries[1:]}
    return all(call.id in answered for call in unit.entries[0].message.tool_calls if call.name not in turn.client_tools)


WARNINGS: Final = {
    "nothing_in_common": "the request has nothing in common with its session: only what follows its last reply was appended",
    "several_turns_retired": "the request differs from its session from an earlier turn on: the later turns were retired",
}
NOTHING = "messages is empty, and the session has no messages: there is nothing to answer"
_RACES = 16
"""Maximum number of attempts to begin a turn if other writers append to the log meanwhile."""


async def reconcile(turn: Turn) -> None:
    """Compare the request with the log, and begin the turn with the request's new messages."""
    turn.learned = await turn.engine.learning.get(turn.request.responder.llm)
    check_body(turn.request.responder, turn.request.body, turn.learned)
    await turn.admit()
    if await _continue_known(turn) or await _reconcile_warm(turn):
        return
    for _ in range(_RACES):
        session = (await turn.engine.store.get(turn.request.ref)).require_intact()
        plan, expected = await _plan(turn, session)
        if not plan.append and session.messages == 0:
            raise InvalidRequest(NOTHING, param="messages")
        if plan.answer is not None:
            await _answer_with(turn, session, plan, plan.answer)
            return
        try:
            await write_opening(turn, session, plan, expect=expected)
        except SessionNotFound:  # it was deleted: the next read raises the error
            continue
        except StaleSession:
            if await _continue_known(turn):
                return
            continue
        return
    raise StaleSession(turn.request.ref.id, expected=session.version, version=session.version + 1)


async def _continue_known(turn: Turn) -> bool:
    """Continue or answer the turn that the request's key names. Return False if there is none.

    Raises:
        MatchLost: the key's turn does not count any more, or is in another session.
    """
    request, place = turn.request, turn.place
    key, user_id = request.key, request.ref.user_id
    for _ in range(_RACES):
        known = await find_known_turn(turn.engine.store, user_id, key, repeats=request.repeats, now=turn.engine.clock())
        is_elsewhere = known is not None and known.session.ref != request.ref
        is_over = known is None and place is not None and place.kind == "keyed"
        if (is_elsewhere or is_over) and place is not None and place.find_again is not None:
            raise MatchLost
        if is_elsewhere:
            break
        if known is None:
            return False
        with suppress(StaleSession):
            if turn.handover.asked.team is not None:
                await resume(turn, known.session, Plan("replayed"))
            await continue_turn(turn, known)
            return True
    raise Conflict(f"session {request.ref.id!r} is being written to constantly: try again")


async def _answer_with(turn: Turn, session: Session, plan: Plan, reply: Entry) -> None:
    """Answer with a stored reply. Nothing is written."""
    turn.session, turn.plan = session, plan
    turn.answered, turn.closed = reply, True
    turn.note = await find_note(turn.engine.store, turn.request.ref, reply)


def _has_history(turn: Turn) -> bool:
    """Return True if the request's messages are the session's conversation so far, and not only new messages."""
    return detect_mode(turn.request.incoming, turn.request.mode) == "transcript"


async def _plan(turn: Turn, session: Session) -> tuple[Plan, int | None]:
    """Return the changes that the request makes to the log, and the version that the session must have; None: any version."""
    if turn.follows is not None:
        await check_results(turn.engine.store, session, turn.request.incoming)
        plan, version = await _plan_continuation(turn, session)
        return await apply_interruption(turn, session, plan), version
    history = _has_history(turn)
    plan = await (_plan_history if history else _plan_delta)(turn, session)
    plan = await apply_interruption(turn, session, plan)
    depends = history or plan.retire_from is not None or plan.unanswered
    return plan, session.version if depends else None


async def _reconcile_warm(turn: Turn) -> bool:
    """Begin the turn using the cached session.

    Return False if the cache is outdated or does not contain enough entries.
    """
    request = turn.request
    if is_interrupting(request) or not request.incoming or request.responder.steps:
        return False
    warm = turn.engine.warm.get(request.ref) or await _read_session(turn)
    plan = _plan_warm_history(turn, warm) if _has_history(turn) else _plan_warm_delta(turn, warm)
    if plan is None or not plan.append or plan.retire_from is not None:
        return False
    try:
        await write_opening(turn, warm.session, plan, expect=warm.session.version)
    except (StaleSession, SessionNotFound, MatchLost):  # the match may be newer than the cached session
        turn.engine.warm.forget(request.ref)
        return False
    return True


async def _read_session(turn: Turn) -> CachedSession:
    """Read the session and the stored state of the prompt builder from the store, in one step, and cache both."""
    read = await read_view(turn.engine.store, turn.request.ref, turn.key)
    read.session.require_intact()
    return turn.engine.warm.put_read(read, turn.key)


def _plan_warm_delta(turn: Turn, warm: CachedSession) -> Plan | None:
    incoming = turn.request.incoming
    if find_unasked_result(warm.session, incoming) is not None or find_unseen_calls(warm.last, incoming):
        return None
    if turn.follows is not None:
        return Plan("delta", incoming) if warm.session.tail.last_seq == turn.follows else None
    is_open = bool(warm.last) and (warm.last[-1].kind in ("calls", "result") or is_cut(warm.last[-1]))
    if (is_open or len(incoming) > len(warm.last)) and not warm.is_whole:
        return None
    return align_delta(warm.last, incoming)


def _plan_warm_history(turn: Turn, warm: CachedSession) -> Plan | None:
    if warm.session.messages == 0:
        return Plan("new", turn.request.incoming)
    sent = count_known_messages(warm.session.tail.digest, turn.request.incoming)
    if sent is None:
        return None
    tools: list[Entry] = []
    for entry in reversed(warm.last):
        if entry.message.visible:
            return align_rest(LogRemainder(tools[::-1], None), turn.request.incoming[sent:])
        tools.append(entry)
    return None


async def _plan_delta(turn: Turn, session: Session) -> Plan:
    store, incoming = turn.engine.store, turn.request.incoming
    if not incoming:
        return Plan("replayed")
    last: Sequence[Entry] = await store.entries(session.ref, limit=len(incoming) + 1, descending=True)
    is_open = bool(last) and (last[0].kind in ("calls", "result") or is_cut(last[0]))
    if is_open:
        tools, user = await read_entries_until(store, session.ref, is_from_user, descending=True)
        start = tools[-1].seq if user is None else user.seq
        before = await store.entries(session.ref, stop=start, limit=len(incoming), descending=True)
        last = [*tools, *([user] if user else ()), *before]
    last = last[::-1]
    if incoming[0].role == "tool":
        end = session.tail.next_seq if find_unseen_calls(last, incoming) else None
        stored = await check_results(store, session, incoming, stop=end)
        fresh = drop_known_results(stored, incoming)
        if not fresh:
            return _repeat_results(stored, incoming)
        incoming = fresh
    return align_delta(last, incoming)


def _repeat_results(stored: Sequence[Entry], sent: Sequence[Message]) -> Plan:
    """Return the plan for a request that has only results of tools that the log has: it gets the reply that followed them."""
    ids = {message.tool_call_id for message in sent}
    last = max(at for at, entry in enumerate(stored) if entry.kind == "result" and entry.message.tool_call_id in ids)
    later = takewhile(lambda entry: entry.kind != "user", stored[last:])
    reply = next((entry for entry in later if is_reply(entry)), None)
    if reply is not None and not is_complete(reply) and reply is stored[-1]:
        return Plan("regenerated", retire_from=reply.seq)
    return Plan("replayed", answer=reply)


async def _plan_history(turn: Turn, session: Session) -> Plan:
    """Return the changes to the log for a request that contains the conversation, or a part of it."""
    request, is_named = turn.request, turn.place is None or turn.place.kind != "matched"
    whole = request.mode == "transcript"
    return await plan_history(turn.engine.store, session, request.incoming, whole=whole, named=is_named)


async def write_opening(turn: Turn, session: Session, plan: Plan, *, expect: int | None) -> None:
    """Write the request's messages and the changes in `plan` to the log, before the model is called."""
    if turn.place is not None:
        turn.place.check(session, plan.retire_from)
    if plan.warning is not None:
        turn.warnings.add(TurnWarning(plan.warning, WARNINGS[plan.warning]))
    if turn.handover.asked.team is not None:
        await resume(turn, session, plan)
    if plan.relation == "new" and is_unplaced(session.ref):
        plan = msgspec.structs.replace(plan, relation="unplaced")
    turn.plan = plan
    turn.session = session
    writes = plan.append or plan.restore or plan.retire_from is not None or turn.request.note is not None
    if writes or (turn.request.key is not None and turn.request.key.name):
        await turn.append(turn.select_sent(plan), plan=plan, expect=expect, opens=True)


def find_unasked_result(session: Session | None, messages: Sequence[Message]) -> Message | None:
    """Return the first tool result whose call comes before it neither in the session nor in `messages`; None if each one has a call.

    Args:
        session: the session as last read, of whose calls the open ones count, for results at the beginning; None: a new session.
        messages: messages to be written after the session's log.
    """
    calls = set(session.tail.open_calls) if session else set()
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in calls:
                return message
        elif session is not None:
            return None
        calls.update(call.id for call in message.tool_calls)
    return None


def make_result_error(message: Message, param: str = "messages[0].tool_call_id") -> InvalidMessage:
    """Return the error for a tool result whose call is not in the session."""
    text = f"the result of call {message.tool_call_id!r:.100} has no matching call: send the assistant message with the call first"
    return InvalidMessage(text, param=param)


async def check_results(
    store: Store, session: Session, messages: Sequence[Message], *, stop: int | None = None
) -> Sequence[Entry]:
    """Check that the session contains the calls of the tool results with which `messages` begins.

    Late and repeated results are accepted.

    Args:
        store: the store.
        session: the session as last read.
        messages: messages to be written.
        stop: `seq` before which they are written; None: at the end of the log.

    Returns:
        The last messages before them that the client received, in order, among which the calls were searched; empty if all of the calls
        are open.

    Raises:
        InvalidMessage: the call of a result is not among the last `limits.CALL_LOOKBACK` messages.
    """
    if find_unasked_result(session if stop is None else None, messages) is None:
        return ()
    stored: Sequence[Entry] = ()
    if session.messages:
        stored = await store.entries(session.ref, stop=stop, limit=CALL_LOOKBACK, descending=True)
    stored = stored[::-1]
    shown = show_to_client(stored)  # a call of the server may have the same id
    known = {call.id for _, message in shown for call in message.tool_calls}
    known.update(session.tail.open_calls if stop is None else ())
    for message in takewhile(lambda one: one.role == "tool", messages):
        if message.tool_call_id not in known:
            raise make_result_error(message)
    return [stored[at] for at, _ in shown]


# -- requests that continue after one message -------------------------------------
#
# Such a message is continued only once in its session; see `Place.follows`. If it has a continuation already, the request
# gets a fork. A continuation counts when its reply is complete. If a request failed before that, its messages are in the log
# without a reply, or with a part of one. The same request then continues there, so a client can always try again.


async def _plan_continuation(turn: Turn, session: Session) -> tuple[Plan, int]:
    """Return the changes to the log for a request that follows a message, and the version that the session must have.

    Raises:
        MatchLost: the log has a continuation that the request does not repeat, so the request gets a fork.
    """
    incoming, follows = turn.request.incoming, turn.follows
    assert follows is not None, "the request follows a message"
    later, reply = await read_entries_until(turn.engine.store, turn.request.ref, is_complete, start=follows + 1)
    is_there = await turn.engine.store.entries(turn.request.ref, start=follows, limit=1, notes=True)
    is_last = bool(is_there) and is_there[0].seq == follows
    if is_last and reply is None and not later:
        return (Plan("delta", incoming) if incoming else Plan("replayed")), session.version
    if is_last and incoming and reply is None and begins_with(later, incoming):
        return align_delta(later, incoming), session.version
    raise MatchLost


async def has_continuation(store: Store, ref: SessionRef, seq: int) -> bool:
    """Return True if a complete reply follows a message in the log."""
    _, reply = await read_entries_until(store, ref, is_complete, start=seq + 1)
    return reply is not None
