"""Begin a turn: compare the request with the log, write the new messages, and claim the session.

After that, the turn is *open*.

A client that never received the end of a reply may send the same request again:

- If a turn ended between tools, the new turn continues from the stored results.
- After a crash, or if the client disconnected, the log ends in the tool messages of an unfinished reply. The calls in
  this reply are not run again. The prompt says which of these calls have no result.
- If the reply was completed after its client had disconnected, the stored reply is returned (see
  `holdfast.matching.retries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Final

from holdfast.context.units import Unit, group_units
from holdfast.domain.messages import Message, encode_canonical
from holdfast.domain.reconcile import LogRemainder, Plan, detect_mode, reconcile_delta, reconcile_remainder
from holdfast.domain.session import NO_VERSION, Entry, Session, SessionRef
from holdfast.engine.redacting_store import mask_messages
from holdfast.errors import InvalidMessage, InvalidRequest, SessionNotFound, StaleSession
from holdfast.limits import CALL_LOOKBACK
from holdfast.matching.log_match import (
    count_known_messages,
    find_landing,
    find_tool_round,
    read_branch,
    read_end,
    read_remainder,
)
from holdfast.overlays.session_cache import CachedSession, read_view
from holdfast.stores.base import Store
from holdfast.stores.log import Appended
from holdfast.stores.walk import ENTRIES, read_entries_until
from holdfast.turns.handover import resume
from holdfast.turns.interruptions import apply_interruption, is_interrupting
from holdfast.turns.placement import MatchLost
from holdfast.turns.prompt import check_body
from holdfast.turns.turn import INPUT_COUNT, MARK, OPENED_BY, Turn

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
    if turn.engine.undelivered.has_reply(turn.request.ref) and await _repeat_undelivered(turn):
        return None
    runs_tools = bool(turn.request.responder.tools or turn.request.responder.steps)
    is_joined = turn.placement is not None and await _join_attempt(turn)
    may_resume = runs_tools and not is_joined and (turn.follows is None or await _check_continuation(turn))
    if not is_joined and not (may_resume and await _resume_from_results(turn)):
        await reconcile(turn)
    answered = turn.answered
    if answered is not None and answered.message.tool_calls and (is_joined or runs_tools):
        await _answer_after(turn, answered)
    return turn.session if turn.answered is None else None


# -- the same message again ------------------------------------------------------


async def _repeat_undelivered(turn: Turn) -> bool:
    """Answer with the log's last reply if it is the reply to this request and no client received it. Return True if so."""
    await turn.admit()
    store, request = turn.engine.store, turn.request
    session = (await store.get(request.ref)).require_intact()
    seq = turn.engine.undelivered.take(session, request.incoming, request.idempotency_key)
    seq = None if seq == turn.follows else seq  # the same words after the reply are a new message
    last = [] if seq is None else await store.entries(request.ref, start=seq, limit=1)
    if not last or last[0].message.role != "assistant" or last[0].erased:
        return False
    turn.session, turn.plan = session, Plan("replayed")
    turn.answered, turn.closed = last[0], True
    turn.note = await find_note(turn.engine.store, turn.request.ref, last[0])
    return True


async def _join_attempt(turn: Turn) -> bool:
    """Continue where the first attempt at the request ended. Return True if that was possible.

    It is impossible if it is unknown where the first attempt ended, or if the first attempt never began a turn. If another message
    was sent after an attempt that failed, the retry is a new message.

    Raises:
        MatchLost: the retry is a new message, and may belong to another session.
    """
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
    if await _is_overtaken(turn, start):
        if not placement.attempt.is_fixed:
            raise MatchLost
        return False
    turn.learned = await turn.engine.learning.get(request.responder.llm)
    check_body(request.responder, request.body, turn.learned)
    await turn.admit()
    await resume(turn, session, Plan("replayed"))
    turn.plan, turn.session = Plan("replayed"), session
    placement.release()
    if request.note is not None and start:
        before = await turn.engine.store.entries(request.ref, start=start - 1, limit=1, notes=True)
        turn.note = before[0] if before and before[0].is_note else None
    await answer_again(turn, start)
    return True


