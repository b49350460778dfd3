"""Memories on several databases, and a clock that advances by days: for tests of memories and consolidation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from holdfast.domain.memory import Memory, Owner
from holdfast.holdfast import Holdfast
from holdfast.memory.ranking import DAY
from tests.clocks import Clock
from tests.stores.servers import place

ANN = Owner("user", "ann")


@asynccontextmanager
async def open_holdfasts(kind: str, *, times: int = 1, **settings: Any) -> AsyncIterator[list[Holdfast]]:
    """Open a database several times; on a server without an index, which has its own tests."""
    if kind != "memory":
        settings = {"index": None, **settings}
    async with AsyncExitStack() as stack:
        url = "sqlite://:memory:" if kind.startswith("memory") else stack.enter_context(place(kind, None))
        yield [await stack.enter_async_context(Holdfast(url, **settings)) for _ in range(times)]


class Days:
    """A Holdfast whose days pass when the test says so.

    Attributes:
        hf: The first server.
        clock: The clock of all servers.
    """

    def __init__(self, hf: Holdfast, clock: Clock) -> None:
        self.hf = hf
        self.clock = clock

    async def keep(self, content: str, **fields: Any) -> Memory:
        """Remember something."""
        return (await self.hf.memories.remember(content, **{"user_id": "ann", **fields})).memory

    async def ask(self, *questions: str, session: str = "", user_id: str = "ann") -> None:
        """Recall with each question, a minute apart."""
        for question in questions:
            self.clock.now += 60_000
            await self.hf.memories.recall(question, user_id=user_id, session=session)
        await self.hf.memories.settled()

    def pass_(self, days: float = 1) -> None:
        """Advance the clock."""
        self.clock.now += int(days * DAY)

    async def get(self, one: Memory) -> Memory:
        """Return a memory in its current state."""
        return await self.hf.memories.get(one.id)

    async def is_promoted(self, one: Memory) -> bool:
        return (await self.get(one)).promoted_at is not None
