"""The end of clients that a new configuration has no use for: at once where nobody has them, else behind the last turn that does."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Final, Protocol


class Pool(Protocol):
    """Connections."""

    async def close(self) -> None:
        """Let go of them."""


_closing: Final[set[asyncio.Task[None]]] = set()


def retire(client: Any) -> None:
    """Have a client's connections closed as soon as nobody has it any more. One that has none is left alone."""
    wanted = getattr(client, "retire", None)
    if wanted is not None:
        wanted()


def close_behind(owner: object, pool: Pool) -> None:
    """Close `pool` when `owner` is gone. Call it in the event loop of both."""
    weakref.finalize(owner, _ended, pool, asyncio.get_running_loop()).atexit = False


def _ended(pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
    # The last one to have it may have been the collector, in any thread.
    if not loop.is_closed():
        loop.call_soon_threadsafe(_close, pool)


def _close(pool: Pool) -> None:
    task = asyncio.ensure_future(pool.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
