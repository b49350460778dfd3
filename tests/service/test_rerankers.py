"""Rerankers on their own: HTTP ones in each format, wrong answers, custom functions, and timeouts."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence

import pytest
from aiohttp import web

from holdfast.rerankers import BoundedReranker, RerankSettings
from tests.service.rerank_stub import serving

KEY = "sk-secret-1234567890"
SECRET_TEXT = "the combination of the harbour safe is 4711"


async def test_texts_and_keys_quoted_in_an_error_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    said = {"error": {"message": f"cannot rank {SECRET_TEXT!r} with {KEY}"}}
    async with serving(always=lambda: web.json_response(said, status=400)) as stub:
        bounded = BoundedReranker(RerankSettings(base_url=stub.url, model="m", api_key=KEY))
        with caplog.at_level(logging.DEBUG, "holdfast"):
            assert await bounded.score_texts("q", [SECRET_TEXT, "b"]) == "failed"
        text = " ".join(f"{record.getMessage()} {record.exc_info}" for record in caplog.records)
        assert "answered 400" in text or "400" in text
        assert "harbour safe" not in text
        assert KEY not in text
        await bounded.close()


# -- timeouts -------------------------------------------------------------------


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
