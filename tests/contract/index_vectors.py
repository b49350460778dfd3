"""The contract of an index, vectors: which are missing, which are kept, and which are nearest."""

from __future__ import annotations

import random

import pytest

from holdfast.errors import InvalidRequest
from holdfast.recall.base import NEAR, Filters, Index, Lookup, Pending, Source, Space, Vectored
from holdfast.recall.vectors import compute_similarities

from .index_kit import SOURCE, SPACE, batch, digest_of, document, feed, vector
from .once import RULE, once

TEXTS = [f"text {at}" for at in range(12)]
"""A model that embeds each document with the one before."""


def _vectors(*numbers: int) -> list[Vectored]:
    return [Vectored(at, digest_of(TEXTS[at]), vector(at, 1)) for at in numbers]


async def _seqs(index: Index, model: str = "m", **asked: object) -> list[int]:
    return [one.seq for one in await index.pending(model, **asked)]  # type: ignore[arg-type]  # as the check has them


async def test_documents_wait_for_a_vector(index: Index) -> None:
    """The oldest first, each until it has one; results of tools do not."""
    documents = [document(at, text) for at, text in enumerate(TEXTS[:4])]
    await index.write(SPACE, batch(*documents, document(4, "tool", channel="tool", place=0)))
    waiting = [Pending(SPACE, SOURCE, at, digest_of(TEXTS[at])) for at in range(4)]
    assert await index.pending("m") == waiting
    assert await index.pending("m", limit=2) == waiting[:2]
    assert await index.put_vectors(SPACE, SOURCE, "m", _vectors(0, 2)) == 2
    assert await _seqs(index) == [1, 3]
    assert await _seqs(index, space=SPACE) == [1, 3]
    assert await _seqs(index, space=Space("talk", "bob")) == []
    assert await index.put_vectors(SPACE, SOURCE, "m", _vectors(1, 3)) == 2
    assert await _seqs(index) == []


async def test_another_model_starts_without_vectors(index: Index) -> None:
    """What has a vector of one waits for one of the other, and then has that one alone."""
    await feed(index, *TEXTS[:3])
    await feed(index, *TEXTS[:2], space=Space("user", "ann"))
    await index.put_vectors(SPACE, SOURCE, "m", _vectors(0, 1))
    assert len(await index.pending("m2")) == 5
    assert len(await index.pending("m2", limit=2)) == 2  # of what has none and of what has another's together
    assert len(await index.pending("m2", limit=4)) == 4
    larger = [Vectored(at, digest_of(TEXTS[at]), vector(1, 2, 3)) for at in range(2)]
    assert await index.put_vectors(SPACE, SOURCE, "m2", larger[:1]) == 1
    assert sorted(await _seqs(index, space=SPACE)) == [0, 2]
    assert (await index.status()).vectors == {"m": 1, "m2": 1}
    assert await index.drop_vectors(keep="m2") == 1
    assert (await index.status()).vectors == {"m2": 1}
    assert sorted(await _seqs(index, "m2", space=SPACE)) == [1, 2]
    assert await index.drop_vectors() == 1
    assert await _seqs(index, "m", space=SPACE) == [0, 1, 2]


@once(RULE)
async def test_a_model_has_one_dimension(index: Index) -> None:
    """Until all of its vectors are gone."""
    await feed(index, *TEXTS[:2])
    await index.put_vectors(SPACE, SOURCE, "m", _vectors(0))
    with pytest.raises(InvalidRequest, match="2 dimensions"):
        await index.put_vectors(SPACE, SOURCE, "m", [Vectored(1, digest_of(TEXTS[1]), vector(1, 2, 3))])
    with pytest.raises(InvalidRequest, match="2 dimensions"):
        await index.similar(Lookup(space=SPACE), "m", vector(1, 2, 3))
    with pytest.raises(InvalidRequest, match="same dimensions"):
        await index.put_vectors(SPACE, SOURCE, "m", [*_vectors(0), Vectored(1, digest_of(TEXTS[1]), vector(1, 2, 3))])
    for wrong in (b"", b"abc"):
        with pytest.raises(InvalidRequest):
            await index.put_vectors(SPACE, SOURCE, "m", [Vectored(1, digest_of(TEXTS[1]), wrong)])
    assert await _seqs(index) == [1]
    await index.drop_vectors()
    assert await index.put_vectors(SPACE, SOURCE, "m", [Vectored(1, digest_of(TEXTS[1]), vector(1, 2, 3))]) == 1


