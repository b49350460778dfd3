"""Run slow work in a thread, outside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio.to_thread

T = TypeVar("T")


async def run_in_thread(work: Callable[..., T], *args: object, long: bool = True) -> T:
    """Run `work` and return its result. Use a thread if `long` is True, so that the event loop is not blocked."""
    return await anyio.to_thread.run_sync(partial(work, *args)) if long else work(*args)
