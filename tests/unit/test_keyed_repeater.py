"""Work repeated for many keys on one timer."""

from __future__ import annotations

import asyncio
from collections import Counter

from holdfast.background import KeyedRepeater
from tests.waits import until


async def test_work_that_waits_does_not_delay_other_keys() -> None:
    done: Counter[str] = Counter()
    released = asyncio.Event()

    async def work(key: str) -> int:
        if key == "stuck":
            await released.wait()
        done[key] += 1
        return 1

    repeated = KeyedRepeater(work)
    repeated.begin("stuck", 0)
    repeated.begin("free", 0)
    await until(lambda: done["free"] >= 2)
    assert done["stuck"] == 0
    released.set()
    await until(lambda: done["stuck"] >= 1)
    repeated.close()


async def test_work_that_fails_does_not_stop_other_keys() -> None:
    done: Counter[str] = Counter()

    async def work(key: str) -> int:
        done[key] += 1
        if key == "broken":
            raise RuntimeError(key)
        return 1

    repeated = KeyedRepeater(work)
    repeated.begin("broken", 0)
    repeated.begin("sound", 0)
    await until(lambda: done["sound"] >= 2)
    assert done["broken"] == 1  # tried again later
    repeated.close()


async def test_a_stopped_key_is_not_served() -> None:
    done: list[str] = []

    async def work(key: str) -> int:
        done.append(key)
        return 0

    repeated = KeyedRepeater(work)
    repeated.begin("stopped", 1)
    repeated.begin("served", 1)
    repeated.stop("stopped")
    repeated.stop("never there")
    await until(lambda: done == ["served"])
    repeated.close()
