"""Write summaries with a user-defined function, with a model, or as a digest without a model.

If the messages do not fit into the model's context window, the model is called for one part after the other.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Llm, Summarizer
from holdfast.context.summaries import (
    PROMPT,
    Answer,
    Flaw,
    Task,
    clean_answer,
    cut_to_fit,
    find_flaw,
    iter_records,
    join_chunks,
)
from holdfast.context.units import Unit, list_messages
from holdfast.domain.counting import TokenCounter
from holdfast.domain.messages import Message
from holdfast.errors import ContextTooLong, InvalidRequest, ModelError, ModelRejected, ModelUnavailable
from holdfast.log.items import get_text
from holdfast.models.base import closing
from holdfast.models.codecs.chat import decode_request
from holdfast.models.collect import Collector, read_usage
from holdfast.models.deltas import stream_deltas
from holdfast.wire.openai import to_chat_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
from holdfast.context.digest.pool import EMPTY, fold, render
from holdfast.context.summaries import iter_identifiers, shorten
from holdfast.context.units import group_units
from holdfast.domain.log import extend
from holdfast.domain.session import NewEntry, Tail
from holdfast.tokens import STORED
from holdfast.wire.openai import parse_message

_log = logging.getLogger("holdfast.compacting")
_CHUNK_LEAST: Final = 128
"""Minimum tokens of the conversation that must fit into one call of a model."""
_OWN_SHARE: Final = 0.25
"""Maximum size of a summary, as a fraction of the model's input. The model must read the previous summary together with new messages."""
_SMALLER: Final = 3
"""Maximum number of attempts with smaller and smaller parts of the conversation, if the model rejects a part as too long."""
_RUNAWAY: Final = 24
"""Number of characters per allowed token of the answer after which the call is stopped, because the answer seems endless."""
_ERROR_CHARS: Final = 400
"""Maximum number of characters of a model's error message in the record of a failure."""

Writer = Llm | Summarizer
"""A model or a function that writes summaries."""


