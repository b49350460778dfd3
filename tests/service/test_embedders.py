"""Embeddings endpoints on a real socket, custom functions, and the embedding cache."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.embedders import EmbedderSettings, GivenEmbedder, embedder_of, endpoint, make_text_key
from holdfast.embedders.base import can_read_language, make_query_vectors
from holdfast.embedders.caching import CachingEmbedder
from holdfast.embedders.endpoint import EndpointEmbedder, shorten_text
from holdfast.errors import EmbeddingFailed, InvalidRequest
from holdfast.limits import EMBEDDING_BATCH_BYTES
from holdfast.recall.vectors import Vector, to_vector
from holdfast.tokens import get_counter
from tests.amounts import examples
from tests.clocks import Pauses
from tests.service.embeddings_stub import Stub, make_error, numbers, serving
from tests.waits import until

KEY = "sk-test-0123456789abcdef"
ONE_BY_ONE = {"BATCH_TEXTS": 1, "CALLS_AT_ONCE": 2}


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


async def test_vectors_are_normalized_and_in_the_order_of_the_texts() -> None:
    async with serving() as stub, open_embedder(stub) as embedder:
        assert embedder.dimension is None
        texts = ["one", "two", "three"]
        assert await embedder.embed(texts) == [expect_vector(text) for text in texts]
        assert embedder.name == "openai/m"
        assert embedder_of(embedder).dimension == 8
        assert stub.bodies == [{"model": "m", "input": texts}]
        assert stub.headers[0]["authorization"] == f"Bearer {KEY}"
        assert await embedder.embed([]) == []
        assert len(stub.bodies) == 1


async def test_batches_are_limited_by_texts_and_bytes() -> None:
    long = "x " * (EMBEDDING_BATCH_BYTES // 4)
    async with serving() as stub, open_embedder(stub, limits={"BATCH_TEXTS": 3, "INPUT_TOKENS": 1_000_000}) as embedder:
        texts = [f"text {at}" for at in range(7)]
        assert await embedder.embed(texts) == [expect_vector(text) for text in texts]
        assert sorted(stub.inputs) == sorted([texts[:3], texts[3:6], texts[6:]])
        stub.bodies.clear()
        await embedder.embed([long, long, long])
        assert sorted(map(len, stub.inputs)) == [1, 2], "two fill a call"
        stub.bodies.clear()
        await embedder.embed([long * 4, "short"])
        assert sorted(map(len, stub.inputs)) == [1, 1], "one that is over the bound alone goes alone"


async def test_concurrent_calls_are_limited() -> None:
    async with serving(hold=asyncio.Event()) as stub, open_embedder(stub, limits=ONE_BY_ONE) as embedder:
        assert stub.hold is not None
        first = asyncio.create_task(embedder.embed([f"a{at}" for at in range(6)]))
        second = asyncio.create_task(embedder.embed(["b"]))
        await until(lambda: stub.running >= 2)
        stub.hold.set()
        assert len(await first) == 6
        assert len(await second) == 1
        assert stub.most == 2


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


async def test_unreachable_endpoint_is_reported() -> None:
    async with serving() as stub:
        pass
    async with open_embedder(stub) as embedder:
        error = await get_failure(embedder, ["hello"])
        assert error.again
        assert "cannot be reached" in str(error)


async def test_slow_call_times_out() -> None:
    async with serving(hold=asyncio.Event()) as stub, open_embedder(stub, limits={"CALL_SECONDS": 0.05}) as embedder:
        error = await get_failure(embedder, ["hello"])
        assert error.again
        assert stub.hold is not None
        stub.hold.set()


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_wrong_key_or_model_rejects_no_single_text(status: int) -> None:
    async with serving(troubles=[lambda _: make_error(status, f"bad {KEY}")]) as stub, open_embedder(stub) as embedder:
        error = await get_failure(embedder, ["first text of all", "second text of all"])
        assert (error.again, error.refused) == (False, ())
        assert len(stub.bodies) == 1, "not tried again, and not halved"


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


@pytest.mark.parametrize("before", [False, True])
async def test_endpoint_that_rejects_every_text_blames_no_text(before: bool) -> None:
    """Even if it worked before: it may have lost its model since."""
    async with serving() as stub, open_embedder(stub) as embedder:
        if before:
            await embedder.embed(["it is known to work"])
        stub.bodies.clear()
        stub.troubles.append(lambda _: make_error(400, "unknown model"))
        error = await get_failure(embedder, [f"text number {at}" for at in range(64)])
        assert error.refused == ()
        assert "unknown model" in str(error)
        assert len(stub.bodies) < 15, "it does not go through all of them"
        assert (await get_failure(embedder, ["a single text"])).refused == ()


async def test_text_too_long_for_the_endpoint_is_shortened() -> None:
    def trouble(body: dict[str, Any]) -> web.Response | None:
        longest = max(map(len, body["input"]))
        words = f"This model's maximum context length is 100 tokens, however you requested {longest} tokens"
        return make_error(400, words, code="context_length_exceeded") if longest > 100 else None

    async with serving(troubles=[trouble]) as stub, open_embedder(stub) as embedder:
        vectors = await embedder.embed(["short", "long " * 300])
        sent = stub.inputs[-1][0]
        assert 50 < len(sent) <= 100
        assert vectors == [expect_vector("short"), expect_vector(sent)]


async def test_long_text_is_cut_before_sending() -> None:
    count = get_counter("text-embedding-3-small")
    text = " ".join(f"word{at}" for at in range(2000))
    async with (
        serving() as stub,
        open_embedder(stub, model="text-embedding-3-small", limits={"INPUT_TOKENS": 50}) as embedder,
    ):
        await embedder.embed([text, "short"])
        sent = stub.inputs[0]
        assert sent[1] == "short"
        assert text.startswith(sent[0])
        assert 40 <= count.text(sent[0]) <= 50


@given(st.text(min_size=1, max_size=400), st.integers(1, 40))
def test_shortened_text_is_a_prefix_that_fits(text: str, most: int) -> None:
    count = get_counter("text-embedding-3-small")
    kept = shorten_text(text, most, count)
    assert text.startswith(kept)
    assert kept
    assert count.text(kept) <= most or len(kept) == 1
    if count.text(text) <= most:
        assert kept == text[: most * 16]


async def test_wrong_dimension_error_has_both_numbers() -> None:
    async with serving(width=5) as stub, open_embedder(stub, dimension=8) as embedder:
        error = await get_failure(embedder, ["hello"])
        assert "5 numbers, expected 8" in str(error)
        assert not error.again
    async with serving() as stub, open_embedder(stub) as embedder:
        await embedder.embed(["hello"])
        stub.width = 4
        assert "4 numbers, expected 8" in str(await get_failure(embedder, ["hello again"]))


async def test_queries_and_passages_get_their_prefixes() -> None:
    """They are cached separately. Only the passage prefix is part of the embedder's name."""
    async with serving() as stub, open_embedder(stub, query_prefix="query: ", passage_prefix="passage: ") as inner:
        embedder = embedder_of(inner)
        assert await embedder.embed(["tea"]) == [expect_vector("passage: tea")]
        assert await make_query_vectors(embedder, ["tea", "milk"]) == [
            expect_vector("query: tea"),
            expect_vector("query: milk"),
        ]
        assert await make_query_vectors(embedder, ["tea"]) == [expect_vector("query: tea")]
        assert await embedder.embed(["tea"]) == [expect_vector("passage: tea")]
        assert stub.inputs == [["passage: tea"], ["query: tea", "query: milk"]]
    names = {
        EmbedderSettings(model="m", query_prefix=query, passage_prefix=passage).name
        for query in ("", "query: ")
        for passage in ("", "passage: ", "passage:")
    }
    assert len(names) == 3
    assert "openai/m" in names


