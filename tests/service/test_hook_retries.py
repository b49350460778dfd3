"""Failed hook deliveries: retried with growing pauses, also by the next process, and finally given up."""

from __future__ import annotations

from pathlib import Path

from tests.clocks import Clock
from tests.service.expiry_kit import (
    DAY,
    RecordingHook,
    close_with_hooks,
    file,
    life,
    list_due_hooks,
    state,
    talk,
)


async def test_failed_delivery_is_retried_with_growing_pauses(tmp_path: Path, clock: Clock) -> None:
    """With the same delivery id; hooks that succeeded do not run again, and no retry is early."""
    async with life(file(tmp_path), clock) as hf:
        ear, other = RecordingHook("ear"), RecordingHook("other")
        ear.failing = 4
        hf.add_hook(ear)
        hf.add_hook(other)
        await close_with_hooks(hf)
        for pause in (1_000, 5_000, 30_000, 120_000):
            await hf.sweep()
            clock.now += pause - 1
            await hf.sweep()
            calls = len(ear.calls)
            clock.now += 1 + pause // 5
            await hf.sweep()
            assert len(ear.calls) == calls + 1
        assert ear.heard == [("close", "a")]
        assert [attempt for *_, attempt in ear.calls] == [1, 2, 3, 4, 5]
        assert len({delivery for _, _, delivery, _ in ear.calls}) == 1
        assert len(other.calls) == 1
        clock.now += DAY
        await hf.sweep()
        assert (len(ear.calls), len(other.calls), await list_due_hooks(hf)) == (5, 1, [])


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
