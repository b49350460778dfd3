"""Where a database is: the URLs of PostgreSQL and MySQL stores, and the files that those of SQLite name."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.stores.url_options import check_options, parse_pool_size

SSL_MODES = ("disable", "require", "verify-full")
MEMORY: Final = ":memory:"
"""What stands for a database in memory where a file's path is meant."""


class Address(msgspec.Struct, frozen=True):
    """A URL of a server's database, taken apart."""

    scheme: str
    host: str | None
    port: int | None
    user: str | None
    password: str | None
    database: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        """The name: a password must not reach a log."""
        return self.name

    @property
    def name(self) -> str:
        """What may be shown of it."""
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{self.host or ''}{port}/{self.database}"

    def pool_size(self, default: int) -> int:
        """How many connections there may be. Raises `InvalidRequest`."""
        return parse_pool_size(self.name, self.options, default)

    @property
    def ssl_mode(self) -> str | None:
        """How the connection is encrypted; None when the URL doesn't say."""
        return self.options.get("sslmode")


def parse_address(url: str, *, options: Collection[str]) -> Address:
    """`scheme://user:password@host:port/database?option=value`, taken apart.

    Raises:
        InvalidRequest: it is not one; nothing of the password is told.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise InvalidRequest("the store's URL has a host or port that is none", param="url") from exc
    database = unquote(parts.path.removeprefix("/"))
    given = parse_qsl(parts.query, keep_blank_values=True)
    address = Address(
        parts.scheme,
        _decode_host(parts),
        port,
        _decode_part(parts.username),
        _decode_part(parts.password),
        database,
        dict(given),
    )
    if not database or "/" in parts.path.removeprefix("/") or "\0" in database:
        raise InvalidRequest(f"{address.name} names no database: {_format_example(parts.scheme)}", param="url")
    check_options(address.name, [*address.options, *(("#",) if parts.fragment else ())], options)
    if address.ssl_mode not in (None, *SSL_MODES):
        modes = ", ".join(SSL_MODES)
        raise InvalidRequest(f"{address.name}: sslmode must be {modes}, not {address.ssl_mode!r}", param="url")
    return address


def _decode_host(parts: SplitResult) -> str | None:
    return unquote(parts.hostname) if parts.hostname else None


def _decode_part(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def _format_example(scheme: str) -> str:
    return f"{scheme}://user:password@host:port/database is meant"


def with_pool(address: Address, size: int) -> Address:
    """The same with so many connections, unless it says how many itself."""
    return msgspec.structs.replace(address, options={"pool": str(size), **address.options})


# -- SQLite ------------------------------------------------------------------


def parse_path(url: str) -> str:
    """The file that `url` names: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://:memory:`."""
    rest = url.removeprefix("sqlite://")
    if rest in (MEMORY, "/" + MEMORY):
        return MEMORY
    path = rest.removeprefix("/")
    if path == rest or not path or path.endswith("/") or "?" in path or "\0" in path:
        raise InvalidRequest(
            f"{url!r} is not a store: sqlite:///file.db (relative), sqlite:////path/file.db (absolute)"
            " or sqlite://:memory: is meant, without options",
            param="url",
        )
    # An absolute path cannot be taken for one of SQLite's own names, like `file:…`.
    return os.path.abspath(path)  # noqa: PTH100  # Path.resolve would follow links, which SQLite does itself
