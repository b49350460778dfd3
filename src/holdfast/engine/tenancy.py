"""Many tenants behind one server: an engine for each that is being served, beside that of the server's own tenant.

Each has memories, queues and counts of its own; models, hooks, the guard and the sweep are everybody's.
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
    """One tenant's engine, and how many are using it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.users = 0


class Tenants:
    """The engines of other tenants: opened on demand, kept for a while, closed when nobody has used them for longest.

    Args:
        own: of the tenant whose server it is.
        make: makes the engine of another tenant.
        most: how many are kept; those that are being used are never closed, however many they are.
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
        """The engine of a tenant, which stays open while the block runs. Raises `InvalidRequest` for what is no tenant's name."""
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
            self._make_room()
            yield served.engine
        finally:
            served.users -= 1

    @property
    def engines(self) -> list[Engine]:
        """Those that are open, without the own one."""
        return [served.engine for served in self._served.values()]

    def _make_room(self) -> None:
        """Close those that were used longest ago."""
        spare = len(self._served) - self._most
        if spare <= 0:
            return
        for tenant in [name for name, served in self._served.items() if not served.users][:spare]:
            task = asyncio.ensure_future(self._close(tenant, ends=False))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(self, tenant: str, *, ends: bool) -> None:
        served = self._served.get(tenant)
        if served is None or (served.users and not ends):  # somebody came in between
            return
        del self._served[tenant]
        self._own.life.release_tenant(tenant)
        try:
            await served.engine.close(ends=ends)
        except Exception as exc:  # noqa: BLE001 - one that does not close must not keep the others from it
            _log.error("the engine of a tenant did not close well", exc_info=exc)

    async def close(self) -> None:
        """Wait for every write of every tenant, and tell hooks of the end."""
        await asyncio.gather(*(self._close(tenant, ends=True) for tenant in tuple(self._served)))
        await asyncio.gather(*self._closing)
