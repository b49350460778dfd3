"""Make one model call: send the prompt, repeat the call if that helps, and record the call with the prompt's hash.

    build_call -> (settle -> call -> recover)*

**Failover.** Before any part of a reply was received, a prompt that is too long is built smaller, and a model that does
not answer is replaced by a fallback. A prompt is built with a cached state (a view), which depends on the model's
context window, token counter and API. So each model has a separate view, and the prompt for a fallback neither uses nor
changes the view of the usual model.

**Refused messages.** A provider may answer 400 to a whole prompt because of one message, for example a broken image or
an unknown part. If the error names the message, it is left out of prompts for this upstream. The log records the
refusal, until a caller includes the message again. The current user message is never left out: the client gets the
error instead.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from holdfast import faults
from holdfast.agents import Responder
from holdfast.context.explain import encode_record
from holdfast.domain.budget import step_down
from holdfast.domain.media.limits import read_refusal
from holdfast.domain.media.parts import measure_part
from holdfast.domain.medium import KINDS
from holdfast.domain.refusals import read_refusals
from holdfast.domain.session import ModelCall, Session
from holdfast.engine.session_lock import END
from holdfast.errors import (
    BudgetTooSmall,
    ContextTooLong,
    HoldfastError,
    InvalidRequest,
    ModelError,
    ModelProtocolError,
    ModelRejected,
    ModelUnavailable,
)
from holdfast.limits import MODEL_TRAILING_CHUNKS, REFUSED_A_TURN
from holdfast.log.items import Delta, has_content
from holdfast.models import (
    Call,
    closing,
    get_upstream_origin,
    make_too_long_error,
    read_usage,
    stream_deltas,
)
from holdfast.models.profiles import fit_messages, get_profile
from holdfast.turns.interruptions import address_model
from holdfast.turns.prompt import add_tools, build_prompt, check_body, to_sendable
from holdfast.turns.turn import Turn, TurnWarning
from holdfast.wire.anthropic import map_blocks
from holdfast.wire.anthropic_betas import check_native_fields
from holdfast.wire.anthropic_requests import convert_fields
from holdfast.wire.openai import FROM_RESULT

_log = logging.getLogger("holdfast.models")
PROGRESS = "include_progress"
"""Option in a request's `stream_options` that asks for reports on the progress of tools. It is not sent upstream."""
_MODEL_NAME = 100
"""Maximum length in characters of the model's name, as the provider reports it, in a call's record."""


async def call_model(turn: Turn) -> AsyncGenerator[list[Delta], None]:
    """Call the model and yield the deltas of its reply as they arrive.

    A prompt that the model finds too long is built smaller and sent again. If the model does not answer, its fallbacks
    are called. After part of the reply was received, no other call is made.

    Raises:
        ContextTooLong: every prompt was too long for the model. The error says which sizes were tried.
        ModelError: no model answered, or the reply broke off.
        InvalidRequest: the model's client cannot send the request.
    """
    recovery = Recovery(turn)
    while True:
        await turn.lock.run_interruptibly(recovery.settle)
        call, has_begun = turn.roster.find_upstream(turn.request.responder.llm).begin(turn.engine.clock()), False
        try:
            await faults.hit("before-model-call")
            client, body = turn.request.responder.llm.client, await _build_body(turn)
            async with closing(stream_deltas(client, body, headers=turn.request.headers or None)) as stream:
                opening = await _read_opening(turn, stream)
                if opening:
                    has_begun = True
                    call.record_answer()
                    await recovery.confirm()
                for deltas in opening:
                    yield deltas
                while (deltas := await turn.lock.read(stream)) is not END:
                    yield deltas
            await faults.hit("after-model-reply")
            return
        except (ModelError, InvalidRequest) as exc:
            _record_failure(turn, call, exc)
            if has_begun:
                raise
            error = await turn.lock.run_interruptibly(partial(recovery.recover, exc))
            try:
                if error is exc:
                    raise
                if error is not None:
                    raise error from exc
            finally:
                del error  # breaks a reference cycle of this frame and the error, which would keep the prompt in memory
        finally:
            call.end()


