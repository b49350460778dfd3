"""Recall in a turn: done before the first call, quoted as data, the same in all prompts of the turn, and recorded;
automatic and by the tool.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from holdfast.agents import Agent
from holdfast.context.parts import decode_record
from holdfast.context.recalled import CLOSING, OPENING, RecalledItem, RecallSettings
from holdfast.domain.session import SessionRef
from holdfast.tools.search import CLOSING as FOUND_END
from holdfast.tools.search import OPENING as FOUND
from holdfast.turns.turn import Turn
from tests.markers import strip_markers
from tests.service.search_kit import DAY, Talks, open_talks
from tests.service.tools_kit import make_reply

SECRET = "My gate code is 4711."


def blocks(prompt: Sequence[dict[str, Any]]) -> list[str]:
    """Return the recalled blocks in a prompt."""
    return [text for one in prompt if (text := strip_markers(one["content"])).startswith(OPENING)]


def parse_items(text: str) -> list[dict[str, Any]]:
    """Return the items of a block or of a tool result."""
    first, *lines, last = text.split("\n")
    assert (first, last) in {(OPENING, CLOSING), (FOUND, FOUND_END)}
    return [json.loads(line) for line in lines]


async def last_record(at: Talks, ref: SessionRef) -> Any:
    """Return the record of the last call."""
    record = decode_record((await at.hf.store.calls(ref))[0].build)
    assert record is not None
    return record


# -- automatic recall ----------------------------------------------------------------


async def test_tool_does_not_return_another_sessions_copy_of_prompt_text() -> None:
    """A conversation continued elsewhere has the same text in both sessions."""
    tool_only = Agent(name="tool", recalls={"conversation": RecallSettings(budget=0)})
    script = [make_reply(None, ("c", "search_conversations", {"query": "gate code"})), make_reply("It is 4711.")]
    async with open_talks(script, agents={"tool": tool_only}) as at:
        await at.add_messages("harbour", SECRET, "Noted.")
        await at.add_messages("kitchen", "The gate code of the kitchen is 2211.", "Noted.")
        session = await at.hf.session("new", user_id="ada", agent="tool")
        await session.append([{"role": "user", "content": SECRET}, {"role": "assistant", "content": "Noted."}])
        await session.send("What was the gate code again?")
        result = next(one["content"] for one in at.model.prompts[-1] if one["role"] == "tool")
        assert "4711" not in result
        assert "2211" in result


async def test_slow_recall_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn continues; the record, the response and the explanation report it."""
    monkeypatch.setattr("holdfast.turns.recall.RECALL_SECONDS", 0.01)
    async with open_talks() as at:
        await at.add_messages("harbour", SECRET)

        async def late(turn: Turn) -> Sequence[RecalledItem]:
            await anyio.sleep_forever()
            return ()

        at.hf.engine.recalling["conversation"] = late
        session = await at.hf.session("new", user_id="ada", agent="finder")
        await session.send("What was the gate code again?")
        assert (await last_record(at, session.ref)).missed == ("conversation: late",)


async def test_failing_index_does_not_fail_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    """The query is in no log line."""
    async with open_talks() as at:
        await at.add_messages("harbour", SECRET)
        index: Any = at.hf.engine.index
        await index.index.close()

        async def broken(lookup: Any) -> Any:
            raise RuntimeError("secretword")

        index.index.lookup = broken
        session = await at.hf.session("new", user_id="ada", agent="finder")
        await session.send("What was the gate code, secretword?")
        assert (await last_record(at, session.ref)).missed == ("conversation: failed",)
        assert not [one for one in caplog.records if one.name == "holdfast.recall" and "secretword" in one.getMessage()]


# -- the tool ------------------------------------------------------------------


async def call_tool(at: Talks, arguments: dict[str, Any], agent: str = "finder") -> str:
    """Return the tool's result for a model that calls it with these arguments."""
    session = await at.hf.session("asking", user_id="ada", agent=agent)
    await session.send("Look it up.")
    return str(next(one["content"] for one in reversed(at.model.prompts[-1]) if one["role"] == "tool"))


def call_script(arguments: dict[str, Any]) -> list[Any]:
    """Return a script that calls the tool once and then answers."""
    return [make_reply(None, ("c", "search_conversations", arguments)), make_reply("done")]


async def test_yesterday_follows_the_time_zone_of_the_agent() -> None:
    """Automatic and by the tool: three hours later it is another day in Greenwich, and the same day in Auckland."""
    zones = {"UTC": True, "Pacific/Auckland": False}
    agents = {
        f"{zone} {inject}": Agent(
            name=f"{zone} {inject}", recalls={"conversation": RecallSettings(zone=zone, budget=1000 if inject else 0)}
        )
        for zone in zones
        for inject in (True, False)
    }
    query = {"query": "What did I ask about yesterday?", "session_id": "harbour"}
    script = [make_reply(None, ("c", "search_conversations", query)), make_reply("done")]
    async with open_talks(script * 4, agents=agents) as at:
        await at.add_messages("harbour", "How deep is the harbour?", "Nine metres.")
        at.clock.now += DAY // 8
        for name, agent in agents.items():
            found, inject = zones[name.split()[0]], (agent.recalls or {})["conversation"].budget > 0
            session = await at.hf.session(name, user_id="ada", agent=name)
            await session.send(query["query"])
            prompt = at.model.prompts[-1]
            assert any("How deep" in block for block in blocks(prompt)) == (found and inject)
            (result,) = [one["content"] for one in prompt if one["role"] == "tool"]
            assert ("How deep" in result) == (found and not inject), "the tool leaves out what was injected"


async def test_long_result_is_cut_at_line_ends() -> None:
    """Each hit is cut separately, and the envelope stays complete."""
    from holdfast.tools.tool import ToolLimits

    limits = ToolLimits(result=1500)
    async with open_talks(call_script({"query": "kelp"}), tool_limits=limits) as at:
        for number in range(5):
            await at.add_messages(f"s{number}", f"kelp number {number} [{'ü' * 40}] " * 60)
        result = await call_tool(at, {})
        assert len(result.encode()) <= 1500
        assert len(parse_items(result)) >= 2


async def test_tool_is_also_available_as_search() -> None:
    """An agent that lists `search` has the tool, unless the application has its own tool of that name."""
    listed = Agent(name="finder", tools=("search",))
    async with open_talks(call_script({"query": "kelp"}), agents={"finder": listed}) as at:
        await at.add_messages("s", "kelp soup")
        assert parse_items(await call_tool(at, {}))[0]["text"] == "kelp soup"

    def search(query: str) -> str:
        return f"own: {query}"

    script = [make_reply(None, ("c", "search", {"query": "kelp"})), make_reply("done")]
    async with open_talks(script, agents={"finder": listed}, tools=[search]) as at:
        await at.add_messages("s", "kelp soup")
        assert await call_tool(at, {}) == "own: kelp"
