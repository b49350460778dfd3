"""A reply without an end is cut at named limits, whatever it is made of; what arrived stays, and the upstream is named as the cause."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from holdfast.agents import Llm, Roster
from holdfast.domain.session import SessionRef
from holdfast.errors import ModelReplyTooLarge
from holdfast.holdfast import Holdfast
from holdfast.limits import MODEL_TRAILING_CHUNKS
from holdfast.models import collect
from holdfast.models.client import CHUNKS_AT_ONCE
from holdfast.testing import Reply
from tests.service.anthropic_kit import HI, asking
from tests.service.told_model import REF

BYTES, PARTS = 200_000, 100


class Endless:
    """A model that never ends: `first` pieces, then what `further` gives for each number.

    Attributes:
        sent: pieces that were taken.
        closed: whether its stream was closed.
    """

    name = "endless"

    def __init__(self, further: Any) -> None:
        self._further = further
        self.sent = 0
        self.closed = False

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """See `Model.stream`."""
        del request, headers
        try:
            for chunk in self._chunks():
                self.sent += 1
                assert self.sent < 100_000, "nobody ended it"
                yield chunk
        finally:
            self.closed = True

    def _chunks(self) -> Iterator[dict[str, Any]]:
        yield piece({"role": "assistant", "content": "one two"})
        for at in itertools.count():
            yield self._further(at)

    async def close(self) -> None:
        """See `Model.close`."""


def piece(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def calling(at: int, arguments: str = "") -> dict[str, Any]:
    return {"index": at, "id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": arguments}}


WAYS = {
    "text": lambda at: piece({"content": "word "}),
    "hidden reasoning": lambda at: piece({"reasoning_content": "hm "}),
    "arguments of a call": lambda at: piece({"tool_calls": [calling(0, "x" * 20)]}),
    "calls": lambda at: piece({"tool_calls": [calling(at)]}),
    "choices": lambda at: piece({"content": ""}, index=at),
    "blocks": lambda at: piece({"content_blocks": [{"type": "x", "index": at}]}),
    "unknown fields": lambda at: piece({f"field_{at}": "x" * 20}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_an_endless_reply_is_cut_and_what_arrived_is_kept(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: 400 MB of small deltas took 1.2 GB of memory and ended as a 413 that blamed the client."""
    module = sys.modules["holdfast.models.collect"]
    monkeypatch.setattr(module, "MODEL_REPLY_BYTES", BYTES)
    monkeypatch.setattr(module, "MODEL_REPLY_PARTS", PARTS)
    model = Endless(WAYS[way])
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=model)})
    async with Holdfast("sqlite://:memory:", roster=roster) as hf:
        with pytest.raises(ModelReplyTooLarge) as caught:
            await (await hf.session("s")).send("hello")
        assert (caught.value.code, caught.value.http_status) == ("upstream_reply_too_large", 502)
        assert model.closed
        reply = (await hf.store.entries(SessionRef(REF.user_id, REF.id)))[-1]
        assert reply.message.role == "assistant"
        assert reply.message.text.startswith("one two")
        assert (reply.metadata or {})["interrupted"] is True
        assert not reply.message.tool_calls


async def test_pieces_after_the_end_of_a_reply_are_not_kept() -> None:
    """The reply is whole: it is stored, and its stream is closed."""
    model = Endless(lambda at: piece({}, "stop") if not at else {**piece({}), "choices": []})
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=model)})
    async with Holdfast("sqlite://:memory:", roster=roster) as hf:
        await (await hf.session("s")).send("hello")
        assert model.closed
        assert model.sent <= MODEL_TRAILING_CHUNKS + 10
        reply = (await hf.store.entries(SessionRef(REF.user_id, REF.id)))[-1]
        assert (reply.message.text, reply.metadata) == ("one two", None)


async def test_anthropics_stream_is_bounded_too() -> None:
    """All that is sent counts, over every response of a reply."""
    start = b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","model":"c","usage":{}}}\n\n'
    block = b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}\n\n'
    delta = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}\n\n'
    endless = Reply(raw=[start, block, delta], endless=delta * 100)
    async with asking(lambda _: endless) as (_, model, _):
        model._max_stream_bytes = 100_000
        with pytest.raises(ModelReplyTooLarge, match="100,000 bytes for one reply"):
            await collect(model.stream(HI))


async def test_a_fast_stream_lets_other_tasks_run() -> None:
    """Seen: two streams without an end passed 160 pieces on at a time, and each step of another request waited for both."""
    start = b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","model":"c","usage":{}}}\n\n'
    block = b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    delta = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}\n\n'
    async with asking(lambda _: Reply(raw=[start, block, delta * 400], endless=delta * 400)) as (_, model, _):
        model._max_stream_bytes = 200_000
        in_a_row = longest = total = 0

        async def other_task() -> None:
            nonlocal in_a_row
            while True:
                in_a_row = 0
                await asyncio.sleep(0)

        other = asyncio.create_task(other_task())
        with pytest.raises(ModelReplyTooLarge):  # noqa: PT012  # what is raised in between counts
            async for _chunk in model.stream(HI):
                in_a_row, total = in_a_row + 1, total + 1
                longest = max(longest, in_a_row)
        other.cancel()
        assert total > 1000
        assert longest <= CHUNKS_AT_ONCE
