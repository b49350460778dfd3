"""Speaking and greeting: messages that no model turn generated, and the resulting log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.agents import Agent, Roster
from tests.service.turns_kit import REF, log, open_stage, retry_at_once, start_turn
from tests.service.voice_kit import MEMORY, NOW
from tests.stores.servers import place

# -- speaking ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_running_turn_of_another_server_counts(kind: str, tmp_path: Any) -> None:
    with place(kind, tmp_path) as url:
        async with open_stage(url, openings=2) as ([one, two], stage):
            retry_at_once(one, two)
            session = two.handle(await two.store.get(REF))
            running = await start_turn(one, stage, "a")
            assert (await session.speak("x", priority="IGNORE")).entry is None
            behind = asyncio.create_task(session.speak("y", priority="APPEND"))
            stage.go_on("a")
            await running
            assert (await behind).entry is not None
            assert await log(two) == ["a", "re: a", "y"]


# -- greeting ------------------------------------------------------------------


BOT = Agent(name="bot", greeting="How can I help you today?", silence_message="Are you still there?")


async def test_greeted_session_counts_and_expires_like_any_other() -> None:
    now = [NOW]
    roster = Roster(agents={"bot": BOT})
    async with holdfast.open(MEMORY, roster=roster, clock=lambda: now[0], session_ttl=10, max_sessions=2) as hf:
        for name in "abc":
            await hf.session(name, agent="bot")
        assert {one.id for one in (await hf.sessions(status="active")).sessions} == {"b", "c"}
        now[0] += 10_000
        assert (await hf.sessions()).sessions == ()
        again = await hf.session("b", agent="bot")
        assert len(await again.history()) == 1
