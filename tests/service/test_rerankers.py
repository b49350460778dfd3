"""Rerankers on their own: HTTP ones in each format, wrong answers, custom functions, and timeouts."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from aiohttp import web

from holdfast.errors import InvalidRequest, RerankFailed
from holdfast.rerankers import BoundedReranker, RerankSettings, make_reranker
from holdfast.rerankers.callable import GivenReranker
from holdfast.rerankers.endpoint import EndpointReranker, make_request, read_scores
from tests.service.rerank_stub import serving

KEY = "sk-secret-1234567890"
SECRET_TEXT = "the combination of the harbour safe is 4711"


def test_each_format_requests_scores_for_all_texts() -> None:
    assert make_request("cohere", "m", "q", ["a", "b"]) == {
        "model": "m",
        "query": "q",
        "documents": ["a", "b"],
        "top_n": 2,
    }
    assert make_request("voyage", "m", "q", ["a"]) == {"model": "m", "query": "q", "documents": ["a"], "top_k": 1}
    assert make_request("tei", "", "q", ["a"]) == {"query": "q", "texts": ["a"], "truncate": True}


@pytest.mark.parametrize(
    "body",
    [
        b'{"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": -3}], "meta": {}}',
        b'{"object": "list", "data": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": -3}]}',
        b'[{"index": 1, "score": 0.9, "text": "b"}, {"index": 0, "score": -3}]',
        b'{"results": [{"index": 0, "relevance_score": -3, "document": {"text": "a"}}, {"index": 1, "score": 0.9}]}',
    ],
)
def test_known_answer_formats_are_read(body: bytes) -> None:
    assert read_scores(body, 2, "here") == [-3.0, 0.9]


WRONG = {
    "missing": '{"results": [{"index": 0, "relevance_score": 1}]}',
    "doubled": '{"results": [{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 2}]}',
    "more than asked": '[{"index": 0, "score": 1}, {"index": 1, "score": 2}, {"index": 2, "score": 3}]',
    "index out of range": '[{"index": 0, "score": 1}, {"index": 7, "score": 2}]',
    "negative index": '[{"index": 0, "score": 1}, {"index": -1, "score": 2}]',
    "no score": '[{"index": 0, "score": 1}, {"index": 1}]',
    "NaN": '[{"index": 0, "score": NaN}, {"index": 1, "score": 2}]',
    "infinite": '[{"index": 0, "score": 1e999}, {"index": 1, "score": 2}]',
    "a score that is text": '[{"index": 0, "score": "1"}, {"index": 1, "score": 2}]',
    "no list": '{"results": {"index": 0}}',
    "no results": '{"id": "index"}',
    "an error with status 200": '{"error": "not now"}',
    "no JSON": '<html>"index"</html>',
    "nothing": "",
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG.keys())
async def test_wrong_answers_are_rejected(body: str) -> None:
    async with serving(always=lambda: web.Response(text=body)) as stub:
        reranker = EndpointReranker(RerankSettings(base_url=stub.url, model="m"))
        with pytest.raises(RerankFailed) as failed:
            await reranker.rerank("q", [SECRET_TEXT, "b"])
        assert "harbour" not in str(failed.value)
        await reranker.close()


async def test_key_is_sent_and_busy_calls_retried() -> None:
    async with serving(once=[web.Response(status=429, headers={"retry-after": "0"})]) as stub:
        settings = RerankSettings(base_url=stub.url + "/", model="m", api_key=KEY)
        reranker = EndpointReranker(settings)
        assert await reranker.rerank("q", ["a", "bbb"]) == [1.0, 3.0]
        assert len(stub.bodies) == 2
        assert stub.headers[1]["authorization"] == f"Bearer {KEY}"
        assert KEY not in f"{settings!r} {reranker!r}"
        await reranker.close()


async def test_text_embeddings_inference_gets_batches_of_32() -> None:
    async with serving(name="", field="score") as stub:
        reranker = EndpointReranker(RerankSettings(base_url=stub.url + "/rerank", form="tei"))
        assert await reranker.rerank("q", ["x" * at for at in range(1, 71)]) == [float(at) for at in range(1, 71)]
        assert sorted(len(body["texts"]) for body in stub.bodies) == [6, 32, 32]
        await reranker.close()


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


# -- custom rerankers -----------------------------------------------------------


def by_length(query: str, texts: Sequence[str]) -> list[int]:
    return [len(text) for text in texts]


async def by_length_async(query: str, texts: Sequence[str]) -> list[int]:
    return by_length(query, texts)


class Own:
    name = "own"
    closed = 0

    def rerank(self, query: str, texts: Sequence[str]) -> list[int]:
        return by_length(query, texts)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("given", [by_length, by_length_async, Own(), RerankSettings(reranker=by_length)])
async def test_function_or_object_can_be_a_reranker(given: Any) -> None:
    reranker = make_reranker(given)
    assert await reranker.rerank("q", ["a", "bbb"]) == [1.0, 3.0]
    assert reranker.name in {"by_length", "by_length_async", "own"}
    assert make_reranker(reranker) is reranker
    await reranker.close()
    await reranker.close()


async def test_object_is_closed_once() -> None:
    own = Own()
    reranker = make_reranker(own)
    await reranker.close()
    await reranker.close()
    assert own.closed == 1


@pytest.mark.parametrize(
    "scores", [[1], [1, 2, 3], None, "12", {0: 1, 1: 2}, [1, None], [1, float("nan")], [1, float("inf")], 7]
)
async def test_wrong_scores_of_a_function_are_rejected(scores: Any) -> None:
    with pytest.raises(RerankFailed):
        await make_reranker(lambda query, texts: scores).rerank("q", ["a", "b"])


async def test_exception_of_a_function_is_reported_by_type_only() -> None:
    def fail(query: str, texts: Sequence[str]) -> list[float]:
        raise ValueError(texts[0])

    with pytest.raises(RerankFailed, match=r"fail.*ValueError") as failed:
        await make_reranker(fail).rerank("q", [SECRET_TEXT])
    assert "harbour" not in str(failed.value)


@pytest.mark.parametrize("given", [Own, 7, "https://example.com", object()])
def test_invalid_reranker_is_rejected(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="a reranker is a function"):
        make_reranker(given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "one of base_url, path and reranker"),
        ({"base_url": "http://x", "model": "m", "path": "/m"}, "one of base_url, path and reranker"),
        ({"base_url": "http://x"}, "needs a model"),
        ({"base_url": "http://x", "model": "m", "form": "other"}, "form must be one of"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        RerankSettings(**settings)


def test_invalid_address_is_rejected_at_the_start() -> None:
    with pytest.raises(InvalidRequest, match="base_url"):
        make_reranker(RerankSettings(base_url="ftp://x", model="m"))


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


async def test_late_calls_do_not_accumulate_in_threads() -> None:
    released = threading.Event()
    started: list[str] = []

    def wait_for_release(query: str, texts: Sequence[str]) -> list[float]:
        started.append(query)
        released.wait(60)
        return [1.0] * len(texts)

    bounded = BoundedReranker(RerankSettings(reranker=wait_for_release, timeout=0.05))
    try:
        assert [await bounded.score_texts("q", ["a"]) for _ in range(6)] == ["took too long"] * 4 + ["failed"] * 2
        assert len(started) == 4
    finally:
        released.set()


async def test_calls_that_never_got_a_thread_do_not_count() -> None:
    """Other work occupies all threads for a while; afterwards the reranker works as before."""
    released = threading.Event()
    given = GivenReranker(lambda query, texts: [1.0] * len(texts), name="mine")
    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, 1
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(anyio.to_thread.run_sync, released.wait, 60))
            await anyio.lowlevel.checkpoint()
            for _ in range(6):
                with anyio.move_on_after(0.01):
                    await given.rerank("q", ["a"])
            released.set()
    finally:
        released.set()
        limiter.total_tokens = before
    assert await given.rerank("q", ["a"]) == [1.0]


@pytest.mark.parametrize("error", [KeyError(SECRET_TEXT), asyncio.CancelledError(), RerankFailed("no")])
async def test_any_exception_of_a_reranker_is_a_failure(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(query: str, texts: Sequence[str]) -> list[float]:
        raise error

    bounded = BoundedReranker(RerankSettings(reranker=by_length))
    bounded._inner.rerank = fail  # type: ignore[method-assign]
    assert await bounded.score_texts("q", ["a"]) == "failed"
    assert "harbour" not in caplog.text


async def test_query_is_cut_and_cleaned() -> None:
    seen: list[str] = []

    def note(query: str, texts: Sequence[str]) -> list[float]:
        seen.append(query)
        return [0.0] * len(texts)

    await BoundedReranker(RerankSettings(reranker=note)).score_texts("\ud800" + "q" * 5000, ["a"])
    assert seen == ["?" + "q" * 999]


async def test_cancelled_search_cancels_the_call() -> None:
    ended = asyncio.Event()

    async def slow(query: str, texts: Sequence[str]) -> list[float]:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return []

    task = asyncio.create_task(BoundedReranker(RerankSettings(reranker=slow)).score_texts("q", ["a"]))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(ended.wait(), 5)
