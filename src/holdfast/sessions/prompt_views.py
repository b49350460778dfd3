"""Show one prompt of a session: its sections and messages, the difference from the previous one, and a mark for each message of the log.

The prompt is that of a recorded model call, or the one that would be built now. Prompts that were sent are not stored, but rebuilt; see
`holdfast.sessions.context_preview`. In a session that is too long to rebuild them, the record of the call says what is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.dialects import Dialect, check_dialect
from holdfast.context.explain import BuildRecord, CompactionSize, Run, decode_record, describe_strategy
from holdfast.context.fitting import adapt_messages
from holdfast.context.presence import (
    WRITTEN_LATER,
    Excerpt,
    Presence,
    PromptContents,
    State,
    explain_absence,
)
from holdfast.domain.media.parts import show_to_model
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, ModelCall, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest
from holdfast.limits import EXPLAIN_REBUILT, EXPLAIN_REBUILT_TOKENS, PROMPT_CHANGES, PROMPT_LOG, PROMPT_TEXT_CHARS
from holdfast.numbers import check_whole
from holdfast.sessions.context_preview import RECENT_CALLS, rebuild_context
from holdfast.sessions.message_explanations import ExplainedSession, can_rebuild, find_recalled, get_text
from holdfast.sessions.model_calls import (
    CallId,
    CallPage,
    CallSummary,
    NumberedCall,
    SenderFinder,
    choose_call,
    find_call,
    find_neighbours,
    list_calls,
    locate_call,
    parse_call_id,
    read_turn,
    summarize_call,
)
from holdfast.sessions.preview_objects import Preview, PreviewRequest, to_dialect
from holdfast.sessions.prompt_sections import (
    FREE,
    PromptDifference,
    PromptPart,
    PromptSection,
    SectionName,
    compare_prompts,
    divide_prompt,
    divide_record,
    get_seq_range,
)
from holdfast.wire.openai import to_chat_message

NEXT: Final = "next"
"""Identifies the prompt that would be built now, in place of the id of a call."""
_TOO_LONG: Final = (
    f"prompts are rebuilt for sessions of up to {EXPLAIN_REBUILT:,} messages and {EXPLAIN_REBUILT_TOKENS:,} tokens; "
    "this session is longer, so only the record of the call is shown"
)
_NO_PROMPT: Final = "the program made this call itself, so its prompt is not recorded"
_UNKNOWN_SENDER: Final = "no agent and model of the current configuration has the settings with which it was sent"
_REWOUND: Final = "the messages of this turn were removed by an edit or a rewind, so its prompt is not rebuilt"
_RECORDED_BEFORE: Final = "before the recorded frontier: not sent verbatim, unless it was chosen or pinned"
_RECORDED_AFTER: Final = "from the recorded frontier on: sent as a recent message, possibly shortened"


class PromptQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for a prompt."""

    id: str = NEXT
    """`12.0`, `12` for the last call of turn 12, or `next` for the prompt that would be built now."""
    strategy: str | None = None
    budget: int | None = None
    """A strategy or a token limit to try instead of the recorded ones. No model is called."""
    other: bool = False
    """True: use the responder that is passed, even if it is not the one that made the call."""
    dialect: Dialect | None = None
    """Also return the prompt as a request in the format of this provider."""
    rebuild: bool = False
    """True: rebuild the prompt even in a session that is too long for it. The whole log is read."""
    log_after: int | None = None
    """Mark the messages of the log after this `seq`; None: those around the end of the prompt."""
    log_limit: int = 0
    """Number of messages of the log to mark."""


class PromptMessage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One message of a prompt."""

    section: SectionName
    kind: str
    """`entry` for a message of the log; otherwise the name of the block that Holdfast wrote."""
    seqs: tuple[int, ...]
    """First and last `seq` of the log entries that the message comes from; empty if there are none."""
    verbatim: bool
    """True if the message is an exact copy of that of the log."""
    tokens: int
    message: dict[str, Any]
    """The message in the format of Chat Completions, without media data."""


class SourceMessage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message that a compaction replaces."""

    seq: int
    turn_id: int
    role: str
    timestamp: int
    tokens: int
    text: str
    """The first characters of the message; empty if it was erased."""
    shortened: bool
    """True if `text` is not the whole text."""


class MessageMark(SourceMessage, frozen=True, gc=False, kw_only=True):
    """A message of the log, and how much of it a prompt contains."""

    agent: str | None
    pinned: bool
    importance: float | None
    state: State
    decision: str
    reason: str
    block: str | None
    excerpts: tuple[Excerpt, ...]
    """Words of the message that the prompt contains, if it contains only a part of it."""


