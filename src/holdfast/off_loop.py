"""Work that takes long, done beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio.to_thread

T = TypeVar("T")


async def run_in_thread(work: Callable[..., T], *args: object, long: bool = True) -> T:
    """What `work` gives, done in a thread where it takes `long`, so that others do not wait for it."""
    return await anyio.to_thread.run_sync(partial(work, *args)) if long else work(*args)
