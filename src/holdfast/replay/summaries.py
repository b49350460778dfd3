"""Make summaries in replay as the service does: between calls, with a model.

    after a call that exceeds the threshold, or before a call that would not fit -> plan -> write -> store

The answer of a model is checked as in the service. If a summary fails, the digest is used instead. The next attempt waits for a number of
calls that grows with each failure; in the service, it waits for a time that grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from holdfast.agents import Llm
from holdfast.context.build import Request
from holdfast.context.strategies import Strategy
from holdfast.context.summaries import (
    PROMPT,
    Plan,
    count_room_for_text,
    make_compaction,
    make_summarized_view,
    plan_summary,
)
from holdfast.context.units import group_units
from holdfast.context.view import FoldedView, ViewState
from holdfast.context.window import NO_CANDIDATES, Room
from holdfast.domain.session import Entry
from holdfast.log.items import Delta, Usage, get_text
from holdfast.models.base import Model, ModelRequest, closing
from holdfast.models.deltas import DeltaModel, stream_deltas
from holdfast.overlays.summarizers import (
    SummaryCost,
    SummaryError,
    SummaryInput,
    compute_capacity,
    compute_summary_tokens,
    write_summary,
)
from holdfast.tokens import STORED

SECONDS: Final = 120.0
"""Maximum seconds for one answer of a model."""
CALLS: Final = 8
"""Maximum number of model calls for one summary.

The messages that a digest replaced are read from the log again. If they need more calls, the model reads the newest of these messages, and
the digest.
"""
LONGEST_WAIT: Final = 64
"""Maximum number of calls before a failed summary is tried again. The number of calls doubles with each consecutive failure."""


class SummaryWriter:
    """Writes summaries with a model, in an event loop of its own. Use it as a context manager, in a single thread.

    Attributes:
        failed: Reason of the first summary that failed; None if none failed.

    Args:
        llm: The model that writes the summaries.
    """

    def __init__(self, llm: Llm) -> None:
        self.name = llm.name
        self.failed: str | None = None
        self._llm = msgspec.structs.replace(llm, client=_CountingModel(llm.client))
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._llm.client.close())
        self._runner.close()

    def write(self, reading: SummaryInput, spent: SummaryCost) -> str:
        """Write a summary and return its text.

        Args:
            reading: The messages to summarize.
            spent: Object to which the cost of all calls is added.

        Raises:
            SummaryError: No usable summary was written.
        """
        try:
            return self._runner.run(write_summary(self._llm, reading, spent, seconds=SECONDS)).text
        except SummaryError as exc:
            self.failed = self.failed or str(exc)
            raise

    def limit_tokens(self, tokens: int) -> int:
        """Return the maximum tokens of a summary: `tokens`, or fewer if the context window of the model is small."""
        return compute_summary_tokens(self._llm, tokens)

    def compute_room(self, reading: SummaryInput) -> int:
        """Return the tokens of the conversation that the model can read for one summary, in at most `CALLS` calls.

        Raises:
            SummaryError: The context window of the model is too small.
        """
        return int(compute_capacity(self._llm, reading, CALLS) or 0)


class _CountingModel(DeltaModel):
    """A model whose answers always include token usage. If the server does not report it, Holdfast's own count is used."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    async def stream_deltas(
        self, request: ModelRequest, *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[Delta], None]:
        usage: Usage | None = None
        text = ""
        async with closing(stream_deltas(self._model, request, headers=headers)) as stream:
            async for deltas in stream:
                text += get_text(deltas)
                usage = next((delta for delta in deltas if isinstance(delta, Usage)), usage)
                yield deltas
        if usage is None or not usage.numbers:
            prompt_tokens = sum(map(STORED.message, request.messages))
            yield [Usage({"prompt_tokens": prompt_tokens, "completion_tokens": STORED.text(text)})]

    async def close(self) -> None:
        await self._model.close()


