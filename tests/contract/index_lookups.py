"""The contract of an index, lookups: what is found, in which order, and what filters let pass."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidRequest
from holdfast.recall.base import CANDIDATES, SMALL, Batch, Filters, Index, Lookup, Progress, Source, Space

from .index_kit import SPACE, batch, document, feed, look_up, seqs
from .once import REFUSED, once

SECOND = Source("s2", "i2")


async def test_a_limit_keeps_documents_with_the_rarest_terms(index: Index) -> None:
    """And among equals those that stand beside others, and then the newest."""
    await feed(index, *("common",) * 10, "rare", *("common",) * 10)
    assert ("s1", 10) in await look_up(index, "common", "rare", limit=1)
    assert await look_up(index, "common", limit=21) == [("s1", at) for at in range(21) if at != 10]
    await feed(index, "common", source=SECOND)
    assert len(await look_up(index, "common", limit=5)) == 5
    await index.drop(SPACE, "s1")
    await feed(index, *("x",) * 3)
    assert await look_up(index, "x", limit=2, filters=Filters(not_sessions=("s2",))) == [("s1", 1), ("s1", 2)]


async def test_all_matches_of_a_small_space_are_candidates(index: Index) -> None:
    """More than in a larger one, where the best are."""
    await feed(index, *(f"x w{at % 5}" for at in range(SMALL)))
    assert len(await look_up(index, "x", "w1")) == SMALL
    await feed(index, "x", source=SECOND)
    assert len(await look_up(index, "x", "w1")) == CANDIDATES
    assert len(await look_up(index, "w1")) == CANDIDATES
    assert len(await look_up(index, "x", filters=Filters(roles=("user",)))) == CANDIDATES


async def test_neighbours_are_read_by_place(index: Index) -> None:
    """Of the space and channel, and of those that pass the filters; others are left out, whatever is asked for."""
    await index.write(SPACE, batch(document(0, "a"), document(1, "b", agent="x"), document(2, "c", channel="tool")))
    await feed(index, "d", space=Space("talk", "bob"))
    (mine, *_) = (await index.lookup(Lookup(space=SPACE))).found
    (bobs,) = (await index.lookup(Lookup(space=Space("talk", "bob")))).found
    places = [(mine.source, at) for at in (-1, 0, 1, 2, 1 << 24, 1 << 62)] + [
        (bobs.source, 0),
        (0, 0),
        (1 << 40, 0),
        (-1, 0),
    ]
    asked = Lookup(space=SPACE, terms=("none",))
    assert seqs(await index.near(asked, places)) == [("s1", 0), ("s1", 1)]
    assert seqs(await index.near(Lookup(space=SPACE, channel="tool"), places)) == [("s1", 2)]
    assert seqs(await index.near(Lookup(space=SPACE, filters=Filters(agents=("x",))), places)) == [("s1", 1)]
    assert await index.near(Lookup(space=SPACE, filters=Filters(sessions=("s2",))), places) == []
    assert await index.near(asked, []) == []


async def test_neighbours_count_when_there_are_too_many_matches(index: Index) -> None:
    """Of two turns that say the same, the one beside an answer is there."""
    await feed(index, *("x",) * 20, "x", "answer answer", *("y",) * 2, *("x",) * 20)
    assert (20, 21) <= tuple(seq for _, seq in await look_up(index, "x", "answer", limit=2)) < (22,)


async def test_lookups_with_thousands_of_terms_work(index: Index) -> None:
    """A question may have more than an engine reads at once."""
    await feed(index, *(f"t{at}" for at in range(100)))
    assert len(await look_up(index, *(f"t{at}" for at in range(0, 200, 2)))) == 50


@once(REFUSED)
async def test_times_outside_64_bits_are_refused(index: Index) -> None:
    """Whatever the engine would make of a larger one."""
    with pytest.raises(InvalidRequest):
        await look_up(index, "x", filters=Filters(since=1 << 64))


async def test_long_documents_are_found(index: Index) -> None:
    """Thousands of terms, each counted."""
    terms = {f"w{at}": at + 1 for at in range(5000)}
    far = Progress(identity="i1", version=1, next_seq=1, talk=1)
    new = document(0, "", terms=terms, length=sum(terms.values()))
    await index.write(SPACE, Batch(source=Source("s1", "i1"), progress=far, put=[new]))
    answer = await index.lookup(Lookup(space=SPACE, terms=("w0", "w4999", "w5000")))
    assert answer.found[0].counts == {"w0": 1, "w4999": 5000}
    assert answer.found[0].length == answer.length == sum(terms.values())
