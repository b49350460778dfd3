"""Stores: the databases in which sessions are kept. `base` describes the contract of all stores; each database has its own module."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.errors import InvalidRequest
from holdfast.stores.base import Store
from holdfast.stores.sql.migrations import Migration

__all__ = ["STORES", "Store", "find_pending_migrations", "load_opener", "open_store"]

STORES = {
    "sqlite": "holdfast.stores.sqlite:SQLiteStore",
    "postgresql": "holdfast.stores.postgres:PostgresStore",
    "postgres": "holdfast.stores.postgres:PostgresStore",
    "mysql": "holdfast.stores.mysql:MySQLStore",
    "mariadb": "holdfast.stores.mysql:MySQLStore",
}
"""The store class for each URL scheme, as `module:class`. A class is imported on first use."""


async def open_store(url: str, *, tenant: str) -> Store:
    """Open the store at `url` for `tenant`, and upgrade its schema. The caller must close the store.

    Args:
        url: a URL in one of these forms:

            - SQLite: `sqlite:///file.db`, `sqlite:////path/file.db` or `sqlite://:memory:`
            - PostgreSQL: `postgresql://user:password@host:port/database`, with `?schema=…`
            - MySQL and MariaDB: `mysql://user:password@host:port/database`, or `mariadb://`

            PostgreSQL and MySQL URLs also take `?pool=…`, the maximum number of connections,
            `?sslmode=disable|require|verify-full`, and `?socket=…` instead of a host.
        tenant: the tenant whose sessions the returned store reads and writes; `Store.for_tenant` returns handles of other tenants.

    Raises:
        InvalidRequest: `url` is not the URL of a store.
        MissingExtra: the database's driver is not installed.
        StoreUnavailable: the store cannot be opened.
    """
    store: Store = await load_opener(url).open(url, tenant=tenant)
    return store


async def find_pending_migrations(url: str) -> tuple[Migration, ...]:
    """Return the changes of the schema that opening the database at `url` would apply, in order. Nothing is changed.

    Raises:
        InvalidRequest: `url` is not the URL of a store.
        MissingExtra: the database's driver is not installed.
        StoreUnavailable: the database cannot be read, or was made by another program or a newer release.
    """
    found: tuple[Migration, ...] = await load_opener(url).find_pending_migrations(url)
    return found


def load_opener(url: str) -> Any:
    """Return the store class for the scheme of `url`, such as `SQLiteStore`. Raises `InvalidRequest` for any other scheme."""
    scheme, separator, _ = url.partition("://")
    known = ", ".join(f"{name}://" for name in STORES)
    if scheme not in STORES or not separator:
        shown = f"{scheme}://…" if "@" in url else url  # the part before an @ may be a password
        raise InvalidRequest(f"{shown!r} is not a store URL: its scheme must be one of {known}", param="url")
    module, _, name = STORES[scheme].partition(":")
    return getattr(import_module(module), name)