async def test_the_nearest_documents_are_returned_with_their_neighbours(index: Index) -> None:
    """The nearest first, with their inner products."""
    await feed(index, *TEXTS)
    far = [Vectored(at, digest_of(text), vector(0, 1)) for at, text in enumerate(TEXTS)]
    far[5] = far[5]._replace(vector=vector(1, 0))
    far[6] = far[6]._replace(vector=vector(3, 4))
    await index.put_vectors(SPACE, SOURCE, "m", far)
    near = await index.similar(Lookup(space=SPACE, limit=1, terms=("ignored",)), "m", vector(1, 0))
    assert sorted(one.candidate.seq for one in near) == list(range(5 - NEAR, 5 + NEAR + 1))
    assert [one.candidate.seq for one in near[:2]] == [5, 6]
    assert [one.similarity for one in near[:3]] == pytest.approx([1, 0.6, 0], abs=1e-6)
    assert all(one.candidate.counts == {} for one in near)


async def test_filters_apply_to_the_nearest_and_their_neighbours(index: Index) -> None:
    """None that does not pass is there; and those that pass are found behind any number that do not."""
    documents = [document(at, text, role="user" if at % 4 == 0 else "tool") for at, text in enumerate(TEXTS)]
    await index.write(SPACE, batch(*documents))
    await feed(index, *TEXTS[:3], source=Source("s2", "i2"))
    await index.put_vectors(SPACE, SOURCE, "m", _vectors(*range(12)))
    await index.put_vectors(SPACE, Source("s2", "i2"), "m", _vectors(*range(3)))
    for filters, wanted in (
        (Filters(roles=("user",), sessions=("s1",)), {("s1", 0), ("s1", 4), ("s1", 8)}),
        (Filters(sessions=("s2",)), {("s2", 0), ("s2", 1), ("s2", 2)}),
        (Filters(sessions=("none",)), set()),
        (Filters(since=3000, until=4000, not_sessions=("s2",)), {("s1", 3)}),
    ):
        near = await index.similar(Lookup(space=SPACE, filters=filters, limit=50), "m", vector(1, 0))
        assert {(one.candidate.session, one.candidate.seq) for one in near} == wanted
    assert await index.similar(Lookup(space=SPACE, channel="tool"), "m", vector(1, 0)) == []
    assert await index.similar(Lookup(space=SPACE), "m2", vector(1, 0)) == []


async def test_vectors_of_many_documents_are_found(index: Index, nearest_exactly: bool) -> None:
    """Those that are nearest by an exact scan are found, all of them where the engine is exact."""
    chance = random.Random(1)
    texts = [f"t{at}" for at in range(1500)]
    await feed(index, *texts)
    made = [vector(*(chance.gauss(0, 1) for _ in range(16))) for _ in texts]
    vectors = [Vectored(at, digest_of(text), one) for at, (text, one) in enumerate(zip(texts, made, strict=True))]
    for start in range(0, len(vectors), 500):
        await index.put_vectors(SPACE, SOURCE, "m", vectors[start : start + 500])
    hits = 0
    for at in range(5):
        exact = compute_similarities(made[at], made, 16)
        best = sorted(range(len(texts)), key=lambda one: -exact[one])[:20]
        near = await index.similar(Lookup(space=SPACE, limit=20), "m", made[at])
        given = {one.candidate.seq: one.similarity for one in near}
        hits += len(set(best).intersection(given))
        assert [given[seq] for seq in given] == pytest.approx([exact[seq] for seq in given], abs=1e-5)
        assert [one.similarity for one in near] == sorted(given.values(), reverse=True)
    assert hits >= (100 if nearest_exactly else 80)
