"""Show one prompt of a session: its sections and messages, the difference from the previous one, and a mark for each message of the log.

The prompt is that of a recorded model call, or the one that would be built now or with other settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.dialects import Dialect, check_dialect
from holdfast.context.explain import (
    Cause,
    CompactionSize,
    PrefixChange,
    Run,
    describe_strategy,
    list_decisions,
    measure_compactions,
)
from holdfast.context.fitting import adapt_messages
from holdfast.context.parts import ShownPrompt, decode_record
from holdfast.context.presence import Excerpt, Presence, PromptContents, State
from holdfast.domain.media.parts import show_to_model
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest
from holdfast.limits import EXPLAIN_REBUILT, EXPLAIN_REBUILT_TOKENS, PROMPT_CHANGES, PROMPT_LOG, PROMPT_TEXT_CHARS
from holdfast.numbers import check_whole
from holdfast.sessions.context_preview import RECENT_CALLS, can_rebuild, find_context
from holdfast.sessions.message_explanations import ExplainedSession, get_text
from holdfast.sessions.model_calls import (
    CallId,
    CallPage,
    CallSummary,
    NumberedCall,
    choose_call,
    find_call,
    find_neighbours,
    find_sender,
    list_calls,
    locate_call,
    parse_call_id,
    read_turn,
    summarize_call,
)
from holdfast.sessions.past_prompts import find_previous, read_prompt
from holdfast.sessions.preview_objects import PreviewRequest, compare_prefix, to_dialect
from holdfast.sessions.prompt_sections import (
    FREE,
    DividedPrompt,
    PromptDifference,
    PromptPart,
    PromptSection,
    SectionName,
    compare_prompts,
    divide_prompt,
)
from holdfast.wire.openai import to_chat_message

NEXT: Final = "next"
"""Identifies the prompt that would be built now, in place of the id of a call."""
_NOT_RECORDED: Final = "the program made this call itself, so its prompt is not recorded"


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
    log_after: int | None = None
    """Mark the messages of the log after this `seq`; None: those around the end of the prompt."""
    log_limit: int = 0
    """Number of messages of the log to mark."""

    @property
    def is_custom(self) -> bool:
        """True if other settings than those of the call are wanted."""
        return self.other or self.strategy is not None or self.budget is not None


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


class MessageMark(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message of the log, and how much of it a prompt contains."""

    seq: int
    turn_id: int
    role: str
    timestamp: int
    tokens: int
    text: str
    """The first characters of the message; empty if it was erased."""
    shortened: bool
    """True if `text` is not the whole text."""
    agent: str | None
    pinned: bool
    importance: float | None
    state: State
    decision: str
    cause: Cause
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
    change: PrefixChange
    """The same for programs."""


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
    """True if these are exactly the messages that were sent, false if something was erased since; null if it was not sent or not recorded."""
    differences: tuple[str, ...]
    """If `exact` is false: what differs from the prompt that was sent."""
    not_recorded: str | None
    """Why the prompt is not known; null if it is."""
    agent: str | None
    model: str
    strategy: dict[str, Any] | None
    """The strategy and its options; null if the prompt is not known."""
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
    """Messages of the prompt; empty if it is not known."""
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
        return await list_calls(self._engine, session, limit=limit, after=last, descending=descending)

    async def prompt(
        self,
        call_id: str = NEXT,
        *,
        strategy: str | None = None,
        budget: int | None = None,
        dialect: Dialect | None = None,
        log_limit: int = 0,
        log_after: int | None = None,
    ) -> PromptView:
        """Show the prompt of a model call: its sections and messages, and the difference from the prompt before. No model is called.

        Args:
            call_id: `12.0`, `12` for the last call of turn 12, or `next` for the prompt that would be built now.
            strategy, budget: a strategy or a token limit to try instead of those of the call.
            dialect: also return the prompt as a request in the format of this provider.
            log_limit: number of messages of the log to mark: how much of each the prompt contains.
            log_after: mark the messages after this `seq`; None: those around the frontier of the prompt.

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
    one: NumberedCall | None = None
    of_turn: Sequence[NumberedCall] = ()
    if wanted.id != NEXT:
        turn_id, number = parse_call_id(wanted.id)
        of_turn = await read_turn(engine.store, ref, turn_id)
        one = choose_call(of_turn, ref, turn_id, number)
    found = await _find_prompt(engine, session, responder, wanted, one)
    before = after = None
    if one is not None:
        before, after = await find_neighbours(engine.store, ref, of_turn, one.id)
    elif newest := await engine.store.calls(ref, start=0, limit=1):
        before = (await find_call(engine.store, ref, newest[0].turn_id, None)).id
    compared = await _locate(engine, ref, found.before) if found.before else None
    log = await _read_log(engine, ref, found.prompt, wanted) if found.prompt else ()
    base: dict[str, Any] = {
        "session_id": ref.id,
        "version": session.version,
        "id": str(one.id) if one else NEXT,
        "call": summarize_call(one) if one else None,
        "turn_calls": len(of_turn),
        "previous": str(before) if before else None,
        "next": str(after) if after else None,
        "agent": found.responder.agent_name,
        "model": one.call.model if one and not wanted.is_custom else found.responder.llm.model,
        "before": str(compared) if compared else None,
        "log_messages": session.tail.next_seq,
    }
    return await run_cpu(lambda: PromptView(**base, **_show_prompt(found, log, wanted)))


class _Found(NamedTuple):
    """The prompt to show."""

    prompt: ShownPrompt | None
    """None: it is not recorded."""
    before: ShownPrompt | None
    """The prompt with which it is compared."""
    responder: Responder
    strategy: dict[str, Any] | None


async def _find_prompt(
    engine: Engine, session: Session, responder: Responder, wanted: PromptQuery, one: NumberedCall | None
) -> _Found:
    """Return the prompt to show, and the one before of the same agent and settings."""
    store, ref = engine.store, session.ref
    if one is None:
        sender = responder if wanted.other else await find_last_sender(engine, session, responder)
    else:
        record = decode_record(one.call.build) if one.call.through >= 0 else None
        sender = (record and not wanted.other and find_sender(engine.roster, session, record)) or responder
    if one is not None and not wanted.is_custom:
        prompt = await read_prompt(store, ref, one.call)
        if prompt is None:
            return _Found(None, None, sender, None)
        last = await find_previous(store, ref, one.call.view, one.call)
        strategy = {"strategy": prompt.record.strategy, **prompt.record.options}
        if sender.context == prompt.record.settings:
            strategy = describe_strategy(sender.strategy)
        return _Found(prompt, await read_prompt(store, ref, last) if last else None, sender, strategy)
    if wanted.is_custom and not can_rebuild(session):
        raise InvalidRequest(
            f"other settings are tried for sessions of up to {EXPLAIN_REBUILT:,} messages and {EXPLAIN_REBUILT_TOKENS:,} "
            "tokens; this one is longer",
            param="strategy",
        )
    chosen = engine.roster.with_request(sender, wanted.strategy, wanted.budget)
    look = PreviewRequest(
        responder=chosen,
        settings=chosen.context,
        dialect=chosen.llm.dialect,
        at_turn=one.id.turn_id if one else None,
        through=one.call.through if one and one.call.through >= 0 else None,
        touch=False,
        explain=one is None,
    )
    made = await find_context(engine, ref, look)
    before = made.before
    if one is not None and (last := await find_previous(store, ref, chosen.view_key, one.call)) is not None:
        before = await read_prompt(store, ref, last)
    assert made.built is not None, "the prompt was built"
    return _Found(made.prompt, before, chosen, describe_strategy(made.built.request.strategy))


async def find_last_sender(
    engine: Engine, session: Session, responder: Responder, turn_id: int | None = None
) -> Responder:
    """Return the responder that made the newest call of a session, or of a turn; `responder` if that is not known."""
    for call in await engine.store.calls(session.ref, limit=RECENT_CALLS, turn_id=turn_id):
        record = decode_record(call.build) if call.through >= 0 else None
        if record is not None and (found := find_sender(engine.roster, session, record)) is not None:
            return found
    return responder


async def _locate(engine: Engine, ref: SessionRef, prompt: ShownPrompt) -> CallId | None:
    """Return the position of the call of a prompt."""
    assert prompt.call is not None, "the prompt was sent"
    return locate_call(await read_turn(engine.store, ref, prompt.call.turn_id), prompt.call)


async def _read_log(engine: Engine, ref: SessionRef, prompt: ShownPrompt, wanted: PromptQuery) -> Sequence[Entry]:
    """Return the messages of the log to mark: those after a `seq`, or those around the beginning of the prompt's tail."""
    if not wanted.log_limit:
        return ()
    if wanted.log_after is not None:
        start = wanted.log_after + 1
    else:
        frontier, last = prompt.record.frontier, prompt.record.end[0]
        start = frontier - wanted.log_limit // 2 if frontier else last + 1 - wanted.log_limit
    return await engine.store.entries(ref, start=max(0, start), limit=wanted.log_limit, retired=True)


