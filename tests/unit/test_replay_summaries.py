"""Summaries in replay: when they are made, what they cost, and what replaces missing ones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from benchmarks.scripted_summaries import SCRIPTED, make_scripted_llm
from holdfast.agents import Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.messages import Message
from holdfast.holdfast import Holdfast
from holdfast.models.collect import to_chunks
from holdfast.replay.player import MARKER, Player
from holdfast.replay.specs import parse_spec
from holdfast.replay.summaries import SessionSummaries, SummaryWriter
from tests.markers import strip_markers
from tests.unit.test_replay import user


class Pen:
    """A model that returns prepared texts and records its requests."""

    name = "pen"

    def __init__(self, write: Callable[[dict[str, Any]], str], usage: dict[str, int] | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self._write = write
        self._usage = usage

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(request)
        message = {"role": "assistant", "content": self._write(request)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"usage": self._usage} if self._usage else {}
        for chunk in to_chunks({"id": "1", "choices": [choice], **usage}):
            yield chunk

    async def close(self) -> None:
        pass


async def test_the_service_makes_the_same_summaries_and_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts equal those of a real session whose turns wait for summaries."""
    # Markers may differ in tokens, which decide when a summary is made.
    monkeypatch.setattr("holdfast.engine.engine.derive_marker", lambda secret, identity: MARKER)
    talk = [
        message
        for at in range(40)
        for message in (
            user(f"Question {at} about order A-{1000 + at}: {'why not ' * (at % 7 * 5)}"),
            Message(role="assistant", content=f"Order A-{1000 + at} was sent. {'So it is. ' * (at % 5 * 6)}"),
        )
    ]
    minutes = itertools.count(0, 60_000)
    roster = Roster(
        {"default": Llm(name="default", model="gpt-4o", client=Pen(lambda _: "")), SCRIPTED: make_scripted_llm()},
        context=ContextSettings("summary_buffer", {"budget": 700, "summarizer_llm": SCRIPTED, "recall": "off"}),
    )
    sent = []
    async with Holdfast("sqlite://:memory:", roster=roster, clock=lambda: next(minutes)) as hf:
        session = await hf.session("s")
        for asked, said in zip(talk[::2], talk[1::2], strict=True):
            async with session.turn(asked) as turn:
                sent.append([message["content"] for message in turn.messages])
                turn.add(said)
            await hf.engine.compactor.wait_until_idle()
        made = len(await session.compactions())
    played, summaries = await asyncio.to_thread(_prompts, talk)
    assert made == summaries.made > 3
    assert summaries.failed == 0
    texts = [[message.text for message in messages] for messages in played]
    assert [list(map(strip_markers, some)) for some in texts] == [list(map(strip_markers, some)) for some in sent]


def _prompts(talk: Sequence[Message]) -> tuple[list[tuple[Message, ...]], SessionSummaries]:
    found = []
    with SummaryWriter(make_scripted_llm()) as writer:
        player = Player(parse_spec("summary_buffer").make_strategy(700, written=True), 700, writer=writer)
        for asked, said in zip(talk[::2], talk[1::2], strict=True):
            player.append(asked)
            player.prepare()
            found.append(player.build().messages)
            player.append(said)
            player.finish_call()
    assert player.summaries is not None
    return found, player.summaries