class SessionSummaries:
    """The summaries of one session.

    Attributes:
        made: Number of summaries that were made.
        failed: Number of summaries that failed.
        spent: Total cost of all summaries.

    Args:
        writer: Writes the summaries.
        request: Settings with which the prompts of the session are built.
        room: Maximum tokens of the conversation in a prompt.
    """

    def __init__(self, writer: SummaryWriter, request: Request, room: Room) -> None:
        self.made = self.failed = 0
        self.spent = SummaryCost()
        self._writer = writer
        self._request = request
        self._room = room
        self._text: str | None = None
        self._in_a_row = self._wait = 0

    @property
    def due_at(self) -> int:
        """Number of tokens of the conversation above which a summary is made after a call."""
        return int(self._request.strategy.summarize_at * self._room.tokens)

    @property
    def full_at(self) -> int:
        """Number of tokens of the conversation above which a summary is made before the next call, because the call would not fit."""
        return self._room.tokens

    def count_call(self) -> None:
        """Count a call. After a failed summary, the next attempt waits for a number of calls."""
        self._wait = max(0, self._wait - 1)

    def summarize(
        self, state: ViewState | None, kept: Sequence[Entry], log: Sequence[Entry], *, anchor: int | None
    ) -> ViewState | None:
        """Summarize old messages, and return the new saved state from which prompts are built.

        Return None if there is nothing to summarize, if the summary failed, or during the pause after a failure.

        Args:
            state: The saved state; None if there is none yet.
            kept: Older entries that are still sent, although `state.frontier` is after them.
            log: All entries of the session, without those that an edit replaced.
            anchor: `seq` of the message that contains the task.
        """
        if self._wait:
            return None
        strategy, entries = self._request.strategy, log[state.frontier if state else 0 :]
        window = FoldedView(_make_unbounded(strategy), self._room, state, kept, entries).make_window(self._room)
        planned = plan_summary(window, strategy)
        if planned is None:
            return None
        try:
            reading = self._make_input(planned, log)
            self._text = self._writer.write(reading, self.spent)
        except SummaryError:
            self.failed, self._in_a_row = self.failed + 1, self._in_a_row + 1
            self._wait = min(LONGEST_WAIT, 2 ** min(self._in_a_row, 10))
            return None
        self.made, self._in_a_row = self.made + 1, 0
        first = planned.find_first(reading.units)
        summary = make_compaction(
            self._text,
            first=first,
            last=planned.last,
            total=planned.total,
            count=self._request.count,
            marker=self._request.marker,
        )
        candidates = bytes(state.candidates) if state else NO_CANDIDATES
        view = make_summarized_view(
            strategy, self._room, summary, [*kept, *entries], anchor=anchor, candidates=candidates
        )
        return view.to_state()

    def _make_input(self, planned: Plan, log: Sequence[Entry]) -> SummaryInput:
        """Return the input of the summarizer.

        The input consists of the messages that the summary will replace, the previous summary, and the newest of the messages that the
        digest replaced, as many as the model can read. If the model cannot read all of these, the digest is included.
        """
        count = self._request.count
        reading = SummaryInput(
            units=planned.units,
            earlier=self._text if planned.earlier is not None else None,
            tokens=self._writer.limit_tokens(
                count_room_for_text(
                    planned.find_first(planned.units), planned.last, planned.allowance, count, self._request.marker
                )
            ),
            count=count,
            prompt=self._request.strategy.prompt or PROMPT,
        )
        if planned.gap is None:
            return reading
        gap = _select_newest(log[planned.gap[0] : planned.gap[1]], self._writer.compute_room(reading))
        whole = len(gap) == planned.gap[1] - planned.gap[0]
        units = group_units(entry for entry in gap if entry.seq not in planned.apart)
        texts = [reading.earlier, None if whole or planned.digest is None else planned.digest.text]
        together = sorted((*planned.units, *units), key=lambda unit: unit.first)
        return msgspec.structs.replace(reading, units=together, earlier="\n".join(filter(None, texts)) or None)


def _make_unbounded(strategy: Strategy) -> Strategy:
    """Return a strategy like `strategy` without a limit, so that no messages leave the prompt."""
    return Strategy(name="none", bounded=False, anchored=strategy.anchored, condense=strategy.condense)


def _select_newest(entries: Sequence[Entry], tokens: int) -> Sequence[Entry]:
    """Return the newest entries that together have at most `tokens` tokens."""
    at = len(entries)
    while at and entries[at - 1].tokens <= tokens:
        at -= 1
        tokens -= entries[at].tokens
    return entries[at:]
