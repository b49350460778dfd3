"""Preview a session's context: build a working set without calling a model, for the current log or for a past turn.

A working set is the list of messages that is sent to the model in one call. A view is the cached state from which the next working set is
built, for one agent and its settings.

Prompts that were sent are not stored, but rebuilt: the view is computed again from the log, with the recorded budget of each call and
with the summaries that were made between calls. The hash that was recorded with a call shows if the rebuilt prompt equals the sent one.
Old values of the state are not stored either. An instruction that refers to state is built from the current values, so the hash differs
if these values have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder, Roster
from holdfast.context.build import Draft, Request, WorkingSet, build, build_from_view, draft_from_view
from holdfast.context.dialects import Dialect
from holdfast.context.explain import BuildRecord, Run, decode_record
from holdfast.context.prefix_diff import PromptSnapshot, explain_departure
from holdfast.context.presence import Departure, DepartureLog
from holdfast.context.recalled import Introduction, Recall, RecalledBlock
from holdfast.context.settings import ContextSettings, format_settings
from holdfast.context.sources import MessageSource, join_sources, list_message_sources
from holdfast.context.summaries import load_compaction, make_summarized_view
from holdfast.context.truncation import find_refused
from holdfast.context.view import make_view
from holdfast.context.window import Window
from holdfast.deprecations import warn_renamed
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, ModelCall, Session, SessionRef, StoredCompaction
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import PAGE
from holdfast.media.outgoing import prepare_for_model
from holdfast.numbers import check_whole
from holdfast.overlays.session_cache import PREVIEW, choose_view_to_save, read_view
from holdfast.recall.passages import Passage
from holdfast.sessions.past_pins import iter_pin_guesses, measure_error
from holdfast.sessions.prompt_sections import DividedPrompt, divide_prompt
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
from holdfast.turns.recall import make_item, was_for_owner
from holdfast.turns.turn import TurnRequest
from holdfast.wire import anthropic, gemini
from holdfast.wire.anthropic import MARK
from holdfast.wire.openai import list_moved_media, move_media_after_results, to_chat_message

RECENT_CALLS: Final = 16
"""Number of newest model calls in which a view is searched. If one of these calls used the view, turns keep the view up to date."""


class Context(msgspec.Struct, frozen=True):
    """The messages to send to a model, their token counts, and the decisions that led to them."""

    messages: list[dict[str, Any]]
    """Messages in the dialect's format: Chat Completions messages, Anthropic's messages, or Gemini's contents.

    Chat Completions messages begin with the system prompt.
    """
    conversation_tokens: int
    """Tokens of the conversation, which the budget limits."""
    total_tokens: int
    """Tokens of the whole prompt: the conversation, the system prompt and the tools."""
    budget: int
    """Token limit for the conversation."""
    hash: str
    """Hash of the messages. The same log, strategy and budget always give the same hash."""
    decisions: list[Run]
    """For ranges of the session's messages: whether the prompt contains them, and why."""
    provider_count: dict[str, Any] = {}
    """Tokens of the whole prompt according to the provider: the number (`tokens`), the method (`how`), and the `margin` of error, from 0 to
    1."""
    sent_hash: str | None = None
    """With `at_turn`: the hash that was recorded with the model call. If it equals `hash`, this prompt is the one that was sent."""
    system: list[dict[str, Any]] | dict[str, Any] | None = None
    """The system prompt, if the dialect sends it apart from the messages: Anthropic's `system` or Gemini's `systemInstruction`."""
    sources: list[MessageSource] = []
    """For each item of `messages`: the log entries that the message comes from. Empty for Gemini."""

    @property
    def tokens(self) -> int:
        """Former name of `conversation_tokens` (0.1); removed in 0.3."""
        warn_renamed("Context.tokens")
        return self.conversation_tokens

    @property
    def counted(self) -> dict[str, Any]:
        """Former name of `provider_count` (0.1); removed in 0.3."""
        warn_renamed("Context.counted")
        return self.provider_count

    def __repr__(self) -> str:
        size = f"{self.conversation_tokens:,} of {self.budget:,} tokens"
        return f"<context of {len(self.messages)} messages, {size}>"


class PreviewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to build a working set without calling a model: for which agent, settings and turn."""

    responder: Responder
    settings: ContextSettings
    system: tuple[Message, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    dialect: Dialect = "openai"
    at_turn: int | None = None
    """Build the context that the model saw at its last call in this turn; None: build it from the current state."""
    call: int | None = None
    """With `at_turn`: the number of the call in the turn, from 0; None: the last call of the turn that used the view."""
    touch: bool = True
    """True: the preview counts as use of the session. Previews of a past turn, or with `explain`, never count."""
    use_recorded: bool = False
    """True: with `at_turn`, use the settings with which the turn was sent instead of `settings`, if they were recorded."""
    save: bool = False
    """True if the caller sends the prompt to a model. The next prompt then continues from this one."""
    explain: bool = False
    """True: compare the working set with the prompt that was sent last. That prompt is rebuilt from the log."""
    through: int | None = None
    """With `at_turn`, if no prompt of the turn can be rebuilt: `seq` of the last message of the prompt to build instead; None: the last one
    before the reply that ended the turn."""
    compare: bool = False
    """True: also return the prompt that was sent before, if past prompts are rebuilt."""
    trace: frozenset[int] = frozenset()
    """`seq` of messages for which to find when they left the prompt, if past prompts are rebuilt."""


class SentPrompt(NamedTuple):
    """A recorded model call and its rebuilt prompt."""

    call: ModelCall
    prompt: DividedPrompt
    is_exact: bool
    """True if the rebuilt prompt equals the sent one."""


class Preview(NamedTuple):
    """A working set that was built for a `PreviewRequest`, with details about how it was built."""

    built: WorkingSet
    call: ModelCall | None = None
    """The recorded model call whose prompt was rebuilt; None if no recorded prompt was rebuilt."""
    record: BuildRecord | None = None
    """The record of how the prompt of `call` was built."""
    summaries: dict[str, Any] | None = None
    """For an explanation: the summary in use, or the reason why no summary can be made, and until when that applies."""
    provider: int | None = None
    """The provider's token count of the prompt, if the model is configured to ask for it and the provider answered."""
    sent: Sequence[Message] = ()
    """Messages of the prompt as they are sent: with media, if the model accepts media."""
    marked: bool = True
    """True if messages for Anthropic get marks for its prompt cache."""
    entries: Sequence[Entry] = ()
    """All live messages of the session, if they were read to rebuild past prompts; otherwise empty."""
    departures: Mapping[int, Departure] = {}
    """Model call at which each message in `PreviewRequest.trace` left the prompt, by `seq`. Messages that did not leave the prompt are
    missing."""
    before: SentPrompt | None = None
    """With `PreviewRequest.compare`: the prompt that the same agent sent before this one; None if there is none."""
    not_sent: str | None = None
    """With `PreviewRequest.at_turn`, if no prompt of the turn could be rebuilt: the reason, and what was built instead."""

    @property
    def is_exact(self) -> bool | None:
        """True if the rebuilt prompt equals the sent one; None if no recorded prompt was rebuilt."""
        return self.call.hash.hex() == self.built.hash if self.call else None

    def explain(self) -> dict[str, Any]:
        """Return an explanation of how the prompt was built.

        For a past call, the explanation has the recorded budget, without its calculation from the model's context window.
        """
        explained = self.built.explain()
        if self.record is not None:
            arithmetic = {"input": self.record.input_budget, "system_and_tools": self.record.overhead}
            kept = {name: explained["budget"][name] for name in ("conversation", "used", "counter")}
            explained["budget"] = {**arithmetic, **kept}
            recalled = self.record.describe_recalled()
            explained |= {"recalled": recalled} if recalled else {}
        explained |= {"not_sent": self.not_sent} if self.not_sent else {}
        return explained | ({"summaries": self.summaries} if self.summaries else {})


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
    sent = await prepare_for_model(engine.store, ref, found.built.messages, responder.llm.inputs, as_chat=as_chat)
    sent = move_media_after_results(sent) if as_chat else sent
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
    log = _PromptLog(look.trace, compare=look.compare)
    if past is not None:
        past = past._replace(introductions=await _introduce_past(engine, session, responder, past, look.at_turn))
    if past is None:
        if look.save and not engine.is_busy(ref):
            async with engine.lock_between_turns(ref):  # turns use and change the same cached view
                found = Preview(await _build_saved(engine, await engine.store.get(ref), responder, request))
        else:
            found = Preview(await _build_current(engine, session, responder, request))
    elif look.at_turn is None:
        draft = await run_cpu(_draft_after_last, request, past, look, ref, log)
        found = Preview(
            await add_recall(engine, session, draft), entries=past.entries, departures=log.found, before=log.before
        )
    else:
        found = await run_cpu(_rebuild_turn, request, past, look, ref)
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
    guest = look.at_turn is not None and not await was_for_owner(engine.store, session, look.at_turn)
    instruction = await build_instruction(engine, session, responder, guest=guest)
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


