"""The preview of retention: sessions above the maximum number, which a server closes before a request can see them."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.lifecycle.retention import DueSessions, _count_surplus, preview_retention
from holdfast.lifecycle.settings import LifeSettings
from tests.clocks import Clock

DAY = 86_400_000


async def test_sessions_above_the_maximum_are_counted_without_expired_ones(clock: Clock, tmp_path: Path) -> None:
    """As the next sweep ends them: the expired ones first, then the longest unused."""
    url = f"sqlite:///{tmp_path}/chat.db"
    async with holdfast.open(url, clock=clock, life=LifeSettings(session_ttl=0, sweep=False)) as hf:
        await hf.create("old", ttl=DAY)
        clock.now += 2 * DAY
        for name in "abcde":
            await hf.create(name)
    settings = LifeSettings(session_ttl=0, max_sessions=2, sweep=False)
    async with holdfast.open(url, clock=clock, life=settings) as hf:
        preview = await preview_retention(hf.engine.life, clock.now)
        assert (preview.active, preview.expired, preview.surplus) == (6, DueSessions(1), DueSessions(3))
        swept = await hf.sweep()
        assert (swept.expired, swept.evicted) == (1, 3)
        preview = await preview_retention(hf.engine.life, clock.now)
        assert (preview.active, preview.expired, preview.surplus) == (2, DueSessions(0), DueSessions(0))


async def test_all_expired_sessions_are_left_out_of_the_surplus(clock: Clock, tmp_path: Path) -> None:
    """More of them than the store returns by default."""
    settings = LifeSettings(session_ttl=0, max_sessions=10, sweep=False)
    url = f"sqlite:///{tmp_path}/chat.db"
    async with holdfast.open(url, clock=clock, life=LifeSettings(session_ttl=0, sweep=False)) as hf:
        for number in range(150):
            await hf.create(f"old-{number}", ttl=DAY)
        clock.now += 2 * DAY
        for name in "abcde":
            await hf.create(name)
    async with holdfast.open(url, clock=clock, life=settings) as hf:
        preview = await preview_retention(hf.engine.life, clock.now)
        assert (preview.active, preview.expired, preview.surplus) == (155, DueSessions(150), DueSessions(0))
        assert (await hf.sweep()).evicted == 0


def test_surplus_is_unknown_if_not_all_expired_sessions_are_counted() -> None:
    assert _count_surplus(5, DueSessions(2, more=True), 1) == DueSessions(0, more=True)
    assert _count_surplus(3, DueSessions(2, more=True), 1) == DueSessions(0)
    assert _count_surplus(5, DueSessions(2), 1) == DueSessions(2)
