"""Consolidation over several simulated days: memories that are recalled in different ways are promoted, outside content is not, and the diary
gives the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.consolidation.sweeps import ConsolidationSettings
from holdfast.domain.memory import Memory, MemoryDelta, Owner, Signal
from holdfast.errors import InvalidRequest, StaleMemories, StoreUnavailable
from holdfast.lifecycle.settings import LifeSettings
from tests.clocks import Clock
from tests.service.memories_kit import ANN, Days, open_holdfasts

PLACES = ("memory", "postgres", "mysql")


@pytest.fixture(params=PLACES)
async def days(request: pytest.FixtureRequest) -> AsyncIterator[Days]:
    clock = Clock()
    async with open_holdfasts(request.param, clock=clock) as (hf,):
        yield Days(hf, clock)


@pytest.fixture
async def here() -> AsyncIterator[Days]:
    clock = Clock()
    async with open_holdfasts("memory", clock=clock) as (hf,):
        yield Days(hf, clock)


# -- several days ------------------------------------------------------------------


async def test_concurrent_consolidations_promote_once(request: pytest.FixtureRequest) -> None:
    clock = Clock()
    async with open_holdfasts("postgres", times=2, clock=clock) as servers:
        days = Days(servers[0], clock)
        one = await days.keep("Ann is allergic to peanuts")
        for question in ("which allergies?", "are peanuts fine?", "allergic to milk or peanuts?"):
            days.pass_()
            await days.ask(question)
        dreamt = await asyncio.gather(*(hf.consolidation.consolidate(ANN) for hf in servers for _ in range(4)))
        assert sum(one.promotions for one in dreamt if one.written) == 1
        assert (await days.get(one)).promoted_at == clock.now
        assert len(await days.hf.store.diary(ANN, limit=100)) == 1


async def keep_and_recall_on_three_days(
    days: Days, content: str = "Ann is allergic to peanuts", **fields: Any
) -> Memory:
    """Keep a memory that qualifies for promotion."""
    one = await days.keep(content, **fields)
    for number in range(3):
        days.pass_()
        await days.ask(f"{content} question{number}", user_id=fields.get("user_id", "ann"))
    return one


async def test_all_owners_of_all_tenants_are_consolidated() -> None:
    clock = Clock()
    async with open_holdfasts("memory", clock=clock, life=LifeSettings(all_tenants=True)) as (hf,):
        kept = []
        async with hf.serve_tenant("acme") as other:
            for server in (hf, other):
                days = Days(server, clock)
                for user in ("ann", "bob"):
                    kept.append((days, await keep_and_recall_on_three_days(days, user_id=user)))
            await hf.sweep()
            assert [await days.is_promoted(one) for days, one in kept] == [True] * 4


async def test_failed_consolidation_of_one_owner_is_retried_and_does_not_block_others(
    here: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    anns = await keep_and_recall_on_three_days(here)
    bobs = await keep_and_recall_on_three_days(here, user_id="bob")
    change, failing = here.hf.store.change_memories, True

    async def fails(owner: Owner, *args: Any, **fields: Any) -> Any:
        if failing and owner == ANN:
            raise StoreUnavailable("gone for a moment")
        return await change(owner, *args, **fields)

    monkeypatch.setattr(here.hf.store, "change_memories", fails, raising=False)
    await here.hf.sweep()
    assert [await here.is_promoted(one) for one in (anns, bobs)] == [False, True]
    failing = False
    here.pass_(0.3)
    await here.hf.sweep()
    assert await here.is_promoted(anns)


async def test_memory_changed_during_consolidation_is_decided_again(
    here: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await keep_and_recall_on_three_days(here)
    read, raced = here.hf.store.signals, False

    async def meanwhile(*args: Any, **fields: Any) -> Any:
        nonlocal raced
        if not raced:
            raced = True
            await here.hf.memories.forget(one.id)
        return await read(*args, **fields)

    monkeypatch.setattr(here.hf.store, "signals", meanwhile, raising=False)
    dreamt = await here.hf.consolidation.consolidate(ANN)
    assert (dreamt.promotions, dreamt.written) == (0, False)


async def test_continuous_writes_do_not_prevent_consolidation(days: Days) -> None:
    one = await keep_and_recall_on_three_days(days)

    async def others() -> None:
        for number in range(30):
            new = Memory(id=f"mem_{number:032x}", owner=ANN, content=f"fact {number}", created_at=0, updated_at=0)
            await days.hf.store.change_memories(ANN, MemoryDelta(put=(new,)), timestamp=days.clock.now)

    await asyncio.gather(days.hf.consolidation.consolidate(ANN), others())
    assert await days.is_promoted(one)


async def test_repeated_write_conflicts_raise_an_error(here: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    await keep_and_recall_on_three_days(here)

    async def stale(*_: Any, **__: Any) -> Any:
        raise StaleMemories(expected=1, version=2)

    monkeypatch.setattr(here.hf.store, "change_memories", stale, raising=False)
    with pytest.raises(StaleMemories):
        await here.hf.consolidation.consolidate(ANN)


# -- bounds and forgetting -------------------------------------------------------------------


async def test_report_of_many_memories_is_bounded(here: Days) -> None:
    new = [Memory(id=f"mem_{n:032x}", owner=ANN, content=f"fact {n}", created_at=0, updated_at=0) for n in range(300)]
    for start in (0, 150):
        await here.hf.store.change_memories(ANN, MemoryDelta(put=tuple(new[start : start + 150])), timestamp=1)
    signals = tuple(Signal(memory_id=one.id, at=here.clock.now, query=b"q", score=1.0) for one in new)
    await here.hf.store.change_memories(ANN, MemoryDelta(signals=signals), timestamp=1)
    report = (await here.hf.consolidation.consolidate(ANN)).report
    assert report["verdicts"] == {"gated": 300}
    assert len(report["candidates"]) == 200


def test_too_short_interval_is_rejected_by_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ConsolidationSettings(interval=0)
    assert caught.value.param == "interval"