# -- rebuilding sent prompts ---------------------------------------------------


Calls = Sequence[tuple[ModelCall, BuildRecord]]
"""Recorded model calls, each with its build record, oldest first."""


class Past(NamedTuple):
    """The messages, model calls and summaries from which past prompts can be rebuilt."""

    entries: Sequence[Entry]
    """The messages of the session that are in force, in order."""
    calls: Sequence[tuple[ModelCall, BuildRecord]]
    """Recorded model calls that used the view, each with its build record, oldest first.

    For a very long session, these are only the newest calls and the calls of the requested turn.
    """
    summaries: Sequence[StoredCompaction]
    """All summaries that still have their text, in order, whatever their status."""
    introductions: Mapping[tuple[str, ...], Introduction | None] = {}
    """Introductions of the requested call and the one before, by `BuildRecord.known`. Other calls have that of today."""

    @property
    def live(self) -> StoredCompaction | None:
        """The summary that is now in use, or None."""
        return next((one for one in reversed(self.summaries) if one.status == "live"), None)


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


class _PromptReplay:
    """Rebuilds past prompts from the log, one model call after the other.

    The record of each call names the summary that the call used. The log alone does not show it: a summary may have been made while another
    call was running, or dropped again later.
    """

    def __init__(self, request: Request, past: Past, ref: SessionRef) -> None:
        self._past, self._ref = past, ref
        self._entry = 0
        self._prepare(request)
        self.view = make_view(self.request.strategy, self._room, None, (), ())

    def _prepare(self, request: Request) -> None:
        self.request = request
        self._room = request.make_room(request.compute_limit(request.count_overhead()))
        laid = ((load_compaction(one, self._room.count, request.marker), one) for one in self._past.summaries)
        self._summaries = {compaction.mark: one for compaction, one in laid}

    def advance(self, seq: int, summary: str, marker: str) -> None:
        """Bring the rebuilt view to the state of a later call.

        Args:
            seq: add entries up to and including this `seq`.
            summary: identifies the summary to use; an empty string means no summary.
            marker: random text that marks blocks written by Holdfast in the prompt.
        """
        self._extend(seq)
        now = self.view.summary.mark if self.view.summary else ""
        moved = (
            marker != self.request.marker
        )  # the session was imported later: earlier prompts had the marker of the original session
        if moved:
            self._prepare(self.request.with_marker(marker))
        if now != summary or moved:
            self._apply_summary(self._summaries.get(summary))

    def _apply_summary(self, one: StoredCompaction | None) -> None:
        """Rebuild the view so that it continues after a summary, as the original view did; None: from the beginning of the log."""
        strategy, room, before = self.request.strategy, self._room, self.view
        entries = self._past.entries[: self._entry]
        if one is None:
            self.view = make_view(strategy, room, None, (), entries)
        else:
            anchor = next((entry.seq for entry in entries if entry.kind == "user"), None)
            self.view = make_summarized_view(
                strategy, room, load_compaction(one, room.count, room.marker), entries, anchor=anchor
            )
        self.view.prefix_tracker, self.view.mark = before.prefix_tracker, before.mark

    def pass_call(self, call: ModelCall, record: BuildRecord) -> Window:
        """Bring the view to its state after `call`, and return the window of its prompt.

        Unlike `rebuild_call`, this does not write digests or messages, so it is faster.
        """
        self.advance(call.through, record.summary, record.marker)
        return self.view.make_window(self.request.make_room(record.limit))

    def rebuild_call(self, call: ModelCall, record: BuildRecord) -> WorkingSet:
        """Return the working set that was built for `call`, within its recorded budget."""
        self.advance(call.through, record.summary, record.marker)
        introduction = self._past.introductions.get(record.known, self.request.introduction)
        request = msgspec.structs.replace(self.request, introduction=introduction)
        # Other recalled items are not stored, and their tokens are not part of the conversation's budget.
        frozen = msgspec.structs.replace(
            request,
            input_budget=record.limit + request.count_overhead(),
            dialect=record.dialect,
            recall=self._rebuild_recall(record),
        )
        return build_from_view(frozen, self.view)

    def _rebuild_recall(self, record: BuildRecord) -> Recall:
        """Rebuild the block of earlier messages that the prompt quoted ("recalled"). Text that was erased since then is marked."""
        if not record.passages:
            return Recall()
        entries = {entry.seq: entry for entry in self._past.entries}
        items = [
            make_item(self._ref, entries.get(seq), Passage(seq, start, stop, 0.0), size=size)
            for seq, start, stop, size in record.passages
        ]
        return Recall(block=RecalledBlock.from_items(items, record.marker), searched=True)

    def _extend(self, seq: int) -> None:
        entries, end = self._past.entries, self._entry
        while end < len(entries) and entries[end].seq <= seq:
            end += 1
        self.view.extend(entries[self._entry : end])
        self._entry = end


