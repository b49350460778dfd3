"""Open a search index at a URL: a database's own full-text engine."""

from __future__ import annotations

from holdfast.errors import InvalidRequest
from holdfast.recall.base import Index
from holdfast.stores import STORES, load_opener


async def open_index(url: str, *, tenant: str, compress: bool = False) -> Index:
    """Open the index at `url` for `tenant`, and upgrade its schema. The caller closes it.

    Args:
        url: like that of a store (`holdfast.stores.open_store`) with a full-text engine: SQLite, PostgreSQL, MySQL or MariaDB. An
            index can be in the database of a store; with SQLite, a separate file lets both be written at the same time.
        tenant: whose index the handle sees; `Index.for_tenant` returns more handles.
        compress: store vectors as float16, in half the bytes, if the database does not compare them itself; a search then takes
            about twice as long. Vectors of a model that has some already keep their format until they are dropped.

    Raises:
        InvalidRequest: the URL is not one of a store, or that store has no full-text engine.
        MissingExtra: its driver is not installed.
        StoreUnavailable: it cannot be opened.
    """
    opener = load_opener(url)
    if not hasattr(opener, "open_index"):
        scheme = url.partition("://")[0]
        able = ", ".join(f"{name}://" for name in STORES if not name.startswith("redis"))
        raise InvalidRequest(
            f"{scheme}:// has no full-text engine: configure a separate index at one of {able}", param="url"
        )
    index: Index = await opener.open_index(url, tenant=tenant, compress=compress)
    return index
