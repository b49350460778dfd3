"""Summaries in replay: made as the service makes them, between calls, by a model or by what stands in for one.

    behind a call that is past the threshold, or before one that would not fit -> plan -> write -> lay

What a model answers is judged as the service judges it. Where that fails the digest takes its place, and the next attempts wait
for more and more calls, as they wait for more and more time there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

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
from holdfast.models import Collector, Model, closing
from holdfast.overlays.summarizers import (
    SummaryCost,
    SummaryError,
    SummaryInput,
    compute_capacity,
    compute_summary_tokens,
    write_summary,
)
from holdfast.tokens import STORED
from holdfast.wire.openai import message_from

SECONDS: Final = 120.0
"""That a model may take for one answer."""
CALLS: Final = 8
"""Most calls for which what the digest covered is read from the log again; of a longer part the newest, and its digest."""
LONGEST_WAIT: Final = 64
"""Calls, at most, before a summary is tried again; doubled by each failure in a row."""


class SummaryWriter:
    """Whoever writes summaries, in an event loop of its own; used with `with`, and by one thread.

    Attributes:
        failed: why the first summary that was not made was not made; None while all were.

    Args:
        llm: the model.
    """

    def __init__(self, llm: Llm) -> None:
        self.name = llm.name
        self.failed: str | None = None
        self._llm = msgspec.structs.replace(llm, client=_Counting(llm.client))
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._llm.client.close())
        self._runner.close()

    def write(self, reading: SummaryInput, spent: SummaryCost) -> str:
        """The text of a summary. Raises `SummaryError`."""
        try:
            return self._runner.run(write_summary(self._llm, reading, spent, seconds=SECONDS)).text
        except SummaryError as exc:
            self.failed = self.failed or str(exc)
            raise

    def allowed(self, tokens: int) -> int:
        """Tokens that a summary by it may have, of those that there is room for."""
        return compute_summary_tokens(self._llm, tokens)

    def room(self, reading: SummaryInput) -> int:
        """Tokens of the conversation that it reads for one summary. Raises `SummaryError`."""
        return int(compute_capacity(self._llm, reading, CALLS) or 0)


class _Counting:
    """A model whose answers always tell what they took: counted here where the server does not say."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        collector = Collector()
        async with closing(self._model.stream(request, headers=headers)) as chunks:
            async for chunk in chunks:
                collector.add(chunk)
                yield chunk
        completion = collector.partial()
        if not completion.get("usage"):
            said = sum(STORED.message(message_from(message)) for message in request["messages"])
            text = next((choice["message"].get("content") for choice in completion.get("choices") or ()), None)
            yield {"choices": [], "usage": {"prompt_tokens": said, "completion_tokens": STORED.text(text or "")}}

    async def close(self) -> None:
        await self._model.close()


class SessionSummaries:
    """The summaries of one session.

    Attributes:
        made: how many were laid.
        failed: how many were not made.
        spent: what all of them took.

    Args:
        writer: who writes.
        request: what the session's working sets are built for.
        room: what they may use.
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
        """Tokens of the conversation past which one is made behind a call."""
        return int(self._request.strategy.summarize_at * self._room.tokens)

    @property
    def full_at(self) -> int:
        """Tokens past which one is made before the next call."""
        return self._room.tokens

    def called(self) -> None:
        """A call was made: attempts that wait come nearer."""
        self._wait = max(0, self._wait - 1)

    def summarize(
        self, state: ViewState | None, kept: Sequence[Entry], log: Sequence[Entry], *, anchor: int | None
    ) -> ViewState | None:
        """The view with a summary of what is old; None when there is nothing worth one, or none could be made.

        Args:
            state: the view so far.
            kept: the entries that it keeps from before its frontier.
            log: the whole live path.
            anchor: `seq` of the task anchor.
        """
        if self._wait:
            return None
        strategy, entries = self._request.strategy, log[state.frontier if state else 0 :]
        window = FoldedView(_still(strategy), self._room, state, kept, entries).window(self._room)
        planned = plan_summary(window, strategy)
        if planned is None:
            return None
        try:
            reading = self._reading(planned, log)
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
        return view.state()

    def _reading(self, planned: Plan, log: Sequence[Entry]) -> SummaryInput:
        """What is to be read: what will be covered, what the digest covers as far as it can be read, the earlier summary."""
        count = self._request.count
        reading = SummaryInput(
            units=planned.units,
            earlier=self._text if planned.earlier is not None else None,
            tokens=self._writer.allowed(
                count_room_for_text(
                    planned.find_first(planned.units), planned.last, planned.allowance, count, self._request.marker
                )
            ),
            count=count,
            prompt=self._request.strategy.prompt or PROMPT,
        )
        if planned.gap is None:
            return reading
        gap = _newest(log[planned.gap[0] : planned.gap[1]], self._writer.room(reading))
        whole = len(gap) == planned.gap[1] - planned.gap[0]
        units = group_units(entry for entry in gap if entry.seq not in planned.apart)
        told = [reading.earlier, None if whole or planned.digest is None else planned.digest.text]
        together = sorted((*planned.units, *units), key=lambda unit: unit.first)
        return msgspec.structs.replace(reading, units=together, earlier="\n".join(filter(None, told)) or None)


def _still(strategy: Strategy) -> Strategy:
    """A strategy that leaves a view as it is before `strategy` would make it shorter."""
    return Strategy(name="none", bounded=False, anchored=strategy.anchored, condense=strategy.condense)


def _newest(entries: Sequence[Entry], tokens: int) -> Sequence[Entry]:
    """The newest of some entries that take so many tokens."""
    at = len(entries)
    while at and entries[at - 1].tokens <= tokens:
        at -= 1
        tokens -= entries[at].tokens
    return entries[at:]
