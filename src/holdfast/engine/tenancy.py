"""Serve several tenants with one server: the server's own tenant, and an engine for each other tenant in use.

Each engine has its own caches, queues and counters. All engines share models, hooks, the guard, and the job that deletes expired
sessions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.engine.engine import Engine
from holdfast.limits import TENANTS
from holdfast.stores.checks import check_id

_log = logging.getLogger("holdfast.tenancy")


class _Served:
    """A tenant's engine, with the number of requests that are using it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.users = 0


class Tenants:
    """The engines of tenants other than the server's own. An engine is opened on demand, and kept for later requests.

    If there are too many engines, the least recently used ones are closed.

    Args:
        own: the engine of the server's own tenant.
        make: creates the engine of another tenant.
        most: maximum number of engines to keep. Engines in use are never closed, even if there are more.
    """

    def __init__(self, own: Engine, make: Callable[[str], Engine], *, most: int = TENANTS) -> None:
        self._own = own
        self._make = make
        self._most = most
        self._served: OrderedDict[str, _Served] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._served)

    @asynccontextmanager
    async def serve_tenant(self, tenant: str) -> AsyncIterator[Engine]:
        """Yield the engine of a tenant. The engine stays open while the `async with` block runs.

        Raises:
            InvalidRequest: the tenant name is invalid.
        """
        check_id(tenant, "tenant")
        if tenant == self._own.store.tenant:
            yield self._own
            return
        served = self._served.get(tenant)
        if served is None:
            served = self._served[tenant] = _Served(self._make(tenant))
            self._own.life.adopt(served.engine.life)
        self._served.move_to_end(tenant)
        served.users += 1
        try:
            self._evict()
            yield served.engine
        finally:
            served.users -= 1

    @property
    def engines(self) -> list[Engine]:
        """The open engines of other tenants."""
        return [served.engine for served in self._served.values()]

    def _evict(self) -> None:
        """Close the least recently used engines if there are too many."""
        spare = len(self._served) - self._most
        if spare <= 0:
            return
        for tenant in [name for name, served in self._served.items() if not served.users][:spare]:
            task = asyncio.ensure_future(self._close(tenant, ends=False))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(self, tenant: str, *, ends: bool) -> None:
        served = self._served.get(tenant)
        if served is None or (served.users and not ends):  # a request started to use it meanwhile
            return
        del self._served[tenant]
        self._own.life.release_tenant(tenant)
        try:
            await served.engine.close(ends=ends)
        except Exception as exc:  # noqa: BLE001 - one that fails to close must not prevent the others from closing
            _log.error("the engine of a tenant could not be closed", exc_info=exc)

    async def close(self) -> None:
        """Close all engines: wait for every write, and notify hooks that the process ends."""
        await asyncio.gather(*(self._close(tenant, ends=True) for tenant in tuple(self._served)))
        await asyncio.gather(*self._closing)
