"""Endless replies are cut at named limits; the received part is kept, and the error names the upstream as the cause."""

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
from holdfast.models.client import CHUNKS_AT_ONCE
from holdfast.testing import Reply
from tests.chunks import collect
from tests.service.anthropic_kit import HI, open_model
from tests.service.scripted_model import REF

BYTES, PARTS = 200_000, 100


class EndlessModel:
    """A model that never ends: one first piece, then `further(n)` for each number.

    Attributes:
        sent: Number of pieces that were taken.
        closed: Whether the stream was closed.
    """

    name = "endless"

    def __init__(self, further: Any) -> None:
        self._further = further
        self.sent = 0
        self.closed = False

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        del request, headers
        try:
            for chunk in self._chunks():
                self.sent += 1
                assert self.sent < 100_000, "the stream was not ended"
                yield chunk
        finally:
            self.closed = True

    def _chunks(self) -> Iterator[dict[str, Any]]:
        yield make_chunk({"role": "assistant", "content": "one two"})
        for at in itertools.count():
            yield self._further(at)

    async def close(self) -> None:
        """See `Model.close`."""


def make_chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def make_call(at: int, arguments: str = "") -> dict[str, Any]:
    return {"index": at, "id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": arguments}}


WAYS = {
    "text": lambda at: make_chunk({"content": "word "}),
    "hidden reasoning": lambda at: make_chunk({"reasoning_content": "hm "}),
    "arguments of a call": lambda at: make_chunk({"tool_calls": [make_call(0, "x" * 20)]}),
    "calls": lambda at: make_chunk({"tool_calls": [make_call(at)]}),
    "choices": lambda at: make_chunk({"content": ""}, index=at),
    "blocks": lambda at: make_chunk({"content_blocks": [{"type": "x", "index": at}]}),
    "unknown fields": lambda at: make_chunk({f"field_{at}": "x" * 20}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_endless_reply_is_cut_and_the_received_part_is_kept(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 400 MB of small deltas took 1.2 GB of memory and ended as a 413 that blamed the client."""
    module = sys.modules["holdfast.models.collect"]
    monkeypatch.setattr(module, "MODEL_REPLY_BYTES", BYTES)
    monkeypatch.setattr(module, "MODEL_REPLY_PARTS", PARTS)
    model = EndlessModel(WAYS[way])
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


async def test_chunks_after_the_finish_reason_are_limited() -> None:
    """The complete reply is stored, and its stream is closed."""
    model = EndlessModel(lambda at: make_chunk({}, "stop") if not at else {**make_chunk({}), "choices": []})
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=model)})
    async with Holdfast("sqlite://:memory:", roster=roster) as hf:
        await (await hf.session("s")).send("hello")
        assert model.closed
        assert model.sent <= MODEL_TRAILING_CHUNKS + 10
        reply = (await hf.store.entries(SessionRef(REF.user_id, REF.id)))[-1]
        assert (reply.message.text, reply.metadata) == ("one two", None)


async def test_anthropic_stream_bytes_are_limited() -> None:
    """Over all responses of one reply."""
    start = b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","model":"c","usage":{}}}\n\n'
    block = b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}\n\n'
    delta = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}\n\n'
    endless = Reply(raw=[start, block, delta], endless=delta * 100)
    async with open_model(lambda _: endless) as (_, model, _):
        model._max_stream_bytes = 100_000
        with pytest.raises(ModelReplyTooLarge, match="100,000 bytes for one reply"):
            await collect(model.stream(HI))


async def test_fast_stream_lets_other_tasks_run() -> None:
    """Regression: two endless streams passed on 160 pieces at a time, and each step of another request waited for both."""
    start = b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","model":"c","usage":{}}}\n\n'
    block = b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    delta = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}\n\n'
    async with open_model(lambda _: Reply(raw=[start, block, delta * 400], endless=delta * 400)) as (_, model, _):
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
