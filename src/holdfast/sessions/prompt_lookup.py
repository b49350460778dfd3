"""Find a prompt of a session: one that was sent, the next one, or one that other settings give.

No model is called to answer, and the log is not changed. A view is the cached state from which the next prompt is built, for one agent and
its settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.build import Request, WorkingSet, build, draft
from holdfast.context.dialects import Dialect
from holdfast.context.explain import Build, describe_build, describe_strategy, find_break
from holdfast.context.parts import ShownPrompt, decode_record
from holdfast.context.settings import format_settings
from holdfast.domain.history import to_new_entry
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.objects import JsonObject
from holdfast.domain.session import Entry, ModelCall, Session, SessionRef, Tail
from holdfast.engine.engine import Engine
from holdfast.engine.entries import is_long, make_entries
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import EXPLAIN_REBUILT, EXPLAIN_REBUILT_TOKENS, PAGE
from holdfast.numbers import check_whole
from holdfast.overlays.session_cache import PREVIEW, ReadView, choose_view_to_save, is_heavy, read_view
from holdfast.sessions.model_calls import find_sender
from holdfast.sessions.past_prompts import find_previous, read_prompt
from holdfast.sessions.prompt_sections import find_prefix
from holdfast.stores.log import Append
from holdfast.turns.prompt import (
    add_recall,
    build_from_cache,
    build_from_store,
    draft_from,
    prepare_request,
)
from holdfast.turns.turn import TurnRequest

RECENT_CALLS: Final = 16
"""Number of newest model calls in which a view is searched. If one of these calls used the view, turns keep the view up to date."""


class PromptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a prompt of a session."""

    responder: Responder
    """The agent, the model and the settings of a prompt that is built."""
    system: tuple[Message, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    dialect: Dialect = "openai"
    at_turn: int | None = None
    """Find the prompt of the last model call in this turn; None: build the next one."""
    call: ModelCall | None = None
    """With `at_turn`: a call of the turn, instead of the last one."""
    use_recorded: bool = False
    """True: with `at_turn`, return the prompt that was sent; False: build the one that the responder's settings give."""
    compare: bool = False
    """True: find the prompt before too. Then, if no turn uses the same settings, the next prompt is built from the whole log, and not from
    what an earlier preview saved, unless the session is long."""
    touch: bool = True
    """True: the request counts as use of the session. Requests for a past turn, or with `compare`, never count."""
    save: bool = False
    """True if the caller sends the prompt to a model. The next prompt then continues from this one."""


class FoundPrompt(NamedTuple):
    """A prompt of a session: one that was sent, or one that was built."""

    prompt: ShownPrompt
    built: WorkingSet | None
    """The working set; None: the prompt was sent."""
    responder: Responder
    """The agent and model of the prompt, as far as the configuration still has them."""
    before: ShownPrompt | None = None
    """With `PromptRequest.compare`: the prompt before, of the same agent and settings; None if there is none."""
    not_sent: str | None = None
    """With `PromptRequest.at_turn`, if no prompt of the turn is recorded: the reason, and what was built instead."""
    summaries: dict[str, Any] | None = None
    """With `PromptRequest.compare`: the summary in use, or the reason why no summary can be made, and until when that applies."""

    @property
    def strategy(self) -> JsonObject:
        """The strategy with its options, including defaults if they are known."""
        record = self.prompt.record
        if self.built is not None:
            return describe_strategy(self.built.request.strategy)
        if self.responder.context == record.settings:
            return describe_strategy(self.responder.strategy)
        return {"strategy": record.strategy, **record.options}

    def explain(self) -> Build:
        """Return how the prompt was built. For a past call, the calculation from the model's context window is not known."""
        if self.built is not None:
            found = self.built.explain()
        else:
            prefix, before = find_prefix(self.before, self.prompt), self.before and self.before.record
            record = self.prompt.record
            broken = find_break(prefix, before, record)
            found = describe_build(record, self.prompt.hash, prefix, broken, strategy=self.strategy)
        return msgspec.structs.replace(found, not_sent=self.not_sent or UNSET, summaries=self.summaries or UNSET)


async def find_prompt(engine: Engine, ref: SessionRef, look: PromptRequest) -> FoundPrompt:
    """Return a prompt of a session.

    Raises:
        InvalidRequest: the session has no turn `at_turn`.
        MissingState: the agent's instruction needs state, or an artifact, that does not exist.
        BudgetTooSmall: no valid prompt fits into the budget.
    """
    session, responder = await engine.store.get(ref), look.responder
    if look.at_turn is None:
        found = await _build_next(engine, session, look)
    else:
        check_whole(look.at_turn, "at_turn")
        found = await _find_past(engine, session, look)
    if look.compare and found.built and found.built.request.strategy.summarizer is not None:
        return found._replace(summaries=await engine.compactor.report(ref, responder.view_key))
    return found


def can_rebuild(session: Session) -> bool:
    """Return True if the session is short enough to build a prompt from its whole log."""
    return session.messages <= EXPLAIN_REBUILT and session.tokens <= EXPLAIN_REBUILT_TOKENS


async def _prepare(engine: Engine, session: Session, look: PromptRequest) -> Request:
    request = TurnRequest(
        ref=session.ref,
        responder=look.responder,
        incoming=(),
        system=look.system,
        body={"tools": look.tools},
        dialect=look.dialect,
    )
    return await prepare_request(engine, session, request)


async def _read_before(engine: Engine, ref: SessionRef, view: str, call: ModelCall | None = None) -> ShownPrompt | None:
    """Return the last prompt of a view that was sent, or the last one before a call."""
    last = await find_previous(engine.store, ref, view, call)
    return await read_prompt(engine.store, ref, last) if last else None


# -- the next prompt ---------------------------------------------------------------


async def _build_next(engine: Engine, session: Session, look: PromptRequest) -> FoundPrompt:
    request, before = await _prepare(engine, session, look), None
    ref, responder = session.ref, look.responder
    if look.compare:
        before = await _read_before(engine, ref, responder.view_key)
    elif look.touch:
        await engine.life.record_use(session)
    if look.save and not engine.is_busy(ref):
        async with engine.lock_between_turns(ref):  # turns use and change the same cached view
            built = await _build_and_save(engine, await engine.store.get(ref), responder, request)
    else:
        fresh = look.compare and can_rebuild(session)
        built = await _build_current(engine, session, responder, request, before, fresh=fresh)
    return FoundPrompt(built.show(), built, responder, before)


async def _build_and_save(engine: Engine, session: Session, responder: Responder, request: Request) -> WorkingSet:
    """Build the working set that continues from the previous one, and save the view as a turn does."""
    key = responder.view_key
    found = await build_from_cache(engine, session, request, key)
    if found is None:
        found = await build_from_store(engine, session, request, key)
    await _save_view(engine, found.session, key, found.built, found.saved)
    return found.built


async def _save_view(engine: Engine, session: Session, key: str, built: WorkingSet, saved: int) -> None:
    """Save a view if the build changed which messages are no longer sent.

    Errors are ignored: the next build does not need the saved view.
    """
    if not built.reduced and (view := choose_view_to_save(built, saved, session.version)):
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
    """Build the working set for the current log from a saved view, or from the whole log.

    If turns keep a view up to date, that view is used. Otherwise previews save their own view, so that only the first preview reads the
    whole log.
    """
    ref, turns_key = session.ref, responder.view_key
    calls = await engine.store.calls(ref, limit=RECENT_CALLS)
    of_turns = request.strategy.summarizer is not None or any(call.view == turns_key for call in calls)
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
    if not of_turns and not fresh:
        await _save_view(engine, read.session, key, built, read.saved)
    return built


async def build_unsent_prompt(
    engine: Engine, session: Session, request: TurnRequest, *, is_stored: bool, stop: int | None = None
) -> WorkingSet:
    """Return the working set of the first model call that a request would lead to. Nothing is stored.

    Memories and passages of other sessions that the turn would search for are left out.

    Args:
        engine: the tenant's engine.
        session: the session that the request continues.
        request: the request, with only those messages that the session does not have yet.
        is_stored: False for a session that is not stored.
        stop: the `seq` before which the request continues the log; None: the request continues it at its end.

    Raises:
        MissingState: the agent's instruction needs state, or an artifact, that does not exist.
        BudgetTooSmall: no valid working set fits into the budget.
    """
    made = await prepare_request(engine, session, request)
    if is_stored and stop is None:
        read = await read_view(engine.store, session.ref, request.responder.view_key)
    else:  # a part of the log, numbered from 0 as in a fork
        stored = await engine.store.entries(session.ref, stop=stop) if is_stored else ()
        entries, tail = extend(Tail(), [to_new_entry(entry) for entry in stored])
        part = msgspec.structs.replace(session, tail=tail)
        read = ReadView(session=part, state=None, head=(), entries=tuple(entries), live=None, saved=0)
    incoming = request.incoming
    new = await make_entries(incoming, [{}] * len(incoming), timestamp=engine.clock())
    added, tail = extend(read.session.tail, new)
    heavy, entries = is_heavy(read.entries) or is_long(incoming), [*read.entries, *added]
    drafted = await run_cpu(
        lambda: draft(made, read.state, read.head, entries, live=read.live, anchor=tail.anchor), long=heavy
    )
    return await add_recall(engine, session, drafted) if is_stored else drafted.finish()


# -- prompts of past turns -----------------------------------------------------------


async def _find_past(engine: Engine, session: Session, look: PromptRequest) -> FoundPrompt:
    """Return the prompt of a model call of a turn or, with other settings, the prompt that they give."""
    store, ref, responder, turn_id = engine.store, session.ref, look.responder, look.at_turn
    assert turn_id is not None, "a past turn"
    call = look.call or await _find_call_of_turn(engine, ref, responder, turn_id)
    if look.use_recorded and call is not None and (prompt := await read_prompt(store, ref, call)) is not None:
        before = await _read_before(engine, ref, call.view, call) if look.compare else None
        return FoundPrompt(prompt, None, find_sender(engine.roster, session, prompt.record) or responder, before)
    entries = _select_entries(await store.entries(ref), turn_id, call.through if call else -1)
    built = await run_cpu(build, await _prepare(engine, session, look), None, (), entries)
    before = await _read_before(engine, ref, responder.view_key, call) if look.compare and call else None
    not_sent = None
    if look.use_recorded:
        not_sent = (
            "no prompt of this turn is recorded; this is what the current settings"
            f" ({format_settings(responder.context)}) would give"
        )
    return FoundPrompt(built.show(), built, responder, before, not_sent)


async def _find_call_of_turn(engine: Engine, ref: SessionRef, responder: Responder, turn_id: int) -> ModelCall | None:
    """Return the last call of a turn with a recorded prompt: that of the responder's agent and model or, if there is none, any."""
    calls = await engine.store.calls(ref, limit=PAGE, turn_id=turn_id)
    found = [(call, record) for call in calls if call.through >= 0 and (record := decode_record(call.build))]
    own = (responder.agent_name, responder.llm.name)
    of_own = [call for call, record in found if (record.agent, record.llm) == own]
    return next(iter([*of_own, *(call for call, _ in found)]), None)


def _select_entries(entries: Sequence[Entry], turn_id: int, through: int) -> Sequence[Entry]:
    """Return the entries that existed at a model call of a turn: those up to `through`.

    If `through` is -1, these are all entries up to the turn without the reply that ended it.
    """
    before = [entry for entry in entries if entry.turn_id <= turn_id]
    if not before or before[-1].turn_id != turn_id:
        last = entries[-1].turn_id if entries else None
        there = "it has none yet" if last is None else f"the last one is {last}"
        raise InvalidRequest(f"the session has no turn {turn_id}: {there}", param="at_turn")
    if through >= 0:
        return [entry for entry in before if entry.seq <= through]
    while before and before[-1].kind == "assistant" and before[-1].turn_id == turn_id:
        before.pop()
    return before
