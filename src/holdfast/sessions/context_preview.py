"""Preview a session's context: build a working set without calling a model, for the current log or for a past turn.

A working set is the list of messages that is sent to the model in one call. A view is the cached state from which the next working set is
built, for one agent and its settings.

Prompts that were sent are not stored, but rebuilt; see `holdfast.sessions.prompt_replay`. Old values of the state are not stored either. An
instruction that refers to state is built from the current values, so the hash differs if these values have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder, Roster
from holdfast.context.build import Request, WorkingSet
from holdfast.context.explain import BuildRecord, decode_record
from holdfast.context.recalled import Introduction
from holdfast.context.settings import ContextSettings, format_settings
from holdfast.domain.session import ModelCall, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import PAGE
from holdfast.media.outgoing import prepare_for_model
from holdfast.numbers import check_whole
from holdfast.overlays.session_cache import PREVIEW, choose_view_to_save, read_view
from holdfast.sessions.preview_objects import Preview, PreviewRequest
from holdfast.sessions.prompt_replay import Calls, Past, PromptLog, draft_after_last, rebuild_turn
from holdfast.stores.log import Append
from holdfast.turns.prompt import (
    add_recall,
    build_from_cache,
    build_from_store,
    build_instruction,
    count_by_provider,
    draft_from,
    introduce_memories,
    make_request,
)
from holdfast.turns.turn import TurnRequest

RECENT_CALLS: Final = 16
"""Number of newest model calls in which a view is searched. If one of these calls used the view, turns keep the view up to date."""


async def preview_context(engine: Engine, ref: SessionRef, look: PreviewRequest) -> Preview:
    """Build the working set for a preview request. No model is called to answer, and the log is not changed.

    Raises:
        InvalidRequest: the session has no turn `at_turn`.
        MissingState: the agent's instruction needs state, or an artifact, that does not exist.
        BudgetTooSmall: no valid working set fits into the budget.
    """
    found = await rebuild_context(engine, ref, look)
    responder = look.responder
    counted = await count_by_provider(engine, ref, responder.llm, found.built)
    as_chat = look.dialect == "openai"
    limits = engine.roster.find_profile(responder.llm, engine.clock())
    sent = await prepare_for_model(engine.store, ref, found.built, limits, as_chat=as_chat)
    marked = responder.llm.params.get("cache_control") is not False
    return found._replace(provider=counted, sent=sent, marked=marked)


async def rebuild_context(engine: Engine, ref: SessionRef, look: PreviewRequest) -> Preview:
    """Build a preview like `preview_context`, but without the provider's token count and without the messages as they are sent.

    Raises the errors of `preview_context`.
    """
    _check_turn(look.at_turn)
    session = await engine.store.get(ref)
    back = look.explain or look.at_turn is not None
    calls = await _read_calls(engine, ref, look.at_turn, look.call) if back else []
    responder = _choose_responder(engine.roster, look, calls)
    request = await _make_request(engine, session, look, responder, calls)
    if look.touch and not back:
        await engine.life.record_use(session)
    past = await _read_past(engine, ref, responder.view_key, calls) if back else None
    log = PromptLog(look.trace, compare=look.compare)
    if past is not None:
        past = past._replace(introductions=await _introduce_past(engine, session, responder, past, look.at_turn))
    if past is None:
        if look.save and not engine.is_busy(ref):
            async with engine.lock_between_turns(ref):  # turns use and change the same cached view
                found = Preview(await _build_saved(engine, await engine.store.get(ref), responder, request))
        else:
            found = Preview(await _build_current(engine, session, responder, request))
    elif look.at_turn is None:
        draft = await run_cpu(draft_after_last, request, past, look, ref, log)
        found = Preview(
            await add_recall(engine, session, draft), entries=past.entries, departures=log.found, before=log.before
        )
    else:
        found = await run_cpu(rebuild_turn, request, past, look, ref)
        if found.call is None:
            found = found._replace(not_sent=_describe_unsent(look, responder, calls, past))
    if look.explain and found.built.request.strategy.summarizer is not None:
        found = found._replace(summaries=await engine.compactor.report(ref, responder.view_key))
    return found


def _check_turn(turn_id: Any) -> None:
    if turn_id is not None:
        check_whole(turn_id, "at_turn")


async def _make_request(
    engine: Engine, session: Session, look: PreviewRequest, responder: Responder, calls: Calls
) -> Request:
    body = {"tools": look.tools}
    turn_request = TurnRequest(
        ref=session.ref, responder=responder, incoming=(), system=look.system, body=body, dialect=look.dialect
    )
    learned = await engine.learning.get(responder.llm)
    instruction = await build_instruction(engine, session, responder)
    known = await introduce_memories(engine, session, responder, only=_find_known(look, calls))
    marker = await engine.markers.derive(session)
    return make_request(turn_request, session, instruction, marker=marker, learned=learned, introduction=known)


def _find_known(look: PreviewRequest, calls: Calls) -> tuple[str, ...] | None:
    """Return the recorded ids of the memories in the prompt of a turn, also if other settings are tried; None if they are not known."""
    return next((record.known for call, record in reversed(calls) if call.turn_id == look.at_turn), None)


async def _build_saved(engine: Engine, session: Session, responder: Responder, request: Request) -> WorkingSet:
    """Build the working set that continues from the previous one, and save the view as a turn does."""
    key = responder.view_key
    found = await build_from_cache(engine, session, request, key)
    if found is None:
        found = await build_from_store(engine, session, request, key)
    if not found.built.reduced:
        await _save_view(engine, found.session, key, found.built, found.saved)
    return found.built


async def _save_view(engine: Engine, session: Session, key: str, built: WorkingSet, saved: int) -> None:
    """Save a view if the build changed which messages are no longer sent.

    Errors are ignored: the next build does not need the saved view.
    """
    if view := choose_view_to_save(built, saved, session.version):
        write = Append(timestamp=engine.clock(), identity=session.identity, views={key: view})
        with suppress(HoldfastError):
            await engine.store.append(session.ref, write)  # the session's version stays the same
            warm = engine.warm.get(session.ref)
            if warm is not None and (cached := warm.find_view(key)) is not None:
                cached.saved = view.frontier


async def _build_current(engine: Engine, session: Session, responder: Responder, request: Request) -> WorkingSet:
    """Build the working set for the current log from a saved view.

    If turns keep a view up to date, that view is used. Otherwise previews save their own view, so that only the first preview reads the
    whole log.
    """
    ref, turns_key = session.ref, responder.view_key
    of_turns = request.strategy.summarizer is not None or await _has_turns(engine, ref, turns_key)
    key = turns_key if of_turns else PREVIEW + turns_key
    read = await read_view(engine.store, ref, key)
    built = await add_recall(engine, read.session, await run_cpu(draft_from, request, read))
    if not of_turns and not built.reduced:
        await _save_view(engine, read.session, key, built, read.saved)
    return built


async def _has_turns(engine: Engine, ref: SessionRef, key: str) -> bool:
    """Return True if one of the newest model calls used the view. In that case, turns keep the view up to date."""
    return any(call.view == key for call in await engine.store.calls(ref, limit=RECENT_CALLS))


async def _read_calls(
    engine: Engine, ref: SessionRef, turn_id: int | None, number: int | None
) -> list[tuple[ModelCall, BuildRecord]]:
    """Return recorded model calls with all views, oldest first: the newest calls, and the calls of turn `turn_id`.

    Later calls of the turn than call `number` are left out.
    """
    recorded = await engine.store.calls(ref, limit=PAGE)
    if turn_id is not None and len(recorded) == PAGE and recorded[-1].turn_id >= turn_id:
        earlier = await engine.store.calls(ref, limit=PAGE, turn_id=turn_id)
        recorded = (*(call for call in recorded if call.turn_id != turn_id), *earlier)
    calls = list(reversed(recorded))
    if number is not None:
        of_turn = [call for call in calls if call.turn_id == turn_id]
        if number >= len(of_turn):
            raise InvalidRequest(f"turn {turn_id} has no model call {number}: it has {len(of_turn)}", param="call")
        left_out = {id(call) for call in of_turn[number + 1 :]}
        calls = [call for call in calls if id(call) not in left_out]
    return [(call, record) for call in calls if call.through >= 0 and (record := decode_record(call.build)) is not None]


def _choose_responder(
    roster: Roster, look: PreviewRequest, calls: Sequence[tuple[ModelCall, BuildRecord]]
) -> Responder:
    """Return the responder for the preview, with the requested settings or with the settings of the turn's last model call."""
    responder = msgspec.structs.replace(look.responder, context=look.settings)
    if look.at_turn is None or not look.use_recorded:
        return responder
    for call, record in reversed(calls):
        if call.turn_id != look.at_turn:
            continue
        if call.view == responder.view_key:
            return responder
        if record.settings is not None:
            sender = roster.with_context(responder, record.settings)
            if sender.view_key == call.view:
                return sender
    return responder


