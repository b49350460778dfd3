"""The contract of an index, at once: several openings and callers, and callers that give up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.recall.base import Index, Lookup, Source, Space, Vectored

from .cancellation import cut
from .index_kit import SOURCE, SPACE, batch, digest_of, document, feed, look_up, vector
from .index_plugin import OpenIndex
from .resources import HeldResources

ROUNDS = 10
MOST_AWAITS = 60


async def test_one_of_several_indexers_advances(index_openings: list[Index]) -> None:
    """What each expects holds for one of them: the others write nothing, and go on from where that one is."""
    far = None
    for round_ in range(ROUNDS):
        rivals = [
            batch(document(round_, f"x by{at}", agent=f"by{at}"), expect=far, version=10 * round_ + at)
            for at in range(4)
        ]
        won = await asyncio.gather(
            *(index_openings[at % len(index_openings)].write(SPACE, one) for at, one in enumerate(rivals))
        )
        assert sorted(won) == [False, False, False, True]
        winner = won.index(True)
        far = await index_openings[0].progress(SPACE, "s1")
        assert far == rivals[winner].progress
        answer = await index_openings[-1].lookup(Lookup(space=SPACE, terms=("x", *(f"by{at}" for at in range(4)))))
        assert [one.agent for one in answer.found][round_] == f"by{winner}"
        assert answer.frequencies["x"] == round_ + 1


async def test_counts_are_right_with_simultaneous_writers(index_openings: list[Index]) -> None:
    """Many sources of few spaces, with the same words, put and replaced and dropped in turn by all openings."""
    spaces = [Space("talk", f"u{at}") for at in range(3)]

    async def work(number: int) -> None:
        index, space, source = (
            index_openings[number % len(index_openings)],
            spaces[number % 3],
            Source(f"s{number}", "i"),
        )
        for round_ in range(3):
            words = [f"w{(number + round_ + at) % 5} x" for at in range(6)]
            await index.write(space, batch(*(document(at, word) for at, word in enumerate(words)), source=source))
        await index.write(space, batch(drop=[0, 5], next_seq=6, talk=6, source=source))
        if number % 4 == 0:
            await index.drop(space, source.id)

    await asyncio.gather(*(work(number) for number in range(24)))
    for space in spaces:
        answer = await index_openings[0].lookup(Lookup(space=space, terms=("x", *(f"w{at}" for at in range(5)))))
        assert len(answer.found) == answer.documents == answer.frequencies["x"] == 6 * 4
        counted = {term: sum(term in one.counts for one in answer.found) for term in answer.frequencies}
        assert answer.frequencies == counted
        assert (
            await index_openings[-1].lookup(Lookup(space=space, terms=("x", *(f"w{at}" for at in range(5))))) == answer
        )


async def test_new_spaces_and_models_are_created_once(index_openings: list[Index]) -> None:
    """By whoever is first; the others write to the same."""

    async def work(number: int) -> None:
        index, source = index_openings[number % len(index_openings)], Source(f"s{number}", "i")
        await index.write(SPACE, batch(document(0, "x"), source=source))
        await index.put_vectors(SPACE, source, "m", [Vectored(0, digest_of("x"), vector(number, 1))])

    await asyncio.gather(*(work(number) for number in range(12)))
    assert len(await look_up(index_openings[0], "x")) == 12
    assert (await index_openings[-1].status()).vectors == {"m": 12}
    assert len(await index_openings[0].similar(Lookup(space=SPACE, limit=99), "m", vector(1, 0))) == 12


async def test_one_of_several_new_notes_is_kept(index_openings: list[Index]) -> None:
    """And everybody reads that one, from when their own was written on."""

    async def write_note(number: int, name: str) -> bytes | None:
        index = index_openings[number % len(index_openings)]
        await index.keep_note(name, b"%d" % number, new=True)
        return await index.note(name)

    for round_ in range(ROUNDS):
        found = await asyncio.gather(*(write_note(number, f"n{round_}") for number in range(4)))
        assert len(set(found)) == 1
        assert None not in found


async def test_readers_see_complete_writes(index_openings: list[Index]) -> None:
    """A lookup in the middle of writes sees all of each, or nothing."""
    done = asyncio.Event()

    async def write() -> None:
        for round_ in range(30):
            await feed(index_openings[0], *(f"x r{round_}" for _ in range(5)))
        done.set()

    async def read() -> None:
        while not done.is_set():
            answer = await index_openings[-1].lookup(Lookup(space=SPACE, terms=("x", *(f"r{at}" for at in range(30)))))
            rounds = {term for one in answer.found for term in one.counts}
            assert len(rounds) in (0, 2)
            assert len(answer.found) == answer.documents == answer.frequencies.get("x", 0) in (0, 5)

    await asyncio.gather(write(), read(), read())


Act = Callable[[Index, Space], Coroutine[Any, Any, object]]


async def _write(index: Index, space: Space) -> object:
    return await index.write(space, batch(document(0, "new x"), document(4, "x"), drop=[1], version=2))


async def _drop(index: Index, space: Space) -> object:
    return await index.drop(space, "s1")


async def _put(index: Index, space: Space) -> object:
    return await index.put_vectors(space, SOURCE, "m", [Vectored(1, digest_of("b x"), vector(1, 2))])


async def _lookup(index: Index, space: Space) -> object:
    return await index.lookup(Lookup(space=space, terms=("x",)))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("act", [_write, _drop, _put, _lookup], ids=lambda act: act.__name__)
async def test_a_cancelled_caller_leaves_the_index_consistent(
    index: Index, act: Act, late: bool
) -> None:  # a parameter
    """At any await: what it did is done or not, never half, and the index goes on."""
    neighbour = Space("talk", "neighbour")
    await feed(index, "a x", "b x", space=neighbour)
    expected = await index.lookup(Lookup(space=neighbour, terms=("x",)))
    for at in range(MOST_AWAITS):
        space = Space("talk", f"u{at}")
        await feed(index, "a x", "b x", "c x", space=space)
        task = asyncio.create_task(_cut(act(index, space), at, late=late))
        asking = asyncio.create_task(_look_up(index, neighbour))
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert await asking == expected
        await _whole(index, space)
        if not isinstance(outcome, asyncio.CancelledError):
            assert not isinstance(outcome, Exception)
            return
    raise AssertionError("it awaits too often")


async def _cut(work: Coroutine[Any, Any, object], at: int, *, late: bool) -> object:
    return await cut(work, at, late=late)


async def _look_up(index: Index, space: Space) -> object:
    return await index.lookup(Lookup(space=space, terms=("x",)))


async def _whole(index: Index, space: Space) -> None:
    """All of a write is there, or nothing."""
    # What was begun may still be ended: a write behind it waits for it, if it is one of the same space.
    await index.drop(space, "nobody")
    answer = await index.lookup(Lookup(space=space, terms=("x", "new")))
    seqs = [one.seq for one in answer.found]
    assert seqs in ([], [0, 1, 2], [0, 2, 4])
    assert answer.documents == answer.frequencies.get("x", 0) == len(seqs)
    assert answer.frequencies.get("new", 0) == (seqs == [0, 2, 4])
    assert len(await index.list_digests(space, "s1")) == len(seqs)


async def test_closing_an_index_releases_everything(index_opener: OpenIndex) -> None:
    """Threads, files and connections are as before, after use by many at once."""
    before = HeldResources()
    for _ in range(3):
        index = await index_opener()
        work: list[Awaitable[object]] = [feed(index, "x", source=Source(f"s{at}", "i")) for at in range(20)]
        await asyncio.gather(*work, *(look_up(index.for_tenant(f"t{at}"), "x") for at in range(20)))
        await index.close()
        assert before.more() == []


async def test_writes_survive_reopening(shared_index_opener: OpenIndex) -> None:
    """Closing and opening finds everything, in the same order."""
    index = await shared_index_opener()
    await feed(index, "dog", "cat dog", "bird")
    await index.put_vectors(SPACE, SOURCE, "m", [Vectored(0, digest_of("dog"), vector(1, 2))])
    before = await index.lookup(Lookup(space=SPACE, terms=("dog", "bird")))
    far = await index.progress(SPACE, "s1")
    await index.close()
    again = await shared_index_opener()
    assert await again.lookup(Lookup(space=SPACE, terms=("dog", "bird"))) == before
    assert await again.progress(SPACE, "s1") == far
    assert [one.seq for one in await again.pending("m")] == [1, 2]
    assert far is not None
    assert await again.write(SPACE, replace(batch(document(3, "dog")), expect=far))
