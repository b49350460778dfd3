"""The calls of one principal at the MCP server: few run, some wait, more are refused, and others are not affected."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.accounting import Owner, charge_to
from holdfast.mcp_server.call_limiter import CallLimiter, TooManyCalls

ADA, BOB = Owner("t", "ada"), Owner("t", "bob")


class Calls:
    """Calls that run until they are released."""

    def __init__(self, limiter: CallLimiter) -> None:
        self._limiter = limiter
        self.running: list[str] = []
        self.release = asyncio.Event()

    async def start(self, owner: Owner) -> asyncio.Task[None]:
        async def run() -> None:
            with charge_to(owner):
                async with self._limiter.admit():
                    self.running.append(owner.name)
                    await self.release.wait()

        task = asyncio.create_task(run())
        for _ in range(5):
            await asyncio.sleep(0)
        return task


async def test_calls_over_the_limit_wait_and_more_are_refused() -> None:
    calls = Calls(CallLimiter(most=2, waiting=1))
    tasks = [await calls.start(ADA) for _ in range(3)]
    assert calls.running == ["ada", "ada"]
    with pytest.raises(TooManyCalls, match="3 calls are running or waiting"):
        await (await calls.start(ADA))
    other = await calls.start(BOB)
    assert calls.running == ["ada", "ada", "bob"]
    calls.release.set()
    await asyncio.gather(*tasks, other)
    assert calls.running == ["ada", "ada", "bob", "ada"]


async def test_a_cancelled_call_makes_room() -> None:
    calls = Calls(CallLimiter(most=1, waiting=1))
    running, waiting = await calls.start(ADA), await calls.start(ADA)
    for task in (waiting, running):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    again = [await calls.start(ADA), await calls.start(ADA)]
    calls.release.set()
    await asyncio.gather(*again)
    assert calls.running == ["ada"] * 3
