"""Who writes a summary: a model, in as many calls as its window asks for, or somebody's own function."""

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
from holdfast.context.summaries import PROMPT, Answer, Flaw, Task, chunks, cleaned, fitted, flaw, records
from holdfast.context.units import Unit, spoken
from holdfast.domain.messages import Message
from holdfast.errors import ContextTooLong, InvalidRequest, ModelError, ModelRejected, ModelUnavailable
from holdfast.models import Collector, closing, read_usage
from holdfast.wire.openai import message_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_log = logging.getLogger("holdfast.compacting")
_CHUNK_LEAST: Final = 128
"""Tokens of the conversation that a summarizer has to have room for at once."""
_OWN_SHARE: Final = 0.25
"""Part of a model's input that a summary by it may take: it reads the one before beside the conversation."""
_SMALLER: Final = 3
"""Times that chunks are made half as large because the model found one too long."""
_RUNAWAY: Final = 24
"""Characters of an answer for each token that it may have, at which it is not listened to any longer."""
_ERROR_CHARS: Final = 400
"""Characters of a model's own words in the record of a failure."""

Writer = Llm | Summarizer
"""Who can write a summary."""


class Unwritten(Exception):
    """There is no summary.

    Args:
        reason: one word, for counts.
        message: what happened, without content of the conversation.
        pause: seconds that the model asked to wait.
    """

    def __init__(self, reason: str, message: str, *, pause: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.pause = pause


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be summarized, and how long the summary may be."""

    units: Sequence[Unit]
    earlier: str | None
    """The summary before, which the new one takes in."""
    tokens: int
    """That the summary may have, by `count`."""
    count: Count
    """The view's counter."""
    prompt: str = PROMPT


class Spent(msgspec.Struct):
    """What a summary took so far, one that failed included."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0


class Draft(msgspec.Struct, frozen=True):
    """A summary that was found good."""

    text: str
    chunks: int
    """Parts that the source was read in."""
    cut: bool
    """Whether it stayed too long and was cut."""


async def write(writer: Writer, reading: Reading, spent: Spent, *, seconds: float) -> Draft:
    """Have a summary written.

    Args:
        writer: who writes.
        reading: what is read.
        spent: is added to, whatever comes of it.
        seconds: that one call may take.

    Raises:
        Unwritten: nothing came that can stand for the range.
    """
    if isinstance(writer, Summarizer):
        return await _by_function(writer, reading, spent, seconds)
    most = _chunk_tokens(writer, reading)
    for _ in range(_SMALLER):
        parts = await run_cpu(_parts, writer, reading, most)
        try:
            return await _by_model(writer, reading, parts, spent, seconds)
        except ContextTooLong as exc:
            known = exc.context_limit
            most = min(most // 2, most if known is None else _chunk_tokens(writer, reading, window=known))
            if most < _CHUNK_LEAST:
                break
    raise Unwritten("rejected", f"{writer.model} finds even {most:,} tokens of the conversation too long")


def allowed(writer: Writer, tokens: int) -> int:
    """Tokens that a summary may have: `tokens`, or less where the window of the model that writes it is small."""
    if isinstance(writer, Summarizer):
        return tokens
    try:
        return max(1, min(tokens, int(_OWN_SHARE * writer.compute_budget(tools=False).counted)))
    except InvalidRequest:
        return tokens  # there is no room for anything: `capacity` says so


def capacity(writer: Writer, reading: Reading, calls: int) -> int | None:
    """Tokens, by the writer's counter, that so many calls can read; None: any number, in one call."""
    return None if isinstance(writer, Summarizer) else calls * _chunk_tokens(writer, reading)


def _chunk_tokens(llm: Llm, reading: Reading, *, window: int | None = None) -> int:
    """Tokens of the conversation that the model can read beside its task, an earlier summary and a first answer."""
    sized = msgspec.structs.replace(llm, context_window=window) if window is not None else llm
    task = Task(text="", earlier="", tokens=reading.tokens, prompt=reading.prompt)
    counter = llm.counter
    said = sum(counter.message(Message(role=one["role"], content=one["content"])) for one in task.shorter(""))
    earlier = max(reading.tokens, counter.text(reading.earlier or ""))
    try:
        left = sized.compute_budget(tools=False).counted - said - earlier - reading.tokens
    except InvalidRequest as exc:
        raise Unwritten("window", f"{llm.model} has no room for a prompt: {exc}") from exc
    if left < _CHUNK_LEAST:
        raise Unwritten(
            "window", f"the window of {llm.model} is too small to write summaries of {reading.tokens:,} tokens"
        )
    return left


# -- by a model --------------------------------------------------------------


def _parts(llm: Llm, reading: Reading, tokens: int) -> list[str]:
    """What is read in each call. Counting takes long enough to keep others waiting, so it is done in a thread."""
    return chunks(list(records(reading.units)), tokens, llm.counter)


async def _by_model(llm: Llm, reading: Reading, texts: Sequence[str], spent: Spent, seconds: float) -> Draft:
    """The summary of all parts: each is read beside the summary of the ones before it."""
    earlier, cut = reading.earlier, False
    for text in texts:
        task = Task(text=text, earlier=earlier, tokens=reading.tokens, prompt=reading.prompt)
        earlier, cut = await _part(llm, task, reading.count, spent, seconds)
    return Draft(earlier or "", len(texts), cut)


async def _part(llm: Llm, task: Task, count: Count, spent: Spent, seconds: float) -> tuple[str, bool]:
    """The answer to one task, and whether it had to be cut: one that is too long may be written again once."""
    answer = await _good(await _asked(llm, task.messages, task.tokens, spent, seconds), task, count)
    if count.text(answer) <= task.tokens:
        return answer, False
    again = await _asked(llm, task.shorter(answer), task.tokens, spent, seconds)
    if await _flaw(again, task, count) is None and count.text(again.text) < count.text(answer):
        answer = again.text
    return fitted(answer, task.tokens, count.text), count.text(answer) > task.tokens


async def _flaw(answer: Answer, task: Task, count: Count) -> Flaw | None:
    """See `flaw`; it reads all of a source."""
    return await run_cpu(flaw, answer, task, count)


async def _good(answer: Answer, task: Task, count: Count) -> str:
    wrong = await _flaw(answer, task, count)
    if wrong is not None:
        raise Unwritten(wrong, _WRONG[wrong])
    return answer.text


_WRONG: Final[Mapping[str, str]] = {
    "empty": "the summary is empty",
    "cut_off": "the summary was cut off at the longest reply that the model may give",
    "filtered": "the provider's content filter kept the summary back",
    "tool_calls": "the summarizer called a tool instead of writing",
    "refusal": "the summarizer refused",
    "echo": "the summarizer repeated its task",
    "nonsense": "the answer has nothing of what it was to summarize",
    "vacuous": "the summary says next to nothing of what it was to summarize",
    "too_long": "the summary is longer than what it was to summarize",
}


async def _asked(llm: Llm, messages: list[dict[str, Any]], tokens: int, spent: Spent, seconds: float) -> Answer:
    """One call."""
    body: dict[str, Any] = {**llm.params, "model": llm.model, "messages": messages}
    if llm.max_tokens is not None:
        body.setdefault("max_tokens", llm.max_tokens)
    collector, chars, runaway = Collector(), 0, False
    async with _guarded(llm.model, seconds), closing(llm.client.stream(body)) as stream:
        async for chunk in stream:
            collector.add(chunk)
            chars += sum(len(str((choice.get("delta") or {}).get("content") or "")) for choice in _choices(chunk))
            if chars > tokens * _RUNAWAY:
                runaway = True
                break
    answer = _answer(collector.partial(), runaway=runaway)
    spent.calls += 1
    spent.prompt_tokens += answer.prompt_tokens
    spent.completion_tokens += answer.completion_tokens
    return answer


def _choices(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = chunk.get("choices")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _answer(completion: Mapping[str, Any], *, runaway: bool) -> Answer:
    choice: Mapping[str, Any] = next(iter(completion.get("choices") or []), {})
    message, tokens = choice.get("message") or {}, read_usage(completion.get("usage"))
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return Answer(
        cleaned(content if isinstance(content, str) else ""),
        None if runaway else choice.get("finish_reason"),
        bool(message.get("tool_calls")),
        tokens.prompt_tokens,
        tokens.completion_tokens,
    )


# -- by a function -----------------------------------------------------------


async def _by_function(writer: Summarizer, reading: Reading, spent: Spent, seconds: float) -> Draft:
    """What somebody's function makes of the messages; it is held to what a model's answer is held to."""
    messages = [message_to(message) for unit in reading.units for _, message in spoken(unit)]
    text = "\n".join(records(reading.units))
    task = Task(text=text, earlier=reading.earlier, tokens=reading.tokens, prompt=reading.prompt)
    async with _guarded(writer.name, seconds):
        said = await called(writer, messages, earlier=reading.earlier, tokens=reading.tokens)
    spent.calls += 1
    if not isinstance(said, str):
        raise Unwritten("nonsense", f"the summarizer {writer.name} gave {type(said).__name__}, not a text")
    answer = await _good(Answer(cleaned(said)), task, reading.count)
    return Draft(fitted(answer, reading.tokens, reading.count.text), 1, reading.count.text(answer) > reading.tokens)


async def called(writer: Summarizer, messages: list[dict[str, Any]], *, earlier: str | None, tokens: int) -> Any:
    """Call the function: an asynchronous one here, another one in a thread, because it may wait."""

    def call() -> Any:
        return writer.write(messages, earlier=earlier, tokens=tokens)

    if inspect.iscoroutinefunction(writer.write):
        return await call()
    said = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    return await said if inspect.isawaitable(said) else said


@asynccontextmanager
async def _guarded(who: str, seconds: float) -> AsyncIterator[None]:
    """What goes wrong in a call, told as `Unwritten`; a prompt that is too long is the caller's affair."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as exc:
        raise Unwritten("timeout", f"{who} did not answer within {seconds:g} s") from exc
    except (Unwritten, ContextTooLong):
        raise
    except ModelError as exc:
        reason = "unavailable" if isinstance(exc, ModelUnavailable) else "failed"
        reason = "rejected" if isinstance(exc, ModelRejected) else reason
        raise Unwritten(reason, str(exc)[:_ERROR_CHARS], pause=exc.retry_after) from exc
    except Exception as exc:
        # Somebody's own code: what its error says may hold anything.
        _log.warning("a summarizer failed", exc_info=exc)
        raise Unwritten("failed", f"{who} failed: {type(exc).__name__}") from exc
