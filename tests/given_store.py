"""A Holdfast on a store that the test has opened, or on a double of one: the product itself opens its store by a URL."""

from __future__ import annotations

from typing import Any

from holdfast.holdfast import Holdfast
from holdfast.stores.base import Store


class HoldfastOn(Holdfast):
    """Uses an open store, which the test closes. The index is in memory, and contents of artifacts are in the store."""

    def __init__(self, store: Store, **settings: Any) -> None:
        super().__init__("sqlite://:memory:", tenant=store.tenant, **settings)
        self._opened = store

    async def _open_store(self) -> Store:
        return self._opened.for_tenant(self.tenant)