async def _read_opening(turn: Turn, stream: AsyncIterator[list[Delta]]) -> list[list[Delta]]:
    """Read the events of a reply up to the first one with content. Return an empty list if the stream has no events.

    Some upstreams send a role, or a filter's verdict, before they find that a prompt is too long.
    """
    opening: list[list[Delta]] = []
    while len(opening) < MODEL_TRAILING_CHUNKS and (deltas := await turn.lock.read(stream)) is not END:
        opening.append(deltas)
        if has_content(deltas):
            break
    return opening


def _record_failure(turn: Turn, call: Call, error: ModelError | InvalidRequest) -> None:
    """Log the failure of a call, and count it for the upstream.

    The upstream's message is not logged, because it may quote the conversation.
    """
    if not isinstance(error, ModelError):
        return
    error.handed = bool(turn.request.headers)
    now = turn.engine.clock()
    call.record_failure(error, now)
    turn.engine.activity.count_failed_call()
    fields: dict[str, Any] = {"llm": call.upstream.name, "model": turn.request.responder.llm.model, "code": error.code}
    fields |= {"status": error.status, "seconds": round((now - call.started) / 1000, 3)}
    too_long = isinstance(error, ContextTooLong)
    _log.warning("a model refused a prompt" if too_long else "a model did not answer", extra={"fields": fields})


async def _build_body(turn: Turn) -> dict[str, Any]:
    """Return the request body of the next model call."""
    assert turn.working_set is not None, "the working set is built first"
    llm = turn.request.responder.llm
    fields = add_tools(turn.request.responder, turn.request.body)
    if turn.request.api != llm.dialect == "openai":
        fields = convert_fields(fields, llm.model)
    body = {**llm.params, **fields}
    if turn.tool_choice is not None:
        body["tool_choice"] = turn.tool_choice
    if isinstance(options := body.get("stream_options"), Mapping):
        body["stream_options"] = {name: value for name, value in options.items() if name != PROGRESS}
    if llm.hosts_tools and turn.request.hosted_tools:
        body["tools"] = [*(body.get("tools") or ()), *turn.request.hosted_tools]
    body["model"] = llm.model
    body["messages"] = await to_sendable(turn.engine, turn.request.ref, llm, turn.working_set)
    if llm.max_tokens is not None and not {"max_tokens", "max_completion_tokens"} & body.keys():
        body["max_tokens"] = llm.max_tokens
    if llm.cache_key:
        body.setdefault("prompt_cache_key", turn.request.cache_key or make_cache_key(turn.session))
    return address_model(body, llm, turn.working_set, turn_id=turn.session.tail.turn_id, now=turn.engine.clock)


def make_call_record(turn: Turn, model: object, usage: object) -> ModelCall:
    """Return the record of a model call: the prompt that was sent, and the usage that the provider reported."""
    built = turn.working_set
    assert built is not None, "the working set is built first"
    tokens = read_usage(usage)
    if tokens.prompt_tokens:
        turn.learned = turn.engine.learning.record_usage(
            turn.request.responder.llm, built.total_tokens, tokens.prompt_tokens
        )
    turn.engine.activity.count_call(turn.session, built, tokens)
    record = built.to_record(turn.request.responder.context)
    return ModelCall(
        model=str(model or turn.request.responder.llm.model)[:_MODEL_NAME],
        timestamp=turn.engine.clock(),
        prompt_tokens=tokens.prompt_tokens,
        completion_tokens=tokens.completion_tokens,
        cached_tokens=tokens.cached_tokens,
        turn_id=turn.session.tail.turn_id,
        through=built.through,
        view=turn.key,
        hash=bytes.fromhex(built.hash),
        build=encode_record(record),
    )


def make_further_call_record(turn: Turn, usage: object) -> ModelCall:
    """Return the record of a call that the program made without a working set. The record has no prompt, because it is unknown."""
    tokens = read_usage(usage)
    turn.engine.activity.count_further_call(tokens)
    return ModelCall(
        model=turn.request.responder.llm.model[:_MODEL_NAME],
        timestamp=turn.engine.clock(),
        prompt_tokens=tokens.prompt_tokens,
        completion_tokens=tokens.completion_tokens,
        cached_tokens=tokens.cached_tokens,
        turn_id=turn.session.tail.turn_id,
    )


