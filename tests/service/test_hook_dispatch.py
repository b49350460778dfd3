"""Hooks for session ends: which ends they receive, in order and isolated from each other, and at process shutdown."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import Ending
from holdfast.hooks import EndedSession
from holdfast.stores.wrapper import StoreWrapper
from tests.clocks import Clock
from tests.service.expiry_kit import (
    HOUR,
    RecordingHook,
    change_schedule,
    close_with_hooks,
    file,
    life,
    list_due_hooks,
    ref,
    talk,
)

# -- order, isolation, time ----------------------------------------------------


async def test_hook_that_ignores_cancellation_is_abandoned(tmp_path: Path, clock: Clock) -> None:
    """It delays neither the next hook nor the shutdown for long."""
    async with life(file(tmp_path), clock) as hf:
        change_schedule(hf, call_seconds=0.01)
        release, ear = asyncio.Event(), RecordingHook()

        async def stubborn(session: EndedSession, reason: str) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        hf.on_expire(stubborn, name="stubborn")
        hf.add_hook(ear)
        await close_with_hooks(hf)
        assert ear.heard == [("close", "a")]
        release.set()


# -- process shutdown --------------------------------------------------------------


async def test_shutdown_does_not_wait_forever_for_hooks(tmp_path: Path, clock: Clock) -> None:
    """A hanging delivery is left to the next start."""
    async with life(file(tmp_path), clock) as hf:
        change_schedule(hf, close_seconds=0.05)
        began = asyncio.Event()

        async def hangs(session: EndedSession, reason: str) -> None:
            began.set()
            await asyncio.Event().wait()

        hf.on_expire(hangs, name="hangs")
        await talk(hf, "a")
        await hf.close_session(ref("a"))
        await began.wait()
    async with life(file(tmp_path), clock) as hf:
        assert await list_due_hooks(hf) == [("hangs",)]


# -- claims in the background -------------------------------------------------------


class SlowClaims(StoreWrapper):
    """Waits after it has claimed a record."""

    claimed: asyncio.Event
    go: asyncio.Event

    async def settle(self, *args: Any, **kwargs: Any) -> Ending:
        ending: Ending = await self.inner.settle(*args, **kwargs)
        if kwargs.get("expect_due") is not None and not self.claimed.is_set():
            self.claimed.set()
            await self.go.wait()
        return ending


@pytest.mark.parametrize("hours", [0, 2])
async def test_a_sweep_returns_after_records_that_another_task_claims(tmp_path: Path, clock: Clock, hours: int) -> None:
    """Even if the claim is over by then, for example because the machine slept: it is claimed again."""
    async with life(file(tmp_path), clock) as hf:
        ear = RecordingHook()
        ear.failing = 1
        hf.add_hook(ear)
        await close_with_hooks(hf)
        clock.now += HOUR
        slow = SlowClaims(hf.engine.life.store)
        slow.claimed, slow.go = asyncio.Event(), asyncio.Event()
        polling = asyncio.ensure_future(hf.engine.hook_dispatcher.claim_due(slow))
        await slow.claimed.wait()
        clock.now += hours * HOUR
        sweeping = asyncio.ensure_future(hf.sweep())
        await asyncio.sleep(0.05)
        slow.go.set()
        await sweeping
        assert (len(ear.calls), ear.heard) == (2, [("close", "a")])
        await polling
