"""Embeddings endpoints on a real socket, custom functions, and the embedding cache."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.embedders import EmbedderSettings, embedder_of, endpoint
from holdfast.embedders.endpoint import EndpointEmbedder
from holdfast.errors import EmbeddingFailed
from holdfast.recall.vectors import Vector, to_vector
from tests.amounts import examples
from tests.clocks import Pauses
from tests.service.embeddings_stub import Stub, make_error, numbers, serving

KEY = "sk-test-0123456789abcdef"


@asynccontextmanager
async def open_embedder(
    stub: Stub, *, pauses: Pauses | None = None, limits: Mapping[str, float] | None = None, **fields: Any
) -> AsyncIterator[EndpointEmbedder]:
    """Open an embedder at the stub. `limits` replaces constants of its module, by name."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (limits or {}).items():
            patch.setattr(endpoint, name, value)
        given = EmbedderSettings(**{"base_url": stub.url, "api_key": KEY, "model": "m", **fields})
        embedder = EndpointEmbedder(given, sleep=pauses if pauses is not None else Pauses(), random=lambda: 0.0)
        try:
            yield embedder
        finally:
            await embedder.close()


async def get_failure(embedder: Any, texts: Sequence[str]) -> EmbeddingFailed:
    """Return the error; it must contain neither the key nor the texts."""
    with pytest.raises(EmbeddingFailed) as caught:
        await embedder.embed(texts)
    told = "".join(traceback.format_exception(caught.value))
    assert KEY not in told
    assert not [text for text in texts if len(text) > 12 and text in str(caught.value)]
    return caught.value


def expect_vector(text: str, width: int = 8) -> Vector:
    return to_vector(numbers(text, width))


# -- the endpoint --------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_temporary_failure_is_retried_after_retry_after(status: int) -> None:
    pauses = Pauses()
    once = [make_error(status, headers={"retry-after": "7"})]
    async with serving(once=once) as stub, open_embedder(stub, pauses=pauses) as embedder:
        assert await embedder.embed(["hello"]) == [expect_vector("hello")]
        assert pauses == [7]
        stub.troubles.append(lambda _: make_error(status, headers={"retry-after": "9"}))
        error = await get_failure(embedder, ["hello"])
        assert (error.again, error.retry_after, error.refused) == (True, 9, ())


@settings(max_examples=examples(40))
@given(st.integers(1, 40), st.sets(st.integers(0, 39), max_size=5), st.integers(1, 16))
async def test_other_texts_get_vectors_despite_rejected_ones(count: int, bad: set[int], size: int) -> None:
    bad = {at for at in bad if at < count}
    texts = [f"{'BAD' if at in bad else 'good'} {at}" for at in range(count)]

    def trouble(body: dict[str, Any]) -> web.Response | None:
        return make_error(400) if any(text.startswith("BAD") for text in body["input"]) else None

    async with serving(troubles=[trouble]) as stub, open_embedder(stub, limits={"BATCH_TEXTS": size}) as embedder:
        await embedder.embed(["the endpoint is known to work"])
        stub.bodies.clear()
        if not bad:
            assert await embedder.embed(texts) == [expect_vector(text) for text in texts]
            return
        error = await get_failure(embedder, texts)
        assert set(error.refused) == bad
        assert not error.again
        assert error.vectors == {at: expect_vector(text) for at, text in enumerate(texts) if at not in bad}
        # Each rejected text costs one bisection, twice at most.
        assert len(stub.bodies) <= -(-count // size) + len(bad) * 2 * size.bit_length() + 1


async def test_many_and_long_texts_are_sent_as_an_endpoint_accepts_them() -> None:
    def trouble(body: dict[str, Any]) -> web.Response | None:
        longest = max(map(len, body["input"]))
        words = f"This model's maximum context length is 512 tokens, however you requested {longest} tokens ({longest} in your prompt)"
        return make_error(400, words, code="context_length_exceeded") if longest > 512 else None

    async with serving() as stub, open_embedder(stub) as embedder:
        await embedder.embed([f"text {at}" for at in range(150)])
        assert sorted(map(len, stub.inputs)) == [22, 64, 64]
        await embedder.embed([long := "word " * 9_000])
        (sent,) = stub.inputs[-1]
        assert (long.startswith(sent), len(long) / 2 < len(sent) < len(long)) == (True, True)
        stub.troubles.append(trouble)
        assert len(await embedder.embed(["x" * 1_000, "short"])) == 2
        assert [len(text) for texts in stub.inputs[-2:] for text in texts] == [486, 5]


@pytest.mark.parametrize("status", [400, 404, 422, 500])
async def test_texts_quoted_by_the_endpoint_are_not_in_the_error(status: int) -> None:
    def trouble(body: dict[str, Any]) -> web.Response:
        return web.json_response({"detail": [{"msg": "no", "input": body["input"]}]}, status=status)

    async with serving() as stub, open_embedder(stub) as embedder:
        await embedder.embed(["the endpoint is known to work"])
        stub.troubles.append(trouble)
        error = await get_failure(embedder, ["my diagnosis is nobody's business"])
        assert "diagnosis" not in str(error)
        assert f"answered {status}" in str(error)
        stub.troubles[:] = [lambda _: make_error(status, "too busy with other things")]
        assert "too busy with other things" in str(await get_failure(embedder, ["what else"]))


# -- cache --------------------------------------------------------------------


async def test_refused_texts_are_named_by_their_place_among_all_texts() -> None:
    def trouble(body: dict[str, Any]) -> web.Response | None:
        return make_error(400) if "BAD" in body["input"] else None

    async with serving(troubles=[trouble]) as stub:
        embedder = embedder_of(EmbedderSettings(base_url=stub.url, api_key=KEY, model="m"))
        await embedder.embed(["known"])
        error = await get_failure(embedder, ["known", "BAD", "new", "BAD"])
        assert (error.refused, sorted(error.vectors)) == ((1, 3), [0, 2])
        calls = len(stub.bodies)
        assert await embedder.embed(["new", "known"]) == [expect_vector("new"), expect_vector("known")]
        assert len(stub.bodies) == calls, "both are in the cache by now"
        await embedder.close()
