"""The contract of an index, documents: how they come, are replaced and go, and how far an index is."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import InvalidRequest, StoreClosed, TooLarge
from holdfast.recall.base import Filters, Index, Lookup, Progress, Source, Space

from .index_kit import SOURCE, SPACE, batch, digest_of, document, feed, look_up, progress_of
from .index_plugin import OpenIndex
from .once import REFUSED, RULE, once

HOSTILE = (
    *(
        '"',
        "'",
        "*",
        "%",
        "_",
        "\\",
        "AND",
        "OR",
        "NOT",
        "NEAR",
        "NEAR(",
        "^",
        ":",
        "-",
        "+",
        "(",
        ")",
        "<",
        ">",
        "~",
        "@",
    ),
    *(
        "\0",
        "a\0b",
        "a\nb",
        "tokens:a",
        'x" OR "y',
        "'; DROP TABLE index_spaces; --",
        "none",
        "null",
        "…",
        "İ",
        "ß",
        "ﬁ",
    ),
    *(
        "Ü",
        "ü",
        "u\u0308",
        "会議",
        "👩\u200d👩",
        "\ud800",
        "a=2",
        "a|b=3",
        "walk|dog=9",
        "W" * 10_000,
        "w" * 10_000,
        " ",
    ),
)
"""Terms that an engine could take for something else."""
NAMES = ("'", '"', "%", "_", "a\\", "ann", "Ann", "ann ", "A\0B", "ü", "u\u0308", "s;--", "会" * 100)


async def test_a_document_is_read_back_unchanged(index: Index) -> None:
    """All but its digest, its terms and its text, which is nowhere."""
    new = document(
        7,
        "walk the walk dog",
        place=3,
        role="assistant",
        agent="Ü\0",
        name="bob",
        at=-5,
        traits=(1 << 31) - 1,
        detail="4d2.1;3.0; x@0.1 _y@1 ",
    )
    await index.write(SPACE, batch(new))
    answer = await index.lookup(Lookup(space=SPACE, terms=("walk", "dog", "cat")))
    (one,) = answer.found
    assert (one.session, one.identity, one.seq, one.place) == ("s1", "i1", 7, 3)
    assert (one.role, one.agent, one.name, one.at, one.traits) == ("assistant", "Ü\0", "bob", -5, (1 << 31) - 1)
    assert one.detail == "4d2.1;3.0; x@0.1 _y@1 "
    assert (one.length, one.counts) == (4, {"walk": 2, "dog": 1})
    assert (answer.documents, answer.length, answer.frequencies) == (1, 4, {"walk": 1, "dog": 1})


@once(RULE)
async def test_progress_is_stored_with_the_documents(index: Index) -> None:
    """And of a source of which it knows nothing, nothing."""
    assert await index.progress(SPACE, "s1") is None
    far = Progress(identity="i1", version=-3, next_seq=9, talk=4, tool=2, epoch=5, complete=False)
    await index.write(SPACE, replace(batch(document(0, "a"), complete=False), progress=far))
    assert await index.progress(SPACE, "s1") == far
    assert await index.progress(SPACE, "s2") is None
    assert await index.progress(Space("user", "ann"), "s1") is None


async def test_a_write_with_a_stale_expectation_is_refused(index: Index) -> None:
    """Else nothing is written, and nothing is raised."""
    first = batch(document(0, "a"), expect=None)
    assert await index.write(SPACE, first)
    assert not await index.write(SPACE, first)
    second = batch(document(1, "b"), version=2)
    for wrong in (None, replace(first.progress, talk=9), replace(first.progress, complete=False), second.progress):
        assert not await index.write(SPACE, replace(second, expect=wrong))
    assert await index.progress(SPACE, "s1") == first.progress
    assert await look_up(index, "b") == []
    assert await index.write(SPACE, replace(second, expect=first.progress))
    assert not await index.write(SPACE, replace(second, source=Source("s2", "i1"), expect=first.progress))
    assert not await index.write(Space("talk", "bob"), replace(second, expect=first.progress))
    assert await look_up(index, "a", "b") == [("s1", 0), ("s1", 1)]


async def test_the_same_document_again_changes_nothing(index: Index) -> None:
    """An interrupted feed may send again what has come already."""
    await feed(index, "a b", "b c")
    before = await index.lookup(Lookup(space=SPACE, terms=("a", "b", "c")))
    await feed(index, "a b", "b c")
    assert await index.lookup(Lookup(space=SPACE, terms=("a", "b", "c"))) == before
    assert await index.list_digests(SPACE, "s1") == [(0, digest_of("a b")), (1, digest_of("b c"))]


async def test_listing_documents_continues_after_a_page(index: Index) -> None:
    """In order of the entries, over both channels."""
    documents = [document(at, f"w{at}", channel="tool" if at % 3 else "talk", place=at) for at in range(9)]
    await index.write(SPACE, batch(*documents))
    assert [seq for seq, _ in await index.list_digests(SPACE, "s1", limit=4)] == [0, 1, 2, 3]
    assert [seq for seq, _ in await index.list_digests(SPACE, "s1", start=4, limit=9)] == [4, 5, 6, 7, 8]
    assert await index.list_digests(SPACE, "s2") == []


async def test_terms_are_never_interpreted(index: Index) -> None:
    """Whatever stands in it finds those that have it, and no others; and nothing of it is interpreted."""
    documents = [document(other, "", terms={one: other + 1, "plain": 1}, length=9) for other, one in enumerate(HOSTILE)]
    await index.write(SPACE, batch(*documents))
    for at, hostile in enumerate(HOSTILE):
        answer = await index.lookup(Lookup(space=SPACE, terms=(hostile, "PLAIN")))
        assert [(one.seq, one.counts) for one in answer.found] == [(at, {hostile: at + 1})]
        assert answer.frequencies == {hostile: 1}
    odd = [at for at in range(len(HOSTILE)) if at % 2]
    await index.write(SPACE, batch(drop=odd, next_seq=len(HOSTILE), talk=len(HOSTILE)))
    assert await look_up(index, *HOSTILE) == [("s1", at) for at in range(0, len(HOSTILE), 2)]
    assert await look_up(index, "plain") == [("s1", at) for at in range(0, len(HOSTILE), 2)]


async def test_names_compare_byte_for_byte(index: Index) -> None:
    """Of users, sources, agents and roles."""
    for name in NAMES:
        source = Source(name, name)
        assert await index.write(Space("talk", name), batch(document(0, "x", agent=name, role=name), source=source))
        assert await index.write(SPACE, batch(document(0, "x", agent=name, role=name), source=source))
    for name in NAMES:
        assert await look_up(index, "x", space=Space("talk", name), filters=Filters(sessions=(name,))) == [(name, 0)]
        for filters in (Filters(sessions=(name,)), Filters(agents=(name,)), Filters(roles=(name,))):
            assert await look_up(index, "x", filters=filters) == [(name, 0)]
        assert (name, 0) not in await look_up(index, "x", filters=Filters(not_sessions=(name,)))


@once(RULE)
async def test_memories_are_one_source_with_an_empty_name(index: Index) -> None:
    """And an owner may have none either."""
    space, source = Space("app", ""), Source()
    await index.write(space, batch(document(5, "a"), source=source))
    assert await look_up(index, "a", space=space) == [("", 5)]
    assert await index.progress(space, "") is not None
    assert [where for where, *_ in await index.sources()] == [space]


@once(REFUSED)
async def test_invalid_documents_are_refused(index: Index) -> None:
    """With the whole batch."""
    wrong: list[dict[str, Any]] = [
        *({"place": -1}, {"place": 1 << 24}, {"seq": -1}, {"digest": b"short"}, {"traits": 1 << 31}, {"traits": -1}),
        *({"detail": "a|b"}, {"detail": "é"}, {"terms": {"a": 0}}, {"channel": "other"}, {"role": ""}),
        *({"agent": "a" * 600}, {"name": "\ud800"}),
    ]
    for fields in wrong:
        with pytest.raises(InvalidRequest):
            await index.write(SPACE, batch(document(0, "a"), replace(document(1, "b"), **fields)))
    assert await index.progress(SPACE, "s1") is None


@once(REFUSED)
async def test_contradictory_batches_are_refused(index: Index) -> None:
    """Two documents of one number or place, or the progress of another source."""
    one = document(0, "a")
    for wrong in (
        batch(one, document(0, "b", place=1)),
        batch(one, document(1, "b", place=0)),
        replace(batch(one), source=Source("s1", "other")),
    ):
        with pytest.raises(InvalidRequest):
            await index.write(SPACE, wrong)
    with pytest.raises(InvalidRequest):
        await index.write(Space("else", "ann"), batch(one))  # type: ignore[arg-type]  # that is the mistake
    assert await index.sources() == []


async def test_notes_are_stored(index: Index) -> None:
    """A tenant's own."""
    assert await index.note("rebuild") is None
    await index.keep_note("rebuild", b"\0one", new=True)
    await index.keep_note("rebuild", b"two")
    await index.keep_note("rebuild", b"three", new=True)
    assert (await index.note("rebuild"), await index.note("Rebuild")) == (b"two", None)
    assert await index.for_tenant("other").note("rebuild") is None
    await index.keep_note("rebuild", None)
    assert await index.note("rebuild") is None
    with pytest.raises(TooLarge):
        await index.keep_note("rebuild", bytes(64 * 1024 + 1))


