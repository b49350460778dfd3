"""Preview a session's context: build a working set without calling a model, or return the prompt of a past turn.

A working set is the list of messages that is sent to the model in one call. A view is the cached state from which the next working set is
built, for one agent and its settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.parts import ShownPrompt, decode_record
from holdfast.context.settings import format_settings
from holdfast.domain.session import Entry, ModelCall, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import EXPLAIN_REBUILT, EXPLAIN_REBUILT_TOKENS, PAGE
from holdfast.media.outgoing import prepare_for_model
from holdfast.numbers import check_whole
from holdfast.overlays.session_cache import PREVIEW, ReadView, choose_view_to_save, read_view
from holdfast.sessions.past_prompts import find_previous, read_prompt
from holdfast.sessions.preview_objects import Preview, PreviewRequest
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
    """Return the prompt for a preview request. No model is called to answer, and the log is not changed.

    Raises:
        InvalidRequest: the session has no turn `at_turn`.
        MissingState: the agent's instruction needs state, or an artifact, that does not exist.
        BudgetTooSmall: no valid working set fits into the budget.
    """
    found = await find_context(engine, ref, look)
    responder, prompt = look.responder, found.prompt
    counted = None if found.built is None else await count_by_provider(engine, ref, responder.llm, found.built)
    as_chat = look.dialect == "openai"
    limits = engine.roster.find_profile(responder.llm, engine.clock())
    messages = [one.message for one in prompt.messages]
    sent = await prepare_for_model(engine.store, ref, messages, prompt.list_sources, limits, as_chat=as_chat)
    marked = responder.llm.params.get("cache_control") is not False
    return found._replace(provider=counted, sent=sent, marked=marked)


async def find_context(engine: Engine, ref: SessionRef, look: PreviewRequest) -> Preview:
    """Return a preview like `preview_context`, but without the provider's token count and without the messages as they are sent.

    Raises the errors of `preview_context`.
    """
    if look.at_turn is not None:
        check_whole(look.at_turn, "at_turn")
    session = await engine.store.get(ref)
    responder = replace_context(look)
    if look.at_turn is None:
        found = await _build_next(engine, session, responder, look)
    else:
        found = await _find_past(engine, session, responder, look)
    strategy = found.built and found.built.request.strategy
    if look.explain and strategy and strategy.summarizer is not None:
        found = found._replace(summaries=await engine.compactor.report(ref, responder.view_key))
    return found


def can_rebuild(session: Session) -> bool:
    """Return True if the session is short enough to build a prompt from its whole log."""
    return session.messages <= EXPLAIN_REBUILT and session.tokens <= EXPLAIN_REBUILT_TOKENS


async def _make_preview_request(
    engine: Engine, session: Session, responder: Responder, look: PreviewRequest
) -> Request:
    """Return the inputs of the working set that a preview builds."""
    body = {"tools": look.tools}
    turn_request = TurnRequest(
        ref=session.ref, responder=responder, incoming=(), system=look.system, body=body, dialect=look.dialect
    )
    learned = await engine.learning.get(responder.llm)
    instruction = await build_instruction(engine, session, responder)
    known = await introduce_memories(engine, session, responder)
    marker = await engine.markers.derive(session)
    return make_request(turn_request, session, instruction, marker=marker, learned=learned, introduction=known)


# -- the next prompt ---------------------------------------------------------------


async def _build_next(engine: Engine, session: Session, responder: Responder, look: PreviewRequest) -> Preview:
    request = await _make_preview_request(engine, session, responder, look)
    ref, before = session.ref, None
    if look.explain:
        last = await find_previous(engine.store, ref, responder.view_key)
        before = await read_prompt(engine.store, ref, last) if last else None
    elif look.touch:
        await engine.life.record_use(session)
    if look.save and not engine.is_busy(ref):
        async with engine.lock_between_turns(ref):  # turns use and change the same cached view
            built = await _build_saved(engine, await engine.store.get(ref), responder, request)
    else:
        built = await _build_current(
            engine, session, responder, request, before, fresh=(look.fresh or look.explain) and can_rebuild(session)
        )
    return Preview(built.show(), built, before=before)


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


async def _build_current(
    engine: Engine,
    session: Session,
    responder: Responder,
    request: Request,
    before: ShownPrompt | None,
    *,
    fresh: bool,
) -> WorkingSet:
    """Build the working set for the current log from a saved view.

    If turns keep a view up to date, that view is used. Otherwise previews save their own view, so that only the first preview reads the
    whole log.

    Args:
        engine: the tenant's engine.
        session: the session.
        responder: the responder.
        request: the inputs.
        before: the prompt with which the working set is compared; None: with none.
        fresh: see `PreviewRequest`.
    """
    ref, turns_key = session.ref, responder.view_key
    of_turns = request.strategy.summarizer is not None or await _has_turns(engine, ref, turns_key)
    key = turns_key if of_turns else PREVIEW + turns_key
    if fresh and not of_turns:
        rows = await engine.store.window(ref, None)
        read = ReadView(session=rows.session, state=None, head=(), entries=rows.entries, live=None, saved=0)
    else:
        read = await read_view(engine.store, ref, key)
    drafted = await run_cpu(draft_from, request, read)
    if before is not None:
        drafted.view.prefix_tracker.advance(tuple(one.message for one in before.messages))
        drafted.view.last = before.record
    built = await add_recall(engine, read.session, drafted)
    if not of_turns and not fresh and not built.reduced:
        await _save_view(engine, read.session, key, built, read.saved)
    return built


async def _has_turns(engine: Engine, ref: SessionRef, key: str) -> bool:
    """Return True if one of the newest model calls used the view. In that case, turns keep the view up to date."""
    return any(call.view == key for call in await engine.store.calls(ref, limit=RECENT_CALLS))


# -- prompts of past turns -----------------------------------------------------------


async def _find_past(engine: Engine, session: Session, responder: Responder, look: PreviewRequest) -> Preview:
    """Return the prompt of the last model call of a turn or, with other settings, the prompt that they give."""
    store, ref, turn_id = engine.store, session.ref, look.at_turn
    assert turn_id is not None, "a past turn"
    if look.use_recorded and (call := await find_call_of_turn(engine, ref, responder, turn_id)) is not None:
        prompt = await read_prompt(store, ref, call)
        if prompt is not None:
            before = await find_previous(store, ref, call.view, call) if look.explain else None
            return Preview(prompt, None, before=await read_prompt(store, ref, before) if before else None)
    entries = _select_entries(await store.entries(ref), turn_id, look.through)
    request = await _make_preview_request(engine, session, responder, look)
    built = await run_cpu(build, request, None, (), entries)
    not_sent = None
    if look.use_recorded:
        not_sent = (
            "no prompt of this turn is recorded; this is what the current settings"
            f" ({format_settings(responder.context)}) would give"
        )
    return Preview(built.show(), built, not_sent=not_sent)


async def find_call_of_turn(engine: Engine, ref: SessionRef, responder: Responder, turn_id: int) -> ModelCall | None:
    """Return the last call of a turn with a recorded prompt: that of the responder's agent and model or, if there is none, any."""
    calls = await engine.store.calls(ref, limit=PAGE, turn_id=turn_id)
    found = [(call, record) for call in calls if call.through >= 0 and (record := decode_record(call.build))]
    own = (responder.agent_name, responder.llm.name)
    of_own = [call for call, record in found if (record.agent, record.llm) == own]
    return next(iter([*of_own, *(call for call, _ in found)]), None)


def _select_entries(entries: Sequence[Entry], turn_id: int, through: int | None) -> Sequence[Entry]:
    """Return the entries that existed at a model call of a turn.

    These are the entries up to `through` or, if it is None, all entries up to the turn without the reply that ended it.
    """
    before = [entry for entry in entries if entry.turn_id <= turn_id]
    if not before or before[-1].turn_id != turn_id:
        last = entries[-1].turn_id if entries else None
        there = "it has none yet" if last is None else f"the last one is {last}"
        raise InvalidRequest(f"the session has no turn {turn_id}: {there}", param="at_turn")
    if through is not None:
        return [entry for entry in before if entry.seq <= through]
    while before and before[-1].kind == "assistant" and before[-1].turn_id == turn_id:
        before.pop()
    return before


def replace_context(look: PreviewRequest) -> Responder:
    """Return the responder of a preview with the settings of the preview."""
    return msgspec.structs.replace(look.responder, context=look.settings)
