"""Failed hook deliveries: retried with growing pauses, also by the next process, and finally given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import HookFailed
from holdfast.holdfast import Holdfast
from holdfast.hooks import EndedSession
from holdfast.lifecycle.hook_delivery import DeliverySchedule
from tests.clocks import Clock
from tests.service.expiry_kit import (
    DAY,
    RecordingHook,
    change_schedule,
    close_with_hooks,
    file,
    life,
    list_due_hooks,
    ref,
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


@pytest.mark.parametrize(
    ("asked", "pause"),
    [(60.0, 60_000), (0.5, 1_000), (None, 1_000), (1e9, 3_600_000), (float("nan"), 1_000), (-5, 1_000)],
)
async def test_retry_after_of_a_hook_is_respected(
    tmp_path: Path, clock: Clock, asked: float | None, pause: int
) -> None:
    """At least the normal pause and at most an hour; other failed hooks wait with it."""
    calls: list[int] = []

    async def busy(session: EndedSession, reason: str) -> None:
        calls.append(clock.now)
        if len(calls) == 1:
            raise HookFailed("busy", retry_after=asked)

    async with life(file(tmp_path), clock) as hf:
        other = RecordingHook("other")
        other.failing = 1
        hf.on_expire(busy)
        hf.add_hook(other)
        await close_with_hooks(hf)
        first = clock.now
        clock.now = first + pause - 1
        await hf.sweep()
        assert (len(calls), len(other.calls)) == (1, 1)
        clock.now = first + pause + pause // 5 + 1
        await hf.sweep()
        assert (len(calls), other.heard, await list_due_hooks(hf)) == (2, [("close", "a")], [])


async def test_deleted_session_is_kept_until_its_last_hook_succeeds(tmp_path: Path, clock: Clock) -> None:
    """Complete, for its hooks only; a new session with the same id does not see it."""
    async with life(file(tmp_path), clock) as hf:
        ear = RecordingHook()
        ear.failing = 1
        hf.add_hook(ear)
        await talk(hf, "a", "secret plans")
        await hf.delete(ref("a"))
        await hf.engine.hook_dispatcher.wait_until_idle()
        await talk(hf, "a", "another life")
        clock.now += 10_000
        await hf.sweep()
        assert (ear.heard, ear.texts) == ([("delete", "a")], [["secret plans"]])
        session = await hf.session("a")
        assert [message["content"] for message in await session.messages()] == ["another life"]
        assert await list_due_hooks(hf) == []


async def test_delivery_is_given_up_after_the_last_attempt(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """With a log line; the data kept for it is deleted."""
    async with life(file(tmp_path), clock) as hf:
        change_schedule(hf, max_attempts=3)
        ear = RecordingHook()
        ear.failing = 99
        hf.add_hook(ear)
        await talk(hf, "a")
        await hf.delete(ref("a"))
        for _ in range(5):
            await hf.engine.hook_dispatcher.wait_until_idle()
            clock.now += DAY
            await hf.sweep()
        assert len(ear.calls) == 3
        assert "given up" in caplog.text
        assert hf.engine.hook_dispatcher.outcomes["ear", "given_up"] == 1
        assert (await list_due_hooks(hf), await hf.engine.life.store.tenants()) == ([], ())


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


async def test_next_process_continues_pending_deliveries(tmp_path: Path, clock: Clock) -> None:
    """After the claim of the previous process has expired."""
    ear = RecordingHook()
    ear.failing = 1
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await close_with_hooks(hf)
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await hf.sweep()
        assert len(ear.calls) == 1
        clock.now += 100_000
        await hf.sweep()
        assert ear.heard == [("close", "a")]


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
