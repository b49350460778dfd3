"""The contract of an index, spaces: what is one's own is nobody else's, and what is taken away is gone for everybody."""

from __future__ import annotations

from holdfast.recall.base import Filters, Index, Lookup, Progress, Source, Space, Vectored

from .index_kit import SPACE, batch, digest_of, document, feed, look_up, seqs, vector

BOB = Space("talk", "bob")
WORDS = ("dog", "cat", "the dog", "cat cat dog")


async def _feed_words(index: Index, space: Space) -> None:
    await feed(index, *WORDS, space=space)
    vectors = [Vectored(at, digest_of(text), vector(1, at)) for at, text in enumerate(WORDS)]
    assert await index.put_vectors(space, Source("s1", "i1"), "m", vectors) == len(WORDS)


async def test_spaces_with_the_same_words_are_separate(index: Index) -> None:
    """Whatever is asked, and whatever others have: an answer does not change by it."""
    lookups = [
        Lookup(space=BOB, terms=("dog", "cat")),
        Lookup(space=BOB, terms=("dog",), filters=Filters(sessions=("s1",))),
        Lookup(space=BOB, filters=Filters(not_sessions=("none",))),
        Lookup(space=BOB, terms=("the",), filters=Filters(since=0), limit=1),
    ]
    await _feed_words(index, BOB)
    before = [await index.lookup(one) for one in lookups]
    near = await index.similar(Lookup(space=BOB), "m", vector(1, 1))
    status = await index.status(BOB)
    others = (Space("user", "bob"), Space("agent", "bob"), Space("app", "bob"), Space("talk", "Bob"), SPACE)
    for other in others:
        for at in range(3):
            await feed(index, "dog", "secret", *WORDS, space=other, source=Source(f"s{at}", "i"))
        await _feed_words(index, other)
    await _feed_words(index.for_tenant("other"), BOB)
    assert [await index.lookup(one) for one in lookups] == before
    assert await index.similar(Lookup(space=BOB), "m", vector(1, 1)) == near
    assert await index.status(BOB) == status
    assert await look_up(index, "secret", space=BOB) == []
    assert await index.vectors("m", [digest_of("secret"), digest_of("dog")], space=BOB) == {
        digest_of("dog"): vector(1, 0)
    }


async def test_a_tenant_sees_nothing_of_another(index: Index) -> None:
    """Nor changes anything of it, by any method."""
    await _feed_words(index, SPACE)
    other = index.for_tenant("other")
    assert await other.progress(SPACE, "s1") is None
    for nothing in (await other.list_digests(SPACE, "s1"), await other.at(SPACE, "s1", [0]), await other.sources()):
        assert nothing == []
    assert (await other.lookup(Lookup(space=SPACE, terms=("dog",)))).frequencies == {}
    assert await other.similar(Lookup(space=SPACE), "m", vector(1, 0)) == []
    assert await other.pending("m2") == []
    assert await other.drop(SPACE, "s1") == await other.drop_vectors() == 0
    assert (await other.status()).documents == 0
    (one, *_) = (await index.lookup(Lookup(space=SPACE))).found
    assert await other.near(Lookup(space=SPACE), [(one.source, one.place)]) == []
    assert (await index.status()).vectors == {"m": 4}
    assert len(await look_up(index, "dog")) == 3


async def test_a_space_is_gone_with_its_last_source(index: Index) -> None:
    """Others stay; and it may have things again."""
    for space in (SPACE, BOB):
        await _feed_words(index, space)
        await feed(index, "dog", space=space, source=Source("s2", "i2"))
    assert [await index.drop(SPACE, source) for source in ("s1", "s2", "s2")] == [4, 1, 0]
    assert (await index.lookup(Lookup(space=SPACE, terms=("dog",)))).documents == 0
    assert len(await look_up(index, "dog", space=BOB)) == 4
    assert [space for space, *_ in await index.sources()] == [BOB, BOB]
    await feed(index, "dog")
    answer = await index.lookup(Lookup(space=SPACE, terms=("dog", "cat")))
    assert (seqs(answer.found), answer.frequencies) == ([("s1", 0)], {"dog": 1})
    assert await index.similar(Lookup(space=SPACE), "m", vector(1, 0)) == []


async def test_sources_are_listed_in_pages(index: Index) -> None:
    """In order of space and id, of all spaces or of one, and only the incomplete ones, each once."""
    spaces = [Space("agent", "a"), Space("talk", "a"), Space("talk", "b"), Space("user", "a")]
    for at, space in enumerate(reversed(spaces)):
        for name in ("z", "", "s1", "s10", "s2"):
            done = (at + len(name)) % 2 == 0
            await index.write(space, batch(document(0, "x"), source=Source(name, "i"), complete=done))
    everything = await _list_pages(index, None, 3)
    assert [(space, id_) for space, id_, _ in everything] == [
        (space, id_) for space in spaces for id_ in ("", "s1", "s10", "s2", "z")
    ]
    assert await index.sources(limit=99) == everything
    for space in spaces:
        mine = [one for one in everything if one[0] == space]
        assert await index.sources(space=space) == await _list_pages(index, space, 2) == mine
        missing = [one for one in mine if not one[2].complete]
        assert await index.sources(space=space, incomplete=True) == missing
        assert (await index.status(space)).incomplete == len(missing)
    missing = [one for one in everything if not one[2].complete]
    assert await _list_pages(index, None, 3, incomplete=True) == missing
    assert (await index.status()).incomplete == len(missing)
    assert await index.sources(space=Space("talk", "none")) == []


async def _list_pages(
    index: Index, space: Space | None, limit: int, **asked: bool
) -> list[tuple[Space, str, Progress]]:
    """Page by page."""
    everything: list[tuple[Space, str, Progress]] = []
    after = None
    while page := await index.sources(space=space, after=after, limit=limit, **asked):
        assert len(page) <= limit
        everything += page
        after = page[-1][:2]
    return everything


async def test_status_reports_counts(index: Index) -> None:
    """Sources, documents of both channels, vectors by model."""
    nothing = await index.status()
    assert (nothing.sources, nothing.incomplete, nothing.documents, nothing.vectors) == (0, 0, 0, {})
    await _feed_words(index, SPACE)
    await index.write(BOB, batch(document(0, "a"), document(1, "b", channel="tool"), complete=False))
    whole, mine = await index.status(), await index.status(SPACE)
    assert (whole.sources, whole.incomplete, whole.documents, whole.vectors) == (2, 1, 6, {"m": 4})
    assert (mine.sources, mine.incomplete, mine.documents, mine.vectors) == (1, 0, 4, {"m": 4})
    assert whole.vector_engine == nothing.vector_engine != ""
