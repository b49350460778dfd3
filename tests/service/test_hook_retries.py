"""Failed hook deliveries: retried with growing pauses, also by the next process, and finally given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.holdfast import Holdfast
from holdfast.lifecycle.hook_delivery import DeliverySchedule
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
from tests.waits import until


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


def test_delivery_attempts_span_a_week() -> None:
    schedule = DeliverySchedule()
    pauses = [
        schedule.pauses_ms[min(number, len(schedule.pauses_ms) - 1)] for number in range(schedule.max_attempts - 1)
    ]
    assert 7 * DAY <= sum(pauses) < 7.1 * DAY
    assert schedule.claim_ms > schedule.call_seconds * 1000


async def test_deliveries_of_an_unconfigured_hook_are_dropped_after_a_day(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not before: it may be registered later, or by another process."""
    async with life(file(tmp_path), clock) as hf:
        old, ear = RecordingHook("old"), RecordingHook()
        old.failing = ear.failing = 1
        hf.add_hook(old)
        hf.add_hook(ear)
        await close_with_hooks(hf)
    clock.now += 3 * DAY
    async with life(file(tmp_path), clock) as hf:
        await hf.sweep()
        assert await list_due_hooks(hf) == [("old", "ear")], "nobody is here to be told"
        hf.add_hook(ear)
        await hf.sweep()
        assert await list_due_hooks(hf) == [("old",)]
        clock.now += DAY - 1
        await hf.sweep()
        assert await list_due_hooks(hf) == [("old",)]
        clock.now += 2
        for _ in range(3):
            await hf.sweep()
            clock.now += 600_000
        assert await list_due_hooks(hf) == []
        assert "hook 'old' is no longer configured" in caplog.text
        assert hf.engine.hook_dispatcher.outcomes["old", "dropped"] == 1


async def test_pending_deliveries_start_without_a_sweep(tmp_path: Path, clock: Clock) -> None:
    """When a hook with pending ends is registered."""
    ear = RecordingHook()
    ear.failing = 1
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await close_with_hooks(hf)
    clock.now += DAY
    async with Holdfast(file(tmp_path), clock=clock) as hf:
        hf.add_hook(ear)
        await until(lambda: ear.heard)


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
