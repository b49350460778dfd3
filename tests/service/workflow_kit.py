"""A bench for tests of workflows: a model that speaks for each agent, and the log in short."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agents import Agent
from holdfast.domain.session import Entry
from tests.service.tools_kit import Bench, bench


def agents(*made: Agent) -> dict[str, Agent]:
    return {one.name: one for one in made}


def get_agent(request: Mapping[str, Any]) -> str:
    """Return the agent of a call, by its instruction."""
    return str(request["messages"][0]["content"]).removeprefix("I am ").split()[0]


@asynccontextmanager
async def open_workflow_bench(
    lines: Mapping[str, Any], roster: dict[str, Agent], *tools: Any, **settings: Any
) -> AsyncIterator[Bench]:
    """Open a bench whose model says each agent's line; a list is said one after the other."""
    left = {
        name: iter(line)
        for name, line in lines.items()
        if isinstance(line, list) and line and isinstance(line[0], list)
    }

    def say(request: dict[str, Any]) -> Any:
        name = get_agent(request)
        line = next(left[name]) if name in left else lines[name]
        return [line] if isinstance(line, Exception) else line

    async with bench(say, *tools, agents=roster, **settings) as made:
        yield made


def check_units(entries: Sequence[Entry]) -> None:
    """Check that every result directly follows the message with its call."""
    open_calls: list[str] = []
    for entry in entries:
        if entry.kind == "result":
            open_calls.remove(str(entry.message.tool_call_id))
        else:
            assert not open_calls
            open_calls = [call.id for call in entry.message.tool_calls]
    assert not open_calls
