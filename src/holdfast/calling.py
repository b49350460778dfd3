"""One call of a model: sent, made smaller where the provider finds it too long, and written down with its hash."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from holdfast.budget import STEP_DOWN
from holdfast.context.explain import encode_record
from holdfast.errors import BudgetTooSmall, ContextTooLong, InvalidRequest, ModelError
from holdfast.models import closing, given_up, opening
from holdfast.prompting import Turn, build_prompt, sendable
from holdfast.session import ModelCall, Session

STEPS_DOWN = 3
"""Times that a prompt is made smaller because the provider found it too long."""
PROGRESS = "include_progress"
"""What asks in a request's `stream_options` to be told what the tools are doing; it does not travel upstream."""
_MODEL_NAME = 100
"""Characters of a model's name, as it tells it, that are recorded."""


async def call_model(turn: Turn) -> AsyncGenerator[dict[str, Any], None]:
    """Call the model; its chunks as they come. A prompt that it finds too long is built smaller and sent again.

    Raises:
        ContextTooLong: it found every prompt too long; says which were tried.
        ModelError: it did not answer, or not to the end.
    """
    tried: list[int] = []
    while True:
        began = False
        try:
            async with closing(_called(turn)) as called, closing(opening(called)) as chunks:
                async for chunk in chunks:
                    began = True
                    yield chunk
            return
        except ContextTooLong as exc:
            if began:
                raise
            assert turn.working_set is not None, "a prompt was refused"
            tried.append(turn.working_set.total_tokens)
            if len(tried) > STEPS_DOWN:
                raise given_up(exc, tried) from exc
            await _step_down(turn, exc, tried)


async def _step_down(turn: Turn, refusal: ContextTooLong, tried: list[int]) -> None:
    """Build the prompt again: for what the refusal teaches of the window, and a tenth below the one that was refused."""
    refused, llm = turn.working_set, turn.request.voice.llm
    assert refused is not None, "a prompt was refused"
    assert refused.request.budget is not None, "a turn's prompt has a budget"
    counted = refused.total_tokens
    try:
        turn.learned = turn.engine.learning.refused(llm, counted, refused.request.budget, refusal)
        turn.input_budget = min(refused.request.input_budget, counted) * (100 - STEP_DOWN) // 100
        await build_prompt(turn)
    except (BudgetTooSmall, InvalidRequest):
        raise given_up(refusal, tried) from refusal


async def _called(turn: Turn) -> AsyncGenerator[dict[str, Any], None]:
    """One call with the working set."""
    assert turn.working_set is not None, "the working set is built first"
    llm = turn.request.voice.llm
    body = {**llm.params, **turn.request.voice.tools.offered(turn.request.body)}
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
    try:
        async with closing(llm.client.stream(body, headers=turn.request.headers or None)) as chunks:
            async for chunk in turn.hold.passed(chunks):
                yield chunk
    except ModelError as exc:
        exc.handed = bool(turn.request.headers)
        raise


def made_call(turn: Turn, model: object, usage: object) -> ModelCall:
    """What a call was sent, and what it used as far as the provider says."""
    built = turn.working_set
    assert built is not None, "the working set is built first"
    usage = usage if isinstance(usage, Mapping) else {}
    prompt_tokens = _whole_number(usage.get("prompt_tokens"))
    if prompt_tokens:
        turn.learned = turn.engine.learning.reported(turn.request.voice.llm, built.total_tokens, prompt_tokens)
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else 0
    return ModelCall(
        model=str(model or turn.request.voice.llm.model)[:_MODEL_NAME],
        timestamp=turn.engine.clock(),
        prompt_tokens=prompt_tokens,
        completion_tokens=_whole_number(usage.get("completion_tokens")),
        cached_tokens=_whole_number(cached),
        turn_id=turn.session.tail.turn_id,
        through=built.through,
        view=turn.key,
        hash=bytes.fromhex(built.hash),
        build=encode_record(built.record()),
    )


def _whole_number(value: Any) -> int:
    """A count as a provider reported it; nonsense is 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def cache_key(session: Session) -> str:
    """Names a session's prompts to a provider's cache without naming tenant, user or session."""
    said = msgspec.json.encode([session.tenant, session.user_id, session.id])
    return f"hf-{hashlib.blake2b(said, digest_size=16).hexdigest()}"
