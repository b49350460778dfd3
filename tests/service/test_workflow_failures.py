"""Workflows that are cut, fail or crash: the resulting log, and how a retry of the same message continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agents import Agent, Llm, Roster
from holdfast.errors import ModelUnavailable, TurnInterrupted
from holdfast.holdfast import Holdfast
from tests.amounts import examples
from tests.service.scripted_model import REF
from tests.service.tools_kit import content, make_reply
from tests.service.workflow_kit import (
    DOWN,
    PANEL,
    agents,
    check_units,
    get_agent,
    get_prompt,
    open_workflow_bench,
)

# -- cut and retried ---------------------------------------------------------------------


async def test_cut_agent_does_not_see_its_partial_text_on_retry() -> None:
    """A model would continue its own last text and pass on half of it. Texts of other agents stay visible."""
    roster = agents(
        Agent(name="panel", parallel=("doubt", "pair")),
        Agent(name="doubt", instruction="I am doubt"),
        Agent(name="pair", sequence=("hope", "more")),
        Agent(name="hope", instruction="I am hope"),
        Agent(name="more", instruction="I am more"),
    )
    lines = {
        "doubt": [[*make_reply("Half a doubt.")[:2], DOWN], make_reply("A doubt.")],
        "hope": make_reply("Hope."),
        "more": [[DOWN], make_reply("More.")],
    }
    async with open_workflow_bench(lines, roster) as desk:
        with pytest.raises(ModelUnavailable):
            await desk.ask("go", agent="panel")
        assert [(entry.agent, entry.message.text) for entry in (await desk.log())[1:5:2]] == [
            ("doubt", "Half "),
            ("hope", "Hope."),
        ]
        reply = content(await desk.ask("go", agent="panel"))
        assert ("A doubt." in reply, "More." in reply, "Half" in reply) == (True, True, False)
        assert [get_agent({"messages": prompt}) for prompt in desk.model.prompts].count("hope") == 1
        assert get_prompt(desk, "doubt") == ["user: go"]
        assert get_prompt(desk, "more") == ["user: go", "user: [agent hope]: Hope."]
        assert await desk.session.verify()
        check_units(await desk.log())


@pytest.mark.parametrize("how", ["leave", "interrupt"])
async def test_all_branches_stop_when_the_turn_is_cut(how: str) -> None:
    """During models and tools of several branches: partial text is stored, all calls have results, no task is left."""
    running, never = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        running.set()
        await never.wait()
        return "never"

    held = asyncio.Event()

    class Held:
        name = "held"

        async def stream(self, request: dict[str, Any], *, headers: Any = None) -> AsyncIterator[dict[str, Any]]:
            if get_agent(request) == "doubt":
                for chunk in make_reply("I wait.", ("w", "wait", {})):
                    yield chunk
                return
            chunks = make_reply("All is not lost.")
            for chunk in chunks[:3]:
                yield chunk
            held.set()
            await never.wait()

        async def close(self) -> None:
            """Nothing."""

    made = Roster({"default": Llm(name="default", model="gpt-4o", client=Held())}, PANEL)
    async with Holdfast("sqlite://:memory:", roster=made, tools=[wait], index=None) as hf:
        session = await hf.session("s", agent="panel")
        before = asyncio.all_tasks()
        task = asyncio.create_task(session.send("go"))
        await running.wait()
        await held.wait()
        if how == "leave":
            task.cancel()
        else:
            await session.interrupt()
        with pytest.raises((asyncio.CancelledError, Exception)):
            await task
        async with hf.engine.lock_between_turns(REF):
            entries = await hf.store.entries(REF)
        rows = [(entry.agent, entry.message.text) for entry in entries]
        assert ("hope", "All is ") in rows
        assert ("doubt", "I wait.") in rows
        assert any(agent == "doubt" and "cancelled" in text for agent, text in rows)
        info = await session.info()
        assert not info.tail.open_calls
        assert info.claim is None
        assert hf.engine.locks.is_empty
        assert {one for one in asyncio.all_tasks() - before if not one.done()} <= {task}


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
