"""The first layers of a turn: what came is related to the log, and what is new of it is written ahead."""

from __future__ import annotations

from holdfast.domain.messages import canonical
from holdfast.domain.participants import SPEAKER
from holdfast.domain.reconcile import Behind, Plan, reconcile_behind, reconcile_delta
from holdfast.domain.session import Entry, Session
from holdfast.errors import Conflict, InvalidRequest, SessionNotFound, StaleSession
from holdfast.overlays.warm import WarmSession
from holdfast.recognition.matching import at_end, behind, branch, goes_on, landed
from holdfast.stores.log import Appended
from holdfast.stores.walk import entries_to
from holdfast.turns.handover import resume
from holdfast.turns.interruptions import apply_interruption, is_interrupting
from holdfast.turns.prompting import check_body
from holdfast.turns.session_mode import is_remembered_transcript, is_transcript, remember_client, warn_of_retired
from holdfast.turns.tool_results import check_results, unasked_result
from holdfast.turns.turn import Turn

NOTHING = "messages is empty, and so is the session: there is nothing to answer"
_RACES = 16
"""Times a transcript is reconciled anew because somebody else appended in between."""
_MOVED = 64
"""Entries among which a message is looked for that was written once more."""


async def reconcile(turn: Turn) -> None:
    """Relate what came to the log, and open the turn with what is new of it."""
    turn.learned = await turn.engine.learning.of(turn.request.voice.llm)
    check_body(turn.request.voice, turn.request.body, turn.learned)
    await turn.admit()
    if await _reconcile_warm(turn):
        return
    for _ in range(_RACES):
        session = (await turn.engine.store.get(turn.request.ref)).require_intact()
        transcript = is_transcript(turn, session)
        plan = await (_plan_transcript if transcript else _plan_delta)(turn, session)
        plan = await apply_interruption(turn, session, plan)
        if not plan.append and session.messages == 0:
            raise InvalidRequest(NOTHING, param="messages")
        expected = session.version if transcript or plan.retire_from is not None else None
        try:
            await open_turn(turn, session, plan, expect=expected)
        except (StaleSession, SessionNotFound):  # of one that is gone the next look says so
            continue
        warn_of_retired(turn, session)
        await remember_client(turn)
        return
    raise StaleSession(turn.request.ref.id, expected=session.version, version=session.version + 1)


async def _reconcile_warm(turn: Turn) -> bool:
    """Open the turn by what is remembered of the session; False when that is not enough, or not true any more."""
    request, warm = turn.request, turn.engine.warm.get(turn.request.ref)
    if warm is None or is_interrupting(request):
        return False
    plan = _warm_transcript(turn, warm) if is_transcript(turn, warm.session) else _warm_delta(turn, warm)
    if plan is None or not plan.append or plan.retire_from is not None:
        return False
    try:
        await open_turn(turn, warm.session, plan, expect=warm.session.version)
    except (StaleSession, SessionNotFound):
        turn.engine.warm.forget(request.ref)
        return False
    await remember_client(turn)
    return True


def _warm_delta(turn: Turn, warm: WarmSession) -> Plan | None:
    incoming = turn.request.incoming
    if not 0 < len(incoming) <= len(warm.last) or unasked_result(warm.session, incoming) is not None:
        return None
    return reconcile_delta(warm.last[-len(incoming) :], incoming)


def _warm_transcript(turn: Turn, warm: WarmSession) -> Plan | None:
    sent = goes_on(warm.session, turn.request.incoming)
    if sent is None:
        return None
    turn.is_whole = True
    tools: list[Entry] = []
    for entry in reversed(warm.last):
        if entry.message.visible:
            return reconcile_behind(Behind(tools[::-1], None), turn.request.incoming[sent:])
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
    """See `holdfast.domain.reconcile`. What the two have in common is found by digests, what stands behind it is read."""
    store, incoming = turn.engine.store, turn.request.incoming
    if session.messages == 0:
        turn.is_whole = True
        return Plan("new", incoming)
    sent = goes_on(session, incoming)
    if sent is not None:
        turn.is_whole = True
        return reconcile_behind(await at_end(store, session), incoming[sent:])
    whole = turn.request.mode == "transcript" or is_remembered_transcript(turn, session)
    found = await landed(store, session, incoming, whole=whole)
    if found is None:
        first = await store.entries(session.ref, limit=1)
        return Plan("replaced", incoming, retire_from=first[0].seq) if incoming else Plan("replayed")
    if found.place.live:
        return reconcile_behind(await behind(store, session.ref, found.place.seq), incoming[found.sent :])
    return await _revived(turn, session, found.place.seq, found.sent)