async def test_configured_dimension_is_requested() -> None:
    async with serving() as stub, open_embedder(stub, model="text-embedding-3-small", dimension=3) as embedder:
        (vector,) = await embedder.embed(["hello"])
        assert len(vector) == 12
        assert stub.bodies[0]["dimensions"] == 3
        assert embedder.name == "openai/text-embedding-3-small@3", "its vectors are not those of the full size"


ANSWERS: list[tuple[Any, str]] = [
    ("<html>", "sent invalid JSON"),
    ("", "sent invalid JSON"),
    ({"data": "x"}, "not a list of vectors"),
    ({"data": []}, "0 vectors for 1 texts"),
    ({"data": [{"index": 1, "embedding": [1.0]}]}, "wrong indexes"),
    ({"data": [{"embedding": [1.0]}, {"embedding": [1.0]}]}, "2 vectors for 1 texts"),
    ({"data": [{"index": 0, "embedding": []}]}, "0 numbers"),
    ({"data": [{"index": 0, "embedding": [0.0, 0]}]}, "zeros only"),
    ('{"data": [{"index": 0, "embedding": [1e999]}]}', "not a list of vectors|not finite"),
    ('{"data": [{"index": 0, "embedding": [NaN]}]}', "not a list of vectors"),
    ({"data": [{"index": 0, "embedding": "AAAAAA=="}]}, "not a list of vectors"),
    ({"data": [{"index": 0, "embedding": [1.0] * 9000}]}, "9,000 numbers"),
    ({"error": {"message": "upstream has gone"}}, "upstream has gone"),
]


