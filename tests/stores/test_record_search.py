"""Searches of records: random writes of several owners, compared with a plain model."""

from __future__ import annotations

import random
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
async def test_searches_find_what_the_records_say(tmp_path: Path, seed: int) -> None:
    """After any writes, drops, deletions and expiries; at the end the index has nothing more."""
    chance, clock = random.Random(seed), Clock()
    model: Model = {}
    async with holdfast.open(
        f"sqlite:///{tmp_path}/chat.db", clock=clock, life=STILL, index=f"sqlite:///{tmp_path}/found.db"
    ) as hf:
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
