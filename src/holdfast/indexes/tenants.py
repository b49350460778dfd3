"""The indexes of all tenants of a process: one that is opened, a service for each tenant, and whoever looks for what nobody told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.background import cancel_task
from holdfast.embedders import Embedder, embedder_of
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.indexes.lazy_index import IndexFile, LazyIndex, Opening
from holdfast.indexes.service import IndexService, feed_index
from holdfast.indexes.settings import IndexSettings, file_of, lasting, place_of
from holdfast.limits import INDEX_FIRST_WALK_SECONDS, INDEX_WALK_SECONDS
from holdfast.liveness import new_holder
from holdfast.recall.base import Index
from holdfast.rerankers import BoundedReranker, rerank_settings
from holdfast.stores.base import Store
from holdfast.stores.indexes import open_index
from holdfast.stores.memories import MemoryStore
from holdfast.stores.walk import iterate_tenants

_log: Final = logging.getLogger("holdfast.indexing")


class Indexes:
    """The indexes of all tenants.

    Args:
        settings: which index.
        url: the store's; None: it was given open.
        clock: milliseconds since the epoch.
    """

    def __init__(self, settings: IndexSettings, url: str | None, clock: Callable[[], int]) -> None:
        self.settings = settings
        self.url = place_of(settings, url)
        self.embedder: Embedder | None = None if settings.embedder is None else embedder_of(settings.embedder)
        rerank = rerank_settings(settings.rerank)
        self.reranker = None if rerank is None else BoundedReranker(rerank)
        self._clock = clock
        self._opening = Opening(self._open, self._file(url), self._lost)
        self._services: dict[str, IndexService] = {}
        self._holder = new_holder()
        self._task: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()

    def _file(self, store: str | None) -> IndexFile:
        """The index's file; it is its own unless sessions may lie in it too."""
        path = file_of(self.url)
        own = path is not None and store is not None and file_of(store) != path
        return IndexFile(path, own=own)

    async def _open(self, tenant: str) -> Index:
        if self.settings.folder is not None:
            _make_room(self.settings.folder)
        return await open_index(self.url, tenant=tenant, compress=self.settings.compress)

    def _lost(self) -> None:
        """The file was removed, and there is a new one: all of it is to be taken in again."""
        _log.warning("the file of the index was removed: it is made anew from the sessions and memories")
        for service in self._services.values():
            service.renewed()
        self._sooner.set()

    def follow(self, store: Store) -> Store:
        """The store, which tells the indexes of its tenants."""
        return feed_index(store, self.of)

    def of(self, store: Store, memories: MemoryStore | None = None) -> IndexService:
        """The index of a store's tenant."""
        service = self._services.get(store.tenant)
        if service is None or service.closed:
            service = self._services[store.tenant] = IndexService(
                store,
                LazyIndex(self._opening, store.tenant),
                self._clock,
                self._holder,
                memories=memories,
                embedder=self.embedder,
                reranker=self.reranker,
                mode=self.settings.mode,
                lasting=lasting(self.url),
            )
        return service

    async def let_go(self, tenant: str) -> None:
        """Nobody needs the index of a tenant any more: what it was told is taken in."""
        service = self._services.pop(tenant, None)
        if service is not None:
            await service.close()

    def start(self, store: Store, *, all_tenants: bool) -> None:
        """Look for what nobody told from time to time from now on.

        Args:
            store: a handle of the own tenant.
            all_tenants: whether those of all tenants are looked at.
        """
        self._task = asyncio.create_task(self._run(store, all_tenants=all_tenants), name="index walks")

    async def _run(self, store: Store, *, all_tenants: bool) -> None:
        await asyncio.sleep(INDEX_FIRST_WALK_SECONDS)
        while True:
            try:
                await self.of(store).walk()
                if all_tenants:
                    await self._others(store)
            except HoldfastError as exc:
                _log.warning("a walk over the index was cut short; the next one does the rest", exc_info=exc)
            except Exception as exc:  # noqa: BLE001 - the last place: walking must not end with one of them
                _log.error("a walk over the index failed", exc_info=exc)
            with suppress(TimeoutError):
                async with asyncio.timeout(INDEX_WALK_SECONDS):
                    await self._sooner.wait()
            self._sooner.clear()

    async def _others(self, store: Store) -> None:
        async for tenant in iterate_tenants(store):
            if tenant == store.tenant:
                continue
            known = tenant in self._services
            handle = store.for_tenant(tenant)
            await self.of(handle).walk()
            service = self._services.get(tenant)
            if not known and service is not None and not service.waits and self.embedder is None:
                await self.let_go(tenant)

    async def close(self) -> None:
        """Take in what was told, for a while, and close. Closing twice is fine."""
        task, self._task = self._task, None
        await cancel_task(task)
        await asyncio.gather(*(service.close() for service in self._services.values()))
        self._services.clear()
        await self._opening.close()
        if self.embedder is not None:
            await self.embedder.close()
        if self.reranker is not None:
            await self.reranker.close()


def _make_room(folder: str) -> None:
    """Make the folder of an index, as people name one that nobody makes. Raises `StoreUnavailable`."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StoreUnavailable(f"the folder of the index cannot be made: {exc.strerror or exc}") from exc
