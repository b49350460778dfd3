"""Stores: where sessions live. `base` is the contract, one file a database beside it."""

from __future__ import annotations

from importlib import import_module

from holdfast.errors import InvalidRequest
from holdfast.stores.base import Store

STORES = {"sqlite": "holdfast.stores.sqlite:SQLiteStore"}
"""A URL's scheme to the class that opens it; imported by first use."""
PLANNED = ("postgresql", "mysql", "mariadb", "redis", "redis+cluster")
"""Schemes that a later release opens."""


async def open_store(url: str, *, tenant: str) -> Store:
    """Open the store at `url` for `tenant`; close it in the end.

    Args:
        url: `sqlite:///file.db`, `sqlite:////path/file.db` or `sqlite://:memory:`.
        tenant: whose sessions the handle sees; `Store.for_tenant` gives more handles.

    Raises:
        InvalidRequest: the URL is not one of a store.
        StoreUnavailable: the store cannot be opened.
    """
    scheme, separator, _ = url.partition("://")
    known = " and ".join(f"{name}://" for name in STORES)
    if scheme in PLANNED and separator:
        raise InvalidRequest(f"{scheme}:// stores come with a later release; this one opens {known}", param="url")
    if scheme not in STORES or not separator:
        raise InvalidRequest(f"{url!r} is not a store: its scheme must be {known}", param="url")
    module, _, name = STORES[scheme].partition(":")
    store: Store = await getattr(import_module(module), name).open(url, tenant=tenant)
    return store
