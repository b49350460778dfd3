"""The contract of an index, lookups: what is found, in which order, and what filters let pass."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidRequest
from holdfast.recall.base import CANDIDATES, SMALL, Batch, Filters, Index, Lookup, Progress, Source, Space

from .index_kit import SPACE, batch, document, feed, look_up, seqs

SECOND = Source("s2", "i2")


async def test_candidates_have_at_least_one_of_the_terms(index: Index) -> None:
    """In order of source and place; how often each stands there comes with them."""
    await feed(index, "dog", "cat", "dog cat dog", "bird")
    await feed(index, "cat", source=SECOND)
    answer = await index.lookup(Lookup(space=SPACE, terms=("dog", "cat", "fish")))
    assert [(one.session, one.seq, one.counts) for one in answer.found] == [
        ("s1", 0, {"dog": 1}),
        ("s1", 1, {"cat": 1}),
        ("s1", 2, {"dog": 2, "cat": 1}),
        ("s2", 0, {"cat": 1}),
    ]
    assert (answer.documents, answer.length, answer.frequencies) == (5, 7, {"dog": 2, "cat": 3})


async def test_frequencies_cover_the_whole_space(index: Index) -> None:
    """Filters and limits change what is found, not what is counted."""
    await feed(index, "dog", "dog", "cat")
    whole = await index.lookup(Lookup(space=SPACE, terms=("dog", "cat")))
    for asked in (
        Lookup(space=SPACE, terms=("dog", "cat"), filters=Filters(roles=("nobody",))),
        Lookup(space=SPACE, terms=("dog", "cat"), filters=Filters(since=2000)),
        Lookup(space=SPACE, terms=("dog", "cat"), filters=Filters(sessions=("none",))),
        Lookup(space=SPACE, terms=("dog", "cat"), limit=1),
    ):
        answer = await index.lookup(asked)
        assert len(answer.found) < 3
        assert (answer.documents, answer.length, answer.frequencies) == (3, 3, whole.frequencies)


async def test_channels_are_separate(index: Index) -> None:
    """What tools gave is counted and found for itself."""
    await index.write(SPACE, batch(document(0, "dog"), document(1, "dog cat", channel="tool", place=0)))
    talk = await index.lookup(Lookup(space=SPACE, terms=("dog", "cat")))
    tool = await index.lookup(Lookup(space=SPACE, terms=("dog", "cat"), channel="tool"))
    assert (seqs(talk.found), talk.documents, talk.length, talk.frequencies) == ([("s1", 0)], 1, 1, {"dog": 1})
    assert (seqs(tool.found), tool.documents, tool.frequencies) == ([("s1", 1)], 1, {"dog": 1, "cat": 1})
    with pytest.raises(InvalidRequest):
        await look_up(index, "dog", channel="all")


async def test_each_filter_works(index: Index) -> None:
    """Lets pass what it says, with terms and without, alone and together."""
    first = [document(at, "x", role=role, agent=agent, name=_NAMES[at]) for at, (role, agent) in enumerate(_WHO)]
    await index.write(SPACE, batch(*first))
    await index.write(SPACE, batch(*(document(at, "x", at=5000 + at) for at in range(2)), source=SECOND))
    for filters, wanted in _FILTERS:
        assert await look_up(index, "x", filters=filters) == wanted, filters
        assert sorted(await look_up(index, filters=filters)) == wanted, filters
        assert await look_up(index, "y", filters=filters) == []


_WHO = (("user", None), ("assistant", "a"), ("user", "b"), ("assistant", "b"))
_NAMES = ("a\x1f\0b", "a\x1f\0ü", None, "a\x1fb\x1f\0" + "x" * 1000)
_ALL = [("s1", 0), ("s1", 1), ("s1", 2), ("s1", 3), ("s2", 0), ("s2", 1)]
_FILTERS: tuple[tuple[Filters, list[tuple[str, int]]], ...] = (
    (Filters(), _ALL),
    (Filters(sessions=("s1",)), _ALL[:4]),
    (Filters(sessions=("s1", "s2", "none")), _ALL),
    (Filters(sessions=("none",)), []),
    (Filters(not_sessions=("s1", "none")), _ALL[4:]),
    (Filters(not_sessions=("none",)), _ALL),
    (Filters(sessions=("s1",), not_sessions=("s1",)), []),
    (Filters(agents=("a",)), [("s1", 1)]),
    (Filters(agents=("a", "b")), [("s1", 1), ("s1", 2), ("s1", 3)]),
    (Filters(agents=("none",)), []),
    (Filters(roles=("assistant",)), [("s1", 1), ("s1", 3)]),
    (Filters(roles=("user", "assistant")), _ALL),
    (Filters(names=(b"", b"\xff")), [("s1", 0), ("s1", 1), ("s1", 3)]),
    (Filters(names=(b"a\x1f\0", b"a\x1f\1")), [("s1", 0), ("s1", 1)]),
    (Filters(names=(b"a\x1f\0\xc3", b"a\x1f\0\xc4")), [("s1", 1)]),
    (Filters(names=(b"a\x1fb\x1f", b"a\x1fb ")), [("s1", 3)]),
    (Filters(sessions=("s1",), names=(b"a\x1f\0\xc3\xbc", b"b"), until=2000), [("s1", 1)]),
    (Filters(names=(b"b", b"c")), []),
    (Filters(since=2000), [("s1", 2), ("s1", 3), ("s2", 0), ("s2", 1)]),
    (Filters(until=2000), [("s1", 0), ("s1", 1)]),
    (Filters(since=1000, until=3000), [("s1", 1), ("s1", 2)]),
    (Filters(since=3000, until=1000), []),
    (Filters(sessions=("s1",), agents=("b",), roles=("user",), since=0, until=9000), [("s1", 2)]),
    (Filters(sessions=("s1",), agents=("b",), roles=("tool",)), []),
)


async def test_without_terms_the_newest_come_first(index: Index) -> None:
    """By their time; of equal times the last of the last source."""
    times = (5, 9, 5, 1)
    await index.write(SPACE, batch(*(document(seq, f"w{seq}", at=at) for seq, at in enumerate(times))))
    await index.write(SPACE, batch(document(0, "w", at=5), source=SECOND))
    assert await look_up(index) == [("s1", 1), ("s2", 0), ("s1", 2), ("s1", 0), ("s1", 3)]
    assert await look_up(index, limit=2) == [("s1", 1), ("s2", 0)]
    assert await look_up(index, limit=2, filters=Filters(sessions=("s1",))) == [("s1", 1), ("s1", 2)]


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


async def test_the_rarest_of_many_matches_are_candidates(index: Index) -> None:
    """Whatever common words come with them; filters too."""
    texts = [f"x y z w{at % 3}" for at in range(SMALL + 500)]
    texts[77] += " rare"
    texts[1234] += " rare rarer"
    await feed(index, *texts)
    for filters in (Filters(), Filters(roles=("user",)), Filters(since=0), Filters(sessions=("s1",))):
        answer = await index.lookup(Lookup(space=SPACE, terms=("x", "y", "z", "rare", "rarer"), filters=filters))
        counts = {one.seq: one.counts for one in answer.found}
        assert counts[77] == {"x": 1, "y": 1, "z": 1, "rare": 1}
        assert counts[1234] == {"x": 1, "y": 1, "z": 1, "rare": 1, "rarer": 1}
        assert len(answer.found) == CANDIDATES
        assert seqs(answer.found) == sorted(seqs(answer.found))


async def test_documents_are_read_by_number(index: Index) -> None:
    """Without counts; those that are not there are left out."""
    await feed(index, "a", "b", "c")
    assert seqs(await index.at(SPACE, "s1", [2, 0, 9, 2])) == [("s1", 0), ("s1", 2)]
    assert {one.seq: one.counts for one in await index.at(SPACE, "s1", [1])} == {1: {}}
    assert await index.at(SPACE, "s1", []) == await index.at(SPACE, "s2", [0]) == []
    assert await index.at(Space("talk", "bob"), "s1", [0]) == []


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


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_is_at_least_one(index: Index, limit: int) -> None:
    """Else it is a mistake, and is called one."""
    with pytest.raises(InvalidRequest):
        await look_up(index, "x", limit=limit)


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


async def test_a_document_without_terms_is_stored(index: Index) -> None:
    """Is held and found by its place alone."""
    await index.write(SPACE, batch(document(0, "", terms={}, length=0), document(1, "a")))
    assert await look_up(index) == [("s1", 1), ("s1", 0)]
    assert await look_up(index, "a", "") == [("s1", 1)]
    await index.write(SPACE, batch(drop=[0], next_seq=2, talk=2))
    assert await look_up(index) == [("s1", 1)]
