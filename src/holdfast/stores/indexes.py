"""Open a search index in a database. The index uses the full-text engine of the database."""

from __future__ import annotations

from holdfast.recall.base import Index
from holdfast.stores import load_opener


async def open_index(url: str, *, tenant: str, compress: bool = False) -> Index:
    """Open the index at `url` for `tenant`, and upgrade its schema. The caller must close the index.

    Args:
        url: URL of a SQLite, PostgreSQL, MySQL or MariaDB database, as for `holdfast.stores.open_store`. An index can be in the
            same database as a store. With SQLite, a separate file lets store and index be written at the same time.
        tenant: the tenant whose index the handle reads and writes; `Index.for_tenant` returns handles of other tenants.
        compress: if True, store vectors as float16, in half the bytes; a search then takes about twice as long. This has no effect
            if the database can compare vectors itself. Nor does it change the format for a model whose vectors are already
            stored, until these are dropped.

    Raises:
        InvalidRequest: `url` is not the URL of a store.
        MissingExtra: the database's driver is not installed.
        StoreUnavailable: the database cannot be opened.
    """
    index: Index = await load_opener(url).open_index(url, tenant=tenant, compress=compress)
    return index
