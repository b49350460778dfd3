"""Workflows that are cut, fail or crash: the resulting log, and how a retry of the same message continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agents import Agent, Llm, Roster
from holdfast.errors import TurnInterrupted
from holdfast.holdfast import Holdfast
from tests.amounts import examples
from tests.service.scripted_model import REF
from tests.service.tools_kit import content, make_reply
from tests.service.workflow_kit import (
    agents,
    check_units,
    get_agent,
)

# -- cut and retried ---------------------------------------------------------------------


STORY = agents(
    Agent(name="story", sequence=("plan", "panel")),
    Agent(name="plan", instruction="I am plan"),
    Agent(name="panel", parallel=("hope", "pair", "doubt")),
    Agent(name="hope", instruction="I am hope"),
    Agent(name="pair", parallel=("left", "right")),
    Agent(name="left", instruction="I am left"),
    Agent(name="right", instruction="I am right"),
    Agent(name="doubt", instruction="I am doubt"),
)


class Stepping:
    """A model and a tool that count every step and cut the turn at the requested one."""

    name = "stepping"

    def __init__(self, at: int) -> None:
        self._left = at
        self.cut: Callable[[], None] = lambda: None

    async def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.cut()
        await asyncio.sleep(0)

    async def stream(self, request: dict[str, Any], *, headers: Any = None) -> AsyncIterator[dict[str, Any]]:
        """Stream two tool calls and then an answer, for each agent."""
        await self.step()
        name, called = get_agent(request), any(one["role"] == "tool" for one in request["messages"])
        calls = [] if called or name == "plan" else [(f"{name}-{at}", "work", {"steps": at}) for at in (1, 3)]
        for chunk in make_reply(f"{name} speaks now.", *calls):
            await self.step()
            yield chunk

    async def close(self) -> None:
        """See `Model.close`."""


@settings(max_examples=examples(25), deadline=None)
@given(at=st.integers(1, 90), leave=st.booleans())
def test_log_is_valid_and_the_turn_can_be_retried_wherever_it_is_cut(at: int, leave: bool) -> None:
    """No call stays open, nothing blocks, no task is left; the same message again is answered."""

    async def work() -> None:
        model = Stepping(at)

        async def work(steps: int) -> str:
            """Work."""
            for _ in range(steps):
                await model.step()
            return "done"

        made = Roster({"default": Llm(name="default", model="gpt-4o", client=model)}, STORY)
        async with Holdfast("sqlite://:memory:", roster=made, tools=[work], index=None) as hf:
            session = await hf.session("s", agent="story")
            before = asyncio.all_tasks()
            task = asyncio.create_task(session.send("go"))
            stopping: list[asyncio.Task[Any]] = []

            def cut() -> None:
                if leave:
                    task.cancel()
                else:
                    stopping.append(asyncio.create_task(session.interrupt()))

            model.cut = cut
            with suppress(asyncio.CancelledError, TurnInterrupted):
                await task
            await asyncio.gather(*stopping, return_exceptions=True)
            async with hf.engine.lock_between_turns(REF):
                assert not (await session.info()).tail.open_calls
            assert hf.engine.locks.is_empty
            assert all(one.done() for one in asyncio.all_tasks() - before)
            check_units(await hf.store.entries(REF))
            await session.verify()
            completion = await session.send("go")
            assert all(f"{name} speaks now." in content(completion) for name in ("hope", "left", "right", "doubt"))

    asyncio.run(asyncio.wait_for(work(), 20))
