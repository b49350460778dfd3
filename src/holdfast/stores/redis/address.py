"""Where a Redis server or cluster is: the URLs of Redis stores."""

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
"""Connections to each server at most, unless the URL says otherwise: one carries many commands at once."""
PORT: Final = 6379
OPTIONS: Final = ("allow_eviction", "pool", "prefix", "sslmode")
SSL_MODES: Final = ("require", "verify-full")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._:/-]{1,64}")
_MEANT: Final = "redis://user:password@host:port/number is meant, or redis+cluster://host:port,host:port"


class RedisAddress(msgspec.Struct, frozen=True):
    """A URL of a Redis store, taken apart."""

    scheme: str
    endpoints: tuple[Endpoint, ...]
    user: str | None
    password: str | None
    database: int
    options: Mapping[str, str]

    def __repr__(self) -> str:
        """The name: a password must not reach a log."""
        return self.name

    @property
    def name(self) -> str:
        """What may be shown of it."""
        return f"{self.scheme}://{','.join(map(str, self.endpoints))}/{self.database}"

    @property
    def is_cluster(self) -> bool:
        """Whether it is a cluster."""
        return self.scheme.endswith("+cluster")

    @property
    def prefix(self) -> str:
        """What all keys begin with."""
        return self.options.get("prefix", PREFIX)

    @property
    def pool(self) -> int:
        """Connections to each server at most."""
        return parse_pool_size(self.name, self.options, POOL)

    @property
    def allow_eviction(self) -> bool:
        """Whether a server may throw data away when its memory is full."""
        return self.options.get("allow_eviction") == "true"

    @property
    def login(self) -> Login:
        """How to come in."""
        return Login(
            user=self.user,
            password=self.password,
            database=self.database,
            encrypted=self.scheme.startswith("rediss"),
            verified=self.options.get("sslmode", "verify-full") == "verify-full",
            name=f"holdfast-5:{self.prefix}",
        )


def parse_address(url: str) -> RedisAddress:
    """Parse `redis://user:password@host:port/number?option=value`.

    Raises:
        InvalidRequest: it is not one; nothing of the password is reported.
    """
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    netloc, _, path = rest.partition("/")
    login, at, hosts = netloc.rpartition("@")
    user, _, password = login.partition(":")
    if path and not (path.isascii() and path.isdigit() and int(path) < 1 << 31):
        raise InvalidRequest(f"the store's URL names no database: a number is meant, not {path!r}", param="url")
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
    """Return what the server's list of clients shows of Holdfast 0.1; this release has its layout in the name."""
    return f"holdfast:{prefix}"


def _parse_endpoint(text: str) -> Endpoint:
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or not parts.hostname or text.endswith(":"):
        raise InvalidRequest(f"the store's URL has a host or port that is none: {_MEANT}", param="url")
    return Endpoint(unquote(parts.hostname), PORT if port is None else port)


def _find_problem(address: RedisAddress) -> str | None:
    """Return what a store cannot be opened with."""
    options = address.options
    if address.is_cluster and address.database:
        return "a cluster has the database 0 alone"
    if not address.is_cluster and len(address.endpoints) > 1:
        return "several hosts are those of redis+cluster://"
    if not _PREFIX.fullmatch(address.prefix):
        return f"prefix must be 1 to 64 letters, digits or ._:/-, not {address.prefix!r}"
    if options.get("allow_eviction", "true") not in {"true", "false"}:
        return "allow_eviction must be true or false"
    if options.get("sslmode", SSL_MODES[0]) not in SSL_MODES or ("sslmode" in options and not address.login.encrypted):
        return f"sslmode is {' or '.join(SSL_MODES)}, with rediss://"
    return None
