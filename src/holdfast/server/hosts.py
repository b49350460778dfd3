"""Whom the server talks to at all: requests that name this server, and pages that may call it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.config.gateway import is_loopback
from holdfast.server.replies import Reply, error_body, response_of

_NOT_ONE_HOST: Final = "a request must have exactly one Host header"


def _has_one_host(scope: Scope) -> bool:
    """Return True if the request names exactly one host. HTTP/1.0 has no Host header, so it may name none."""
    hosts: int = sum(name == b"host" for name, _ in scope["headers"])
    least = 0 if scope["http_version"] == "1.0" else 1
    return least <= hosts <= 1


class Hosts:
    """ASGI middleware: refuse requests that name another host than this server's.

    A page in a browser can make a name of its own point to 127.0.0.1 and read what a server there answers (DNS
    rebinding); the Host header gives it away. So does a foreign Origin on a request that changes something. Where every
    request needs a key, no page has what its user has not given it: then any host is right that is not excluded.

    Args:
        app: what is behind.
        allowed: names by which the server may be called, besides loopback's.
        origins: of pages that may call it.
        asks: whether every request needs a key.
    """

    def __init__(
        self, app: ASGIApp, allowed: Collection[str] = (), origins: Collection[str] = (), *, asks: Callable[[], bool]
    ) -> None:
        self._app = app
        self._allowed = {name.lower() for name in allowed}
        self._origins = frozenset(origins)
        self._asks = asks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if not _has_one_host(scope):
                body = error_body(_NOT_ONE_HOST, kind="invalid_request_error", code="invalid_host")
                await response_of(Reply(body, 400), scope)(scope, receive, send)
                return
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            host, origin = headers.get(b"host", ""), headers.get(b"origin")
            if not self._called_right(host) or not self._welcome(origin):
                where = " or ".join(sorted(self._allowed)) or "its own machine"
                message = f"this server answers as {where}, not to host {host!r}"
                message += f" from {origin!r}" if origin else ""
                body = error_body(message, kind="invalid_request_error", code="host_not_allowed")
                await response_of(Reply(body, 403), scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _called_right(self, host: str) -> bool:
        return self._ours(host) or (not self._allowed and self._asks())

    def _welcome(self, origin: str | None) -> bool:
        # Origin "null" is what a page in a sandboxed frame sends: anybody's.
        return origin is None or self._asks() or origin in self._origins or self._ours(origin.partition("://")[2])

    def _ours(self, host: str) -> bool:
        name = re.sub(r":\d+$", "", host).strip("[]").lower()
        return is_loopback(name) or name in self._allowed
