"""One `Holdfast` for many tenants: each has its own caches, and evicting them loses nothing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import holdfast
from holdfast.domain.session import SessionRef
from holdfast.engine.tenancy import Tenants
from holdfast.errors import SessionNotFound
from holdfast.holdfast import Holdfast
from tests.clocks import Clock

REF = SessionRef("default", "s")


async def say(hf: Holdfast, text: str, session_id: str = "s") -> None:
    """Run one turn with the built-in model."""
    session = await hf.session(session_id)
    await session.send(text)


async def texts(hf: Holdfast) -> list[str]:
    """Return what the users of a tenant said."""
    found = []
    for session in (await hf.sessions()).sessions:
        entries = await hf.store.entries(session.ref)
        found += [str(entry.message.content) for entry in entries if entry.message.role == "user"]
    return found


def limit_tenants(hf: Holdfast, most: int) -> Tenants:
    """Limit the number of other tenants that are kept."""
    tenants = hf._tenants
    assert tenants is not None
    tenants._most = most
    return tenants


async def test_least_recently_used_tenant_is_evicted_unless_in_use() -> None:
    """Its data is read again later."""
    async with holdfast.open("sqlite://:memory:") as hf:
        tenants = limit_tenants(hf, 2)
        async with hf.serve_tenant("t0") as used:
            engine = used.engine
            for at in range(1, 6):
                async with hf.serve_tenant(f"t{at}") as one:
                    await say(one, f"I am t{at}")
            await asyncio.gather(*tenants._closing)
            assert len(tenants) == 2
            await say(used, "still here")
            async with hf.serve_tenant("t0") as again:
                assert again.engine is engine
        await asyncio.gather(*tenants._closing)
        assert len(tenants) == 2
        async with hf.serve_tenant("t1") as one:
            assert await texts(one) == ["I am t1"]
            await say(one, "again")


async def test_more_concurrent_tenants_than_the_limit_are_served() -> None:
    async with holdfast.open("sqlite://:memory:") as hf, AsyncExitStack() as stack:
        limit_tenants(hf, 2)
        views = [await stack.enter_async_context(hf.serve_tenant(f"t{at}")) for at in range(10)]
        await asyncio.gather(*(say(view, view.tenant) for view in views))
        assert [await texts(view) for view in views] == [[view.tenant] for view in views]


async def test_sweep_does_not_end_a_session_of_another_tenant_in_use() -> None:
    """It ends after the turn."""
    clock = Clock()
    life = holdfast.settings.LifeSettings(session_ttl=1000, all_tenants=True, sweep=False)
    async with Holdfast("sqlite://:memory:", clock=clock, life=life) as hf, hf.serve_tenant("t1") as one:
        await say(one, "hi")
        assert hf.engine.life.for_tenant("t1") is one.engine.life
        clock.now += 10_000
        one.engine.life.begin_use(REF)
        assert (await hf.sweep()).expired == 0
        one.engine.life.end_use(REF)
        assert (await hf.sweep()).expired == 1
        assert one.engine.warm.get(REF) is None
        with pytest.raises(SessionNotFound):
            await one.store.get(REF)