async def _is_overtaken(turn: Turn, start: int) -> bool:
    """Return True if another message follows a request in the log, and the request has no complete reply.

    Args:
        turn: the turn.
        start: `seq` of the first entry after the request's messages.
    """
    store, ref = turn.engine.store, turn.request.ref
    reply, other = await read_entries_until(store, ref, lambda entry: entry.message.role == "user", start=start)
    return other is not None and not any(one.message.role == "assistant" and is_complete(one) for one in reply)


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


async def _resume_from_results(turn: Turn) -> bool:
    """Continue with stored tool results if the log ends in results of tools that ran for exactly these messages.

    Return True if that was done.
    """
    request = turn.request
    if not request.incoming:
        return False
    session = (await turn.engine.store.get(request.ref)).require_intact()
    if _has_history(turn):
        return False
    if session.tail.last_kind not in {"calls", "result"}:
        return False
    incoming = await mask_messages(turn.engine.guard, request.incoming)
    if not await _has_unanswered(turn, session, incoming):
        return False
    turn.learned = await turn.engine.learning.get(request.responder.llm)
    check_body(request.responder, request.body, turn.learned)
    await turn.admit()
    await write_opening(turn, session, Plan("replayed"), expect=None)
    return True


async def _has_unanswered(turn: Turn, session: Session, incoming: Sequence[Message]) -> bool:
    """Return True if the log ends with the messages `incoming`, followed only by calls that Holdfast ran and by their results."""
    tail: list[Entry] = []
    while True:
        stop = tail[0].seq if tail else None
        page = await turn.engine.store.entries(session.ref, stop=stop, limit=_PAGE, descending=True)
        tail = [*page[::-1], *tail]
        units = group_units(tail)
        while units and _has_run_here(turn, units[-1]):
            units.pop()
            before = [entry for unit in units for entry in unit.entries][-len(incoming) :]
            if incoming[-1].role != "assistant" and len(before) == len(incoming) and _begins_with(before, incoming):
                return True
        begun = len(units) == 1 and units[0].entries[0].kind == "result"  # its calls are on the previous page
        if (units and not begun) or len(page) < _PAGE:
            return False


def _has_run_here(turn: Turn, unit: Unit) -> bool:
    calls = unit.entries[0].message.tool_calls
    return bool(calls) and not any(call.name in turn.client_tools for call in calls)


# -- the same idempotency key again ----------------------------------------------


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
            await turn.append((), plan=Plan("regenerated", retire_from=head.seq), keyed=False)
        return


def _is_ready(turn: Turn, unit: Unit) -> bool:
    """Return True if each of the message's calls that Holdfast runs has a result.

    Only then did the client receive the calls that it runs itself.
    """
    answered = {entry.message.tool_call_id for entry in unit.entries[1:]}
    return all(call.id in answered for call in unit.entries[0].message.tool_calls if call.name not in turn.client_tools)


NOTHING = "messages is empty, and the session has no messages: there is nothing to answer"
_RACES = 16
"""Maximum number of attempts to begin a turn if other writers append to the log meanwhile."""
_COPY_ENTRIES = 64
"""Number of entries that are searched for the copy of a message that was written again."""


async def reconcile(turn: Turn) -> None:
    """Compare the request with the log, and begin the turn with the request's new messages."""
    turn.learned = await turn.engine.learning.get(turn.request.responder.llm)
    check_body(turn.request.responder, turn.request.body, turn.learned)
    await turn.admit()
    if await _reconcile_warm(turn):
        return
    for _ in range(_RACES):
        session = (await turn.engine.store.get(turn.request.ref)).require_intact()
        plan, expected = await _plan(turn, session)
        if not plan.append and session.messages == 0:
            raise InvalidRequest(NOTHING, param="messages")
        try:
            await write_opening(turn, session, plan, expect=expected)
        except SessionNotFound:  # it was deleted: the next read raises the error
            continue
        except StaleSession as exc:
            if turn.follows is not None and exc.expected == NO_VERSION:
                raise MatchLost from exc
            continue
        return
    raise StaleSession(turn.request.ref.id, expected=session.version, version=session.version + 1)


def _has_history(turn: Turn) -> bool:
    """Return True if the request's messages are the session's conversation so far, and not only new messages."""
    return detect_mode(turn.request.incoming, turn.request.mode) == "transcript"


