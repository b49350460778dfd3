"""Close clients that a new configuration no longer uses: at once if they are idle, otherwise after the last turn that uses them."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Final, Protocol


class Pool(Protocol):
    """A pool of connections."""

    async def close(self) -> None:
        """Close the connections."""


_closing: Final[set[asyncio.Task[None]]] = set()


def retire(client: Any) -> None:
    """Close a client's connections as soon as no caller uses the client any more. Do nothing if the client has no method `retire`."""
    method = getattr(client, "retire", None)
    if method is not None:
        method()


def close_after(owner: object, pool: Pool) -> None:
    """Close `pool` when `owner` is garbage-collected. Call this function in the event loop that both use."""
    weakref.finalize(owner, _schedule_close, pool, asyncio.get_running_loop()).atexit = False


def _schedule_close(pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
    # The finalizer may run in any thread, because the garbage collector does.
    if not loop.is_closed():
        loop.call_soon_threadsafe(_start_close, pool)


def _start_close(pool: Pool) -> None:
    task = asyncio.ensure_future(pool.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