class _PromptLog(DepartureLog):
    """A `DepartureLog` that also keeps the prompt before the requested one.

    Attributes:
        before: the prompt before the requested one; None if there is none, or if `compare` is False.
    """

    def __init__(self, seqs: frozenset[int], *, compare: bool) -> None:
        super().__init__(seqs)
        self._traces, self._compares = bool(seqs), compare
        self.before: SentPrompt | None = None

    def replay(self, replay: _PromptReplay, calls: Sequence[tuple[ModelCall, BuildRecord]]) -> None:
        """Replay the calls before the requested prompt. Only the prompt of the last one is rebuilt completely."""
        before = None
        for call, record in calls[:-1]:
            window = replay.pass_call(call, record)
            if self._traces:
                now = PromptSnapshot.without_digest(window)
                refused = find_refused(window, replay.request.upstream, {}) if window.refused else {}
                self.note_window(call, window, refused, explain_departure(before, now, replay.request.strategy))
                before = now
        for call, record in calls[-1:]:
            built = replay.rebuild_call(call, record)
            why = explain_departure(before, PromptSnapshot.without_digest(built.window), built.request.strategy)
            self.note_window(call, built.window, built.refused, why)
            if self._compares:
                self.before = SentPrompt(call, divide_prompt(built, record), call.hash.hex() == built.hash)

    def use_before(self, replay: _PromptReplay, before: Preview) -> None:
        """Compare the next prompt with another prompt than the one that was replayed."""
        assert before.call is not None, "only prompts of recorded calls are compared"
        replay.view.prefix_tracker, replay.view.mark = before.built.view.prefix_tracker, before.built.view.mark
        if self._compares:
            self.before = SentPrompt(before.call, divide_prompt(before.built, before.record), is_exact=True)


def _draft_after_last(request: Request, past: Past, look: PreviewRequest, ref: SessionRef, log: _PromptLog) -> Draft:
    """Return a draft of the working set for the current log, with a comparison with the last prompt that was sent."""
    replay = _PromptReplay(request, past, ref)
    log.replay(replay, past.calls)
    if _may_have_other_pins(log.before, past):
        before = _rebuild_last(request, past, msgspec.structs.replace(look, compare=False), ref, past.calls)
        if before.is_exact:
            log.use_before(replay, before)
    live = load_compaction(past.live, request.count, request.marker).mark if past.live else ""
    replay.advance(past.entries[-1].seq if past.entries else -1, live, request.marker)
    return draft_from_view(request, replay.view)


