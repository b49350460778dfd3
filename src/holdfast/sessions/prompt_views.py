"""Show one prompt of a session: its sections and messages, the difference from the previous one, and a mark for each message of the log.

The prompt is that of a recorded model call, or the one that would be built now or with other settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.dialects import Dialect, check_dialect
from holdfast.context.explain import CacheBreak, CompactionSize, Run, find_break, list_decisions, measure_compactions
from holdfast.context.fitting import adapt_messages
from holdfast.context.parts import ShownPrompt, decode_record
from holdfast.context.presence import PromptContents
from holdfast.domain.session import Entry, Session
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest
from holdfast.limits import EXPLAIN_REBUILT, EXPLAIN_REBUILT_TOKENS, PROMPT_CHANGES, PROMPT_LOG, PROMPT_TEXT_CHARS
from holdfast.numbers import check_whole
from holdfast.sessions.contexts import to_dialect
from holdfast.sessions.explanation import MessageMark
from holdfast.sessions.message_explanations import ExplainedSession, mark_message
from holdfast.sessions.model_calls import (
    CallId,
    CallPage,
    CallSummary,
    NumberedCall,
    find_call,
    find_sender,
    list_calls,
    locate_call,
    parse_call_id,
    read_turn,
    summarize_call,
)
from holdfast.sessions.past_prompts import read_record
from holdfast.sessions.prompt_lookup import RECENT_CALLS, FoundPrompt, PromptRequest, can_rebuild, find_prompt
from holdfast.sessions.prompt_sections import (
    FREE,
    PromptDifference,
    PromptMessage,
    PromptSection,
    compare_prompts,
    divide_prompt,
    drop_media,
    find_prefix,
)

NEXT: Final = "next"
"""Identifies the prompt that would be built now, in place of the id of a call."""
_NOT_RECORDED: Final = "the program made this call itself, so its prompt is not recorded"


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
    exact: bool | None = None
    """True if these are exactly the messages that were sent, false if something was erased since; null if it was not sent or not recorded."""
    differences: tuple[str, ...] = ()
    """If `exact` is false: what differs from the prompt that was sent."""
    not_recorded: str | None = None
    """Why the prompt is not known; null if it is."""
    agent: str | None
    model: str
    strategy: dict[str, Any] | None = None
    """The strategy and its options; null if the prompt is not known."""
    tokens: int = 0
    """Tokens of the conversation; 0 if they are not known."""
    total_tokens: int = 0
    """Tokens of the whole prompt."""
    budget: int = 0
    """Maximum tokens of the conversation."""
    window: int = 0
    """Tokens of all `sections`: the context window that is used, as Holdfast counts tokens."""
    sections: tuple[PromptSection, ...] = ()
    messages: tuple[PromptMessage, ...] = ()
    """Messages of the prompt; empty if it is not known."""
    compactions: tuple[CompactionSize, ...] = ()
    recalled: tuple[str, ...] = ()
    decisions: tuple[Run, ...] = ()
    """For ranges of the session's messages: whether the prompt contains them, and why."""
    before: str | None = None
    """Id of the call with which the prompt is compared: the previous one of the same agent and settings."""
    difference: PromptDifference | None = None
    """The difference from `before`; null if that prompt is not known."""
    broken: CacheBreak | None = None
    """The first message at which the provider's cache breaks, and why; null if the prompt begins with the whole prompt before."""
    request: dict[str, Any] | None = None
    """The prompt in the format of a provider, if `dialect` was given."""
    log: tuple[MessageMark, ...] = ()
    """Messages of the log with their marks, in order."""
    log_messages: int
    """Number of entries of the log, including those that are not marked here."""