class SummaryError(Exception):
    """Raised if a summary could not be written.

    Args:
        reason: One word, by which failures are counted.
        message: Description of the failure. It must not contain content of the conversation.
        pause: Seconds that the model asked to wait before the next call, or None.
    """

    def __init__(self, reason: str, message: str, *, pause: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.pause = pause


class SummaryInput(msgspec.Struct, frozen=True, kw_only=True):
    """The messages to summarize, the previous summary, and the maximum length of the new summary."""

    units: Sequence[Unit]
    earlier: str | None
    """The previous summary, which the new one must include; None if there is none."""
    tokens: int
    """Maximum tokens of the new summary, counted by `count`."""
    count: TokenCounter
    """Token counter of the view."""
    prompt: str = PROMPT


class SummaryCost(msgspec.Struct):
    """Calls and tokens that a summary has cost so far, including failed calls."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0


class Draft(msgspec.Struct, frozen=True):
    """The text of a summary that has passed the checks."""

    text: str
    chunks: int
    """Number of parts into which the messages were divided for the model."""
    cut: bool
    """True if the summary was too long and its end was cut off."""


async def write_summary(writer: Writer, reading: SummaryInput, spent: SummaryCost, *, seconds: float) -> Draft:
    """Write a summary, check it, and return it.

    Args:
        writer: The model or function that writes the summary.
        reading: The messages to summarize.
        spent: The cost of all calls is added to this object, even if the summary fails.
        seconds: Maximum seconds of one call.

    Raises:
        SummaryError: No usable summary was written.
    """
    if isinstance(writer, Summarizer):
        return await _write_by_function(writer, reading, spent, seconds)
    most = _compute_chunk_tokens(writer, reading)
    for _ in range(_SMALLER):
        parts = await run_cpu(_split_source, writer, reading, most)
        try:
            earlier, cut = reading.earlier, False
            for text in parts:
                task = Task(text=text, earlier=earlier, tokens=reading.tokens, prompt=reading.prompt)
                earlier, cut = await _summarize_part(writer, task, reading.count, spent, seconds)
            return Draft(earlier or "", len(parts), cut)
        except ContextTooLong as exc:
            known = exc.context_limit
            most = min(most // 2, most if known is None else _compute_chunk_tokens(writer, reading, window=known))
            if most < _CHUNK_LEAST:
                break
    raise SummaryError("rejected", f"{writer.model} rejects even {most:,} tokens of the conversation as too long")


def compute_summary_tokens(writer: Writer, tokens: int) -> int:
    """Return the maximum tokens of a summary: `tokens`, or fewer if `writer` is a model with a small context window."""
    if isinstance(writer, Summarizer):
        return tokens
    try:
        return max(1, min(tokens, int(_OWN_SHARE * writer.compute_budget(tools=False).counted)))
    except InvalidRequest:
        return tokens  # the window has no space for a prompt, which `compute_capacity` reports


def compute_capacity(writer: Writer, reading: SummaryInput, calls: int) -> int | None:
    """Return the maximum tokens of the conversation that a writer can read in `calls` calls, or None if there is no limit.

    The writer's own token counter is used.

    Raises:
        SummaryError: The context window of the model is too small.
    """
    return None if isinstance(writer, Summarizer) else calls * _compute_chunk_tokens(writer, reading)


def _compute_chunk_tokens(llm: Llm, reading: SummaryInput, *, window: int | None = None) -> int:
    """Return the maximum tokens of the conversation that a model can read in one call.

    The rest of the context window is needed for the task, the previous summary, and a first answer that has to be shortened.

    Args:
        llm: The model.
        reading: Input of the summary.
        window: Size of the context window in tokens. None: the size in `llm`.

    Raises:
        SummaryError: The context window is too small.
    """
    sized = msgspec.structs.replace(llm, context_window=window) if window is not None else llm
    task = Task(text="", earlier="", tokens=reading.tokens, prompt=reading.prompt)
    counter = llm.counter
    task_tokens = sum(
        counter.message(Message(role=one["role"], content=one["content"])) for one in task.make_shorter_messages("")
    )
    earlier = max(reading.tokens, counter.text(reading.earlier or ""))
    try:
        left = sized.compute_budget(tools=False).counted - task_tokens - earlier - reading.tokens
    except InvalidRequest as exc:
        raise SummaryError("window", f"{llm.model} has no room for a prompt: {exc}") from exc
    if left < _CHUNK_LEAST:
        raise SummaryError(
            "window", f"the window of {llm.model} is too small to write summaries of {reading.tokens:,} tokens"
        )
    return left


# -- by a model --------------------------------------------------------------


def _split_source(llm: Llm, reading: SummaryInput, tokens: int) -> list[str]:
    """Divide the messages into texts of at most `tokens` tokens, one for each call. Run it in a thread, because counting may take long."""
    return join_chunks(list(iter_records(reading.units)), tokens, llm.counter)


async def _summarize_part(
    llm: Llm, task: Task, count: TokenCounter, spent: SummaryCost, seconds: float
) -> tuple[str, bool]:
    """Return the summary of one text, and True if its end was cut off.

    If the first answer is too long, the model is asked once to shorten it.
    """
    answer = await _require_flawless(await _call_model(llm, task.messages, task.tokens, spent, seconds), task, count)
    if count.text(answer) <= task.tokens:
        return answer, False
    again = await _call_model(llm, task.make_shorter_messages(answer), task.tokens, spent, seconds)
    if await _find_flaw(again, task, count) is None and count.text(again.text) < count.text(answer):
        answer = again.text
    return cut_to_fit(answer, task.tokens, count.text), count.text(answer) > task.tokens


async def _find_flaw(answer: Answer, task: Task, count: TokenCounter) -> Flaw | None:
    """Return the flaw that makes an answer unusable, or None if the answer is usable.

    The check compares the answer with the whole source, so it runs in a thread if the source is long.
    """
    return await run_cpu(find_flaw, answer, task, count)


async def _require_flawless(answer: Answer, task: Task, count: TokenCounter) -> str:
    flaw = await _find_flaw(answer, task, count)
    if flaw is not None:
        raise SummaryError(flaw, _WRONG[flaw])
    return answer.text


_WRONG: Final[Mapping[str, str]] = {
    "empty": "the summary is empty",
    "cut_off": "the summary was cut off at the model's maximum reply length",
    "thinking": "the answer is only reasoning, without a summary",
    "filtered": "the provider's content filter withheld the summary",
    "tool_calls": "the summarizer wrote a tool call instead of a summary",
    "refusal": "the summarizer refused to write",
    "echo": "the summarizer repeated its task",
    "repetition": "the answer repeats itself",
    "nonsense": "the answer has nothing in common with what it should summarize",
    "vacuous": "the summary contains almost nothing of what it should summarize",
    "too_long": "the summary is longer than its source",
}


async def _call_model(
    llm: Llm, messages: list[dict[str, Any]], tokens: int, spent: SummaryCost, seconds: float
) -> Answer:
    """Call the model once, and return its answer. The cost of the call is added to `spent`."""
    body: dict[str, Any] = {**llm.params, "model": llm.model, "messages": messages}
    if llm.max_tokens is not None:
        body.setdefault("max_tokens", llm.max_tokens)
    request = decode_request(body)
    collector, chars, runaway = Collector(), 0, False
    async with _convert_errors(llm.model, seconds), closing(stream_deltas(llm.client, request)) as stream:
        async for deltas in stream:
            collector.add(deltas)
            chars += len(get_text(deltas))
            if chars > tokens * _RUNAWAY:
                runaway = True
                break
        reply = collector.build_message()
    usage = read_usage(collector.usage)
    spent.calls += 1
    spent.prompt_tokens += usage.prompt_tokens
    spent.completion_tokens += usage.completion_tokens
    finish = None if runaway else collector.finish_reason
    return Answer(clean_answer(reply.text), finish, bool(reply.tool_calls))


# -- by a function -----------------------------------------------------------


async def _write_by_function(writer: Summarizer, reading: SummaryInput, spent: SummaryCost, seconds: float) -> Draft:
    """Let a user-defined function write the summary. Its result is checked like the answer of a model."""
    messages = [to_chat_message(message) for unit in reading.units for _, message in list_messages(unit)]
    text = "\n".join(iter_records(reading.units))
    task = Task(text=text, earlier=reading.earlier, tokens=reading.tokens, prompt=reading.prompt)
    async with _convert_errors(writer.name, seconds):
        summary = await call_summarizer(writer, messages, earlier=reading.earlier, tokens=reading.tokens)
    spent.calls += 1
    if not isinstance(summary, str):
        raise SummaryError(
            "nonsense", f"the summarizer {writer.name} returned {type(summary).__name__} instead of a string"
        )
    answer = await _require_flawless(Answer(clean_answer(summary)), task, reading.count)
    return Draft(cut_to_fit(answer, reading.tokens, reading.count.text), 1, reading.count.text(answer) > reading.tokens)


async def call_summarizer(
    writer: Summarizer, messages: list[dict[str, Any]], *, earlier: str | None, tokens: int
) -> Any:
    """Call a summarizer function, and return its result. A function that is not asynchronous runs in a thread, because it may block."""

    def call() -> Any:
        return writer.write(messages, earlier=earlier, tokens=tokens)

    if inspect.iscoroutinefunction(writer.write):
        return await call()
    result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def _convert_errors(name: str, seconds: float) -> AsyncIterator[None]:
    """Convert errors inside the `async with` block to `SummaryError`, and stop the block after `seconds`.

    `ContextTooLong` is not converted, because the caller handles it.

    Args:
        name: Name of the model or function, for messages.
        seconds: Maximum seconds of the call.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as exc:
        raise SummaryError("timeout", f"{name} did not answer within {seconds:g} s") from exc
    except (SummaryError, ContextTooLong):
        raise
    except ModelError as exc:
        reason = "unavailable" if isinstance(exc, ModelUnavailable) else "failed"
        reason = "rejected" if isinstance(exc, ModelRejected) else reason
        raise SummaryError(reason, str(exc)[:_ERROR_CHARS], pause=exc.retry_after) from exc
    except Exception as exc:
        # User-defined code: its error message may contain anything.
        _log.warning("a summarizer failed", exc_info=exc)
        raise SummaryError("failed", f"{name} failed: {type(exc).__name__}") from exc


_EARLIER: Final = 0.5
"""Largest share of a summary that the text of the previous one may take."""
_CHARS_A_TOKEN: Final = 3
"""Characters that are kept for each token if the messages have no facts."""


def write_digest(messages: Sequence[Mapping[str, Any]], *, earlier: str | None, tokens: int) -> str:
    """Return the facts of messages, after the previous summary. The arguments are those of `Summarizer.write`."""
    parsed = [parse_message(message) for message in messages]
    new = [NewEntry(message=one, tokens=STORED.message(one), timestamp=0) for one in parsed]
    entries, tail = extend(Tail(), new)
    units = group_units(entries)
    kept = _keep_lines(earlier, int(_EARLIER * tokens)) if earlier else []
    room = max(1, tokens - STORED.text("\n".join(kept)) - 1)
    page = render(fold(EMPTY, units, room=room), room, first=0, last=max(0, tail.last_seq), count=STORED)
    lines = page.splitlines()[1:-1] or [shorten("\n".join(iter_records(units)), _CHARS_A_TOKEN * room)]
    return cut_to_fit("\n".join([*kept, *lines]), tokens, STORED.text)


def _keep_lines(earlier: str, tokens: int) -> list[str]:
    """Return those lines of an earlier summary that have most identifiers, in their order, with at most `tokens` tokens. Newer lines win."""
    lines = earlier.splitlines()
    ranked = sorted(range(len(lines)), key=lambda at: (min(3, len(set(iter_identifiers(lines[at])))), at), reverse=True)
    kept: list[int] = []
    for at in ranked:
        tokens -= STORED.text(lines[at]) + 1
        if tokens < 0:
            break
        kept.append(at)
    return [lines[at] for at in sorted(kept)]


DIGEST: Final = Summarizer("digest", write_digest)
"""Writes summaries of sessions whose strategy has no model for them."""
