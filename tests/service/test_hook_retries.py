"""Failed hook deliveries: retried with growing pauses, also by the next process, and finally given up."""

from __future__ import annotations

from pathlib import Path

from tests.clocks import Clock
from tests.service.expiry_kit import (
    RecordingHook,
    file,
    life,
    state,
    talk,
)


async def test_failed_shutdown_delivery_is_retried_at_the_next_start(tmp_path: Path, clock: Clock) -> None:
    ear = RecordingHook(reasons=["shutdown"])
    ear.failing = 1
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await talk(hf, "a")
    clock.now += 100_000
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await hf.sweep()
        assert ear.heard == [("shutdown", "a")]
        assert await state(hf, "a") == "active"
