"""Where a database server is: the URLs of PostgreSQL and MySQL stores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from holdfast.errors import InvalidRequest

SSL_MODES = ("disable", "require", "verify-full")
MAX_POOL = 1000


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

    def number(self, option: str, default: int, *, most: int = MAX_POOL) -> int:
        """An option that is a whole number from 1 on."""
        text = self.options.get(option)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise InvalidRequest(f"{self.name}: {option} must be a number from 1 to {most}, not {text!r}", param="url")
        return int(text)

    @property
    def ssl_mode(self) -> str | None:
        """How the connection is encrypted; None when the URL doesn't say."""
        return self.options.get("sslmode")


def address_of(url: str, *, options: Collection[str]) -> Address:
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
        parts.scheme, _host(parts), port, _part(parts.username), _part(parts.password), database, dict(given)
    )
    unknown = sorted({name for name, _ in given} - set(options))
    if not database or "/" in parts.path.removeprefix("/") or "\0" in database:
        raise InvalidRequest(f"{address.name} names no database: {_meant(parts.scheme)}", param="url")
    if unknown or parts.fragment:
        known = ", ".join(sorted(options))
        raise InvalidRequest(
            f"{address.name}: {unknown[0] if unknown else '#'} is no option of this store: it has {known}", param="url"
        )
    if address.ssl_mode not in (None, *SSL_MODES):
        modes = ", ".join(SSL_MODES)
        raise InvalidRequest(f"{address.name}: sslmode must be {modes}, not {address.ssl_mode!r}", param="url")
    return address


def _host(parts: SplitResult) -> str | None:
    return unquote(parts.hostname) if parts.hostname else None


def _part(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def _meant(scheme: str) -> str:
    return f"{scheme}://user:password@host:port/database is meant"


def with_pool(address: Address, size: int) -> Address:
    """The same with so many connections, unless it says how many itself."""
    return msgspec.structs.replace(address, options={"pool": str(size), **address.options})
