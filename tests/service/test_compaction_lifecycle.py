"""Writing summaries: one writer over all processes, waiting, and limits of a summarizer. What users see is tested by
`tests/behaviour/prompts/test_summaries.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.errors import Conflict
from holdfast.overlays.compactor import Pace, _make_lease_name
from tests.clocks import Clock
from tests.service.scripted_model import REF
from tests.service.summary_kit import LABEL, desk, source

# -- one at a time -----------------------------------------------------------


async def test_two_processes_create_exactly_one_summary(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path / 'x.db'}", Clock()
    async with desk(url=url, clock=clock) as one, desk(url=url, clock=clock) as two:
        one.pen.gate = asyncio.Event()
        await one.until_due()
        await two.talk(1)
        assert two.pen.prompts == []
        with pytest.raises(Conflict):
            await (await two.session()).compact()
        one.pen.gate.set()
        await one.compactor.wait_until_idle()
        await two.talk(1)
        assert len(await two.find()) == 1
        assert any(message["content"].startswith(LABEL) for message in two.chat.prompts[-1])


async def test_lease_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path / 'x.db'}", Clock()
    async with desk(url=url, clock=clock) as one, desk(url=url, clock=clock) as two:
        one.pen.gate = asyncio.Event()
        await one.until_due()
        await two.talk(1)
        assert two.pen.prompts == []
        clock.now += 60_000
        await two.talk(1)
        assert len(await two.find("live")) == 1
        one.pen.gate.set()
        await one.compactor.wait_until_idle()
        assert [one_.status for one_ in await two.find()] in (["live"], ["live", "dead"])


async def test_writer_that_loses_the_lease_stops() -> None:
    async with desk(pace=Pace(lease=60)) as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        at.clock.now += 1_000_000
        await at.hf.store.lease(_make_lease_name(REF), "other", now=at.clock.now, until=at.clock.now + 1000)
        await at.compactor.wait_until_idle()
        assert await at.find() == []


# -- dropped and invalidated ----------------------------------------------------


async def test_erasing_during_a_compaction_repeats_it() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        await at.hf.erase(REF, 2, tokens=STILL)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert [one.status for one in await at.find()] == ["dead", "live"]
        assert "ORD-0001" in source(at.pen.bodies[0])
        assert "ORD-0001" not in source(at.pen.bodies[1])


STILL = 60
"""Tokens of an erased entry that leave it due."""


async def test_session_may_be_deleted_during_a_compaction() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        await at.hf.delete(REF)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert at.compactor.outcomes["error"] == 0
