"""Stores: the databases in which sessions are kept. `base` describes the contract of all stores; each database has its own module."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.stores.base import Store
from holdfast.stores.sql import load_migrations
from holdfast.stores.sql.upgrade import list_pending

__all__ = ["STORES", "SchemaStep", "Store", "load_opener", "open_store", "read_schema"]

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


class SchemaStep(msgspec.Struct, frozen=True):
    """One numbered change of a store's schema."""

    number: int
    name: str
    applied: bool


async def read_schema(url: str) -> tuple[SchemaStep, ...]:
    """Return the schema changes of the store at `url`, in order: those already applied, and those that `open_store` would apply.

    The database is only read. The errors are those of `open_store`.
    """
    opener = load_opener(url)
    applied = await opener.read_applied_migrations(url)
    known = getattr(opener, "layouts", None) or load_migrations(opener.dialect)
    missing = {migration.number for migration in list_pending("the database", known, applied)}
    return tuple(SchemaStep(one.number, one.name, one.number not in missing) for one in known)


def load_opener(url: str) -> Any:
    """Return the store class for the scheme of `url`, such as `SQLiteStore`. Raises `InvalidRequest` for any other scheme."""
    scheme, separator, _ = url.partition("://")
    known = ", ".join(f"{name}://" for name in STORES)
    if scheme not in STORES or not separator:
        shown = f"{scheme}://…" if "@" in url else url  # the part before an @ may be a password
        raise InvalidRequest(f"{shown!r} is not a store URL: its scheme must be one of {known}", param="url")
    module, _, name = STORES[scheme].partition(":")
    return getattr(import_module(module), name)