class PromptedSession(ExplainedSession):
    """Adds the methods `calls` and `prompt` to `SessionHandle`: the recorded model calls, and the prompt of each."""

    _is_chosen: bool
    """True if the caller chose the agent or the model of the handle."""

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
            if number is None:
                number = (await find_call(store, self.ref, after, "after"))[1].id.number
            last = CallId(turn_id, number)
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

        If the agent or model of this handle was chosen and did not make the call, the result is the prompt that it would have got.

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
        check_whole(log_limit, "log_limit", 0, PROMPT_LOG)
        if log_after is not None:
            check_whole(log_after, "log_after", -1)
        if dialect is not None:
            check_dialect(dialect)
        engine, ref = self._engine, self.ref
        session = await engine.store.get(ref)
        one: NumberedCall | None = None
        of_turn: Sequence[NumberedCall] = ()
        if call_id != NEXT:
            of_turn, one = await find_call(engine.store, ref, call_id)
        sender, is_other = await self._find_sender(session, one)
        responder = engine.roster.with_request(sender, strategy, budget)
        found = await self._find_prompt(session, responder, one, is_custom=is_other or responder is not sender)
        before, after = await self._find_neighbours(session, one)
        base: dict[str, Any] = {
            "session_id": ref.id,
            "version": session.version,
            "id": str(one.id) if one else NEXT,
            "call": summarize_call(one) if one else None,
            "turn_calls": len(of_turn),
            "previous": before,
            "next": after,
            "agent": responder.agent_name,
            "model": one.call.model if one and (found is None or found.built is None) else responder.llm.model,
            "log_messages": session.tail.next_seq,
        }
        if found is None:
            return PromptView(**base, not_recorded=_NOT_RECORDED)
        if (earlier := found.before and found.before.call) is not None:
            compared = locate_call(await read_turn(engine.store, ref, earlier.turn_id), earlier)
            base["before"] = str(compared) if compared else None
        log = await self._read_log(found.prompt, log_after, log_limit)
        return await run_cpu(lambda: PromptView(**base, **_show_prompt(found, log, dialect)))

    async def _find_sender(self, session: Session, one: NumberedCall | None) -> tuple[Responder, bool]:
        """Return the agent and model whose prompt is shown, and whether they are others than those of the call.

        They are those that made the call, or the newest one. If others were chosen, it is these.
        """
        engine, own = self._engine, self.responder
        if one is None:
            return (own, True) if self._is_chosen else (await find_last_sender(engine, session, own), False)
        record = decode_record(one.call.build) if one.call.through >= 0 else None
        sender = (record and find_sender(engine.roster, session, record)) or own
        is_other = (sender.agent_name, sender.llm.name) != (own.agent_name, own.llm.name)
        return (own, True) if self._is_chosen and is_other else (sender, False)

    async def _find_prompt(
        self, session: Session, responder: Responder, one: NumberedCall | None, *, is_custom: bool
    ) -> FoundPrompt | None:
        """Return the prompt of a call, or the next one; None if that of the call is not recorded."""
        engine, ref = self._engine, self.ref
        if one is not None and not is_custom and await read_record(engine.store, ref, one.call) is None:
            return None
        if is_custom and not can_rebuild(session):
            raise InvalidRequest(
                f"other settings are tried for sessions of up to {EXPLAIN_REBUILT:,} messages and "
                f"{EXPLAIN_REBUILT_TOKENS:,} tokens; this one is longer",
                param="strategy",
            )
        look = PromptRequest(
            responder=responder,
            dialect=responder.llm.dialect,
            at_turn=one.id.turn_id if one else None,
            call=one.call if one else None,
            use_recorded=not is_custom,
            compare=True,
        )
        return await find_prompt(engine, ref, look)

    async def _find_neighbours(self, session: Session, one: NumberedCall | None) -> tuple[str | None, str | None]:
        """Return the ids of the calls before and after a call; without a call, of the newest one."""
        at = one.id if one else None
        found = [await list_calls(self._engine, session, limit=1, after=at)]
        if one is not None:
            found.append(await list_calls(self._engine, session, limit=1, after=at, descending=False))
        before, after = (*(page.calls[0].id if page.calls else None for page in found), None)[:2]
        return before, after

    async def _read_log(self, prompt: ShownPrompt, after: int | None, limit: int) -> Sequence[Entry]:
        """Return the messages of the log to mark: those after a `seq`, or those around the beginning of the prompt's tail."""
        if not limit:
            return ()
        frontier, last = prompt.record.frontier, prompt.record.end[0]
        start = frontier - limit // 2 if frontier else last + 1 - limit
        start = start if after is None else after + 1
        return await self._engine.store.entries(self.ref, start=max(0, start), limit=limit, retired=True)


async def find_last_sender(
    engine: Engine, session: Session, responder: Responder, turn_id: int | None = None
) -> Responder:
    """Return the responder that made the newest call of a session, or of a turn; `responder` if that is not known."""
    for call in await engine.store.calls(session.ref, limit=RECENT_CALLS, turn_id=turn_id):
        record = decode_record(call.build) if call.through >= 0 else None
        if record is not None and (found := find_sender(engine.roster, session, record)) is not None:
            return found
    return responder


# -- showing a prompt ----------------------------------------------------------------


def _show_prompt(found: FoundPrompt, log: Sequence[Entry], dialect: Dialect | None) -> dict[str, Any]:
    """Return the fields of a `PromptView` that depend on the prompt."""
    prompt, before, count = found.prompt, found.before, found.responder.llm.counter
    record = prompt.record
    messages, sections = divide_prompt(prompt, count)
    contents = PromptContents(prompt)
    marks = [mark_message(entry, contents.find_presence(entry), PROMPT_TEXT_CHARS) for entry in log]
    return {
        "exact": prompt.is_exact,
        "differences": tuple(_iter_differences(prompt)),
        "strategy": found.strategy,
        "tokens": record.tokens,
        "budget": record.limit,
        "total_tokens": sum(one.tokens for one in sections if one.name not in FREE),
        "window": sum(one.tokens for one in sections),
        "sections": sections,
        "messages": messages,
        "compactions": tuple(measure_compactions(record)),
        "recalled": record.recalled,
        "decisions": tuple(list_decisions(record)),
        "difference": compare_prompts(before, prompt, messages, count, limit=PROMPT_CHANGES) if before else None,
        "broken": find_break(find_prefix(before, prompt), before.record if before else None, record),
        "request": _convert(found, dialect) if dialect else None,
        "log": tuple(MessageMark(**mark) for mark in marks),
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


def _convert(found: FoundPrompt, dialect: Dialect) -> dict[str, Any]:
    """Return a prompt as the fields of a request to a provider, without media data."""
    record, messages = found.prompt.record, [drop_media(one.message) for one in found.prompt.messages]
    if dialect not in {"openai", record.dialect}:
        leading = len(record.leading)
        messages = [*messages[:leading], *adapt_messages(messages[leading:], dialect, record.marker)]
    system, sent = to_dialect(dialect, messages, found.responder)
    system_name, name = ("systemInstruction", "contents") if dialect == "gemini" else ("system", "messages")
    return {system_name: system, name: sent} if system else {name: sent}