def make_cache_key(session: Session) -> str:
    """Return a key for a session's prompts in a provider's cache. The key does not reveal tenant, user or session."""
    identity = msgspec.json.encode([session.tenant, session.user_id, session.id])
    return f"hf-{hashlib.blake2b(identity, digest_size=16).hexdigest()}"


STEPS_DOWN = 3
"""Maximum number of times that the prompt of one call is built smaller because the provider found it too long."""
PASSED_OVER: Final = "passed_over"
"""Code of a failure in the response: the model was not called because its upstream is cooling down after errors."""
OF_KEY: Final = frozenset({401, 402, 403})
"""HTTP statuses with which a provider refuses a key, because of the key's permissions or payment."""
OF_OWNER: Final = OF_KEY | {404, 405, 407, 410}
"""HTTP statuses that only the server's owner can fix, by correcting the configuration of an upstream."""


def fails_over(error: HoldfastError) -> bool:
    """Return True if another model may be called after `error`, because the request itself is not at fault.

    The result is False if the caller's own key was refused, because only the caller can fix that.
    """
    if isinstance(error, ModelUnavailable | ModelProtocolError | ContextTooLong):
        return True
    of_owner = OF_OWNER - OF_KEY if isinstance(error, ModelError) and error.handed else OF_OWNER
    return isinstance(error, ModelRejected) and error.status in of_owner


async def build_call(turn: Turn) -> None:
    """Build the prompt of the turn's next call.

    If the model's upstream is cooling down after errors, build it for a fallback.
    """
    own = turn.request.responder
    if len(turn.responders) > 1 and not _is_available(turn, own):
        if await _switch_to_stand_in(turn, own, ()):
            return
        await _speak_as(turn, own)
    await build_prompt(turn)


async def _switch_to_stand_in(turn: Turn, own: Responder, tried: Sequence[Responder]) -> bool:
    """Build the prompt for a fallback, because the upstream of `own` is cooling down.

    Return False if there is no fallback.
    """
    for responder in _find_stand_ins(turn, [*tried, own]):
        if _is_available(turn, responder) and await _build_for(turn, responder) is None:
            turn.roster.find_upstream(own.llm).failovers += 1
            _note_failed(turn, own, PASSED_OVER, None)
            return True
    return False


class _Failed(NamedTuple):
    """A model that did not answer, and its error."""

    responder: Responder
    error: HoldfastError
    """The error, without its traceback, because the frames of a traceback keep the prompt in memory."""