async def _revived(turn: Turn, session: Session, seq: int, sent: int) -> Plan:
    """Plan for a request that goes on with a retired branch: what the branch had is written again, its tool messages too."""
    incoming = turn.request.incoming
    old = await branch(turn.engine.store, session.ref, seq)
    if any(
        entry.erased for entry in old.entries
    ):  # not to be had again: what the client still has of it takes its place
        visible = [at for at, message in enumerate(incoming[:sent]) if message.visible]
        begin = visible[-sum(entry.message.visible for entry in old.entries)]
        return Plan("edited", incoming[begin:], retire_from=old.retire_from)
    plan = reconcile_behind(Behind(old.tools, None if old.ends else seq), incoming[sent:])
    until = plan.retire_from if plan.retire_from not in {None, seq} else None
    tools = [tool for tool in old.tools if until is None or tool.seq < until]
    return Plan(
        plan.relation,
        plan.append,
        retire_from=old.retire_from,
        restore=(*old.entries, *tools),
        renamed=plan.renamed,
    )


async def open_turn(turn: Turn, session: Session, plan: Plan, *, expect: int | None) -> None:
    """Write ahead: what came is durable before the model is called."""
    if turn.placement is not None:
        turn.placement.check(session, plan.retire_from)
    if turn.request.guest and plan.retire_from is not None:
        await _check_own(turn, plan.retire_from)
    await resume(turn, session, plan)
    turn.plan = plan
    turn.session = session
    writes = plan.append or plan.restore or plan.retire_from is not None
    if not writes and turn.request.idempotency_key is None:
        turn.note_opened(session.tail.next_seq)
        return
    appended = await turn.append(turn.as_sent(plan), plan=plan, expect=expect)
    turn.note_opened(appended.start + len(appended.entries))
    if appended.replayed:
        turn.plan = Plan("replayed")
        await answer_again(turn, await _behind_asked(turn, appended))


async def _check_own(turn: Turn, start: int) -> None:
    """Refuse to take back from `start` on what others said, or what they were answered. Raises `Conflict`."""
    store, ref, speaker = turn.engine.store, turn.request.ref, turn.request.speaker

    def others(entry: Entry) -> bool:
        said = (entry.metadata or {}).get(SPEAKER)
        return said != speaker and (said is not None or entry.message.role == "user")

    _, found = await entries_to(store, ref, others, keep=lambda _: False, start=start)
    if found is None:
        # Where the reply alone goes: to whose words it is.
        _, asked = await entries_to(store, ref, lambda one: one.message.role == "user", stop=start + 1, descending=True)
        if asked is not None and not others(asked):
            return
    raise Conflict(
        "the request leaves out, or changes, what others said in this session: that is its owner's to do;"
        " send what is new alone, with session_mode 'delta'"
    )


async def _behind_asked(turn: Turn, first: Appended) -> int:
    """Where the reply to a first request begins. What was asked may stand elsewhere by now, behind a reply that was cut since."""
    asked = first.entries[-1] if first.entries else None
    if asked is None or asked.retired_by is None:
        return first.start + len(first.entries)
    stored = await turn.engine.store.entries(turn.request.ref, start=asked.retired_by, limit=_MOVED)
    moved = (entry.seq for entry in stored if _moved(asked, entry))
    return next(moved, first.start + len(first.entries) - 1) + 1


def _moved(asked: Entry, entry: Entry) -> bool:
    """Whether `entry` is `asked`, written once more."""
    same = (entry.turn_id, entry.timestamp, entry.kind) == (asked.turn_id, asked.timestamp, asked.kind)
    return same and canonical(entry.message) == canonical(asked.message)


async def answer_again(turn: Turn, start: int) -> None:
    """Find the reply that the first attempt at the same request got. What arrived of a cut one makes room."""
    behind = await turn.engine.store.entries(turn.request.ref, start=start, limit=2)
    if not behind or behind[0].message.role != "assistant":
        return
    if not (behind[0].metadata or {}).get("interrupted"):
        turn.answered, turn.closed = behind[0], True
    elif len(behind) == 1:
        await turn.append((), plan=Plan("regenerated", retire_from=behind[0].seq), keyed=False)
