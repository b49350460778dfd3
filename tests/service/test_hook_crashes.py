"""Hooks receive each end at least once, wherever a process crashes, and exactly once with several processes and no
failure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import EndReason
from holdfast.errors import StoreUnavailable
from holdfast.hooks import EndedSession
from holdfast.lifecycle.settings import LifeSettings
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.wrapper import StoreWrapper
from tests.clocks import Clock
from tests.given_store import HoldfastOn
from tests.service.expiry_kit import RecordingHook, change_schedule, life, list_due_hooks, ref, rows, talk
from tests.stores.servers import place

# -- crash between any two steps ---------------------------------------------------


class Crashed(StoreUnavailable):
    """The process crashed here."""


class Mortal(StoreWrapper):
    """A store whose process crashes at a step, before or right after it; afterwards every call fails."""

    STEPS = frozenset({"end", "get", "entries", "settle", "delete", "forget_ending", "endings", "lease", "release"})

    def __init__(self, inner: Store, fate: dict[str, int]) -> None:
        super().__init__(inner)
        self._fate = fate

    def wrap(self, inner: Store) -> Mortal:
        return type(self)(inner, self._fate)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name not in self.STEPS:
            return method

        async def step(*args: Any, **kwargs: Any) -> Any:
            fate = self._fate
            if fate["left"] <= 0:
                raise Crashed("dead")
            fate["left"] -= 1
            if fate["left"] == 0 and not fate["behind"]:
                raise Crashed("dead")
            result = await method(*args, **kwargs)
            if fate["left"] == 0:
                raise Crashed("dead")
            return result

        return step


@pytest.mark.parametrize("behind", [0, 1], ids=["before", "behind"])
@pytest.mark.parametrize("reason", ["ttl", "delete"])
async def test_crash_at_any_step_loses_nothing_and_repeats_no_recorded_delivery(
    tmp_path: Path, clock: Clock, reason: EndReason, behind: int
) -> None:
    """The process crashes at each step of ending and delivering; the next one delivers the rest and cleans up."""
    for steps in range(1, 40):
        url = f"sqlite:///{tmp_path}/{steps}.db"
        one, two = RecordingHook("one"), RecordingHook("two")
        died = await _run_until_crash(url, clock, reason, fate={"left": steps, "behind": behind}, ears=(one, two))
        noted = Counter(name for ear in (one, two) for name in [ear.name] * len(ear.heard))
        async with life(url, clock, session_ttl=1000) as hf:
            for ear in (one, two):
                hf.add_hook(ear)
            clock.now += 200_000
            await hf.sweep()
            clock.now += 200_000
            await hf.sweep()
            again = reason == "delete" and await hf.delete(ref("a"))
            await hf.engine.hook_dispatcher.wait_until_idle()
            assert await list_due_hooks(hf) == []
            assert {what for ear in (one, two) for what, _ in ear.heard} <= {reason, "ttl"}
            for ear in (one, two):
                assert len(ear.heard) >= 1, (steps, ear.name)
                assert len(ear.heard) <= 2 + again, (steps, ear.name)
                assert all(texts == ["hello"] for texts in ear.texts)
            # Only the hook that was running during the crash receives the end twice.
            assert sum(len(ear.heard) for ear in (one, two)) <= 3 + 2 * again
            assert len(await rows(hf)) == (reason == "ttl")
        if not died:
            assert noted == {"one": 1, "two": 1}
            return
    pytest.fail("it takes no more than 40 steps")


async def _run_until_crash(
    url: str, clock: Clock, reason: EndReason, *, fate: dict[str, int], ears: Collection[RecordingHook]
) -> bool:
    """Run a process that ends a session and may crash; return True if it did."""
    setup = await open_store(url, tenant="default")
    store: Any = Mortal(setup, {**fate, "left": 10_000})
    settings = LifeSettings(sweep=False, session_ttl=1000)
    async with HoldfastOn(store, clock=clock, life=settings) as hf:
        for ear in ears:
            hf.add_hook(ear)
        await talk(hf, "a")
        live: Any = hf.engine.life.store
        live._fate.update(fate)
        try:
            if reason == "ttl":
                clock.now += 1000
                await hf.sweep()
            else:
                await hf.delete(ref("a"))
            await hf.engine.hook_dispatcher.wait_until_idle()
        except Crashed:
            pass
        died = live._fate["left"] <= 0
        live._fate["left"] = 10_000  # close shared resources
    await setup.close()
    return bool(died)


# -- several processes ---------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a database that two processes share."""
    with place(request.param, tmp_path) as url:
        yield url


async def test_two_concurrent_sweeps_deliver_each_end_once(shared: str, clock: Clock) -> None:
    """Whichever holds the lease or ends a session, each hook receives each end exactly once if nothing fails."""
    number = 60
    async with life(shared, clock, session_ttl=1000) as one, life(shared, clock, session_ttl=1000) as two:
        ears = [RecordingHook("ear") for _ in range(2)]
        for hf, ear in zip((one, two), ears, strict=True):
            hf.add_hook(ear)
        await asyncio.gather(*(one.create(f"s{at}") for at in range(number)))
        clock.now += 1000
        swept = await asyncio.gather(*(hf.sweep() for hf in (one, two) * 3))
        assert sum(one_.expired for one_ in swept) == number
        # Reads end sessions too: both at once.
        await asyncio.gather(*(talk(hf, f"s{at}") for at in range(number) for hf in (one, two)))
        clock.now += 1000
        await asyncio.gather(*(talk(hf, f"s{at}") for at in range(number) for hf in (one, two)))
        for hf in (one, two):
            await hf.engine.hook_dispatcher.wait_until_idle()
        heard = Counter(name for ear in ears for _, name in ear.heard)
        assert heard == {f"s{at}": 2 for at in range(number)}
        assert len({delivery for ear in ears for _, _, delivery, _ in ear.calls}) == 2 * number


async def test_sweep_lease_of_a_dead_process_is_taken_over(shared: str, clock: Clock) -> None:
    """While the holder is alive no other process sweeps."""
    async with life(shared, clock, session_ttl=1000) as hf:
        await hf.create("a")
        clock.now += 1000
        now = clock.now
        await hf.engine.life.store.lease("sweep", "a process that died", now=now, until=now + 60_000)
        swept = await hf.sweep()
        assert (swept.elsewhere, swept.expired) == (1, 0)
        clock.now += 60_000
        swept = await hf.sweep()
        assert (swept.elsewhere, swept.expired) == (0, 1)


async def test_delivery_claim_of_a_dead_process_is_taken_over(shared: str, clock: Clock) -> None:
    """No other process delivers a claimed end before the claim expires."""
    async with life(shared, clock) as one, life(shared, clock) as two:
        began, ear = asyncio.Event(), RecordingHook()

        async def hangs(session: EndedSession, reason: str) -> None:
            began.set()
            await asyncio.Event().wait()

        one.on_expire(hangs, name=ear.name)
        two.add_hook(ear)
        await talk(one, "a")
        await one.close_session(ref("a"))
        await began.wait()
        await two.sweep()
        assert ear.calls == []
        clock.now += 90_000
        await two.sweep()
        assert ear.heard == [("close", "a")]
        change_schedule(one, close_seconds=0.01)
