"""Suggest SQL that gives a database user the privileges that Holdfast needs."""

from __future__ import annotations

import re
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.stores.sql.address import Address, parse_address

_POSTGRES_STATES: Final = ("42501", "3F000")
"""SQLSTATE codes of PostgreSQL: insufficient privilege, and a schema that the role may not use."""
_MYSQL_CODES: Final = (1044, 1142, 1143, 1227)
"""Error numbers of MySQL and MariaDB: no privilege for the database, a table, a column or an operation."""
_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")


def suggest_grant(url: str, error: HoldfastError) -> str | None:
    """Return a remedy with the SQL that gives the database user the missing privileges. Return None if the error is not about privileges.

    Args:
        url: URL of the store. It must be valid.
        error: the error that was raised when the store was opened. Its cause is the exception of the database driver.
    """
    cause = error.__cause__
    if cause is None:
        return None
    if url.startswith("mysql:"):
        return _suggest_for_mysql(url) if cause.args[:1] and cause.args[0] in _MYSQL_CODES else None
    return _suggest_for_postgres(url) if getattr(cause, "sqlstate", None) in _POSTGRES_STATES else None


def _suggest_for_postgres(url: str) -> str:
    from holdfast.stores.postgres import OPTIONS
    from holdfast.stores.postgres_connection import get_schema_name

    address = parse_address(url, options=OPTIONS)
    schema, role = _quote(get_schema_name(address)), _quote(_get_user(address))
    return (
        f"as a superuser, in the database {address.database}: CREATE SCHEMA {schema} AUTHORIZATION {role}"
        f" (if the schema exists: ALTER SCHEMA {schema} OWNER TO {role})"
    )


def _suggest_for_mysql(url: str) -> str:
    from holdfast.stores.mysql import OPTIONS

    address = parse_address(url, options=OPTIONS)
    database, user = address.database.replace("`", "``"), _get_user(address).replace("'", "''")
    return (
        f"as an administrator: CREATE DATABASE IF NOT EXISTS `{database}`; GRANT ALL ON `{database}`.* TO '{user}'@'%'"
        " (instead of % the host of the account)"
    )


def _get_user(address: Address) -> str:
    """Return the user in the URL, or a placeholder if it names none. The driver then uses the user of the operating system."""
    return address.user or "USER"


def _quote(name: str) -> str:
    """Return a name as an identifier of PostgreSQL, in quotes if they are necessary."""
    return name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'
