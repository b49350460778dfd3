"""A model whose answers wait for the test, and Holdfasts on one database that use it: for tests of concurrent turns."""

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
from holdfast.models.collect import to_chunks
from tests.clocks import Clock
from tests.waits import until

REF = SessionRef("default", "s")


class Stage:
    """A model that answers `a` with `re: a` in two pieces, and waits after the first piece if it is held.

    Attributes:
        held: The texts whose answers wait; None means all.
        asked: The texts that it was asked so far.
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
        """Wait until the model was asked `text`."""
        while text not in self.asked:
            await self._next()

    def go_on(self, *texts: str) -> None:
        """Release the answers to these texts; without any, all answers from now on."""
        self.held = (self.held or set()) - set(texts) if texts else set()
        self._ring()


@asynccontextmanager
async def open_stage(
    url: str, *, openings: int = 1, stage: Stage | None = None, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[tuple[list[Holdfast], Stage]]:
    """Open a database with session `s` several times, with one model for all."""
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
    """Run a turn of `s` and return the reply."""
    handle = hf.handle(await hf.store.get(REF))
    return str((await handle.send(text, **how))["choices"][0]["message"]["content"])


async def start_turn(hf: Holdfast, stage: Stage, text: str, **how: Any) -> asyncio.Task[str]:
    """Start a turn of `s` whose model has been called and is held."""
    assert stage.held is not None
    stage.held.add(text)
    task = asyncio.create_task(say(hf, text, **how))
    await stage.until(text)
    return task


async def wait_for_waiting(hf: Holdfast, number: int, *tasks: asyncio.Task[Any]) -> None:
    """Wait until that many turns wait for the running turn of `s`, or one of `tasks` ends, which it should not."""
    await until(lambda: len(get_queue(hf)) > number, *tasks)


def get_queue(hf: Holdfast) -> list[SessionLock]:
    """Return the running and waiting turns of `s` in a process."""
    line = hf.engine.locks._lines.get(REF)  # noqa: SLF001  # the product does not need it
    return [line.holder, *line.waiting] if line else []


async def renew_claim(hf: Holdfast) -> int:
    """Do what a running turn does when its claim must be renewed or checked; return the milliseconds until the next time."""
    return await get_queue(hf)[0].renew()


def retry_at_once(*openings: Holdfast) -> None:
    """Make turns that wait for another server retry without pauses."""
    for hf in openings:
        hf.engine.locks.pause = lambda _: asyncio.sleep(0)


async def get_claim(hf: Holdfast) -> Claim | None:
    return (await hf.store.get(REF)).claim


async def is_stop_wanted(hf: Holdfast) -> bool:
    """Return True if another turn wants the running turn to stop."""
    claim = await get_claim(hf)
    return claim is not None and claim.wanted


async def log(hf: Holdfast) -> list[str]:
    """Return the texts of the live path, with a mark for cut replies."""
    entries = await hf.store.entries(REF)
    cut = [bool((entry.metadata or {}).get("interrupted")) for entry in entries]
    return [entry.message.text.strip() + ("|" if was else "") for entry, was in zip(entries, cut, strict=True)]


SHARED = pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