class Recovery:
    """Repeats one model call after failures, with a smaller prompt or with fallbacks, until a model answers."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._refused: list[int] = []
        """Size in tokens of each prompt that the model refused as too long."""
        self._asked: list[Responder] = []
        self._failed: list[_Failed] = []
        self.refusals = Refusals(turn)

    async def confirm(self) -> None:
        """Record what was changed in the prompt before the model answered. Called when the model begins to answer."""
        await self.refusals.confirm()
        if self._refused:
            turn = self._turn
            assert turn.working_set is not None, "a prompt was sent"
            sizes = " and ".join(f"{tokens:,}" for tokens in self._refused)
            message = (
                f"{turn.request.responder.llm.name} refused a prompt of {sizes} tokens (by Holdfast's count) as too long;"
                f" one of {turn.working_set.total_tokens:,} tokens was sent instead"
            )
            turn.warnings.add(TurnWarning(ContextTooLong.code, message))

    async def settle(self) -> None:
        """Decide which model is called next: the current one, or a fallback if the current model's upstream is cooling down."""
        turn, own = self._turn, self._turn.request.responder
        if len(turn.responders) == 1 or _is_available(turn, own) or await _switch_to_stand_in(turn, own, self._asked):
            return
        if turn.request.responder is not own:
            await _speak_as(turn, own)
            await build_prompt(turn)

    async def recover(self, error: ModelError | InvalidRequest) -> HoldfastError | None:
        """Prepare another attempt after an error.

        Returns:
            None if another attempt is prepared, else the error that ends the call. This is the error of the usual model
            if the usual model failed, else the error of the first model that failed. The message also names the errors
            of the other models.
        """
        final: HoldfastError = error
        if isinstance(error, ModelError) and self._describe_media(error):
            return None
        if isinstance(error, ModelError) and await self.refusals.leave_out_refused(error):
            return None
        if isinstance(error, ContextTooLong):
            smaller = await self._make_smaller(error)
            if smaller is None:
                return None
            final = smaller
        return None if await self._ask_next(final) else self._explain_failure(final)

    def _describe_media(self, error: ModelError) -> bool:
        """Learn from an error which media the model does not take, and return True if the next prompt describes more of them in words."""
        turn, llm = self._turn, self._turn.request.responder.llm
        assert turn.working_set is not None, "a prompt was refused"
        now, upstream = turn.engine.clock(), turn.roster.find_upstream(llm)
        limits = turn.roster.find_media_limits(llm, now)
        media = [(KINDS.get(part.type), part) for message in turn.working_set.messages for part in message.media]
        parts = [(kind, part) for kind, part in media if kind and (limits.inputs is None or kind in limits.inputs)]
        sent: Counter[str] = Counter(kind for kind, _ in parts)
        sent["image"] = min(sent["image"], limits.max_images or sent["image"])
        total = sum(measure_part(part) for _, part in parts)
        sent["bytes"] = min(total, limits.max_media_bytes or total)
        words = msgspec.json.encode(error.body).decode() if error.body else str(error).partition(": ")[2]
        facts = read_refusal(words[:_SCAN_CHARS], error.status, sent)
        if not facts or not upstream.learn(llm.model, facts, now):
            return False
        found = ", ".join(f"{name} at most {value:,}" if value else f"no {name}" for name, value in facts.items())
        message = f"{llm.name} refused media of the prompt ({_read_reason(error)}): they are described in words, because it takes {found}"
        turn.warnings.add(TurnWarning("media_described", message))
        return True

    async def _make_smaller(self, refusal: ContextTooLong) -> ContextTooLong | None:
        turn = self._turn
        assert turn.working_set is not None, "a prompt was refused"
        self._refused.append(turn.working_set.total_tokens)
        if len(self._refused) > STEPS_DOWN:
            return make_too_long_error(refusal, self._refused)
        try:
            await _step_down(turn, refusal)
        except (BudgetTooSmall, InvalidRequest):
            return make_too_long_error(refusal, self._refused)
        return None

    async def _ask_next(self, error: HoldfastError) -> bool:
        """Build the prompt for the next fallback. Return False if there is none.

        Models whose upstreams are cooling down come last.
        """
        turn, own = self._turn, self._turn.request.responder
        # A request that one fallback refuses may be valid for the next.
        if len(turn.responders) == 1 or not (fails_over(error) or own is not turn.responders[0]):
            return False
        self._record_failure(own, error)
        for responder in sorted(
            _find_stand_ins(turn, self._asked), key=lambda responder: not _is_available(turn, responder)
        ):
            if isinstance(error, ContextTooLong) and not await _has_more_room(turn, responder, own, error):
                continue
            why = await _build_for(turn, responder)
            if why is None:
                turn.roster.find_upstream(own.llm).failovers += 1
                self._refused = []
                return True
            self._record_failure(responder, why)
        return False

    def _record_failure(self, responder: Responder, error: HoldfastError) -> None:
        self._asked.append(responder)
        self._failed.append(_Failed(responder, _copy_error(error)))
        _note_failed(self._turn, responder, error.code, error.status if isinstance(error, ModelError) else None)

    def _explain_failure(self, error: HoldfastError) -> HoldfastError:
        if len(self._failed) < 2:
            return error
        first, *others = sorted(self._failed, key=lambda failed: failed.responder is not self._turn.responders[0])
        named = "; ".join(f"{failed.responder.llm.name}: {failed.error}" for failed in others)
        explained = _copy_error(first.error, f"{first.error}; the fallbacks did not answer either: {named}")
        if isinstance(explained, ModelError):
            waits = [wait for one in self._failed if (wait := getattr(one.error, "retry_after", None)) is not None]
            explained.retry_after = min(waits, default=None)
        return explained


