"""Records by handles that a program keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import SessionNotFound
from holdfast.settings import LifeSettings
from tests.behaviour.kit import Clock

STILL = LifeSettings(session_ttl=0, sweep=False)


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db", life=STILL) as hf:
        yield hf


async def test_a_handle_does_not_reach_a_later_session_of_the_name(hf: holdfast.Holdfast) -> None:
    """Neither reads nor writes, also of namespaces below and in an append."""
    session = await hf.session("s1", user_id="ada")
    old = session.records("x")
    await old.put("k", 1)
    await hf.remove(session.ref)
    new = await hf.session("s1", user_id="ada")
    await new.records("x").put("k", 2)
    for call in (
        old.get("k"),
        old.put("k", 3),
        old.below("y").put("k", 3),
        old.list(),
        old.namespaces(),
        old.delete("k"),
        old.clear(),
        old.drop(),
        session.append({"role": "user", "content": "Hi."}, records=[old.make_put("k", 3)]),
    ):
        with pytest.raises(SessionNotFound):
            await call
    found = await new.records("x").get("k")
    assert (found and found.value, await new.messages()) == (2, [])
    by_name = await hf.records("x", session=session.ref).get("k")
    assert by_name == found


async def test_a_handle_follows_a_session_that_lapsed_in_memory() -> None:
    """A program with a handle can go on, as with messages; but not in a session that another program created."""
    clock, life = Clock(), LifeSettings(session_ttl=1_000, sweep=False)
    async with holdfast.open("sqlite://:memory:", clock=clock, life=life) as hf:
        session = await hf.session("s1", user_id="ada")
        records = session.records("x")
        for at in range(3):
            await records.put("k", at)
            clock.now += 2_000
        await session.append({"role": "user", "content": "Hi."}, records=[records.make_put("k", 9)])
        found = await records.get("k")
        assert found is not None
        assert found.value == 9
        clock.now += 2_000
        other = await hf.session("s1", user_id="ada")
        with pytest.raises(SessionNotFound):
            await records.put("k", 10)
        assert await other.records("x").get("k") is None