def _rebuild_turn(request: Request, past: Past, look: PreviewRequest, ref: SessionRef) -> Preview:
    """Return the prompt of the last model call of a turn.

    If there was no such call, or the newest message of that call has since left the live path, return the prompt that the turn would get
    now.
    """
    turn_id = look.at_turn
    assert turn_id is not None, "only past turns are rebuilt"
    before = _select_entries(past.entries, turn_id, look.through)
    upto = [(call, record) for call, record in past.calls if call.turn_id <= turn_id]
    if not upto or upto[-1][0].turn_id != turn_id or all(entry.seq != upto[-1][0].through for entry in past.entries):
        return Preview(build(request, None, (), before), entries=past.entries)
    found = _rebuild_last(request, past, look, ref, upto)
    if _may_have_other_pins(found.before, past):
        before_this = _rebuild_last(request, past, msgspec.structs.replace(look, compare=False), ref, upto[:-1])
        if before_this.is_exact:
            found = _replay_to(request, past._replace(entries=found.entries), look, ref, upto, before=before_this)
    return found


def _rebuild_last(request: Request, past: Past, look: PreviewRequest, ref: SessionRef, calls: Calls) -> Preview:
    """Return the prompt of the last of `calls`.

    The log does not record when messages were pinned. So the prompt is rebuilt with several guesses, until its hash is the recorded one. If
    no guess is exact, the result is the one that is closest to the record.
    """
    guessed: list[Preview] = []
    record = calls[-1][1]
    for entries in iter_pin_guesses(past.entries, calls[-1][0].through):
        guessed.append(_replay_to(request, past._replace(entries=entries), look, ref, calls))
        if guessed[-1].is_exact:
            return guessed[-1]
    return min(guessed, key=lambda found: measure_error(found.built, record))._replace(entries=past.entries)


def _replay_to(
    request: Request,
    past: Past,
    look: PreviewRequest,
    ref: SessionRef,
    calls: Calls,
    *,
    before: Preview | None = None,
) -> Preview:
    """Return the prompt of the last of `calls`, with the pins of `past`.

    Args:
        before: the prompt before, if it had other pins; None: it had the same.
    """
    log = _PromptLog(look.trace, compare=look.compare)
    replay = _PromptReplay(request, past, ref)
    log.replay(replay, calls[:-1])
    if before is not None:
        log.use_before(replay, before)
    call, record = calls[-1]
    built = replay.rebuild_call(call, record)
    log.note(call, built)
    return Preview(built, call, record, entries=past.entries, departures=log.found, before=log.before)


def _may_have_other_pins(before: SentPrompt | None, past: Past) -> bool:
    """Return True if a prompt was perhaps not rebuilt exactly because messages were pinned at another time."""
    return before is not None and not before.is_exact and any(entry.pinned for entry in past.entries)


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


def to_context(found: Preview) -> Context:
    """Convert a preview to a `Context`, the form that callers of the library get."""
    built = found.built
    system, messages = to_dialect(built.request.dialect, found.sent, marked=found.marked)
    return Context(
        messages=messages,
        conversation_tokens=built.tokens,
        total_tokens=built.total_tokens,
        budget=built.budget,
        hash=built.hash,
        decisions=built.list_decisions(),
        system=system,
        sources=_list_sources(found, messages),
        provider_count=built.describe_count(found.provider).to_wire(),
        sent_hash=found.call.hash.hex() if found.call else None,
    )


def _list_sources(found: Preview, messages: Sequence[Mapping[str, Any]]) -> list[MessageSource]:
    """Return, for each message in the dialect's format, the log entries that the message comes from; an empty list for Gemini."""
    sources = list_message_sources(found.built)
    match found.built.request.dialect:
        case "anthropic":
            return join_sources(sources, anthropic.map_blocks(found.sent))
        case "gemini":
            return []
        case _:
            return join_sources(sources, list_moved_media(messages))


def to_dialect(
    dialect: Dialect, sent: Sequence[Message], *, marked: bool
) -> tuple[list[dict[str, Any]] | dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the system prompt and the messages in the format of a provider's API (the dialect).

    The system prompt is None if the dialect has it among the messages.
    """
    match dialect:
        case "anthropic":
            request = anthropic.build_request(sent, cache=MARK if marked else None)
            return request.get("system"), request["messages"]
        case "gemini":
            request = gemini.build_request(sent)
            return request.get("systemInstruction"), request["contents"]
        case _:
            return None, [to_chat_message(message) for message in sent]
