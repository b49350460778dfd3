"""Rerankers that take too long. What else they do is in tests/behaviour/exchanges/test_rerankers.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from holdfast.rerankers import BoundedReranker, RerankSettings


async def test_late_reranker_times_out() -> None:
    """Both an async one that ignores cancellation and one in a thread."""
    released = threading.Event()
    goes_on = asyncio.Event()

    async def deaf(query: str, texts: Sequence[str]) -> list[float]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await goes_on.wait()
        return [1.0] * len(texts)

    def wait_for_release(query: str, texts: Sequence[str]) -> list[float]:
        released.wait(60)
        return [1.0] * len(texts)

    try:
        for slow in (deaf, wait_for_release):
            bounded = BoundedReranker(RerankSettings(reranker=slow, timeout=0.05))
            async with asyncio.timeout(5):
                assert await bounded.score_texts("q", ["a"]) == "took too long"
    finally:
        released.set()
        goes_on.set()
        await asyncio.sleep(0)