async def _plan(turn: Turn, session: Session) -> tuple[Plan, int | None]:
    """Return the changes that the request makes to the log, and the version that the session must have; None: any version."""
    if turn.follows is not None:
        await check_results(turn.engine.store, session, turn.request.incoming)
        plan, version = await _plan_continuation(turn, session)
        return await apply_interruption(turn, session, plan), version
    transcript = _has_history(turn)
    plan = await (_plan_transcript if transcript else _plan_delta)(turn, session)
    plan = await apply_interruption(turn, session, plan)
    return plan, session.version if transcript or plan.retire_from is not None else None


async def _reconcile_warm(turn: Turn) -> bool:
    """Begin the turn using the cached session.

    Return False if the cache is outdated or does not contain enough entries.
    """
    request = turn.request
    if is_interrupting(request) or not request.incoming or request.responder.steps:
        return False
    warm = turn.engine.warm.get(request.ref) or await _read_session(turn)
    plan = _plan_warm_transcript(turn, warm) if _has_history(turn) else _plan_warm_delta(turn, warm)
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
    if find_unasked_result(warm.session, incoming) is not None:
        return None
    if turn.follows is not None:
        return Plan("delta", incoming) if warm.session.tail.last_seq == turn.follows else None
    if len(incoming) > len(warm.last) and not warm.is_whole:
        return None
    return reconcile_delta(warm.last[-len(incoming) :], incoming)


def _plan_warm_transcript(turn: Turn, warm: CachedSession) -> Plan | None:
    if warm.session.messages == 0:
        return Plan("new", turn.request.incoming)
    sent = count_known_messages(warm.session.tail.digest, turn.request.incoming)
    if sent is None:
        return None
    tools: list[Entry] = []
    for entry in reversed(warm.last):
        if entry.message.visible:
            return reconcile_remainder(LogRemainder(tools[::-1], None), turn.request.incoming[sent:])
        tools.append(entry)
    return None


async def _plan_delta(turn: Turn, session: Session) -> Plan:
    incoming = turn.request.incoming
    if not incoming:
        return Plan("replayed")
    await check_results(turn.engine.store, session, incoming)
    last = await turn.engine.store.entries(session.ref, limit=len(incoming), descending=True)
    return reconcile_delta(last[::-1], incoming)


async def _plan_transcript(turn: Turn, session: Session) -> Plan:
    """Return the changes to the log for a request that contains the whole conversation.

    The beginning that the request shares with the log is found by digests. Only the entries after it are read.
    """
    store, incoming = turn.engine.store, turn.request.incoming
    if session.messages == 0:
        return Plan("new", incoming)
    sent = count_known_messages(session.tail.digest, incoming)
    if sent is not None:
        return reconcile_remainder(await read_end(store, session), incoming[sent:])
    whole = turn.request.mode == "transcript"
    if not whole and (tool_round := await find_tool_round(store, session, incoming)) is not None:
        remainder, sent = tool_round
        return reconcile_remainder(remainder, incoming[sent:])
    found = await find_landing(store, session, incoming, whole=whole)
    if found is None:
        first = await store.entries(session.ref, limit=1)
        return Plan("replaced", incoming, retire_from=first[0].seq) if incoming else Plan("replayed")
    if found.place.live:
        return reconcile_remainder(await read_remainder(store, session.ref, found.place.seq), incoming[found.sent :])
    return await _revive(turn, session, found.place.seq, found.sent)


async def _revive(turn: Turn, session: Session, seq: int, sent: int) -> Plan:
    """Return the changes to the log for a request that continues messages which an earlier edit replaced.

    The replaced messages are written again, including their tool messages.

    Args:
        turn: the turn.
        session: the session as last read.
        seq: the last message with visible text that the request shares with the replaced part of the log.
        sent: number of messages in the request up to and including that message.
    """
    incoming = turn.request.incoming
    old = await read_branch(turn.engine.store, session.ref, seq)
    if any(
        entry.erased for entry in old.entries
    ):  # erased content cannot be restored, so the client's version replaces the branch
        visible = [at for at, message in enumerate(incoming[:sent]) if message.visible]
        begin = visible[-sum(entry.message.visible for entry in old.entries)]
        return Plan("edited", incoming[begin:], retire_from=old.retire_from)
    plan = reconcile_remainder(LogRemainder(old.tools, None if old.ends else seq), incoming[sent:])
    until = plan.retire_from if plan.retire_from not in {None, seq} else None
    tools = [tool for tool in old.tools if until is None or tool.seq < until]
    return Plan(
        plan.relation,
        plan.append,
        retire_from=old.retire_from,
        restore=(*old.entries, *tools),
        renamed=plan.renamed,
    )


