"""Throttling of index updates: no pause after little work, long pauses after much, none while a caller waits."""

from __future__ import annotations

import pytest

from holdfast.indexes.throttle import SHARE, Throttle
from tests.clocks import Pauses


class SimulatedWork:
    """Work steps of a given duration on a clock that pauses advance as well."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.pauses = Pauses()
        self.pace = Throttle(lambda: self.now, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        await self.pauses(seconds)
        self.now += seconds

    async def run_step(self, seconds: float) -> float:
        """Work for `seconds` and return the pause after it."""
        async with self.pace.run_step():
            self.now += seconds
        return self.pauses[-1]


async def test_updates_of_a_single_turn_cause_no_pause() -> None:
    worked = SimulatedWork()
    for _ in range(20):
        assert [await worked.run_step(0.001) for _ in range(5)] == [0] * 5
        worked.now += 0.1  # the next turn


async def test_sustained_work_uses_its_share_of_the_time() -> None:
    worked = SimulatedWork()
    began = worked.now
    for _ in range(1_000):
        await worked.run_step(0.003)
    assert 3 / (worked.now - began) == pytest.approx(SHARE, rel=0.05)


async def test_concurrent_workers_pause_for_each_other() -> None:
    pauses, now = Pauses(), 1_000.0
    pace = Throttle(lambda: now, pauses)  # pauses take no time: the other workers go on
    for work in (0.01,) * 5 + (0.002,) * 3:
        async with pace.run_step():
            now += work
    each = 0.002 / SHARE - 0.002
    assert pauses == pytest.approx([0.0] * 5 + [each, 2 * each, 3 * each])


async def test_there_are_no_pauses_while_a_caller_waits() -> None:
    worked = SimulatedWork()
    with worked.pace.skip_rests():
        with worked.pace.skip_rests():
            assert await worked.run_step(1.0) == 0
        assert await worked.run_step(1.0) == 0, "the other caller still waits"
    assert await worked.run_step(1.0) > 0
    with pytest.raises(RuntimeError), worked.pace.skip_rests():
        raise RuntimeError
    assert await worked.run_step(1.0) > 0, "a failed caller no longer waits"