@pytest.mark.parametrize(("answer", "words"), ANSWERS)
async def test_invalid_answer_is_rejected(answer: Any, words: str) -> None:
    response = web.Response(text=answer) if isinstance(answer, str) else web.json_response(answer)
    async with serving(once=[response]) as stub, open_embedder(stub) as embedder:
        with pytest.raises(EmbeddingFailed, match=words):
            await embedder.embed(["hello"])
        assert embedder.dimension is None


async def test_answer_without_indexes_is_in_order() -> None:
    data = {"data": [{"embedding": [1, 0]}, {"embedding": [0, 2]}]}
    async with serving(once=[web.json_response(data)]) as stub, open_embedder(stub) as embedder:
        assert await embedder.embed(["a", "b"]) == [to_vector([1, 0]), to_vector([0, 1])]


@pytest.mark.parametrize("texts", [[""], ["fine", " \n"], ["fine", 5], "one text", ["half \ud800"], None, {"a": 1}])
async def test_invalid_texts_are_rejected_before_sending(texts: Any) -> None:
    async with serving() as stub, open_embedder(stub) as embedder:
        for one in (embedder, CachingEmbedder(embedder), embedder_of(own)):
            with pytest.raises(InvalidRequest, match=r"texts"):
                await one.embed(texts)
        assert stub.bodies == []


# -- cache --------------------------------------------------------------------


async def test_equal_texts_are_embedded_once_and_cached() -> None:
    async with serving() as stub, open_embedder(stub) as inner:
        embedder = embedder_of(inner)
        assert await embedder.embed(["a", "b", "a", "a"]) == [expect_vector(text) for text in "abaa"]
        assert await embedder.embed(["b", "c"]) == [expect_vector("b"), expect_vector("c")]
        assert stub.inputs == [["a", "b"], ["c"]]
        assert embedder.make_key("a") == make_text_key("openai/m", "a")
        assert embedder_of(embedder) is embedder


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=6), max_size=12), st.integers(0, 1200))
async def test_cache_is_bounded_and_correct(calls: list[list[str]], most: int) -> None:
    embedder = CachingEmbedder(GivenEmbedder(own, name="own"), most=most)
    for texts in calls:
        assert await embedder.embed(texts) == [expect_vector(text) for text in texts]
        assert embedder._bytes <= most
        assert embedder._bytes == sum(len(vector) + 216 for vector in embedder._known.values())


# -- custom embedders----------------------------------------------------------


def own(texts: Sequence[str]) -> list[list[float]]:
    return [numbers(text) for text in texts]


async def own_later(texts: Sequence[str]) -> list[list[float]]:
    return own(texts)


def return_given(returned: Any, texts: Sequence[str]) -> Any:
    return returned


class CustomEmbedder:
    name = "mine/model"
    dimension = 8
    closed = False

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return own(texts)

    async def close(self) -> None:
        self.closed = True


class CallableEmbedder:
    async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        return own(texts)


async def test_functions_and_objects_can_be_embedders() -> None:
    mine = CustomEmbedder()
    for given_ in (own, own_later, mine, GivenEmbedder(own, name="l")):
        embedder = embedder_of(given_)
        assert await embedder.embed(["a", "b"]) == [expect_vector("a"), expect_vector("b")]
        assert embedder.dimension == 8
        await embedder.close()
        await embedder.close()
    assert mine.closed
    assert await GivenEmbedder(CallableEmbedder(), name="c").embed(["a"]) == [expect_vector("a")]
    assert await GivenEmbedder(partial(own_later), name="p").embed(["a"]) == [expect_vector("a")]
    assert embedder_of(mine).name == "mine/model"
    assert embedder_of(own).name == f"{__name__}/own"


async def test_object_may_embed_queries_differently() -> None:
    class TwoWayEmbedder:
        name, dimension = "test/two", 2

        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            return [[1, 0] for _ in texts]

        async def embed_queries(self, texts: Sequence[str]) -> list[list[float]]:
            return [[0, 1] for _ in texts]

        async def close(self) -> None:
            """Nothing is open."""

    embedder = embedder_of(TwoWayEmbedder())
    assert embedder.name == "test/two"
    assert await embedder.embed(["a"]) == [to_vector([1, 0])]
    assert await make_query_vectors(embedder, ["a"]) == [to_vector([0, 1])]
    with pytest.raises(InvalidRequest):
        await make_query_vectors(embedder, [""])