async def write_opening(turn: Turn, session: Session, plan: Plan, *, expect: int | None) -> None:
    """Write the request's messages and the changes in `plan` to the log, before the model is called."""
    if turn.placement is not None:
        turn.placement.check(session, plan.retire_from)
    if turn.handover.asked.team is not None:
        await resume(turn, session, plan)
    turn.plan = plan
    turn.session = session
    writes = plan.append or plan.restore or plan.retire_from is not None or turn.request.note is not None
    if not writes and turn.request.idempotency_key is None:
        turn.note_opened(session.tail.next_seq)
        return
    appended = await turn.append(turn.select_sent(plan), plan=plan, expect=expect)
    turn.note_opened(appended.start + len(appended.entries))
    if appended.replayed:
        turn.plan = Plan("replayed")
        await answer_again(turn, await _find_reply_start(turn, appended))


async def _find_reply_start(turn: Turn, first: Appended) -> int:
    """Return the `seq` at which the reply to the first attempt at a request begins.

    If that reply was cut since, the messages of the request may have been written again with new numbers.
    """
    first_message = next((entry for entry in reversed(first.entries) if not entry.is_note), None)
    if first_message is None or first_message.retired_by is None:
        return first.start + len(first.entries)
    stored = await turn.engine.store.entries(turn.request.ref, start=first_message.retired_by, limit=_COPY_ENTRIES)
    moved = (entry.seq for entry in stored if _is_moved(first_message, entry))
    return next(moved, first.start + len(first.entries) - 1) + 1


def _is_moved(first_message: Entry, entry: Entry) -> bool:
    """Return True if `entry` is a copy of `first_message`, written again."""
    same = (entry.turn_id, entry.timestamp, entry.kind) == (
        first_message.turn_id,
        first_message.timestamp,
        first_message.kind,
    )
    return same and encode_canonical(entry.message) == encode_canonical(first_message.message)


async def answer_again(turn: Turn, start: int) -> None:
    """Find the stored reply to the first attempt at the same request, and let the turn answer with it.

    If the stored reply was cut off, its received part is replaced by a new reply.
    """
    later = await turn.engine.store.entries(turn.request.ref, start=start, limit=2)
    if not later or later[0].message.role != "assistant":
        return
    if not (later[0].metadata or {}).get("interrupted"):
        turn.answered, turn.closed = later[0], True
    elif len(later) == 1:
        await turn.append((), plan=Plan("regenerated", retire_from=later[0].seq), keyed=False)


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
) -> None:
    """Check that the session contains the calls of the tool results with which `messages` begins.

    Late and repeated results are accepted.

    Args:
        store: the store.
        session: the session as last read.
        messages: messages to be written.
        stop: `seq` before which they are written; None: at the end of the log.

    Raises:
        InvalidMessage: the call of a result is not among the last `limits.CALL_LOOKBACK` messages.
    """
    if find_unasked_result(session if stop is None else None, messages) is None:
        return
    stored: Sequence[Entry] = ()
    if session.messages:
        stored = await store.entries(session.ref, stop=stop, limit=CALL_LOOKBACK, descending=True)
    known = {call.id for entry in stored for call in entry.message.tool_calls}
    known.update(session.tail.open_calls if stop is None else ())
    for message in takewhile(lambda one: one.role == "tool", messages):
        if message.tool_call_id not in known:
            raise make_result_error(message)


# -- requests that continue after one message -------------------------------------
#
# Such a message is continued only once; see `Placement.follows`. If it has a continuation already, the request gets
# another session. A continuation counts when its reply is complete. If a request failed before that, its messages are
# in the log without a reply, or with a part of one. The same request then continues there, so a client can always try
# again. Another request gets another session.


async def _check_continuation(turn: Turn) -> bool:
    """Return True if the message that the request follows has no complete continuation yet.

    Raises:
        MatchLost: it has one, or it is not in force any more, so the request gets another session.

    The error is not raised if the request has an idempotency key, because it may repeat the request that made the continuation.
    """
    return await _read_attempt(turn) is not None


async def _plan_continuation(turn: Turn, session: Session) -> tuple[Plan, int]:
    """Return the changes to the log for a request that follows a message, and the version that the session must have.

    Raises:
        MatchLost: as `_check_continuation`.
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
