"""The completion that the chunks of a model make."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

from holdfast.models.codecs.chat import ChatDecoder
from holdfast.models.collect import Collector


async def collect(chunks: AsyncIterable[dict[str, Any]]) -> dict[str, Any]:
    collector, decoder = Collector(), ChatDecoder()
    async for chunk in chunks:
        collector.add(decoder.decode(chunk))
    return collector.build_completion()
