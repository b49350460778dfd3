"""Searches of records on every store: random writes of several owners, compared with a plain model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.domain.artifact import UserRef
from holdfast.domain.record import RecordOwner, TenantRef
from holdfast.domain.session import SessionRef
from holdfast.lifecycle.settings import LifeSettings
from holdfast.sessions.records import Records
from tests.clocks import Clock
from tests.stores.servers import place

STILL = LifeSettings(session_ttl=0, sweep=False)
SESSIONS = SessionRef("ada", "s1"), SessionRef("bob", "s1")
OWNERS: tuple[RecordOwner, ...] = (TenantRef(), UserRef("ada"), UserRef("bob"), *SESSIONS)
SPACES = (("a",), ("a", "b"), ("ab",), ("a", "ü"))
WORDS = ("zebra", "giraffe", "walrus")


class Known(NamedTuple):
    """A record that a search may find."""

    text: str | None
    ends: int | None


Model = dict[tuple[RecordOwner, tuple[str, ...], str], Known]


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store."""
    with place(request.param, tmp_path) as found:
        yield found


def open_records(hf: holdfast.Holdfast, owner: RecordOwner, space: tuple[str, ...]) -> Records:
    if isinstance(owner, SessionRef):
        return hf.records(space, session=owner)
    return hf.records(space, user_id=owner.user_id if isinstance(owner, UserRef) else None)


async def write_something(hf: holdfast.Holdfast, model: Model, chance: random.Random, now: int) -> None:
    """Write, delete or drop records of one owner, in the store and in the model."""
    owner, space, key = chance.choice(OWNERS), chance.choice(SPACES), chance.choice("xyz")
    records, kind = open_records(hf, owner, space), chance.random()
    if kind < 0.05:
        await records.drop()
        for name in [name for name in model if name[0] == owner]:
            del model[name]
    elif kind < 0.1 and isinstance(owner, SessionRef):
        await hf.delete(owner)
        await hf.session(owner.id, user_id=owner.user_id)
        for name in [name for name in model if name[0] == owner]:
            del model[name]
    elif kind < 0.3:
        await records.delete(key)
        model.pop((owner, space, key), None)
    else:
        text = chance.choice([None, *(f"{one} {chance.choice(WORDS)}" for one in WORDS)])
        ttl = chance.choice([None, None, 5])
        if isinstance(owner, SessionRef) and chance.random() < 0.5:
            handle = await hf.get(owner)
            own = handle.records(space)
            await handle.append({"role": "user", "content": "x"}, records=[own.make_put(key, 1, text=text, ttl=ttl)])
        else:
            await records.put(key, 1, text=text, ttl=ttl)
        model[owner, space, key] = Known(text, None if ttl is None else now + ttl * 1_000)


async def check(hf: holdfast.Holdfast, model: Model, chance: random.Random, now: int) -> None:
    """Search each owner's records for a word, in a namespace, below it, and by a prefix."""
    for owner in OWNERS:
        word, space, prefix = chance.choice(WORDS), chance.choice(SPACES), chance.choice(["", "x"])
        live = [
            (where, key)
            for (whose, where, key), one in model.items()
            if whose == owner and one.text and word in one.text and (one.ends is None or one.ends > now)
        ]
        records = open_records(hf, owner, space)
        found = [hit.record.key for hit in (await records.search(word, prefix=prefix, limit=100)).hits]
        assert sorted(found) == sorted(key for where, key in live if where == space and key.startswith(prefix))
        nested = [hit.record.name for hit in (await records.search(word, nested=True, limit=100)).hits]
        below = [(where, key) for where, key in live if where[: len(space)] == space]
        assert sorted((one.namespace, one.key) for one in nested) == sorted(below)


@pytest.mark.parametrize("seed", range(2))
async def test_searches_find_what_the_records_say(url: str, tmp_path: Path, seed: int) -> None:
    """On each store, after any writes, drops, deletions and expiries; at the end the index has nothing more."""
    chance, clock = random.Random(seed), Clock()
    model: Model = {}
    async with holdfast.open(url, clock=clock, life=STILL, index=f"sqlite:///{tmp_path}/found.db") as hf:
        for ref in SESSIONS:
            await hf.session(ref.id, user_id=ref.user_id)
        for _ in range(12):
            for _ in range(8):
                await write_something(hf, model, chance, clock.now)
            clock.now += chance.randrange(3_000)
            await check(hf, model, chance, clock.now)
        service: Any = hf.engine.index
        await hf.sweep()
        await service.walk(whole=True)
        live = [one for one in model.values() if one.text and (one.ends is None or one.ends > clock.now)]
        documents = (await service.index.status()).documents
        talk = sum([info.messages for info in (await hf.sessions()).sessions])
        assert documents - talk == len(live)


async def test_an_index_in_the_same_database_is_searched(url: str) -> None:
    """With a filter, and in a mode with vectors."""

    async def embed(texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0] if "zebra" in text else [0.6, 0.8] for text in texts]

    index = holdfast.settings.IndexSettings(url=url, embedder=embed, mode="hybrid")
    async with holdfast.open(url, life=STILL, index=index) as hf:
        notes = hf.records("notes", user_id="ada")
        await notes.put("x1", 1, text="a zebra")
        await notes.below("sub").put("x2", 2, text="another zebra")
        await hf.records("other", user_id="ada").put("x3", 3, text="zebra zebra")
        service: Any = hf.engine.index
        await service.settled()
        for mode in ("keyword", "vector", "hybrid"):
            assert [hit.record.key for hit in (await notes.search("zebra", mode=mode)).hits] == ["x1"], mode
            found = [hit.record.key for hit in (await notes.search("zebra", nested=True, mode=mode)).hits]
            assert sorted(found) == ["x1", "x2"], mode
            assert [hit.record.key for hit in (await notes.search("zebra", prefix="x1", mode=mode)).hits] == ["x1"]
            assert (await notes.search("zebra", prefix="y", mode=mode)).hits == ()
