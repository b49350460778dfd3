"""What every call over HTTP needs, whatever is asked: headers that hold together, keys that fit, the environment's proxy."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies_environment, proxy_bypass

from holdfast.errors import InvalidRequest

OWN_HEADERS: Final = frozenset(
    {"accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "host"}
    | {"keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that belong to the connection or to the body; whoever passes a client's headers on may pass them too."""
SECRET_HEADERS: Final = frozenset({"api-key", "authorization", "cookie", "x-api-key", "x-goog-api-key"})
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")


def key_of(api_key: str) -> str:
    """The key as a header takes it; `InvalidRequest` where none does."""
    key = api_key.strip()
    if not _HEADER_VALUE.fullmatch(key):
        raise InvalidRequest("api_key holds characters that no key has (line ends, umlauts?)", param="api_key")
    return key


def address_of(base_url: str, path: Callable[[str], str]) -> tuple[str, str]:
    """The address to post to, and what errors call it: without path and query, where a key might be.

    Args:
        base_url: as it was configured; a query in it is kept.
        path: makes the path of a call from that of `base_url`, without a slash at its end.

    Raises:
        InvalidRequest: it is no address, or holds a password.
    """
    try:
        parts = urlsplit(base_url.strip())
        parts.port  # noqa: B018  (raises where it is no number)
    except ValueError as exc:
        raise InvalidRequest(f"base_url is no address: {exc}", param="base_url") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest("base_url must begin with http:// or https:// and a host", param="base_url")
    if "@" in parts.netloc:
        raise InvalidRequest("base_url must not hold a password; give the key as api_key", param="base_url")
    url = urlunsplit((parts.scheme, parts.netloc, path(parts.path.rstrip("/")), parts.query, ""))
    return url, f"{parts.scheme}://{parts.netloc}"


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """`headers` under lower-case names, without those the connection looks after."""
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value.strip()):
            # Not quoted: the value may be a key.
            raise InvalidRequest(f"header {name!r} has a name or a value that HTTP does not allow", param="headers")
        if name.lower() not in OWN_HEADERS:
            checked[name.lower()] = value.strip()
    return checked


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for `url`.

    aiohttp would look itself (`trust_env`), but then it also reads `~/.netrc` in each call, and refuses to send our
    Authorization header when it finds the host there.
    """
    parts = urlsplit(url)
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise InvalidRequest("the environment names a proxy that is not an HTTP proxy", param="proxy")
    return proxy