# -- showing a prompt ----------------------------------------------------------------


def _show_prompt(found: _Found, log: Sequence[Entry], wanted: PromptQuery) -> dict[str, Any]:
    prompt, before = found.prompt, found.before
    if prompt is None:
        nothing: dict[str, Any] = dict.fromkeys(("differences", "sections", "messages", "compactions", "recalled"), ())
        nothing |= dict.fromkeys(("decisions", "log"), ()) | dict.fromkeys(("exact", "strategy", "difference"))
        nothing |= dict.fromkeys(("tokens", "budget", "total_tokens", "window"), 0)
        return {**nothing, "not_recorded": _NOT_RECORDED, "broken": None, "request": None}
    record, count = prompt.record, found.responder.llm.counter
    divided, decisions = divide_prompt(prompt, count), list_decisions(record)
    earlier = divide_prompt(before, count) if before else None
    broken = compare_prefix(before, prompt)[1]
    contents = PromptContents(prompt)
    return {
        "exact": prompt.is_exact,
        "differences": tuple(_iter_differences(prompt)),
        "not_recorded": None,
        "strategy": found.strategy,
        "tokens": record.tokens,
        "budget": record.limit,
        **_measure(divided),
        "messages": tuple(map(_show_message, divided.parts)),
        "compactions": tuple(measure_compactions(record, decisions)),
        "recalled": record.recalled,
        "decisions": tuple(decisions),
        "difference": compare_prompts(earlier.parts, divided.parts, limit=PROMPT_CHANGES) if earlier else None,
        "broken": CacheBreak(*broken) if broken else None,
        "request": _convert(prompt, found.responder, wanted.dialect) if wanted.dialect else None,
        "log": tuple(_mark(entry, contents.find_presence(entry)) for entry in log),
    }


