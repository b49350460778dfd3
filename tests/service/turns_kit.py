"""A model whose answers wait for the test, and Holdfasts on one database that it answers in: for tests of turns at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from holdfast.agents import Llm, Roster
from holdfast.domain.session import Claim, SessionRef
from holdfast.engine.session_lock import SessionLock
from holdfast.holdfast import Holdfast
from holdfast.models import to_chunks
from tests.clocks import Clock
from tests.waiting import until

REF = SessionRef("default", "s")


class Stage:
    """A model that answers `a` with `re:a`, in two pieces; behind the first one it waits where it was told to.

    Attributes:
        held: the texts whose answers wait; None: all of them.
        asked: the texts that it was asked so far.
    """

    name = "stage"

    def __init__(self, *held: str) -> None:
        self.held: set[str] | None = set(held)
        self.asked: list[str] = []
        self.failure: Exception | None = None
        self._rings = asyncio.Event()

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """See `Model.stream`."""
        text = next(one["content"] for one in reversed(request["messages"]) if one["role"] == "user")
        self.asked.append(text)
        self._ring()
        if self.failure is not None:
            raise self.failure
        message = {"role": "assistant", "content": f"re: {text}"}
        first, *rest = to_chunks(
            {"id": "x", "model": "stage", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]},
            by_word=True,
        )
        yield first
        yield rest[0]
        while self.held is None or text in self.held:
            await self._next()
        for chunk in rest[1:]:
            yield chunk

    async def close(self) -> None:
        """See `Model.close`."""

    def _ring(self) -> None:
        bell, self._rings = self._rings, asyncio.Event()
        bell.set()

    async def _next(self) -> None:
        await self._rings.wait()

    async def until(self, text: str) -> None:
        """Wait until it was asked `text`."""
        while text not in self.asked:
            await self._next()

    def go_on(self, *texts: str) -> None:
        """Let the answers to these go on; without any, all, from now on."""
        self.held = (self.held or set()) - set(texts) if texts else set()
        self._ring()


@asynccontextmanager
async def open_stage(
    url: str, *, openings: int = 1, stage: Stage | None = None, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[tuple[list[Holdfast], Stage]]:
    """Openings of one database with session `s` in it, and the model that answers in all of them."""
    stage, clock = stage or Stage(), clock or Clock()
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(openings):
            roster = Roster({"default": Llm(name="default", model="gpt-4o", client=stage)})
            hf = Holdfast(url, roster=roster, clock=clock, **settings)
            opened.append(await stack.enter_async_context(hf))
        await opened[0].session("s")
        yield opened, stage
        stage.go_on()


async def say(hf: Holdfast, text: str, **how: Any) -> str:
    """A turn of `s`; what was answered."""
    handle = hf.handle(await hf.store.get(REF))
    return str((await handle.send(text, **how))["choices"][0]["message"]["content"])


async def start_turn(hf: Holdfast, stage: Stage, text: str, **how: Any) -> asyncio.Task[str]:
    """A turn of `s` whose model was asked, and is held."""
    assert stage.held is not None
    stage.held.add(text)
    task = asyncio.create_task(say(hf, text, **how))
    await stage.until(text)
    return task


async def wait_for_waiting(hf: Holdfast, number: int, *tasks: asyncio.Task[Any]) -> None:
    """Return when so many wait for the turn of `s` that runs, or one of `tasks` is done, which it should not be."""
    await until(lambda: len(get_queue(hf)) > number, *tasks)


def get_queue(hf: Holdfast) -> list[SessionLock]:
    """Those that have or wait for the turn of `s` in a process."""
    return hf.engine.locks.list_line(REF)


async def renew_claim(hf: Holdfast) -> int:
    """Do what a running turn does each time that its claim has to be renewed or looked at; milliseconds until the next."""
    return await get_queue(hf)[0].renew()


def retry_at_once(*openings: Holdfast) -> None:
    """Who waits for another server looks again and again."""
    for hf in openings:
        hf.engine.locks.pause = lambda _: asyncio.sleep(0)


async def get_claim(hf: Holdfast) -> Claim | None:
    return (await hf.store.get(REF)).claim


async def is_stop_wanted(hf: Holdfast) -> bool:
    """Whether somebody waits for the turn that runs to stop."""
    claim = await get_claim(hf)
    return claim is not None and claim.wanted


async def log(hf: Holdfast) -> list[str]:
    """The texts of the live path; those of cut replies with a mark."""
    entries = await hf.store.entries(REF)
    cut = [bool((entry.metadata or {}).get("interrupted")) for entry in entries]
    return [entry.message.text.strip() + ("|" if was else "") for entry, was in zip(entries, cut, strict=True)]


SHARED = pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql", "redis", "redis-cluster"])