async def test_a_closed_index_raises(index_opener: OpenIndex) -> None:
    """Closing twice is fine; the handles of other tenants are closed with it."""
    index = await index_opener()
    other = index.for_tenant("other")
    await feed(index, "a")
    await index.close()
    await index.close()
    for handle in (index, other):
        with pytest.raises(StoreClosed):
            await look_up(handle, "a")
        with pytest.raises(StoreClosed):
            await feed(handle, "a")


@once(RULE)
async def test_closing_a_handle_of_another_tenant_closes_nothing_else(index: Index) -> None:
    """Only what was opened is closed with its first handle."""
    other = index.for_tenant("other")
    await feed(other, "a")
    await other.close()
    await feed(index, "a")
    assert await look_up(index, "a") == [("s1", 0)]


@once(RULE)
async def test_a_source_has_an_identity(index: Index) -> None:
    """Its number is equal for equal sources, and for no others."""
    await feed(index, "x", "x")
    await feed(index, "x", source=Source("s2", "i2"))
    await feed(index, "x", space=Space("talk", "bob"))
    mine = (await index.lookup(Lookup(space=SPACE, terms=("x",)))).found
    other = (await index.lookup(Lookup(space=Space("talk", "bob"), terms=("x",)))).found
    assert mine[0].source == mine[1].source
    assert len({one.source for one in (*mine, *other)}) == 3
    assert SOURCE.id == mine[0].session


async def test_a_recreated_source_has_a_new_identity(index: Index) -> None:
    """From its first entry on, whatever of it is still there: its progress says where it is, and nothing is there twice."""
    await feed(index, *(f"old x n{at}" for at in range(6)))
    vague = progress_of(next_seq=0, version=-1, complete=False)
    await index.write(SPACE, replace(batch(), progress=vague))
    await index.write(SPACE, batch(*(document(at, f"new x n{at}") for at in range(3)), expect=vague, complete=False))
    answer = await index.lookup(Lookup(space=SPACE, terms=("old", "new", "x")))
    assert (len(answer.found), answer.frequencies) == (6, {"old": 3, "new": 3, "x": 6})
    await index.write(SPACE, batch(document(3, "new x", place=4), drop=[4, 5]))
    answer = await index.lookup(Lookup(space=SPACE, terms=("old", "new", "x")))
    assert [(one.seq, one.place) for one in answer.found] == [(0, 0), (1, 1), (2, 2), (3, 4)]
    assert answer.frequencies == {"new": 4, "x": 4}
