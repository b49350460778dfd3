"""Memories in the prompts of a turn: which are recalled automatically, for which users, and which never are."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from holdfast.agents import Agent
from holdfast.context.recalled import OPENING, RecallSettings
from holdfast.domain.memory import Memory, MemoryDelta, Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import EmbeddingFailed
from holdfast.indexes.settings import IndexSettings
from holdfast.memory.memories import make_random_id
from tests.markers import strip_markers
from tests.service.tools_kit import Bench, bench

DEFAULT = Owner("user", "default")
INJECTS = Agent(name="a", recalls={"memory": RecallSettings()})
AGENTS = {
    "a": INJECTS,
    "quiet": Agent(name="quiet", recalls={"memory": RecallSettings(budget=0)}),
    "b": Agent(name="b"),
}


class Away:
    """An embedder that never produces a vector."""

    name = "test/away"
    dimension = 2

    def __init__(self, *, hangs: bool) -> None:
        self._hangs = hangs
        self.asked = 0

    async def embed(self, texts: list[str]) -> list[bytes]:
        self.asked += 1
        if self._hangs:
            await anyio.sleep_forever()
        raise EmbeddingFailed(f"no vectors for {len(texts)} texts", again=True)

    async def close(self) -> None:
        """See `Embedder.close`."""


def list_recalled_items(made: Bench) -> list[dict[str, Any]]:
    """Return the items recalled into the last prompt."""
    texts = [one["content"] for one in made.model.bodies[-1]["messages"] if isinstance(one.get("content"), str)]
    block = next((text for text in map(strip_markers, texts) if text.startswith(OPENING)), "")
    return [msgspec.json.decode(line) for line in block.splitlines()[1:-1]]


async def ask_and_list(made: Bench, text: str, agent: str = "a") -> list[str]:
    await made.ask(text, agent=agent)
    return [one["text"] for one in list_recalled_items(made)]


@pytest.mark.parametrize("agent", ["quiet", "b"])
async def test_nothing_is_recalled_if_disabled(agent: str) -> None:
    async with bench(lambda _: "ok", agents=AGENTS) as made:
        await made.hf.memories.remember("The user is allergic to peanuts", user_id="default")
        assert await ask_and_list(made, "any peanuts?", agent) == []


async def test_each_recalled_memory_leaves_a_signal() -> None:
    async with bench(lambda _: "ok", agents=AGENTS) as made:
        one = (await made.hf.memories.remember("The user is allergic to peanuts", user_id="default")).memory
        await ask_and_list(made, "peanuts?")
        await made.hf.memories.settled()
        signals = await made.hf.store.signals(Owner("user", "default"))
    assert [(signal.memory_id, signal.session) for signal in signals] == [(one.id, "s")]


async def test_turn_continues_if_recalling_memories_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(lambda _: "ok", agents=AGENTS) as made:

        async def fails(*_: Any, **__: Any) -> Any:
            raise RuntimeError("no memories")

        monkeypatch.setattr(made.hf.engine.memories, "recall", fails)
        assert await ask_and_list(made, "peanuts?") == []
        assert (await made.hf.store.get(SessionRef("default", "s"))).tail is not None


@pytest.mark.parametrize("hangs", [True, False])
async def test_unresponsive_embedder_does_not_prevent_keyword_matches(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """The keyword matches are in time for the prompt."""
    monkeypatch.setattr("holdfast.turns.recall.RECALL_VECTOR_SECONDS", 0.01)
    away = Away(hangs=hangs)
    async with bench(lambda _: "ok", agents=AGENTS, index=IndexSettings(embedder=away, mode="hybrid")) as made:
        await made.hf.memories.remember("The user is allergic to peanuts", user_id="default")
        assert await ask_and_list(made, "peanuts?") == ["The user is allergic to peanuts"]
        assert away.asked > 0


async def test_reads_of_a_turn_do_not_grow_with_the_number_of_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(lambda _: "ok", agents=AGENTS) as made:
        store, read = made.hf.engine.memories.store, made.hf.engine.memories.store.memories
        costs: list[tuple[int, int]] = []
        counted: list[int] = []

        async def counting(*args: Any, **asked: Any) -> Any:
            page = await read(*args, **asked)
            counted.append(len(page.memories))
            return page

        monkeypatch.setattr(store, "memories", counting)
        now = made.hf.engine.clock()
        for many in (200, 1800):
            some = [
                Memory(id=make_random_id(), owner=DEFAULT, content=f"peanuts {at}", created_at=now, updated_at=now)
                for at in range(many)
            ]
            for start in range(0, many, 200):
                await store.change_memories(DEFAULT, MemoryDelta(put=tuple(some[start : start + 200])), timestamp=now)
            await made.hf.memories.recall("peanuts", user_id="default", signal=False)  # wait until they are indexed
            await ask_and_list(made, "any peanuts?")
            counted.clear()
            assert await ask_and_list(made, "more peanuts?")
            costs.append((len(counted), sum(counted)))
    assert costs[0] == costs[1]
    assert costs[1][1] <= 100
