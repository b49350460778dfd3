"""Make one model call: send the prompt, repeat the call if that helps, and record the call with the prompt's hash.

    build_call -> (settle -> call -> recover)*

**Failover.** Before any part of a reply was received, a prompt that is too long is built smaller, and a model that does
not answer is replaced by a fallback. A prompt is built with a cached state (a view), which depends on the model's
context window, token counter and API. So each model has a separate view, and the prompt for a fallback neither uses nor
changes the view of the usual model.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from holdfast import faults
from holdfast.agents import Responder
from holdfast.domain.budget import step_down
from holdfast.domain.session import ModelCall, Session
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
from holdfast.limits import MODEL_TRAILING_CHUNKS
from holdfast.log.items import Delta, has_content
from holdfast.models.base import ModelRequest, closing
from holdfast.models.codecs.messages.betas import check_native_fields
from holdfast.models.codecs.messages.foreign import convert_fields
from holdfast.models.collect import TokenUsage, read_usage
from holdfast.models.deltas import stream_deltas
from holdfast.models.failures import make_too_long_error
from holdfast.models.health import Call
from holdfast.models.limited import get_upstream_origin
from holdfast.turns.interruptions import address_model
from holdfast.turns.prompt import add_tools, build_prompt, check_body, to_sendable
from holdfast.turns.refusals import Refusals
from holdfast.turns.turn import Turn, TurnWarning

_log = logging.getLogger("holdfast.models")
PROGRESS = "include_progress"
"""Option in a request's `stream_options` that asks for reports on the progress of tools. It is not sent upstream."""
_OF_CACHE: Final = ("prompt_cache_key", "prompt_cache_retention")
"""Fields of requests that only upstreams with OpenAI's prompt cache know."""
_MODEL_NAME = 100
"""Maximum length in characters of the model's name, as the provider reports it, in a call's record."""


Receive = Callable[[list[Delta]], Awaitable[bool]]
"""Function that is called with the deltas of each event of a model. It returns True if the rest of the reply is not needed."""


async def call_model(turn: Turn, receive: Receive) -> None:
    """Call the model, and pass on the deltas of its reply as they arrive.

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
        call = turn.roster.find_upstream(turn.request.responder.llm).begin(turn.engine.clock())
        try:
            await turn.lock.run_in_task(partial(_read_reply, turn, call, recovery, receive))
            await faults.hit("after-model-reply")
            return
        except (ModelError, InvalidRequest) as exc:
            _record_failure(turn, call, exc)
            if call.is_answered:
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


async def _read_reply(turn: Turn, call: Call, recovery: Recovery, receive: Receive) -> None:
    """Send a request to the model, and pass on the deltas of its reply.

    Events before the first one with content are held back: some upstreams send a role, or a filter's verdict, before
    they find that a prompt is too long.
    """
    client, request = turn.request.responder.llm.client, await _build_request(turn)
    recovery.refusals.request = request
    await faults.hit("before-model-call")
    async with closing(stream_deltas(client, request, headers=turn.request.headers or None)) as stream:
        opening: list[list[Delta]] = []
        async for deltas in stream:
            opening.append(deltas)
            if has_content(deltas) or len(opening) >= MODEL_TRAILING_CHUNKS:
                break
        if opening:
            call.record_answer()
            if recovery.has_changes:
                await turn.settle(recovery.confirm())
        for deltas in opening:
            await receive(deltas)
        async for deltas in stream:
            if await receive(deltas):
                break


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


async def _build_request(turn: Turn) -> ModelRequest:
    """Return the request of the next model call."""
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
    if llm.max_tokens is not None and not {"max_tokens", "max_completion_tokens"} & body.keys():
        body["max_tokens"] = llm.max_tokens
    profile = turn.roster.find_profile(llm, turn.engine.clock())
    if profile.cache_key:
        body.setdefault("prompt_cache_key", turn.request.cache_key or make_cache_key(turn.session))
    left_out = _OF_CACHE if profile.cache_key is False else ()
    body = {name: value for name, value in body.items() if name not in ("messages", *left_out)}
    messages = await to_sendable(turn.engine, turn.request.ref, llm, turn.working_set)
    request = ModelRequest(messages, body, profile, turn.working_set.view.prefix_tracker)
    return address_model(request, llm, turn.working_set, turn_id=turn.session.tail.turn_id, now=turn.engine.clock)


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
    responder, warm = turn.request.responder, turn.engine.warm.get(turn.request.ref)
    record, texts = built.encode_record(responder.context, responder.agent_name)
    stored = () if warm is None else warm.texts
    return _make_record(
        turn,
        model,
        tokens,
        through=built.through,
        view=turn.key,
        hash=bytes.fromhex(built.hash),
        build=record,
        built_at=built.version,
        texts=tuple([text for text in texts if text.id not in stored]),
    )


def make_further_call_record(turn: Turn, usage: object) -> ModelCall:
    """Return the record of a call that the program made without a working set. The record has no prompt, because it is unknown."""
    tokens = read_usage(usage)
    turn.engine.activity.count_further_call(tokens)
    return _make_record(turn, None, tokens)


def _make_record(turn: Turn, model: object, tokens: TokenUsage, **prompt: Any) -> ModelCall:
    return ModelCall(
        model=str(model or turn.request.responder.llm.model)[:_MODEL_NAME],
        timestamp=turn.engine.clock(),
        turn_id=turn.session.tail.turn_id,
        **tokens._asdict(),
        **prompt,
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

    @property
    def has_changes(self) -> bool:
        """True if the prompt was changed after a refusal."""
        return bool(self._refused) or self.refusals.has_news

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
        if isinstance(error, ModelError) and await self.refusals.heal(error):
            return None
        if isinstance(error, ContextTooLong):
            smaller = await self._make_smaller(error)
            if smaller is None:
                return None
            final = smaller
        return None if await self._ask_next(final) else self._explain_failure(final)

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
