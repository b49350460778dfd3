"""Turns of a session never overlap: for any interleaving on any number of servers, each is complete or cut, in one
piece.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.engine.session_lock import LEASE
from holdfast.errors import SessionBusy, TurnInterrupted, TurnLost
from holdfast.holdfast import Holdfast
from tests.clocks import Clock
from tests.service.turns_kit import REF, Stage, get_claim, get_queue, open_stage, retry_at_once, say

Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["queue", "queue", "interrupt", "reject", "block", "cancel", "go on", "go on", "look", "late", "pause"]
        ),
        st.integers(0, 7),
    ),
    min_size=3,
    max_size=14,
)


class Crowd:
    """Concurrent turns in several openings, following a list of steps."""

    def __init__(self, openings: list[Holdfast], stage: Stage, clock: Clock) -> None:
        self.openings = openings
        self.stage = stage
        self.clock = clock
        self.turns: dict[str, asyncio.Task[str]] = {}

    async def do(self, what: str, number: int) -> None:
        """Run one step."""
        hf, texts = self.openings[number % len(self.openings)], list(self.turns)
        if what in ("queue", "interrupt", "reject", "block"):
            text = f"u{len(texts)}"
            assert self.stage.held is not None
            self.stage.held.add(text)
            turn = self.block(hf, text) if what == "block" else say(hf, text, session_queue=what)
            self.turns[text] = asyncio.create_task(turn)
        elif what == "cancel" and texts:
            self.turns[texts[number % len(texts)]].cancel()
        elif what == "go on" and texts:
            self.stage.go_on(texts[number % len(texts)])
        elif what == "late":
            self.clock.now += LEASE // 2
        elif what == "look":
            for one in self.openings:
                if (line := get_queue(one)) and line[0].is_first:
                    await line[0].renew()
        for _ in range(number):
            await hf.store.get(REF)

    async def block(self, hf: Holdfast, text: str) -> str:
        """Return the messages of a turn with a tool round."""
        call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        session = hf.handle(await hf.store.get(REF))
        async with session.turn(text) as turn:
            turn.add({"role": "assistant", "content": f"re: {text}", "tool_calls": [call]})
            turn.add({"role": "tool", "tool_call_id": "x", "content": f"re: {text}"})
            await turn.next()
            turn.add(f"re: {text}")
        return f"re: {text}"

    async def check(self) -> None:
        """Check that turns follow one another in the log, each complete or cut, none missing or duplicated."""
        self.stage.go_on()
        outcomes = await asyncio.gather(*self.turns.values(), return_exceptions=True)
        entries = await self.openings[0].store.entries(REF)
        users = [entry.message.text for entry in entries if entry.message.role == "user"]
        assert len(users) == len(set(users))
        current = ""
        for entry in entries:
            if entry.message.role == "user":
                current = entry.message.text
            else:
                assert f"re: {current}".startswith(entry.message.text.strip())
        for (text, _), outcome in zip(self.turns.items(), outcomes, strict=True):
            replies = sum(entry.message.text == f"re: {text}" for entry in entries)
            if isinstance(outcome, str):
                assert text in users
                assert replies in (1, 3)
            elif isinstance(outcome, TurnInterrupted | TurnLost):
                assert text in users
            elif isinstance(outcome, SessionBusy):
                assert text not in users
            else:
                assert isinstance(outcome, asyncio.CancelledError), outcome
        await self.openings[0].handle(await self.openings[0].store.get(REF)).verify()
        for hf in self.openings:
            async with hf.engine.lock_between_turns(REF):
                pass
            assert hf.engine.locks.is_empty
        assert await get_claim(self.openings[0]) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, number=st.integers(1, 3))
def test_turns_never_overlap(steps: list[Step], number: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With any timing and number of servers, including slow, cut, cancelled and late turns."""

    async def run() -> None:
        url, clock = f"sqlite:///{tmp_path_factory.mktemp('crowd')}/s.db", Clock()
        async with open_stage(url, openings=number, clock=clock) as (openings, stage):
            retry_at_once(*openings)
            crowd = Crowd(openings, stage, clock)
            for what, argument in steps:
                await crowd.do(what, argument)
            await asyncio.wait_for(crowd.check(), 60)

    asyncio.run(run())
