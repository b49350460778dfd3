"""Parse URLs of Redis stores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.stores.redis.connection import Endpoint, Login
from holdfast.stores.url_options import check_options, parse_pool_size

PREFIX: Final = "holdfast"
POOL: Final = 4
"""Maximum number of connections to each server, unless the URL has the option `pool`. Many commands can use a connection at once."""
PORT: Final = 6379
OPTIONS: Final = ("allow_eviction", "pool", "prefix", "sslmode")
SSL_MODES: Final = ("require", "verify-full")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._:/-]{1,64}")
_EXAMPLES: Final = "use redis://user:password@host:port/number or redis+cluster://host:port,host:port"


class RedisAddress(msgspec.Struct, frozen=True):
    """The parsed URL of a Redis store."""

    scheme: str
    endpoints: tuple[Endpoint, ...]
    user: str | None
    password: str | None
    database: int
    options: Mapping[str, str]

    def __repr__(self) -> str:
        """Return `name` instead of all fields, so that no log contains the password."""
        return self.name

    @property
    def name(self) -> str:
        """The URL without user, password and options, for logs and messages."""
        return f"{self.scheme}://{','.join(map(str, self.endpoints))}/{self.database}"

    @property
    def is_cluster(self) -> bool:
        """True if the URL names a cluster."""
        return self.scheme.endswith("+cluster")

    @property
    def prefix(self) -> str:
        """The prefix of all keys."""
        return self.options.get("prefix", PREFIX)

    @property
    def pool(self) -> int:
        """Maximum number of connections to each server: the option `pool`, or `POOL`."""
        return parse_pool_size(self.name, self.options, POOL)

    @property
    def allow_eviction(self) -> bool:
        """True if the URL allows servers that evict data when their memory is full."""
        return self.options.get("allow_eviction") == "true"

    @property
    def login(self) -> Login:
        """The credentials and settings of each connection."""
        return Login(
            user=self.user,
            password=self.password,
            database=self.database,
            encrypted=self.scheme.startswith("rediss"),
            verified=self.options.get("sslmode", "verify-full") == "verify-full",
            name=f"holdfast-5:{self.prefix}",
        )


def parse_address(url: str) -> RedisAddress:
    """Parse a URL like `redis://user:password@host:port/number?option=value`.

    Raises:
        InvalidRequest: the URL is invalid. The message never contains the password.
    """
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    netloc, _, path = rest.partition("/")
    login, at, hosts = netloc.rpartition("@")
    user, _, password = login.partition(":")
    if path and not (path.isascii() and path.isdigit() and int(path) < 1 << 31):
        raise InvalidRequest(f"the store's URL names no database: {path!r} is not a number", param="url")
    address = RedisAddress(
        scheme,
        tuple(_parse_endpoint(host) for host in hosts.split(",")),
        unquote(user) or None,
        unquote(password) or None if at else None,
        int(path or 0),
        dict(parse_qsl(query, keep_blank_values=True)),
    )
    check_options(address.name, address.options, OPTIONS)
    problem = _find_problem(address)
    if problem is not None:
        raise InvalidRequest(f"{address.name}: {problem}", param="url")
    return address


def format_legacy_name(prefix: str) -> str:
    """Return the client name that Holdfast 0.1 uses. This release uses a name with the layout number instead."""
    return f"holdfast:{prefix}"


def _parse_endpoint(text: str) -> Endpoint:
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or not parts.hostname or text.endswith(":"):
        raise InvalidRequest(f"the store's URL has an invalid host or port: {_EXAMPLES}", param="url")
    return Endpoint(unquote(parts.hostname), PORT if port is None else port)


def _find_problem(address: RedisAddress) -> str | None:
    """Return what is wrong with a parsed URL, or None if it is valid."""
    options = address.options
    if address.is_cluster and address.database:
        return "a cluster only has database 0: remove the number"
    if not address.is_cluster and len(address.endpoints) > 1:
        return "several hosts need the scheme redis+cluster://"
    if not _PREFIX.fullmatch(address.prefix):
        return f"prefix must be 1 to 64 letters, digits or ._:/-, not {address.prefix!r}"
    if options.get("allow_eviction", "true") not in {"true", "false"}:
        return "allow_eviction must be true or false"
    if options.get("sslmode", SSL_MODES[0]) not in SSL_MODES or ("sslmode" in options and not address.login.encrypted):
        return f"sslmode must be {' or '.join(SSL_MODES)}, and needs the scheme rediss://"
    return None