def _iter_differences(prompt: ShownPrompt) -> Iterator[str]:
    """Yield what differs between a prompt and the one that was sent."""
    if prompt.is_exact is not False:
        return
    if erased := sum(entry.erased for entry in prompt.entries.values()):
        yield f"erased messages: {erased:,}"
    places = {part for _, part, _ in prompt.messages}
    if missing := sum(number not in prompt.texts for part in places for number in part.texts):
        yield f"texts that were deleted with the messages or memories that they quote: {missing:,}"
    if any(part.kind == "system" and not part.texts for part in places):
        yield "a system message with values of temp: keys, which are never stored"


def _measure(divided: DividedPrompt) -> dict[str, Any]:
    sections = divided.sections
    total = sum(one.tokens for one in sections if one.name not in FREE)
    return {"sections": sections, "total_tokens": total, "window": sum(one.tokens for one in sections)}


def _show_message(part: PromptPart) -> PromptMessage:
    return PromptMessage(
        section=part.section,
        kind=part.kind,
        seqs=part.seqs,
        verbatim=part.verbatim,
        tokens=part.tokens,
        message=to_chat_message(_without_media(part.message)),
    )


def _without_media(message: Message) -> Message:
    """Return the message with a description in place of each medium, which may be large."""
    return show_to_model(message, ()) if message.media else message


def _convert(prompt: ShownPrompt, responder: Responder, dialect: Dialect) -> dict[str, Any]:
    """Return a prompt as the fields of a request to a provider, without media data."""
    record, messages = prompt.record, [_without_media(one.message) for one in prompt.messages]
    if dialect not in {"openai", record.dialect}:
        leading = len(record.leading)
        messages = [*messages[:leading], *adapt_messages(messages[leading:], dialect, record.marker)]
    marked = responder.llm.params.get("cache_control") is not False
    system, sent = to_dialect(dialect, messages, marked=marked)
    match dialect:
        case "anthropic":
            return {"system": system, "messages": sent} if system else {"messages": sent}
        case "gemini":
            return {"systemInstruction": system, "contents": sent} if system else {"contents": sent}
        case _:
            return {"messages": sent}


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
