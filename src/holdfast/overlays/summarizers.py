"""Writes summaries: with a model, in as many calls as its window requires, or with a user-defined function."""

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
from holdfast.context.cut import Count
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
from holdfast.domain.messages import Message
from holdfast.errors import ContextTooLong, InvalidRequest, ModelError, ModelRejected, ModelUnavailable
from holdfast.models import Collector, closing, read_usage
from holdfast.wire.openai import to_chat_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_log = logging.getLogger("holdfast.compacting")
_CHUNK_LEAST: Final = 128
"""Minimum number of tokens of the conversation that a summarizer must be able to read at once."""
_OWN_SHARE: Final = 0.25
"""Maximum share of a model's input that a summary may have: the model reads the previous one along with the conversation."""
_SMALLER: Final = 3
"""How often chunks are halved because the model found one too long."""
_RUNAWAY: Final = 24
"""Characters per allowed token after which an answer is cut off."""
_ERROR_CHARS: Final = 400
"""Maximum length of a model's own message in the record of a failure."""

Writer = Llm | Summarizer
"""A model or a function that writes summaries."""


class SummaryError(Exception):
    """A summary could not be written.

    Args:
        reason: One word, used for counts.
        message: Description of the failure, without content of the conversation.
        pause: Seconds that the model asked to wait.
    """

    def __init__(self, reason: str, message: str, *, pause: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.pause = pause


class SummaryInput(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a summarizer, and the maximum length of the summary."""

    units: Sequence[Unit]
    earlier: str | None
    """The previous summary, to be included in the new one."""
    tokens: int
    """Maximum length of the summary, measured by `count`."""
    count: Count
    """The view's counter."""
    prompt: str = PROMPT


class SummaryCost(msgspec.Struct):
    """Cost of a summary so far, including failed calls."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0


class Draft(msgspec.Struct, frozen=True):
    """A summary that passed the checks."""

    text: str
    chunks: int
    """Number of parts in which the source was read."""
    cut: bool
    """True if the summary was too long and had to be cut."""


async def write_summary(writer: Writer, reading: SummaryInput, spent: SummaryCost, *, seconds: float) -> Draft:
    """Return a summary of `reading`.

    Args:
        writer: The model or function.
        reading: Input of the summary.
        spent: Updated with the cost of all calls, even if the summary fails.
        seconds: Timeout of one call.

    Raises:
        SummaryError: No usable summary was written.
    """
    if isinstance(writer, Summarizer):
        return await _write_by_function(writer, reading, spent, seconds)
    most = _compute_chunk_tokens(writer, reading)
    for _ in range(_SMALLER):
        parts = await run_cpu(_split_source, writer, reading, most)
        try:
            return await _write_by_model(writer, reading, parts, spent, seconds)
        except ContextTooLong as exc:
            known = exc.context_limit
            most = min(most // 2, most if known is None else _compute_chunk_tokens(writer, reading, window=known))
            if most < _CHUNK_LEAST:
                break
    raise SummaryError("rejected", f"{writer.model} rejects even {most:,} tokens of the conversation as too long")


def compute_summary_tokens(writer: Writer, tokens: int) -> int:
    """Return the maximum tokens of a summary: `tokens`, or less if the window of the summarizing model is small."""
    if isinstance(writer, Summarizer):
        return tokens
    try:
        return max(1, min(tokens, int(_OWN_SHARE * writer.compute_budget(tools=False).counted)))
    except InvalidRequest:
        return tokens  # no room at all: `compute_capacity` reports that


def compute_capacity(writer: Writer, reading: SummaryInput, calls: int) -> int | None:
    """Return the tokens, by the writer's counter, that so many calls can read; None if there is no limit."""
    return None if isinstance(writer, Summarizer) else calls * _compute_chunk_tokens(writer, reading)


def _compute_chunk_tokens(llm: Llm, reading: SummaryInput, *, window: int | None = None) -> int:
    """Return the tokens of the conversation that a call can read in addition to the task, an earlier summary and a first answer."""
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
    """Split the source into the parts of each call. Run it in a thread, because counting may take long."""
    return join_chunks(list(iter_records(reading.units)), tokens, llm.counter)


async def _write_by_model(
    llm: Llm, reading: SummaryInput, texts: Sequence[str], spent: SummaryCost, seconds: float
) -> Draft:
    """Summarize all parts in order, each together with the summary of the previous ones."""
    earlier, cut = reading.earlier, False
    for text in texts:
        task = Task(text=text, earlier=earlier, tokens=reading.tokens, prompt=reading.prompt)
        earlier, cut = await _summarize_part(llm, task, reading.count, spent, seconds)
    return Draft(earlier or "", len(texts), cut)


async def _summarize_part(llm: Llm, task: Task, count: Count, spent: SummaryCost, seconds: float) -> tuple[str, bool]:
    """Return the answer to one task, and whether it had to be cut. An answer that is too long is rewritten once."""
    answer = await _require_flawless(await _call_model(llm, task.messages, task.tokens, spent, seconds), task, count)
    if count.text(answer) <= task.tokens:
        return answer, False
    again = await _call_model(llm, task.make_shorter_messages(answer), task.tokens, spent, seconds)
    if await _find_flaw(again, task, count) is None and count.text(again.text) < count.text(answer):
        answer = again.text
    return cut_to_fit(answer, task.tokens, count.text), count.text(answer) > task.tokens


async def _find_flaw(answer: Answer, task: Task, count: Count) -> Flaw | None:
    """Return the flaw of an answer, if any. Runs in a thread if necessary, because the whole source is read."""
    return await run_cpu(find_flaw, answer, task, count)


async def _require_flawless(answer: Answer, task: Task, count: Count) -> str:
    flaw = await _find_flaw(answer, task, count)
    if flaw is not None:
        raise SummaryError(flaw, _WRONG[flaw])
    return answer.text


_WRONG: Final[Mapping[str, str]] = {
    "empty": "the summary is empty",
    "cut_off": "the summary was cut off at the model's maximum reply length",
    "filtered": "the provider's content filter withheld the summary",
    "tool_calls": "the summarizer called a tool instead of writing",
    "refusal": "the summarizer refused to write",
    "echo": "the summarizer repeated its task",
    "nonsense": "the answer has nothing in common with what it should summarize",
    "vacuous": "the summary contains almost nothing of what it should summarize",
    "too_long": "the summary is longer than its source",
}


async def _call_model(
    llm: Llm, messages: list[dict[str, Any]], tokens: int, spent: SummaryCost, seconds: float
) -> Answer:
    """Call the model once and return its answer."""
    body: dict[str, Any] = {**llm.params, "model": llm.model, "messages": messages}
    if llm.max_tokens is not None:
        body.setdefault("max_tokens", llm.max_tokens)
    collector, chars, runaway = Collector(), 0, False
    async with _convert_errors(llm.model, seconds), closing(llm.client.stream(body)) as stream:
        async for chunk in stream:
            collector.add(chunk)
            chars += sum(len(str((choice.get("delta") or {}).get("content") or "")) for choice in _list_choices(chunk))
            if chars > tokens * _RUNAWAY:
                runaway = True
                break
    answer = _parse_answer(collector.build_partial(), runaway=runaway)
    spent.calls += 1
    spent.prompt_tokens += answer.prompt_tokens
    spent.completion_tokens += answer.completion_tokens
    return answer


def _list_choices(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = chunk.get("choices")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _parse_answer(completion: Mapping[str, Any], *, runaway: bool) -> Answer:
    choice: Mapping[str, Any] = next(iter(completion.get("choices") or []), {})
    message, tokens = choice.get("message") or {}, read_usage(completion.get("usage"))
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return Answer(
        clean_answer(content if isinstance(content, str) else ""),
        None if runaway else choice.get("finish_reason"),
        bool(message.get("tool_calls")),
        tokens.prompt_tokens,
        tokens.completion_tokens,
    )


# -- by a function -----------------------------------------------------------


async def _write_by_function(writer: Summarizer, reading: SummaryInput, spent: SummaryCost, seconds: float) -> Draft:
    """Return the summary of a user-defined function, checked like a model's answer."""
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
    """Call a summarizer function: directly if it is asynchronous, else in a thread, because it may block."""

    def call() -> Any:
        return writer.write(messages, earlier=earlier, tokens=tokens)

    if inspect.iscoroutinefunction(writer.write):
        return await call()
    result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def _convert_errors(name: str, seconds: float) -> AsyncIterator[None]:
    """Convert the errors of a call to `SummaryError`, except `ContextTooLong`, which the caller handles."""
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
