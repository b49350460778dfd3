"""`max_requests`: concurrent calls are limited and the others wait in order; no slot is lost or given out twice."""

from __future__ import annotations

import asyncio

from holdfast.models.base import closing
from holdfast.models.limited import LimitedModel
from tests.chunks import collect
from tests.service.scripted_model import ScriptedModel


async def test_cancellations_keep_the_slot_count_right() -> None:
    """Calls are cancelled before they run, while they wait, and while they run."""
    model = ScriptedModel("a b c")
    limited = LimitedModel(model, 3, patience=60)
    most = 0

    async def one(n: int) -> None:
        nonlocal most
        async with closing(limited.stream({"n": n})) as chunks:
            async for _ in chunks:
                most = max(most, limited.running)
                await asyncio.sleep(0)

    tasks = [asyncio.create_task(one(n)) for n in range(200)]
    for n, task in enumerate(tasks):
        if n % 3 == 0:
            task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 3
    assert (limited.running, limited.waiting) == (0, 0)
    await asyncio.gather(*(collect(limited.stream({})) for _ in range(6)))
