"""One `Holdfast` for many tenants: each has memories of its own, and none is lost when its memories are let go."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.session import SessionRef
from holdfast.engine.engine import Engine
from holdfast.engine.tenancy import Tenants
from holdfast.errors import InvalidRequest, SessionNotFound, StoreClosed
from holdfast.holdfast import Holdfast
from tests.clocks import Clock

REF = SessionRef("default", "s")


async def say(hf: Holdfast, text: str, session_id: str = "s") -> None:
    """One turn with the built-in model."""
    session = await hf.session(session_id)
    await session.send(text)


async def texts(hf: Holdfast) -> list[str]:
    """What was said by users of a tenant."""
    found = []
    for session in (await hf.sessions()).sessions:
        entries = await hf.store.entries(session.ref)
        found += [str(entry.message.content) for entry in entries if entry.message.role == "user"]
    return found


def few(hf: Holdfast, most: int) -> Tenants:
    """Have it keep so many other tenants."""
    tenants = hf._tenants
    assert tenants is not None
    tenants._most = most
    return tenants


async def test_tenants_are_apart() -> None:
    """The same names of users and sessions are other ones in each; the own tenant is the one that was opened."""
    async with holdfast.open("sqlite://:memory:") as hf:
        async with hf.serve_tenant("default") as own:
            assert own is hf
        for tenant in ("default", "t1", "t2"):
            async with hf.serve_tenant(tenant) as one:
                assert (one.tenant, one.store.tenant) == (tenant, tenant)
                await say(one, f"I am {tenant}")
        for tenant in ("default", "t1", "t2"):
            async with hf.serve_tenant(tenant) as one:
                assert await texts(one) == [f"I am {tenant}"]
                assert one.engine.warm.get(REF) is not None
                assert one.artifacts is not hf.artifacts or tenant == "default"
        for bad in ("", "x" * 513):
            with pytest.raises(InvalidRequest):
                await hf.serve_tenant(bad).__aenter__()


async def test_what_is_everybodys_is_shared() -> None:
    """Models, guard, hooks, sweep and figures are the server's."""
    async with holdfast.open("sqlite://:memory:") as hf, hf.serve_tenant("t1") as one:
        assert (one.roster, one.hooks, one.clock) == (hf.roster, hf.hooks, hf.clock)
        assert one.engine.sweeper is hf.engine.sweeper
        assert one.engine.hook_dispatcher is hf.engine.hook_dispatcher
        assert one.engine.life.ended is hf.engine.life.ended
        assert one.engine.compactor.outcomes is hf.engine.compactor.outcomes
        assert one.engine.scoring.counts is hf.engine.scoring.counts
        assert one.engine.warm is not hf.engine.warm
        assert one.engine.learning is not hf.engine.learning


async def test_only_so_many_are_kept_and_none_that_is_used() -> None:
    """The one that nobody has used for longest goes; what it knew is read again."""
    async with holdfast.open("sqlite://:memory:") as hf:
        tenants = few(hf, 2)
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


async def test_more_at_once_than_are_kept() -> None:
    """All are served."""
    async with holdfast.open("sqlite://:memory:") as hf, AsyncExitStack() as stack:
        few(hf, 2)
        views = [await stack.enter_async_context(hf.serve_tenant(f"t{at}")) for at in range(10)]
        await asyncio.gather(*(say(view, view.tenant) for view in views))
        assert [await texts(view) for view in views] == [[view.tenant] for view in views]


async def test_writes_of_all_tenants_are_waited_for(tmp_path: Path) -> None:
    """What was under way when the server ends is in the log."""
    url = f"sqlite:///{tmp_path}/s.db"
    gate = asyncio.Event()

    async def late(engine: Engine) -> None:
        await gate.wait()
        await engine.store.update(REF, holdfast_patch(), timestamp=1)

    async with holdfast.open(url) as hf:
        async with hf.serve_tenant("t1") as one:
            await say(one, "hi")
            settling = asyncio.ensure_future(one.engine.settle(REF, late(one.engine)))
        asyncio.get_running_loop().call_soon(gate.set)
    await settling
    async with holdfast.open(url, tenant="t1") as hf:
        assert (await hf.store.get(REF)).metadata == {"late": True}


def holdfast_patch() -> Any:
    """A change that can be seen."""
    from holdfast.stores.sessions import SessionPatch

    return SessionPatch(metadata={"late": True})


async def test_hooks_hear_of_all_tenants() -> None:
    """Ends of a tenant's sessions are told, with whose they were; at the end of the process, too."""
    heard: list[tuple[str, str]] = []

    async def note(session: Any, reason: str) -> None:
        heard.append((session.tenant, reason))

    async with holdfast.open("sqlite://:memory:") as hf:
        hf.on_expire(note, name="note", reasons=("close", "shutdown"))
        async with hf.serve_tenant("t1") as one:
            await say(one, "hi", "closed")
            await one.close_session(SessionRef("default", "closed"))
            await say(one, "hi", "open")
    assert sorted(heard) == [("t1", "close"), ("t1", "shutdown")]


async def test_the_sweep_knows_what_is_in_use() -> None:
    """A session of another tenant with a turn under way does not end, however long that takes; then it does."""
    clock = Clock()
    life = holdfast.LifeSettings(session_ttl=1000, all_tenants=True, sweep=False)
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


async def test_a_short_life_is_heeded_by_the_sweep() -> None:
    """A tenant's session with a shorter ttl has the server sweep sooner."""
    async with holdfast.open("sqlite://:memory:", session_ttl="24h") as hf, hf.serve_tenant("t1") as one:
        before = hf.engine.sweeper.interval
        await one.create("s", ttl=4000)
        assert hf.engine.sweeper.interval < before


async def test_a_tenant_that_does_not_close_well_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged, and the rest goes on."""
    async with holdfast.open("sqlite://:memory:") as hf, hf.serve_tenant("t1") as one, hf.serve_tenant("t2") as two:

        async def fails() -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(one.engine.learning, "close", fails)
        await say(two, "hi")
    assert not hf.is_open


def test_closed_it_serves_nobody() -> None:
    """Neither before nor after."""

    async def use() -> None:
        hf = holdfast.open("sqlite://:memory:")
        with pytest.raises(StoreClosed):
            await hf.serve_tenant("t1").__aenter__()

    asyncio.run(use())