def _describe_unsent(
    look: PreviewRequest, responder: Responder, calls: Sequence[tuple[ModelCall, BuildRecord]], past: Past
) -> str:
    """Return why no prompt of a turn could be rebuilt, and what was built instead."""
    whose = "current" if look.use_recorded else "requested"
    settings = f"settings ({format_settings(responder.context)})"
    if any(call.turn_id == look.at_turn for call, _ in past.calls):
        return f"messages that were sent in this turn were replaced; this is what the {whose} {settings} would give now"
    sent = next((one for one in reversed(calls) if one[0].turn_id == look.at_turn), None)
    if sent is None:
        return f"no model call of this turn is recorded; this is what the {whose} {settings} would give"
    call, record = sent
    if record.options is None:
        used = "its settings are not recorded"
    elif record.settings == responder.context:
        settings = f"agent and model, and the {settings}"
        used = "it had the same settings"
    else:
        used = f"it had {format_settings(ContextSettings(record.strategy, record.options))}"
    head = f"no call of this turn was sent with the {whose} {settings}; this is what they would give"
    return f"{head}; the last call went to {call.model}: {used}"


async def _read_past(engine: Engine, ref: SessionRef, key: str, calls: Sequence[tuple[ModelCall, BuildRecord]]) -> Past:
    records = [one for one in calls if one[0].view == key]
    laid = [one for one in await engine.store.compactions(ref, view=key) if one.kind == "summary" and one.text]
    rows = await engine.store.window(ref, None)
    return Past(rows.entries, records, [one for one in laid if one.error is None])


async def _introduce_past(
    engine: Engine, session: Session, responder: Responder, past: Past, turn_id: int | None
) -> dict[tuple[str, ...], Introduction | None]:
    """Return the introductions of the last call of a turn and of the call before, by the recorded ids of their memories."""
    recent = [record.known for call, record in past.calls if turn_id is None or call.turn_id <= turn_id][-2:]
    return {known: await introduce_memories(engine, session, responder, only=known) for known in dict.fromkeys(recent)}