class CacheBreak(msgspec.Struct, frozen=True, gc=False):
    """The first message at which a prompt differs from the one before, so that a provider's cache cannot reuse it."""

    message: int
    """Index of the message in the prompt."""
    seq: int | None
    """`seq` of its log entry; null if it has none."""
    why: str


class PromptView(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A prompt of a session, and what it contains of the log."""

    object: Literal["prompt"] = "prompt"
    session_id: str
    version: int
    """Version of the session."""
    id: str
    """`turn.number` of the call, or `next`."""
    call: CallSummary | None
    """The recorded call; null for `next`."""
    turn_calls: int
    """Number of recorded calls of the turn; 0 for `next`."""
    previous: str | None
    next: str | None
    """Ids of the calls before and after this one."""
    exact: bool | None
    """True if the rebuilt prompt equals the sent one, false if not; null if it was not sent or not rebuilt."""
    differences: tuple[str, ...]
    """If `exact` is false: what is known about the differences from the prompt that was sent."""
    not_rebuilt: str | None
    """Why the prompt is not the one that was sent; null if it is, or if it was not sent."""
    agent: str | None
    model: str
    strategy: dict[str, Any] | None
    """The strategy and its options; null if they are not known."""
    tokens: int
    """Tokens of the conversation; 0 if they are not known."""
    total_tokens: int
    """Tokens of the whole prompt."""
    budget: int
    """Maximum tokens of the conversation."""
    window: int
    """Tokens of all `sections`: the context window that is used, as Holdfast counts tokens."""
    sections: tuple[PromptSection, ...]
    messages: tuple[PromptMessage, ...]
    """Messages of the prompt; empty if it was not rebuilt."""
    compactions: tuple[CompactionSize, ...]
    recalled: tuple[str, ...]
    decisions: tuple[Run, ...]
    """For ranges of the session's messages: whether the prompt contains them, and why."""
    before: str | None
    """Id of the call with which the prompt is compared: the previous one of the same agent and settings."""
    difference: PromptDifference | None
    """The difference from `before`; null if that prompt is not known."""
    broken: CacheBreak | None
    """The first message at which the provider's cache breaks, and why; null if the prompt begins with the whole prompt before."""
    request: dict[str, Any] | None
    """The prompt in the format of a provider, if `dialect` was given."""
    log: tuple[MessageMark, ...]
    """Messages of the log with their marks, in order."""
    log_messages: int
    """Number of entries of the log, including those that are not marked here."""


class _Target(NamedTuple):
    """The prompt to show."""

    call: NumberedCall | None
    of_turn: Sequence[NumberedCall]
    """All calls of the turn of `call`."""
    record: BuildRecord | None
    responder: Responder
    custom: bool
    """True if other settings than the recorded ones are wanted."""
    unknown: str | None
    """Why the prompt cannot be rebuilt; None if it can be."""


class PromptedSession(ExplainedSession):
    """Adds the methods `calls` and `prompt` to `SessionHandle`: the recorded model calls, and the prompt of each."""

    async def calls(self, limit: int = 20, *, after: str | None = None, descending: bool = True) -> CallPage:
        """Return a page of the session's recorded model calls, newest first.

        Args:
            limit: maximum number of calls, 1 to 1,000.
            after: id of the last call of the page before, such as `12.0`.
            descending: False: oldest first.

        Raises:
            SessionNotFound: the session does not exist.
            CallNotFound, InvalidRequest: `after` is not the id of a call.
        """
        store = self._engine.store
        session = await store.get(self.ref)
        last = None
        if after is not None:
            turn_id, number = parse_call_id(after, "after")
            last = (await find_call(store, self.ref, turn_id, None)).id if number is None else CallId(turn_id, number)
        return await list_calls(self._engine, session, self.responder, limit=limit, after=last, descending=descending)

    async def prompt(
        self,
        call_id: str = NEXT,
        *,
        strategy: str | None = None,
        budget: int | None = None,
        dialect: Dialect | None = None,
        log_limit: int = 0,
        log_after: int | None = None,
        rebuild: bool = False,
    ) -> PromptView:
        """Show the prompt of a model call: its sections and messages, and the difference from the prompt before. No model is called.

        Args:
            call_id: `12.0`, `12` for the last call of turn 12, or `next` for the prompt that would be built now.
            strategy, budget: a strategy or a token limit to try instead of those of the call.
            dialect: also return the prompt as a request in the format of this provider.
            log_limit: number of messages of the log to mark: how much of each the prompt contains.
            log_after: mark the messages after this `seq`; None: those around the frontier of the prompt.
            rebuild: True: rebuild the prompt even in a session that is too long for it, by reading the whole log.

        Raises:
            SessionNotFound, CallNotFound: the session does not exist, or it has no such call.
            InvalidRequest: an argument is invalid, or the session is too long to try other settings.
            BudgetTooSmall: no valid prompt fits.
        """
        wanted = PromptQuery(
            id=call_id,
            strategy=strategy,
            budget=budget,
            dialect=dialect,
            rebuild=rebuild,
            log_after=log_after,
            log_limit=log_limit,
        )
        return await view_prompt(self._engine, self.ref, self.responder, wanted)


async def view_prompt(engine: Engine, ref: SessionRef, responder: Responder, wanted: PromptQuery) -> PromptView:
    """Show a prompt of a session. No model is called, and the session does not count as used.

    Args:
        engine: the tenant's engine.
        ref: the session.
        responder: the responder of the session or, with `PromptQuery.other`, the one whose prompt is wanted.
        wanted: the prompt.

    Raises:
        InvalidRequest: an argument is invalid, or the session is too long to try other settings.
        CallNotFound: the session has no such call.
        BudgetTooSmall: no valid prompt fits.
    """
    check_whole(wanted.log_limit, "log_limit", 0, PROMPT_LOG)
    if wanted.log_after is not None:
        check_whole(wanted.log_after, "log_after", -1)
    if wanted.dialect is not None:
        check_dialect(wanted.dialect)
    session = await engine.store.get(ref)
    senders = SenderFinder(engine.roster, session, responder)
    target = await _find_target(engine, session, responder, wanted, senders)
    before = after = None
    if target.call is not None:
        before, after = await find_neighbours(engine.store, ref, target.of_turn, target.call.id)
    elif newest := await engine.store.calls(ref, start=0, limit=1):
        before = (await find_call(engine.store, ref, newest[0].turn_id, None)).id
    target, found = await _rebuild(engine, session, target)
    log = await _read_log(engine, ref, target, found, wanted)
    compared = await _locate_compared(engine, ref, target, found.before.call) if found and found.before else None
    base: dict[str, Any] = {
        "session_id": ref.id,
        "version": session.version,
        "id": str(target.call.id) if target.call else NEXT,
        "call": await run_cpu(summarize_call, target.call, senders, long=False) if target.call else None,
        "turn_calls": len(target.of_turn),
        "previous": str(before) if before else None,
        "next": str(after) if after else None,
        "agent": target.responder.agent_name,
        "model": target.call.call.model if target.call and not target.custom else target.responder.llm.model,
        "before": str(compared) if compared else None,
        "log_messages": session.tail.next_seq,
    }
    if found is None:
        return await run_cpu(lambda: PromptView(**base, **_show_record(target, log)))
    return await run_cpu(lambda: PromptView(**base, **_show_rebuilt(ref, target, found, log, wanted)))


async def _find_target(
    engine: Engine, session: Session, responder: Responder, wanted: PromptQuery, senders: SenderFinder
) -> _Target:
    custom = wanted.other or wanted.strategy is not None or wanted.budget is not None
    is_short = can_rebuild(session)
    if wanted.id == NEXT:
        one = record = None
        of_turn: Sequence[NumberedCall] = ()
        sender = None if wanted.other else await find_sender(engine, session, responder)
    else:
        turn_id, number = parse_call_id(wanted.id)
        of_turn = await read_turn(engine.store, session.ref, turn_id)
        one = choose_call(of_turn, session.ref, turn_id, number)
        record = decode_record(one.call.build) if one.call.through >= 0 else None
        sender = None if wanted.other else senders.find(one.call, record)
    if custom and not is_short and not wanted.rebuild:
        raise InvalidRequest(
            f"other settings are tried for sessions of up to {EXPLAIN_REBUILT:,} messages and {EXPLAIN_REBUILT_TOKENS:,} "
            "tokens; this one is longer, so set rebuild to true to read the whole log",
            param="rebuild",
        )
    chosen = engine.roster.with_request(sender or responder, wanted.strategy, wanted.budget)
    unknown = None
    if one is not None and not custom:
        if record is None:
            unknown = _NO_PROMPT
        elif not (is_short or wanted.rebuild):
            unknown = _TOO_LONG
        elif sender is None:
            unknown = _UNKNOWN_SENDER
    return _Target(one, of_turn, record, chosen, custom, unknown)


async def _locate_compared(engine: Engine, ref: SessionRef, target: _Target, call: ModelCall) -> CallId | None:
    """Return the position of the call with which a prompt is compared; None if it is not recorded any more."""
    is_same_turn = target.call is not None and target.call.id.turn_id == call.turn_id
    return locate_call(target.of_turn if is_same_turn else await read_turn(engine.store, ref, call.turn_id), call)


async def find_sender(engine: Engine, session: Session, responder: Responder, turn_id: int | None = None) -> Responder:
    """Return the responder that made the newest call of a session, or of a turn; `responder` if that is not known."""
    senders = SenderFinder(engine.roster, session, responder)
    recent = await engine.store.calls(session.ref, limit=RECENT_CALLS, turn_id=turn_id)
    known = ((call, decode_record(call.build)) for call in recent if call.through >= 0)
    return next((found for call, record in known if (found := senders.find(call, record))), responder)


async def _rebuild(engine: Engine, session: Session, target: _Target) -> tuple[_Target, Preview | None]:
    """Rebuild the prompt. Return None, and the target with the reason, if it cannot be rebuilt."""
    if target.unknown:
        return target, None
    one, responder = target.call, target.responder
    look = PreviewRequest(
        responder=responder,
        settings=responder.context,
        dialect=target.record.dialect if target.record else responder.llm.dialect,
        at_turn=one.id.turn_id if one else None,
        call=one.id.number if one else None,
        through=one.call.through if one and one.call.through >= 0 else None,
        use_recorded=False,
        touch=False,
        explain=one is None and can_rebuild(session),
        compare=True,
    )
    try:
        return target, await rebuild_context(engine, session.ref, look)
    except InvalidRequest:
        if one is None or target.record is None:
            raise
        return target._replace(unknown=_REWOUND), None  # the log has no live message of the turn any more


async def _read_log(
    engine: Engine, ref: SessionRef, target: _Target, found: Preview | None, wanted: PromptQuery
) -> Sequence[Entry]:
    """Return the messages of the log to mark: those after a `seq`, or those around the beginning of the prompt's tail."""
    if not wanted.log_limit:
        return ()
    if wanted.log_after is not None:
        check_whole(wanted.log_after, "log_after", -1)
        start = wanted.log_after + 1
    else:
        frontier = target.record.frontier if target.record else 0
        frontier = found.built.view.frontier if found else frontier
        through = found.built.through if found else target.call.call.through if target.call else -1
        start = frontier - wanted.log_limit // 2 if frontier else through + 1 - wanted.log_limit
    return await engine.store.entries(ref, start=max(0, start), limit=wanted.log_limit, retired=True)


# -- a prompt that was rebuilt ---------------------------------------------------


def _show_rebuilt(
    ref: SessionRef, target: _Target, found: Preview, log: Sequence[Entry], wanted: PromptQuery
) -> dict[str, Any]:
    built, before = found.built, found.before
    prompt = divide_prompt(built, found.record)
    contents = PromptContents(built, find_recalled(found.record, ref))
    return {
        "exact": found.is_exact,
        "differences": () if found.is_exact is not False else tuple(_iter_differences(found)),
        "not_rebuilt": None if target.custom else found.not_sent,
        "strategy": describe_strategy(built.request.strategy),
        "tokens": built.tokens,
        "budget": built.budget,
        **_measure(prompt.sections),
        "messages": tuple(map(_show_message, prompt.parts)),
        "compactions": tuple(built.list_compactions()),
        "recalled": found.record.recalled if found.record else built.recalled.ids if built.recalled else (),
        "decisions": tuple(built.list_decisions()),
        "difference": compare_prompts(before.prompt.parts, prompt.parts, limit=PROMPT_CHANGES) if before else None,
        "broken": CacheBreak(*built.broken) if before and built.broken else None,
        "request": _convert(found, target.responder, wanted.dialect) if wanted.dialect else None,
        "log": tuple(_mark(entry, contents.find_presence(entry)) for entry in log),
    }


def _iter_differences(found: Preview) -> Iterator[str]:
    """Yield what is known about the differences between a rebuilt prompt and the one that was sent."""
    built, record = found.built, found.record
    assert record is not None, "only prompts of recorded calls are compared"
    shown = [entry for entry in found.entries if entry.seq <= built.through]
    known = built.request.introduction.ids if built.request.introduction else ()
    rebuilt = len(built.recalled.items) if built.recalled else 0
    if (missing := len(record.recalled) - rebuilt) > 0:
        yield f"recalled passages whose text is not recorded: {missing:,}"
    if changed := {*record.known}.difference(known):
        yield f"introduced memories that were changed or deleted since: {len(changed):,}"
    if erased := sum(entry.erased for entry in shown):
        yield f"erased messages: {erased:,}"
    if pinned := sum(entry.pinned for entry in shown):
        yield f"pinned messages, for which the log does not say when they were pinned: {pinned:,}"
    if len(built.messages) != record.messages:
        yield f"messages: {len(built.messages):,} here, {record.messages:,} in the prompt that was sent"
    yield "perhaps a changed system prompt, or messages that were edited or unpinned: the log does not record these"


def _measure(sections: Sequence[PromptSection]) -> dict[str, Any]:
    total = sum(one.tokens for one in sections if one.name not in FREE)
    return {"sections": tuple(sections), "total_tokens": total, "window": sum(one.tokens for one in sections)}


def _show_message(part: PromptPart) -> PromptMessage:
    return PromptMessage(
        section=part.section,
        kind=part.source.kind,
        seqs=get_seq_range(part),
        verbatim=part.source.verbatim,
        tokens=part.tokens,
        message=to_chat_message(_without_media(part.message)),
    )


def _without_media(message: Message) -> Message:
    """Return the message with a description in place of each medium, which may be large."""
    return show_to_model(message, ()) if message.media else message


def _convert(found: Preview, responder: Responder, dialect: Dialect) -> dict[str, Any]:
    """Return a prompt as the fields of a request to a provider, without media data."""
    built = found.built
    messages = [*map(_without_media, built.messages)]
    if dialect not in {"openai", built.request.dialect}:
        rest = adapt_messages(messages[built.leading :], dialect, built.request.marker)
        messages = [*messages[: built.leading], *rest]
    marked = responder.llm.params.get("cache_control") is not False
    system, sent = to_dialect(dialect, messages, marked=marked)
    match dialect:
        case "anthropic":
            return {"system": system, "messages": sent} if system else {"messages": sent}
        case "gemini":
            return {"systemInstruction": system, "contents": sent} if system else {"contents": sent}
        case _:
            return {"messages": sent}


# -- a prompt of which only the record is known ----------------------------------


def _show_record(target: _Target, log: Sequence[Entry]) -> dict[str, Any]:
    assert target.call is not None, "only prompts of recorded calls are not rebuilt"
    call, record = target.call.call, target.record
    total = call.prompt_tokens
    sections = divide_record(record, total) if record else ()
    return {
        "exact": None,
        "differences": (),
        "not_rebuilt": target.unknown,
        "strategy": {"strategy": record.strategy, **(record.options or {})} if record and record.strategy else None,
        "tokens": max(0, total - record.overhead - record.recalled_tokens) if record else 0,
        "budget": record.limit if record else 0,
        **_measure(sections),
        "messages": (),
        "compactions": (),
        "recalled": record.recalled if record else (),
        "decisions": (),
        "difference": None,
        "broken": None,
        "request": None,
        "log": tuple(_mark(entry, _guess_presence(entry, call, record)) for entry in log) if record else (),
    }


def _guess_presence(entry: Entry, call: ModelCall, record: BuildRecord) -> Presence:
    """Return what the record of a call says about a message: whether it was before the frontier, after it, or written later."""
    if (absence := explain_absence(entry)) is not None:
        return absence
    if entry.seq > call.through:
        return WRITTEN_LATER
    if entry.seq >= record.frontier:
        return Presence("whole", "kept", _RECORDED_AFTER, "tail")
    return Presence("no", "evicted", _RECORDED_BEFORE)


def _mark(entry: Entry, presence: Presence) -> MessageMark:
    text = "" if entry.erased else get_text(entry).lstrip("\n")
    return MessageMark(
        seq=entry.seq,
        turn_id=entry.turn_id,
        role=entry.message.role,
        agent=entry.agent,
        timestamp=entry.timestamp,
        tokens=entry.tokens,
        text=text[:PROMPT_TEXT_CHARS],
        shortened=len(text) > PROMPT_TEXT_CHARS,
        pinned=entry.pinned,
        importance=entry.importance,
        **msgspec.structs.asdict(presence),
    )
