"""Which index a URL names: the database's own full-text engine, opened for the index alone."""

from __future__ import annotations

from holdfast.errors import InvalidRequest
from holdfast.recall.base import Index
from holdfast.stores import STORES, load_opener


async def open_index(url: str, *, tenant: str, compress: bool = False) -> Index:
    """Open the index at `url` for `tenant`, bringing its schema up to date; close it in the end.

    Args:
        url: like that of a store (`holdfast.stores.open_store`), of one that has a full-text engine: SQLite, PostgreSQL, MySQL
            or MariaDB. An index may lie in the database of a store; with SQLite a file of its own lets both be written at once.
        tenant: whose index the handle sees; `Index.for_tenant` gives more handles.
        compress: keep vectors as float16, in half the bytes, where the database does not compare them itself; a search takes about
            twice as long. Those of a model that has vectors already stay as they are, until they are dropped.

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
            f"{scheme}:// has no full-text engine: name an index beside it, one of {able}", param="url"
        )
    index: Index = await opener.open_index(url, tenant=tenant, compress=compress)
    return index