@pytest.mark.parametrize(
    ("floor", "taken"), [(None, 0.0), (0.4, 0.4), (1, 1), (1.1, None), (-1, None), (True, None), ("0.4", None)]
)
def test_object_may_define_min_similarity(floor: Any, taken: float | None) -> None:
    """It is optional, unlike the other four names."""
    mine = CustomEmbedder()
    if floor is not None:
        mine.min_similarity = floor  # type: ignore[attr-defined]  # none of the four
    if taken is not None:
        assert embedder_of(mine).min_similarity == taken
        return
    with pytest.raises(InvalidRequest, match="min_similarity"):
        embedder_of(mine)


def test_object_may_define_its_languages() -> None:
    mine = CustomEmbedder()
    assert can_read_language(embedder_of(mine), "german"), "it does not say"
    mine.languages = {"english"}  # type: ignore[attr-defined]  # none of the four
    known = embedder_of(mine)
    assert can_read_language(known, "english")
    assert can_read_language(known, None), "the language of the question does not show"
    assert not can_read_language(known, "german")
    assert not can_read_language(CachingEmbedder(known), "german")


async def test_numpy_arrays_and_packed_vectors_are_accepted() -> None:
    numpy = pytest.importorskip("numpy")
    matrix = numpy.array([[3.0, 4.0], [0.0, 2.0]])
    for given_ in (matrix, matrix.astype("float32"), list(matrix), [row.astype("<f4").tobytes() for row in matrix]):
        embedder = GivenEmbedder(partial(return_given, given_), name="n")
        assert await embedder.embed(["a", "b"]) == [to_vector([0.6, 0.8]), to_vector([0, 1])]


async def test_synchronous_function_runs_in_a_thread() -> None:
    here = threading.get_ident()
    ran: list[int] = []

    def slow(texts: Sequence[str]) -> list[list[float]]:
        ran.append(threading.get_ident())
        return own(texts)

    await GivenEmbedder(slow, name="s").embed(["a"])
    assert ran != [here]


WRONG: list[tuple[Any, str]] = [
    ([[1.0]], "1 vectors for 2 texts"),
    (None, "0 vectors for 2 texts"),
    ("ab", "0 vectors"),
    ([[1.0, 2.0], [1.0]], "1 numbers, expected 2"),
    ([[1.0], [float("nan")]], "not finite"),
    ([[1.0], [float("inf")]], "not finite"),
    ([[1e200], [1.0]], "not finite"),
    ([[0.0], [1.0]], "zeros only"),
    ([["1.0"], [1.0]], "instead of a vector"),
    ([[True], [1.0]], "instead of a vector"),
    ([[None], [1.0]], "instead of a vector"),
    (["ab", "cd"], "instead of a vector"),
    ([5, 6], "instead of a vector"),
    ([b"abc", b"abcd"], "3 bytes"),
    ([[[1.0]], [[1.0]]], "instead of a vector"),
]


@pytest.mark.parametrize(("returned", "words"), WRONG)
async def test_invalid_vectors_are_rejected(returned: Any, words: str) -> None:
    with pytest.raises(EmbeddingFailed, match=words):
        await GivenEmbedder(partial(return_given, returned), name="w").embed(["a", "b"])


async def test_error_of_a_function_does_not_contain_its_message() -> None:
    def broken(texts: Sequence[str]) -> Any:
        raise ValueError(f"cannot do {texts}")

    error = await get_failure(GivenEmbedder(broken, name="b"), ["a secret of somebody"])
    assert str(error) == "embedder 'b' failed: ValueError"
    assert isinstance(error.__cause__, ValueError)


class NamelessEmbedder:
    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return []


@pytest.mark.parametrize(
    "given_",
    [None, "local", 5, object(), CustomEmbedder, lambda _: [], partial(own), NamelessEmbedder(), ["own"]],
)
def test_invalid_embedder_is_rejected(given_: Any) -> None:
    with pytest.raises(InvalidRequest, match="embedder"):
        embedder_of(given_)


@pytest.mark.parametrize("fields", [{"base_url": "ftp://x"}, {"base_url": "https://u:p@h/v1"}, {"api_key": "a\nb"}])
def test_invalid_settings_are_rejected_immediately(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        embedder_of(EmbedderSettings(**{"base_url": "https://h/v1", **fields}))
    assert "a\nb" not in repr(EmbedderSettings(**fields))
