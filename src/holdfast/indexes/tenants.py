"""Manage the indexes of all tenants of a process: one open index, a service for each tenant, and periodic backfills.

A backfill indexes changes that were not reported to the index; see `holdfast.indexes.scan`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from holdfast.background import cancel_task
from holdfast.embedders import Embedder, embedder_of
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.indexes.indexed_store import IndexedStore
from holdfast.indexes.lazy_index import IndexFile, IndexOpener, LazyIndex
from holdfast.indexes.service import IndexService
from holdfast.indexes.settings import IndexSettings, get_index_file, is_lasting, resolve_index_url
from holdfast.limits import INDEX_FIRST_WALK_SECONDS, INDEX_WALK_SECONDS
from holdfast.liveness import make_holder
from holdfast.recall.base import Index
from holdfast.rerankers import BoundedReranker, parse_rerank_settings
from holdfast.stores.base import Store
from holdfast.stores.indexes import open_index
from holdfast.stores.walk import iterate_tenants

_log: Final = logging.getLogger("holdfast.indexing")


class Indexes:
    """The indexes of all tenants of a process, and the services that keep them up to date.

    Args:
        settings: the index settings.
        url: the URL of the store; None: the store was given as an open object.
        clock: returns the current time, in milliseconds since the epoch.
    """

    def __init__(self, settings: IndexSettings, url: str, clock: Callable[[], int]) -> None:
        self.settings = settings
        self.url = resolve_index_url(settings, url)
        self.embedder: Embedder | None = None if settings.embedder is None else embedder_of(settings.embedder)
        rerank = parse_rerank_settings(settings.rerank)
        self.reranker = None if rerank is None else BoundedReranker(rerank)
        self._clock = clock
        self._opening = IndexOpener(self._open, self._locate_file(url), self._handle_lost_file)
        self._services: dict[str, IndexService] = {}
        self._holder = make_holder()
        self._task: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()

    def _locate_file(self, store: str) -> IndexFile:
        """Return the file of the index. The file is marked as deletable (`own`) only if sessions cannot be stored in the same file.

        Args:
            store: URL of the store.
        """
        path = get_index_file(self.url)
        own = path is not None and get_index_file(store) != path
        return IndexFile(path, own=own)

    async def _open(self, tenant: str) -> Index:
        if self.settings.folder is not None:
            _create_folder(self.settings.folder)
        return await open_index(self.url, tenant=tenant, compress=self.settings.compress)

    def _handle_lost_file(self) -> None:
        """Let all services start over with a new index, because the file of the old index was removed."""
        _log.warning("the file of the index was removed: the index is rebuilt from the sessions and memories")
        for service in self._services.values():
            service.reset()
        self._sooner.set()

    def follow(self, store: Store) -> Store:
        """Return a store that wraps `store`, and reports each write to the index of its tenant."""
        return IndexedStore(store, self.get_service)

    def get_service(self, store: Store) -> IndexService:
        """Return the index service of a store's tenant. The service is created on first use."""
        service = self._services.get(store.tenant)
        if service is None or service.closed:
            index = LazyIndex(self._opening, store.tenant)
            service = self._services[store.tenant] = IndexService(
                store,
                cast(Index, index),
                self._clock,
                self._holder,
                embedder=self.embedder,
                reranker=self.reranker,
                mode=self.settings.mode,
                lasting=is_lasting(self.url),
            )
            index.on_opened = service.register
        return service

    async def release(self, tenant: str) -> None:
        """Index the queued sessions of a tenant, and close the tenant's service."""
        service = self._services.pop(tenant, None)
        if service is not None:
            await service.close()

    def start(self, store: Store, *, all_tenants: bool) -> None:
        """Start the periodic backfills.

        Args:
            store: a store of the process's own tenant.
            all_tenants: True: run backfills for all tenants; False: only for the process's own tenant.
        """
        self._task = asyncio.create_task(self._run(store, all_tenants=all_tenants), name="index walks")

    async def _run(self, store: Store, *, all_tenants: bool) -> None:
        await asyncio.sleep(INDEX_FIRST_WALK_SECONDS)
        while True:
            try:
                await self.get_service(store).walk()
                if all_tenants:
                    await self._walk_other_tenants(store)
            except HoldfastError as exc:
                _log.warning("a walk over the index was cut short; the next one does the rest", exc_info=exc)
            except Exception as exc:  # noqa: BLE001 - the outermost handler: one failure must not end the periodic backfills
                _log.error("a walk over the index failed", exc_info=exc)
            with suppress(TimeoutError):
                async with asyncio.timeout(INDEX_WALK_SECONDS):
                    await self._sooner.wait()
            self._sooner.clear()

    async def _walk_other_tenants(self, store: Store) -> None:
        async for tenant in iterate_tenants(store):
            if tenant == store.tenant:
                continue
            known = tenant in self._services
            handle = store.for_tenant(tenant)
            await self.get_service(handle).walk()
            service = self._services.get(tenant)
            if not known and service is not None and not service.waiting and self.embedder is None:
                await self.release(tenant)

    async def close(self) -> None:
        """Index the queued sessions within a time limit, then close everything. Closing twice is allowed."""
        task, self._task = self._task, None
        await cancel_task(task)
        await asyncio.gather(*(service.close() for service in self._services.values()))
        if not is_lasting(self.url):
            await asyncio.gather(*(service.forget_index() for service in self._services.values()))
        self._services.clear()
        await self._opening.close()
        if self.embedder is not None:
            await self.embedder.close()
        if self.reranker is not None:
            await self.reranker.close()


def _create_folder(folder: str) -> None:
    """Create the folder of the index. Raises `StoreUnavailable` if that is not possible."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StoreUnavailable(f"the folder of the index cannot be created: {exc.strerror or exc}") from exc
