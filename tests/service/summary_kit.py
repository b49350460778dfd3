"""Shared by tests of summaries: a session, the model that chats in it, and the model that writes its summaries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agents import Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.session import StoredCompaction
from holdfast.holdfast import Holdfast
from holdfast.overlays.compactor import Compactor, Pace
from holdfast.sessions.handle import SessionHandle
from tests.clocks import Clock
from tests.service.scripted_model import REF, ScriptedModel

LABEL = "[Summary of messages "
TELLING = "The user asks about orders; ORD-0003 is urgent."


class Desk:
    """A Holdfast with session `s`, the model that chats, and the one that writes summaries."""

    def __init__(self, hf: Holdfast, chat: ScriptedModel, pen: ScriptedModel, clock: Clock) -> None:
        self.hf = hf
        self.chat = chat
        self.pen = pen
        self.clock = clock
        self.asked = 0

    @property
    def compactor(self) -> Compactor:
        return self.hf.engine.compactor

    async def session(self) -> SessionHandle:
        return await self.hf.session("s")

    async def talk(self, turns: int, *, idle: bool = True, more: str = "") -> None:
        """Run turns of about a hundred tokens each."""
        session = await self.session()
        for _ in range(turns):
            await session.send(f"question about ORD-{self.asked:04d}: {more}" + "why not " * 15)
            self.asked += 1
            if idle:
                await self.compactor.wait_until_idle()

    async def until_due(self) -> None:
        """Run turns until a summary is being written."""
        while not self.pen.prompts:
            await self.talk(1, idle=False)
            await asyncio.sleep(0)
            if self.compactor._running:
                await self.pen.asked.wait()

    async def find(self, *statuses: str) -> list[StoredCompaction]:
        found = await self.hf.store.compactions(REF)
        return [one for one in found if not statuses or one.status in statuses]

    async def prompt(self) -> list[str]:
        """Return the prompt of the next call."""
        return [message["content"] for message in (await (await self.session()).context()).messages]


@asynccontextmanager
async def desk(
    write: Callable[[dict[str, Any]], Any] = lambda _: TELLING,
    *,
    url: str = "sqlite://:memory:",
    clock: Clock | None = None,
    window: int | None = None,
    strategy: str = "summary_buffer",
    summarizers: dict[str, Callable[..., Any]] | None = None,
    pace: Pace | None = None,
    **options: Any,
) -> AsyncIterator[Desk]:
    chat, pen = ScriptedModel(lambda _: "so it is " * 15), ScriptedModel(write)
    llms = {
        "default": Llm(name="default", model="gpt-4o", client=chat),
        "pen": Llm(name="pen", model="gpt-4o-mini", client=pen, context_window=window),
    }
    if strategy == "summary_buffer":
        options = {"budget": 1000, "summarizer_llm": "pen", **options}
    roster = Roster(llms, context=ContextSettings(strategy, {"recall": "off", "facts": False, **options}))
    clock = clock or Clock()
    async with Holdfast(url, roster=roster, clock=clock, summarizers=summarizers) as hf:
        if pace is not None:
            hf.engine.compactor.pace = pace
        await hf.session("s")
        yield Desk(hf, chat, pen, clock)


def source(request: dict[str, Any]) -> str:
    """Return the text that a summarizer was given."""
    return str(request["messages"][1]["content"])
