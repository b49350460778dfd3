"""One call of a model: sent, sent again smaller or to another model where that helps, and written down with its hash."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any

import msgspec

from holdfast.context.explain import encode_record
from holdfast.domain.session import ModelCall, Session
from holdfast.engine.session_lock import END
from holdfast.errors import InvalidRequest, ModelError
from holdfast.models import Call, closing, opening, used
from holdfast.turns.failover import Recovery
from holdfast.turns.prompting import sendable
from holdfast.turns.turn import Turn
from holdfast.turns.voice_records import addressed
from holdfast.wire.anthropic_others import fields_for_others

_log = logging.getLogger("holdfast.models")
PROGRESS = "include_progress"
"""What asks in a request's `stream_options` to be told what the tools are doing; it does not travel upstream."""
_MODEL_NAME = 100
"""Characters of a model's name, as it tells it, that are recorded."""


async def call_model(turn: Turn) -> AsyncGenerator[dict[str, Any], None]:
    """Call the model; its chunks as they come.

    A prompt that it finds too long is built smaller and sent again; where it does not answer, those that stand in for it are
    asked. Once something of the reply was said, neither is done.

    Raises:
        ContextTooLong: it found every prompt too long; says which were tried.
        ModelError: nobody answered, or not to the end.
        InvalidRequest: the model's client cannot send the request.
    """
    recovery = Recovery(turn)
    while True:
        await turn.lock.interruptible(recovery.settled)
        call, began = turn.roster.upstream(turn.request.voice.llm).begin(turn.engine.clock()), False
        try:
            async with closing(_called(turn)) as called, closing(opening(called)) as chunks:
                async for chunk in chunks:
                    if not began:
                        began = True
                        call.answered()
                        await recovery.refusals.confirm()
                    yield chunk
            return
        except (ModelError, InvalidRequest) as exc:
            _note(turn, call, exc)
            if began:
                raise
            told = await turn.lock.interruptible(partial(recovery.recovered, exc))
            try:
                if told is exc:
                    raise
                if told is not None:
                    raise told from exc
            finally:
                del told  # else this frame and the error hold each other, and the prompt with them
        finally:
            call.over()


def _note(turn: Turn, call: Call, error: ModelError | InvalidRequest) -> None:
    """Log a failure, without the upstream's words: they may quote what was said. And remember it of the upstream."""
    if not isinstance(error, ModelError):
        return
    now = turn.engine.clock()
    call.failed(error, now)
    fields: dict[str, Any] = {"llm": call.upstream.name, "model": turn.request.voice.llm.model, "code": error.code}
    fields |= {"status": error.status, "seconds": round((now - call.started) / 1000, 3)}
    _log.warning("a model did not answer", extra={"fields": fields})


async def _called(turn: Turn) -> AsyncGenerator[dict[str, Any], None]:
    """One call with the working set."""
    assert turn.working_set is not None, "the working set is built first"
    llm = turn.request.voice.llm
    asked = turn.request.body
    if turn.request.api != llm.dialect == "openai":
        asked = fields_for_others(asked, llm.model)
    body = {**llm.params, **turn.request.voice.tools.offered(asked)}
    if turn.tool_choice is not None:
        body["tool_choice"] = turn.tool_choice
    if isinstance(options := body.get("stream_options"), Mapping):
        body["stream_options"] = {name: value for name, value in options.items() if name != PROGRESS}
    body["model"] = llm.model
    body["messages"] = await sendable(turn.engine, turn.request.ref, llm, turn.working_set)
    if llm.max_tokens is not None and not {"max_tokens", "max_completion_tokens"} & body.keys():
        body["max_tokens"] = llm.max_tokens
    if llm.cache_key:
        body.setdefault("prompt_cache_key", cache_key(turn.session))
    tail = turn.session.tail
    body = addressed(body, llm, turn.working_set, turn_id=tail.turn_id, now=turn.engine.clock)
    try:
        async with closing(llm.client.stream(body, headers=turn.request.headers or None)) as chunks:
            while (chunk := await turn.lock.read(chunks)) is not END:
                yield chunk
    except ModelError as exc:
        exc.handed = bool(turn.request.headers)
        raise


def made_call(turn: Turn, model: object, usage: object) -> ModelCall:
    """What a call was sent, and what it used as far as the provider says."""
    built = turn.working_set
    assert built is not None, "the working set is built first"
    tokens = used(usage)
    if tokens.prompt_tokens:
        turn.learned = turn.engine.learning.reported(turn.request.voice.llm, built.total_tokens, tokens.prompt_tokens)
    return ModelCall(
        model=str(model or turn.request.voice.llm.model)[:_MODEL_NAME],
        timestamp=turn.engine.clock(),
        prompt_tokens=tokens.prompt_tokens,
        completion_tokens=tokens.completion_tokens,
        cached_tokens=tokens.cached_tokens,
        turn_id=turn.session.tail.turn_id,
        through=built.through,
        view=turn.key,
        hash=bytes.fromhex(built.hash),
        build=encode_record(built.record()),
    )


def cache_key(session: Session) -> str:
    """Names a session's prompts to a provider's cache without naming tenant, user or session."""
    said = msgspec.json.encode([session.tenant, session.user_id, session.id])
    return f"hf-{hashlib.blake2b(said, digest_size=16).hexdigest()}"
