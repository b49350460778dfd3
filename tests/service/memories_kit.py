"""Memories on several databases, a clock that advances by days, and a model that proposes merges: for tests of memories and consolidation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from holdfast.domain.memory import Memory, Owner
from holdfast.holdfast import Holdfast
from holdfast.memory.ranking import DAY
from holdfast.models import to_chunks
from tests.clocks import Clock
from tests.stores.servers import place

ANN = Owner("user", "ann")
SAID = "Ann lives in Lisbon now"
Says = Callable[[list[str]], str | Exception]


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


async def list_everything(hf: Holdfast, owner: Owner = ANN) -> tuple[Any, ...]:
    """Return all that is stored of an owner."""
    found = await hf.store.memories(owner, limit=1000)
    return found, await hf.store.signals(owner), await hf.store.diary(owner, limit=100)


class MergingModel:
    """A model that answers about memories with what `says` makes of their ids.

    Attributes:
        asked: The requests.
        says: Makes the answer, or the error to raise.
        reason: The finish reason.
        meanwhile: Awaited before it answers.
    """

    name = "merging"

    def __init__(self, says: Says) -> None:
        self.asked: list[dict[str, Any]] = []
        self.says = says
        self.reason = "stop"
        self.meanwhile: Callable[[], Any] | None = None

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(request)
        if self.meanwhile is not None:
            await self.meanwhile()
        lines = request["messages"][-1]["content"].split("\n")
        said = self.says([json.loads(one)["id"] for one in lines if one.startswith("{")])
        if isinstance(said, Exception):
            raise said
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": self.reason}
        usage = {"prompt_tokens": 70, "completion_tokens": 9}
        for chunk in to_chunks({"id": "x", "model": "m", "usage": usage, "choices": [choice]}):
            yield chunk

    async def close(self) -> None:
        """See `Model.close`."""


def format_merges(ids: list[str], content: str = SAID) -> str:
    return json.dumps({"merges": [{"ids": ids[:2], "content": content}]})
