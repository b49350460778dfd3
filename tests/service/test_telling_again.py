"""Hooks that could not be told of an end: tried again later and later, also by the next process, and given up at last."""

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
from tests.waiting import until


async def test_a_failed_delivery_is_tried_again_later_and_later(tmp_path: Path, clock: Clock) -> None:
    """Under the same delivery id; those that heard are not told again, and not before it is time."""
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
async def test_a_hook_is_left_alone_for_as_long_as_it_asks(
    tmp_path: Path, clock: Clock, asked: float | None, pause: int
) -> None:
    """At least as long as otherwise, and an hour at most; whoever else failed waits with it."""
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


async def test_a_deleted_session_waits_for_its_last_hook(tmp_path: Path, clock: Clock) -> None:
    """Whole, for its hooks alone; a new one of its name does not see it."""
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


async def test_it_is_given_up_in_the_end(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """With a line in the log; what waited for it goes."""
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


def test_the_tries_take_a_week() -> None:
    """Seven days of them, at the pauses there are."""
    schedule = DeliverySchedule()
    pauses = [
        schedule.pauses_ms[min(number, len(schedule.pauses_ms) - 1)] for number in range(schedule.max_attempts - 1)
    ]
    assert 7 * DAY <= sum(pauses) < 7.1 * DAY
    assert schedule.claim_ms > schedule.call_seconds * 1000


async def test_a_hook_that_is_configured_no_more_is_forgotten_after_a_day(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not before: it may be registered yet, or be another process's."""
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


async def test_another_process_goes_on_where_one_stopped(tmp_path: Path, clock: Clock) -> None:
    """At the next start, when the claim of the one before is over."""
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


async def test_it_looks_for_what_is_due_by_itself(tmp_path: Path, clock: Clock) -> None:
    """When a hook comes for which ends were left."""
    ear = RecordingHook()
    ear.failing = 1
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await close_with_hooks(hf)
    clock.now += DAY
    async with Holdfast(file(tmp_path), clock=clock) as hf:
        hf.add_hook(ear)
        await until(lambda: ear.heard)


async def test_what_fails_at_the_end_is_told_at_the_next_start(tmp_path: Path, clock: Clock) -> None:
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
