"""Memories on several databases, days that go by, and a model that proposes merges: for tests of memories and dreams."""

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
    """Openings of one database; on a server without an index, which has tests of its own."""
    if kind != "memory":
        settings = {"index": None, **settings}
    async with AsyncExitStack() as stack:
        url = "sqlite://:memory:" if kind.startswith("memory") else stack.enter_context(place(kind, None))
        yield [await stack.enter_async_context(Holdfast(url, **settings)) for _ in range(times)]


class Days:
    """A Holdfast whose days the test makes go by.

    Attributes:
        hf: of the first server.
        clock: of all.
    """

    def __init__(self, hf: Holdfast, clock: Clock) -> None:
        self.hf = hf
        self.clock = clock

    async def keep(self, content: str, **fields: Any) -> Memory:
        """Remember something."""
        return (await self.hf.memories.remember(content, **{"user_id": "ann", **fields})).memory

    async def ask(self, *questions: str, session: str = "", user_id: str = "ann") -> None:
        """Recall by each question, a minute apart."""
        for question in questions:
            self.clock.now += 60_000
            await self.hf.memories.recall(question, user_id=user_id, session=session)
        await self.hf.memories.settled()

    def pass_(self, days: float = 1) -> None:
        """Let time go by."""
        self.clock.now += int(days * DAY)

    async def get(self, one: Memory) -> Memory:
        """A memory as it is now."""
        return await self.hf.memories.get(one.id)

    async def is_promoted(self, one: Memory) -> bool:
        """Whether it is."""
        return (await self.get(one)).promoted_at is not None


async def everything(hf: Holdfast, owner: Owner = ANN) -> tuple[Any, ...]:
    """All that is stored of an owner."""
    found = await hf.store.memories(owner, limit=1000)
    return found, await hf.store.signals(owner), await hf.store.diary(owner, limit=100)


class MergingModel:
    """A model that answers about memories with what `says` makes of their ids.

    Attributes:
        asked: the requests.
        says: an answer, or what is raised.
        reason: the finish reason.
        meanwhile: awaited before it answers.
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
        """See `Model.stream`."""
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
