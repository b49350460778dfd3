"""Hooks for session ends: which ends they receive, in order and isolated from each other, and at process shutdown."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.hooks import EndedSession
from tests.clocks import Clock
from tests.service.expiry_kit import (
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
