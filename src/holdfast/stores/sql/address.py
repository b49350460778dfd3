"""URLs of PostgreSQL, MySQL and SQLite stores."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast.errors import InvalidRequest

SSL_MODES = ("disable", "require", "verify-full")
MEMORY: Final = ":memory:"
"""Stands for a database in memory, in place of a file path."""
MOST_POOL: Final = 1000
"""Highest value of the option `pool`."""


class Address(msgspec.Struct, frozen=True):
    """The parsed URL of a database on a server."""

    scheme: str
    host: str | None
    port: int | None
    user: str | None
    password: str | None
    database: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        """Return `name` instead of all fields, so that no log contains the password."""
        return self.name

    @property
    def name(self) -> str:
        """The URL without user, password and options, for logs and messages."""
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{self.host or ''}{port}/{self.database}"

    def pool_size(self, default: int) -> int:
        """Return the maximum number of connections: the option `pool` if the URL has it, else `default`.

        Raises:
            InvalidRequest: the option is not a valid number.
        """
        text = self.options.get("pool")
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_POOL):
            raise InvalidRequest(f"{self.name}: pool must be a number from 1 to {MOST_POOL}, not {text!r}", param="url")
        return int(text)

    @property
    def ssl_mode(self) -> str | None:
        """The option `sslmode`, or None if the URL has none."""
        return self.options.get("sslmode")


def parse_address(url: str, *, options: Collection[str]) -> Address:
    """Parse a URL like `scheme://user:password@host:port/database?option=value`.

    Args:
        url: the URL of the store.
        options: names of the options that the store supports.

    Raises:
        InvalidRequest: the URL is invalid. The message never contains the password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise InvalidRequest("the store's URL has an invalid host or port", param="url") from exc
    database = unquote(parts.path.removeprefix("/"))
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    address = Address(
        parts.scheme,
        unquote(parts.hostname) if parts.hostname else None,
        port,
        _decode_part(parts.username),
        _decode_part(parts.password),
        database,
        dict(pairs),
    )
    if not database or "/" in parts.path.removeprefix("/") or "\0" in database:
        example = f"{parts.scheme}://user:password@host:port/database"
        raise InvalidRequest(f"{address.name} names no database: use {example}", param="url")
    if unknown := sorted({*address.options, *(("#",) if parts.fragment else ())} - {*options}):
        supported = ", ".join(sorted(options))
        raise InvalidRequest(
            f"{address.name}: unknown option {unknown[0]}; this store supports {supported}", param="url"
        )
    if address.ssl_mode not in (None, *SSL_MODES):
        modes = ", ".join(SSL_MODES)
        raise InvalidRequest(f"{address.name}: sslmode must be {modes}, not {address.ssl_mode!r}", param="url")
    return address


def _decode_part(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def with_pool(address: Address, size: int) -> Address:
    """Return the address with the option `pool` set to `size`. An address that has the option is returned unchanged."""
    return msgspec.structs.replace(address, options={"pool": str(size), **address.options})


# -- SQLite ------------------------------------------------------------------


def parse_path(url: str) -> str:
    """Return the absolute path in an SQLite URL, or `:memory:`. Raises `InvalidRequest` if the URL is not valid.

    Valid URLs are `sqlite:///relative.db`, `sqlite:////absolute.db` and `sqlite://:memory:`.
    """
    rest = url.removeprefix("sqlite://")
    if rest in (MEMORY, "/" + MEMORY):
        return MEMORY
    path = rest.removeprefix("/")
    if path == rest or not path or path.endswith("/") or "?" in path or "\0" in path:
        raise InvalidRequest(
            f"{url!r} is not a store URL: use sqlite:///file.db (relative path), sqlite:////path/file.db (absolute path)"
            " or sqlite://:memory:, without options",
            param="url",
        )
    # SQLite cannot mistake an absolute path for one of its special names, such as `file:…`.
    return os.path.abspath(path)  # noqa: PTH100  # Path.resolve would follow links, which SQLite does itself
