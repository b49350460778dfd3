"""The rests of whoever feeds an index: none behind a little work, most of the time behind much, none while somebody waits."""

from __future__ import annotations

import pytest

from holdfast.indexes.throttle import SHARE, Throttle
from tests.clocks import Pauses


class Worked:
    """Steps of work that take as long as they say, on a clock that rests move as well."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.pauses = Pauses()
        self.pace = Throttle(lambda: self.now, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        await self.pauses(seconds)
        self.now += seconds

    async def run_step(self, seconds: float) -> float:
        """Work for so long; the rest behind it."""
        async with self.pace.run_step():
            self.now += seconds
        return self.pauses[-1]


async def test_what_a_turn_leaves_behind_is_taken_in_without_a_rest() -> None:
    worked = Worked()
    for _ in range(20):
        assert [await worked.run_step(0.001) for _ in range(5)] == [0] * 5
        worked.now += 0.1  # the next turn


async def test_much_work_is_done_in_its_share_of_the_time() -> None:
    worked = Worked()
    began = worked.now
    for _ in range(1_000):
        await worked.run_step(0.003)
    assert 3 / (worked.now - began) == pytest.approx(SHARE, rel=0.05)


async def test_of_those_who_work_at_once_each_rests_for_the_others_too() -> None:
    pauses, now = Pauses(), 1_000.0
    pace = Throttle(lambda: now, pauses)  # rests take no time: the others work meanwhile
    for work in (0.01,) * 5 + (0.002,) * 3:
        async with pace.run_step():
            now += work
    each = 0.002 / SHARE - 0.002
    assert pauses == pytest.approx([0.0] * 5 + [each, 2 * each, 3 * each])


async def test_one_rest_is_short_whatever_came_before_it() -> None:
    worked = Worked()
    await worked.run_step(30.0)
    assert worked.pauses == pytest.approx([0.05])
    assert await worked.run_step(30.0) == pytest.approx(0.05)


async def test_there_are_no_rests_while_somebody_waits() -> None:
    worked = Worked()
    with worked.pace.skip_rests():
        with worked.pace.skip_rests():
            assert await worked.run_step(1.0) == 0
        assert await worked.run_step(1.0) == 0, "the other one still waits"
    assert await worked.run_step(1.0) > 0
    with pytest.raises(RuntimeError), worked.pace.skip_rests():
        raise RuntimeError
    assert await worked.run_step(1.0) > 0, "who waited in vain waits no more"