async def _step_down(turn: Turn, refusal: ContextTooLong) -> None:
    """Build the prompt again, at least a tenth smaller than the refused one.

    Before that, the calibration of the model's token counts is corrected by the refusal.
    """
    refused, llm = turn.working_set, turn.request.responder.llm
    assert refused is not None, "a prompt was refused"
    assert refused.request.budget is not None, "a turn's prompt has a budget"
    counted = refused.total_tokens
    turn.learned = turn.engine.learning.record_refusal(llm, counted, refused.request.budget, refusal)
    turn.input_budget = step_down(min(refused.request.input_budget, counted))
    await build_prompt(turn)


# -- choosing a model --------------------------------------------------------------


def _find_stand_ins(turn: Turn, tried: Sequence[Responder]) -> list[Responder]:
    """Return the models that were not tried yet and may be called, in order.

    A caller's own key is sent only to the provider that it was meant for.
    """
    place = get_upstream_origin(turn.responders[0].llm.client)
    handed = bool(turn.request.headers)
    return [
        responder
        for responder in turn.responders
        if not any(responder is one for one in tried)
        and (not handed or (place is not None and get_upstream_origin(responder.llm.client) == place))
    ]


def _is_available(turn: Turn, responder: Responder) -> bool:
    return turn.roster.find_upstream(responder.llm).is_available(turn.engine.clock())


async def _has_more_room(turn: Turn, responder: Responder, own: Responder, refusal: ContextTooLong) -> bool:
    """Return True if the context window of `responder` is larger than that of `own`, which refused every prompt as too long."""
    window = refusal.context_limit or own.llm.compute_budget().context_window
    return responder.llm.compute_budget(learned=await turn.engine.learning.get(responder.llm)).context_window > window


async def _build_for(turn: Turn, responder: Responder) -> HoldfastError | None:
    await _speak_as(turn, responder)
    try:
        check_body(responder, turn.request.body, turn.learned)
        if turn.request.api == "anthropic" != responder.llm.dialect:
            check_native_fields(turn.request.body, responder.llm.name)
        await build_prompt(turn)
    except (BudgetTooSmall, InvalidRequest) as exc:
        return exc
    return None


async def _speak_as(turn: Turn, responder: Responder) -> None:
    turn.speak_as(responder, await turn.engine.learning.get(responder.llm))


def _note_failed(turn: Turn, responder: Responder, code: str, status: int | None) -> None:
    """Add a model that did not answer to the failures that the response reports, once per model, code and status."""
    failure = {"model": responder.llm.name, "code": code, "status": status}
    if failure not in turn.failed:
        turn.failed.append(failure)


def _copy_error(error: HoldfastError, message: str | None = None) -> HoldfastError:
    """Return a copy of an error without its traceback. If a `message` is given, it replaces the error's own message."""
    made: Any = type(error).__new__(type(error), str(error) if message is None else message)
    vars(made).update(vars(error))
    return made  # type: ignore[no-any-return]


_STATUS: Final = frozenset({400, 415, 422})
_SCAN_CHARS: Final = 4_000
"""Number of characters of an error that are searched for the position of a message."""
_NAMED: Final = re.compile(r"\bmessages(?:\.?\[|\.|', ?)(\d{1,6})\]?(?:[.\]', ]+content(?:\.?\[|\.|', ?)(\d{1,6}))?")
"""Pattern for the position of a message in an error text: `messages[3]` and `messages.[3].content.[0]` (OpenAI),
`messages.3.content.0` (Anthropic), and `'messages', 3, 'content'` (vLLM).
"""
_UNREADABLE: Final = "invalid_encrypted_content"
"""Code with which OpenAI refuses an item that another service encrypted."""
_CODE: Final = re.compile(r"[a-z0-9_.-]{3,60}", re.IGNORECASE)


