"""The contract of an index against a model of it: any documents, edits and drops, and any lookups after each."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from holdfast.recall.base import Batch, Channel, Document, Filters, Index, Lookup, Source, Space, Vectored
from holdfast.recall.vectors import compute_similarities

from .index_kit import clear, digest_of, progress_of, vector
from .index_model import Known, Model
from .properties import SHARED_STORE

_numbers = itertools.count()
_spaces = st.sampled_from([Space("talk", "ann"), Space("talk", "bob"), Space("user", "ann")])
_sources = st.sampled_from([Source("s1", "a"), Source("s2", "a"), Source("'%", "a")])
_terms = st.sampled_from(["dog", "cat", "walk", "DOG", "*", "会議", "a" * 40, "AND", "\0"])
_channels: st.SearchStrategy[Channel] = st.sampled_from(("talk", "talk", "tool"))


@st.composite
def _documents(draw: st.DrawFn, identity: str) -> Document:
    terms = draw(st.dictionaries(_terms, st.integers(1, 3), max_size=4))
    said = f"{identity} {sorted(terms.items())}"
    return Document(
        seq=draw(st.integers(0, 8)),
        place=draw(st.integers(0, 8)),
        channel=draw(_channels),
        role=draw(st.sampled_from(["user", "assistant"])),
        agent=draw(st.sampled_from([None, "x", "y"])),
        name=draw(st.sampled_from([None, "ann", "bob", "büro"])),
        at=draw(st.integers(-2, 6)),
        digest=digest_of(said),
        length=sum(terms.values()),
        terms=terms,
    )


@st.composite
def _writes(draw: st.DrawFn) -> tuple[Space, Batch]:
    source = draw(_sources)._replace(identity=draw(st.sampled_from(["a", "a", "a", "b"])))
    put: dict[int, Document] = {}
    places = set()
    for one in draw(st.lists(_documents(source.identity), max_size=5)):
        if one.seq not in put and (one.channel, one.place) not in places:
            put[one.seq] = one
            places.add((one.channel, one.place))
    # What an index is told of how far it is has to hold for what may be there already.
    far = progress_of(identity=source.identity, version=draw(st.integers(0, 2)), next_seq=9, talk=9, tool=9)
    expect = far if draw(st.integers(0, 3)) == 0 else None if draw(st.integers(0, 3)) == 0 else UNSET
    drop = draw(st.lists(st.integers(0, 8), max_size=2))
    return draw(_spaces), Batch(source=source, progress=far, put=tuple(put.values()), drop=drop, expect=expect)


_ids = st.lists(_sources.map(lambda one: one.id) | st.just("none"), max_size=2).map(tuple)
_filters = st.one_of(
    st.just(Filters()),
    st.builds(
        Filters,
        sessions=_ids,
        not_sessions=_ids,
        agents=st.lists(st.sampled_from(["x", "y", "none"]), max_size=2).map(tuple),
        roles=st.lists(st.sampled_from(["user", "assistant"]), max_size=2).map(tuple),
        names=st.none() | st.tuples(st.sampled_from([b"", b"ann", b"c"]), st.sampled_from([b"ann", b"bz", b"\xff"])),
        since=st.none() | st.integers(-3, 6),
        until=st.none() | st.integers(-3, 7),
    ),
)
_lookups = st.builds(
    Lookup,
    space=_spaces,
    terms=st.lists(_terms, unique=True, max_size=5).map(tuple),
    channel=_channels,
    filters=_filters,
    limit=st.none() | st.integers(1, 4),
)
_moves = st.one_of(_writes(), _writes(), _writes(), st.tuples(st.just("drop"), _spaces, _sources))


@given(moves=st.lists(_moves, min_size=1, max_size=8), lookups=st.lists(_lookups, min_size=1, max_size=8))
@SHARED_STORE
async def test_an_index_matches_the_model(index: Index, moves: list[Any], lookups: list[Lookup]) -> None:
    """After any writes; counts, what matches, what passes, in order."""
    handle, model = index.for_tenant(f"t{next(_numbers)}"), Model()
    for move in moves:
        await _apply_to_both(handle, model, move)
    for asked in lookups:
        await _compare_lookup(handle, model, asked)
    for space, sources in model.spaces.items():
        listed = await handle.sources(space=space)
        assert [(id_, far) for _, id_, far in listed] == [(id_, sources[id_].progress) for id_ in sorted(sources)]
        for id_, known in sources.items():
            assert list(await handle.list_digests(space, id_)) == [
                (seq, known.documents[seq].digest) for seq in sorted(known.documents)
            ]
    await clear(handle)


async def _apply_to_both(index: Index, model: Model, move: Any) -> None:
    """The same move on both."""
    if move[0] == "drop":
        _, space, source = move
        assert await index.drop(space, source.id) == model.drop(space, source.id)
    else:
        assert await index.write(*move) == model.write(*move)


async def _compare_lookup(index: Index, model: Model, asked: Lookup) -> None:
    answer = await index.lookup(asked)
    assert (answer.documents, answer.length, answer.frequencies) == model.sizes(asked)
    matching = {(id_, one.seq): one for id_, one in model.matching(asked)}
    keys = [(one.session, one.seq) for one in answer.found]
    assert len(keys) == len(set(keys)) == min(len(matching), asked.limit or len(matching))
    for one in answer.found:
        there = matching[one.session, one.seq]
        counts = {term: there.terms[term] for term in asked.terms if term in there.terms}
        assert (one.counts, one.place, one.role, one.agent) == (counts, there.place, there.role, there.agent)
        assert (one.at, one.length) == (there.at, there.length)
    if asked.terms:
        assert [(one.source, one.place) for one in answer.found] == sorted(
            (one.source, one.place) for one in answer.found
        )
    else:
        times = [one.at for one in answer.found]
        assert times == sorted((one.at for one in matching.values()), reverse=True)[: len(times)]


@given(
    moves=st.lists(_moves, min_size=1, max_size=6),
    numbers=st.lists(st.integers(-9, 9), min_size=1, max_size=9),
    filters=_filters,
)
@SHARED_STORE
async def test_vectors_match_the_model(index: Index, moves: list[Any], numbers: list[int], filters: Filters) -> None:
    """Each document has the vector of its text, or waits for it; the nearest are those that an exact scan finds."""
    handle, model = index.for_tenant(f"v{next(_numbers)}"), Model()
    for at, move in enumerate(moves):
        await _apply_to_both(handle, model, move)
        if at % 2 == 0:
            await _write_vectors(handle, model, numbers)
    await _write_vectors(handle, model, numbers)
    assert await handle.pending("m") == []
    for space in model.spaces:
        held = {
            (id_, one.seq): _vector_of(one, numbers)
            for id_, one in model.matching(Lookup(space=space, filters=filters))
        }
        near = await handle.similar(Lookup(space=space, filters=filters, limit=99), "m", vector(1, 2))
        assert {(one.candidate.session, one.candidate.seq) for one in near} == set(held)
        for one in near:
            (exact,) = compute_similarities(vector(1, 2), [held[one.candidate.session, one.candidate.seq]], 2)
            assert abs(one.similarity - exact) < 1e-5
    await clear(handle)


def _vector_of(one: Document, numbers: list[int]) -> bytes:
    """One that depends on the text alone."""
    return vector(numbers[one.digest[0] % len(numbers)], 1)


async def _write_vectors(index: Index, model: Model, numbers: list[int]) -> None:
    """Give what waits its vector."""
    while waiting := await index.pending("m", limit=5):
        for one in waiting:
            known: Known = model.spaces[one.space][one.source.id]
            assert known.source == one.source
            there = known.documents[one.seq]
            assert (there.digest, there.channel) == (one.digest, "talk")
            given = [Vectored(one.seq, one.digest, _vector_of(there, numbers))]
            assert await index.put_vectors(one.space, one.source, "m", given) == 1
