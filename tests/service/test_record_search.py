"""Searching records: what is found, by whom, and that the index follows every change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.artifact import UserRef
from holdfast.indexes.sources import to_record_source
from holdfast.lifecycle.settings import LifeSettings
from holdfast.recall.base import Index, Lookup, Space
from holdfast.sessions.records import Records
from tests.clocks import Clock

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
