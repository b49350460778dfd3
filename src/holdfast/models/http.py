"""Helpers for calls over HTTP: check headers and keys, build URLs, and find the proxy that the environment sets."""

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
"""Headers that describe a client's own connection or body. They are removed when the other headers of a client are passed on."""
SECRET_HEADERS: Final = frozenset({"api-key", "authorization", "cookie", "x-api-key", "x-goog-api-key"})
_EXCESS: Final = re.compile(r"(?:(?<=/v1)(?:/v1)+)?(?:/chat/completions|/responses)?/*$")
"""Ends of base URLs that are left out: a second `/v1`, the path of a call, and slashes."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")


def check_api_key(api_key: str) -> str:
    """Return the key without surrounding whitespace.

    Raises:
        InvalidRequest: The key cannot be sent in a header.
    """
    key = api_key.strip()
    if not _HEADER_VALUE.fullmatch(key):
        raise InvalidRequest(
            "api_key contains characters that are not allowed in a key (line breaks or non-ASCII letters?)",
            param="api_key",
        )
    return key


def parse_base_url(base_url: str, path: Callable[[str], str]) -> tuple[str, str]:
    """Return the URL of a call, and the name of the upstream in errors.

    The name is the URL without path and query, because these may contain a key.

    Args:
        base_url: Configured base URL. Its query is kept. It may also be the URL of a call, or have `/v1` twice at its end.
        path: Function that returns the path of the call for the path of the base URL, which has no trailing slash.

    Raises:
        InvalidRequest: The base URL is invalid, or contains a password.
    """
    try:
        parts = urlsplit(base_url.strip())
        parts.port  # noqa: B018  (raises ValueError if the port is not a number)
    except ValueError as exc:
        raise InvalidRequest(f"base_url is not a valid URL: {exc}", param="base_url") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest("base_url must begin with http:// or https:// and a host", param="base_url")
    if "@" in parts.netloc:
        raise InvalidRequest("base_url must not contain a password; give the key as api_key", param="base_url")
    url = urlunsplit((parts.scheme, parts.netloc, path(_EXCESS.sub("", parts.path, 1)), parts.query, ""))
    return url, f"{parts.scheme}://{parts.netloc}"


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return `headers` with lower-case names, without the headers in `OWN_HEADERS`.

    Raises:
        InvalidRequest: The name or the value of a header is invalid.
    """
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value.strip()):
            # The value is not quoted, since it may be a key.
            raise InvalidRequest(f"header {name!r} has a name or a value that HTTP does not allow", param="headers")
        if name.lower() not in OWN_HEADERS:
            checked[name.lower()] = value.strip()
    return checked


def find_proxy(url: str) -> str | None:
    """Return the URL of the proxy that the environment sets for `url`, or None.

    aiohttp's option `trust_env` is not used, because it also reads `~/.netrc` in each call, and rejects calls with an Authorization header
    if `~/.netrc` contains the host.

    Raises:
        InvalidRequest: The proxy is not an HTTP proxy.
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
