"""Searching records: what is found, by whom, and that the index follows every change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast import indexes, limits
from holdfast.domain.artifact import UserRef
from holdfast.domain.record import RecordOwner
from holdfast.errors import InvalidRequest, SessionNotFound, TooLarge
from holdfast.indexes.records import RecordQueue, to_record_source
from holdfast.lifecycle.settings import LifeSettings
from holdfast.recall.base import Index, Lookup, Space
from holdfast.sessions.records import Records
from tests.clocks import Clock
from tests.service.guard_kit import KEY, desk

STILL = LifeSettings(session_ttl=0, sweep=False)
PARCEL, SEAT = "The parcel to Oslo arrived late", "Ada prefers a window seat"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chat.db"


@pytest.fixture
async def hf(clock: Clock, url: str) -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open(url, clock=clock, life=STILL) as hf:
        yield hf


async def find_keys(records: Records, query: str, **more: Any) -> list[str]:
    """The keys of the hits."""
    return [hit.record.key for hit in (await records.search(query, **more)).hits]


def get_index(hf: holdfast.Holdfast) -> Index:
    """The index of the process."""
    service: Any = hf.engine.index
    index: Index = service.index
    return index


async def count_documents(hf: holdfast.Holdfast, user: str) -> int:
    """Number of documents of a user's records, with those of the user's sessions."""
    return (await get_index(hf).status(Space("record", user))).documents


async def test_deleted_texts_leave_the_index_with_the_write(hf: holdfast.Holdfast) -> None:
    """Not only the results: the words themselves."""
    orders = hf.records("orders", user_id="ada")
    await orders.put("1", 1, text="zebra")
    await orders.put("2", 1, text="giraffe")
    assert await find_keys(orders, "zebra giraffe") == ["2", "1"]
    await orders.delete("1")
    looked = await get_index(hf).lookup(Lookup(space=Space("record", "ada"), terms=("zebra", "giraff")))
    assert (len(looked.found), looked.documents, "zebra" in looked.frequencies) == (1, 1, False)
    await orders.drop()
    assert await get_index(hf).progress(*to_record_source(UserRef("ada"))) is None


async def test_a_small_namespace_is_found_among_many_records(hf: holdfast.Holdfast) -> None:
    """The filter applies before candidates are chosen, not to the best of all records."""
    many, few = hf.records("many"), hf.records("few")
    await few.put("one", 1, text="a parcel")
    for at in range(0, 2_400, 100):
        await many.change([many.make_put(f"{at + one:04}", 1, text="parcel parcel") for one in range(100)])
    service: Any = hf.engine.index
    await service.settled()
    assert await find_keys(few, "parcel") == ["one"]
    assert await find_keys(many, "parcel", prefix="0042") == ["0042"]


async def test_the_index_follows_sessions(hf: holdfast.Holdfast) -> None:
    """Appends, moves, exports and imports, and deletion take the texts along."""
    session = await hf.session("s1", user_id="ada")
    steps = session.records("steps")
    await session.append({"role": "user", "content": "hi"}, records=[steps.make_put("1", 1, text=PARCEL)])
    assert await find_keys(steps, "parcel") == ["1"]
    exported = await hf.export(session.ref)
    assert exported["records"][0]["text"] == PARCEL
    moved = holdfast.SessionRef("bob", "s2")
    await hf.move(session.ref, id="s2", user_id="bob")
    assert await find_keys(hf.records("steps", session=moved), "parcel") == ["1"]
    assert await count_documents(hf, "ada") == 0
    await hf.import_(exported, session_id="s3", user_id="ada")
    copy = hf.records("steps", session=holdfast.SessionRef("ada", "s3"))
    assert await find_keys(copy, "parcel") == ["1"]
    await hf.import_({**exported, "records": []}, session_id="s3", user_id="ada", replace=True)
    assert (await find_keys(copy, "parcel"), await count_documents(hf, "ada")) == ([], 0)
    await hf.delete(moved)
    with pytest.raises(SessionNotFound):
        await hf.records("steps", session=moved).search("parcel")
    assert await count_documents(hf, "bob") == 0


async def test_a_session_of_the_same_id_has_none_of_the_old_records(hf: holdfast.Holdfast) -> None:
    session = await hf.session("s1", user_id="ada")
    steps = session.records("steps")
    await steps.put("1", 1, text=PARCEL)
    assert await find_keys(steps, "parcel") == ["1"]
    await hf.delete(session.ref)
    again = await hf.session("s1", user_id="ada")
    assert await find_keys(again.records("steps"), "parcel") == []
    with pytest.raises(SessionNotFound):
        await steps.search("parcel")


async def test_an_empty_session_of_the_same_id_removes_the_old_texts(url: str, clock: Clock) -> None:
    """Another process deletes the session and creates it again."""
    async with holdfast.open(url, clock=clock, life=STILL) as hf:
        session = await hf.session("s1", user_id="ada")
        await session.records("steps").put("1", 1, text=PARCEL)
        assert await find_keys(session.records("steps"), "parcel") == ["1"]
        async with holdfast.open(url, clock=clock, life=STILL, index=None) as other:
            await other.delete(session.ref)
            await other.create("s1", user_id="ada")
        again = await hf.session("s1", user_id="ada")
        assert await find_keys(again.records("steps"), "parcel") == []
        assert await count_documents(hf, "ada") == 0


async def test_a_full_queue_still_takes_deletions_of_queued_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes.records, "INDEX_WAITING", 1)
    updated, failed = list[Any](), list[Any]()

    async def update_source(owner: RecordOwner, *, gone: Any, compare: bool) -> int:
        updated.append((owner, sorted(gone), compare))
        return 1

    feeder: Any = SimpleNamespace(update_source=update_source)
    queue = RecordQueue(feeder, lambda: None, lambda *what: failed.append(what))
    queue.schedule(UserRef("ada"), (3,))
    queue.schedule(UserRef("bob"), (4,))
    queue.schedule(UserRef("ada"), (5,))
    await queue.close(1)
    assert updated == [(UserRef("ada"), [3, 5], False)]
    assert failed == [("waiting", None)]


async def test_a_backfill_finds_what_another_process_wrote(url: str, clock: Clock) -> None:
    """Also deletions; a rebuild makes the index again."""
    async with holdfast.open(url, clock=clock, life=STILL, index=None) as writer:
        session = await writer.session("s1", user_id="ada")
        for records in (writer.records("n"), writer.records("n", user_id="ada"), session.records("n")):
            await records.put("1", 1, text=PARCEL)
            await records.put("2", 1, text=SEAT)
    async with holdfast.open(url, clock=clock, life=STILL) as hf:
        service: Any = hf.engine.index
        await service.walk(whole=True)
        assert (await get_index(hf).status()).documents == 6
        async with holdfast.open(url, clock=clock, life=STILL, index=None) as writer:
            await writer.records("n").delete("1")
            await writer.records("n", user_id="ada").put("1", 1, text="changed")
        assert await find_keys(hf.records("n"), "parcel") == []
        assert await find_keys(hf.records("n", user_id="ada"), "changed") == ["1"]
        await service.records.settle()  # a search that misses a record removes its text
        assert (await get_index(hf).status(Space("record", ""))).documents == 1
        await service.walk(whole=True)
        assert await get_index(hf).list_digests(Space("record", ""), "") != []
        assert (await get_index(hf).status()).documents == 5
        await get_index(hf).clear()
        await service.rebuild()
        assert (await get_index(hf).status()).documents == 5
        assert await find_keys(hf.records("n", session=session.ref), "parcel") == ["1"]
        await get_index(hf).clear()
        await service.rebuild(user="ada", session="s1")
        assert (await get_index(hf).status(Space("record", "ada"))).documents == 2


async def test_processes_and_searches_index_an_owner_together(url: str, clock: Clock) -> None:
    """Each page once or more, and nothing is lost or left over; meanwhile others write and delete."""
    async with (
        holdfast.open(url, clock=clock, life=STILL) as one,
        holdfast.open(url, clock=clock, life=STILL) as two,
    ):
        records = one.records("n"), two.records("n")
        for at in range(0, 600, 100):
            await records[0].change([records[0].make_put(f"{at + i:03}", 1, text=f"parcel {i}") for i in range(100)])
        services: list[Any] = [one.engine.index, two.engine.index]
        work: list[Any] = [service.walk(whole=True) for service in services]
        work += [some.search("parcel") for some in records * 4]
        work += [records[1].delete(f"{at:03}") for at in range(5)]
        work += [records[1].put(f"{at:03}", 1, text="window") for at in range(5, 10)]
        await asyncio.gather(*work)
        for service in services:
            await service.settled()
        assert await count_documents(one, "") == 595
        assert len(await find_keys(records[0], "parcel", limit=100)) == 100
        assert sorted(await find_keys(records[1], "window")) == [f"{at:03}" for at in range(5, 10)]


@pytest.mark.parametrize("seed", range(4))
async def test_a_search_agrees_with_the_records(hf: holdfast.Holdfast, clock: Clock, seed: int) -> None:
    """After random changes: what is found is exactly what contains the word, and the index has no more than that."""
    chance, words = random.Random(seed), ["zebra", "giraffe", "walrus", "falcon"]
    records, known = hf.records("zoo", user_id="ada"), dict[str, str | None]()
    for _ in range(60):
        key = chance.choice("abcdef")
        if chance.random() < 0.3:
            await records.delete(key)
            known.pop(key, None)
        else:
            known[key] = chance.choice([None, *(f"a {one} and a {chance.choice(words)}" for one in words)])
            await records.put(key, chance.random(), text=known[key])
        if chance.random() < 0.3:
            word = chance.choice(words)
            assert sorted(await find_keys(records, word)) == sorted(
                key for key, text in known.items() if text and word in text
            )
    await records.search("zebra")
    assert await count_documents(hf, "ada") == sum(text is not None for text in known.values())


async def test_hybrid_searches_find_records_by_meaning(url: str, clock: Clock) -> None:
    """A record without a word of the query is found by its vector; deleted ones are not embedded."""

    async def embed(texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0] if any(word in text for word in ("parcel", "package")) else [0.0, 1.0] for text in texts]

    index = holdfast.settings.IndexSettings(embedder=embed, mode="hybrid")
    async with holdfast.open(url, clock=clock, life=STILL, index=index) as hf:
        orders = hf.records("orders", user_id="ada")
        await orders.put("1", 1, text=PARCEL)
        await orders.put("2", 1, text=SEAT)
        waiting = await orders.search("package")
        assert waiting.notes == ("some records have no vector yet: they are found by their words alone",)
        service: Any = hf.engine.index
        await service.settled()
        results = await orders.search("package")
        assert (results.mode, results.notes) == ("hybrid", ())
        assert results.hits[0].record.key == "1"
        assert results.hits[0].parts["vector"] == 1
        assert (await find_keys(orders, "package", mode="vector"))[:1] == ["1"]
        assert await find_keys(orders, "package", mode="keyword") == []


async def test_secrets_are_masked_in_searchable_texts(tmp_path: Path) -> None:
    async with desk(tmp_path, "secret_guard: {enabled: true, on_secret: redact}") as made:
        notes = made.hf.records("notes", user_id="ada")
        await notes.put("a", b"bytes", text=f"the key is {KEY}")
        one = await notes.get("a")
        assert one is not None
        assert KEY not in (one.text or "")
        assert await find_keys(notes, "key") == ["a"]


async def test_bad_searches_are_refused(hf: holdfast.Holdfast, url: str, clock: Clock) -> None:
    notes = hf.records("notes", user_id="ada")
    bad: tuple[tuple[Any, dict[str, Any], str], ...] = (
        ("", {}, "query"),
        (7, {}, "query"),
        ("x" * (limits.QUERY_CHARS + 1), {}, "query"),
        ("x", {"limit": 0}, "limit"),
        ("x", {"limit": limits.SEARCH_RESULTS + 1}, "limit"),
        ("x", {"mode": "fuzzy"}, "mode"),
        ("x", {"mode": "vector"}, "mode"),
        ("x", {"prefix": "a", "nested": True}, "prefix"),
    )
    for query, more, param in bad:
        with pytest.raises(InvalidRequest) as refused:
            await notes.search(query, **more)
        assert refused.value.param == param
    with pytest.raises(InvalidRequest, match="namespace"):
        await hf.records((), user_id="ada").search("x")
    for text, error in (("", InvalidRequest), (7, InvalidRequest), ("x" * (limits.RECORD_TEXT_BYTES + 1), TooLarge)):
        with pytest.raises(error, match="text"):
            await notes.put("a", 1, text=text)  # type: ignore[arg-type]
    assert (await notes.search("the")).notes == ("the query has no word to search for",)
    async with holdfast.open(url, clock=clock, life=STILL, index=None) as other:
        with pytest.raises(InvalidRequest, match="no index"):
            await other.records("notes").search("x")