class Refusals:
    """Leaves out the messages because of which providers refused a turn's prompts, if their errors name them."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._has_new = False
        """True if a message was left out that no answer has confirmed yet."""

    async def leave_out_refused(self, error: ModelError) -> bool:
        """Build the prompt again without the message that the error names. Return True if that was done.

        Return False if the error names no message, the current user message, or one that is left out already.
        """
        turn, self._has_new = self._turn, False
        left_out = turn.without.setdefault(turn.request.responder.llm.name, {})
        if not isinstance(error, ModelRejected) or error.status not in _STATUS or len(left_out) >= REFUSED_A_TURN:
            return False
        seq = await self._find_named(error)
        if seq is None or seq in left_out:
            return False
        left_out[seq] = _read_reason(error)
        self._has_new = True
        await build_prompt(turn)
        return True

    async def confirm(self) -> None:
        """Record in the log which messages the model refused. Called when the model answered a call without them.

        An error while recording is only logged.
        """
        if not self._has_new:
            return
        self._has_new = False
        turn, name = self._turn, self._turn.request.responder.llm.name
        for seq, reason in turn.without[name].items():
            try:
                await self._record_refusal(seq, name, reason)
            except HoldfastError as exc:
                _log.warning(
                    "message %d of session %r: its refusal could not be recorded: %s", seq, turn.request.ref.id, exc
                )

    async def _record_refusal(self, seq: int, upstream: str, reason: str) -> None:
        turn = self._turn
        ref, store = turn.request.ref, turn.engine.store
        found = await store.entries(ref, start=seq, stop=seq + 1)
        known = read_refusals(found[0].metadata) if found else {}
        if not found or upstream in known:
            return
        await store.annotate(ref, seq, refused_by={**known, upstream: reason})
        turn.engine.warm.forget(ref)
        message = (
            f"message {seq} is left out of prompts for {upstream}: the provider refused it ({reason}). "
            f"It stays in the log; set its refused_by to [] to send it again."
        )
        turn.warnings.add(TurnWarning("message_left_out", message))

    async def _find_named(self, error: ModelRejected) -> int | None:
        """Return the `seq` of the message that an error names; None if it names none, several, or the current user message."""
        built = self._turn.working_set
        assert built is not None, "a prompt was refused"
        seqs, item = built.list_seqs(), built.window.compacting
        if item is not None and (error.body or {}).get("code") == _UNREADABLE:
            return item if item in seqs else None
        found = _NAMED.search(_read_words(error))
        if found is None:
            return None
        places = await self._find_places(int(found[1]), None if found[2] is None else int(found[2]))
        named = {seq for at in places if at < len(seqs) and (seq := seqs[at]) is not None}
        (only,) = named if len(named) == 1 else (None,)
        return None if only == built.window.current else only

    async def _find_places(self, at: int, block: int | None) -> Sequence[int]:
        """Return the indexes of the messages in the working set that were sent as the upstream's message number `at`."""
        turn = self._turn
        built, llm = turn.working_set, turn.request.responder.llm
        assert built is not None, "a prompt was refused"
        if llm.dialect == "anthropic":
            made = map_blocks(built.messages)
            if at >= len(made):
                return ()
            return made[at] if block is None or block >= len(made[at]) else made[at][block : block + 1]
        prepared = await to_sendable(turn.engine, turn.request.ref, llm, built)
        profile = get_profile(llm.client)
        sent = (
            fit_messages(prepared, profile, llm.model)
            if profile
            else [(one, [place]) for place, one in enumerate(prepared)]
        )
        places, own = list[int](), -1
        for message in prepared:
            own += not _is_moved(message)
            places.append(own)
        return [places[place] for place in sent[at][1]] if at < len(sent) else ()


def _is_moved(message: dict[str, Any]) -> bool:
    """Return True if a sent message contains only media from tool results, which are sent as a separate message."""
    content = message.get("content")
    first = content[0] if message["role"] == "user" and isinstance(content, list) and content else {}
    return str(first.get("text", "")).startswith(FROM_RESULT.partition("{")[0])


def _read_words(error: ModelError) -> str:
    body = msgspec.json.encode(error.body).decode() if error.body else ""
    param = error.body.get("param") if error.body else None
    return f"{param or ''} {str(error)[:_SCAN_CHARS]} {body[:_SCAN_CHARS]}"


def _read_reason(error: ModelError) -> str:
    """Return the status and the code of an error.

    The upstream's own message is not used, because it may quote the conversation or contain the upstream's address.
    """
    labels = [error.body.get(key) for key in ("code", "type")] if error.body else []
    code = next((label for label in labels if isinstance(label, str) and _CODE.fullmatch(label)), None)
    return f"{error.status} {code}" if code else f"{error.status}"
