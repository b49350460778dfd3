"""Promoted memories at the beginning of a session: which ones, from when, how many, and that they do not change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.agents import Agent
from holdfast.context.recalled import KNOWN_OPENING as OPENING
from holdfast.context.recalled import RecallSettings
from holdfast.domain.memory import Memory, MemoryDelta, Owner
from tests.clocks import START, Clock
from tests.markers import strip_markers
from tests.service.tools_kit import Bench, bench

ANN, DESK, APP = Owner("user", "default"), Owner("agent", "a"), Owner("app")
AGENTS = {
    "a": Agent(name="a", instruction="Be kind.", recalls={"memory": RecallSettings()}),
    "quiet": Agent(name="quiet", recalls={"memory": RecallSettings(budget=0)}),
    "b": Agent(name="b"),
}


def make_promoted(number: int, content: str, owner: Owner = ANN, **fields: Any) -> Memory:
    """Create a memory that was promoted before the session."""
    made = {"promoted_at": START - 1000, "score": 0.5, "created_at": 0, "updated_at": 0}
    return Memory(id=f"mem_{number:032x}", owner=owner, content=content, **{**made, **fields})


async def store_memories(made: Bench, *memories: Memory) -> None:
    for one in memories:
        await made.hf.store.change_memories(one.owner, MemoryDelta(put=(one,)), timestamp=START)


def read_introduced(made: Bench) -> list[dict[str, Any]]:
    """Return the promoted memories in the last prompt."""
    return [msgspec.json.decode(line) for line in get_block(made).splitlines()[1:-1]]


def get_block(made: Bench) -> str:
    texts = [one["content"] for one in made.model.bodies[-1]["messages"] if one["role"] == "system"]
    return next((text for text in map(strip_markers, texts) if text.startswith(OPENING)), "")


async def ask(made: Bench, agent: str = "a", text: str = "Hello!") -> list[str]:
    await made.ask(text, agent=agent)
    return [one["text"] for one in read_introduced(made)]


def open_bench(clock: Clock, **settings: Any) -> Any:
    return bench(lambda _: "ok", agents=AGENTS, clock=clock, **settings)


async def test_the_best_memories_come_first() -> None:
    """Of equal ones the first promoted, then by owner, then the first stored."""
    clock = Clock(START)
    async with open_bench(clock) as made:
        await store_memories(
            made,
            make_promoted(1, "fifth", score=0.4),
            make_promoted(2, "third"),
            make_promoted(3, "second", Owner("app")),
            make_promoted(4, "fourth"),
            make_promoted(5, "first", promoted_at=START - 2000),
            make_promoted(6, "last", score=None, promoted_at=START - 3000),
        )
        assert await ask(made) == ["first", "second", "third", "fourth", "fifth", "last"]


@pytest.mark.parametrize(
    "fields",
    [
        {"promoted_at": None},
        {"promoted_at": START + 1},
        {"status": "quarantined"},
        {"status": "superseded"},
        {"status": "rejected"},
        {"valid_until": START},
        {"valid_from": START + 1},
    ],
    ids=str,
)
async def test_unpromoted_or_invalid_memories_are_left_out(fields: dict[str, Any]) -> None:
    async with open_bench(Clock()) as made:
        await store_memories(made, make_promoted(1, "Ann is allergic to peanuts", **fields))
        assert await ask(made) == []
