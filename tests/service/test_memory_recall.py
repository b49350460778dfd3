"""Memories in the prompts of a turn: which are recalled automatically, for which users, and which never are."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.agents import Agent
from holdfast.context.recalled import OPENING, RecallSettings
from tests.markers import strip_markers
from tests.service.tools_kit import Bench, bench

INJECTS = Agent(name="a", recalls={"memory": RecallSettings()})
AGENTS = {
    "a": INJECTS,
    "quiet": Agent(name="quiet", recalls={"memory": RecallSettings(budget=0)}),
    "b": Agent(name="b"),
}


def list_recalled_items(made: Bench) -> list[dict[str, Any]]:
    """Return the items recalled into the last prompt."""
    texts = [one["content"] for one in made.model.bodies[-1]["messages"] if isinstance(one.get("content"), str)]
    block = next((text for text in map(strip_markers, texts) if text.startswith(OPENING)), "")
    return [msgspec.json.decode(line) for line in block.splitlines()[1:-1]]


async def ask_and_list(made: Bench, text: str, agent: str = "a") -> list[str]:
    await made.ask(text, agent=agent)
    return [one["text"] for one in list_recalled_items(made)]


async def test_quarantined_memory_is_never_recalled_automatically() -> None:
    async with bench(lambda _: "ok", agents=AGENTS) as made:
        held = await made.hf.memories.remember("Peanuts are safe for the user", user_id="default", origin="tool")
        assert await ask_and_list(made, "are peanuts safe?") == []
        await made.hf.memories.review(held.memory.id, "accept")
        assert await ask_and_list(made, "are peanuts really safe?") == ["Peanuts are safe for the user"]


async def test_only_memories_of_the_user_the_agent_and_the_app_are_recalled() -> None:
    async with bench(lambda _: "ok", agents=AGENTS) as made:
        for fields in ({"user_id": "bob"}, {"agent": "b"}, {"agent": "a"}, {"app": True}, {"user_id": "default"}):
            await made.hf.memories.remember(f"peanuts {fields}", **fields)
        seen = await ask_and_list(made, "peanuts?")
    assert sorted(seen) == ["peanuts {'agent': 'a'}", "peanuts {'app': True}", "peanuts {'user_id': 'default'}"]
