"""The gate: what happens to every request before its route, in one ASGI app.

path -> format of errors -> request id and log -> host and origin -> (CORS) -> key -> route
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.accounting import Owner, charge_to
from holdfast.holdfast import Holdfast
from holdfast.hosts import is_loopback
from holdfast.server import mcp
from holdfast.server.access import Access, deny, is_page, needs_sign_in
from holdfast.server.apis.anthropic import is_anthropic_request, to_anthropic_error
from holdfast.server.health import HEALTH_PATHS
from holdfast.server.http import Caller
from holdfast.server.inspector.access import OVERVIEW, ErrorPages
from holdfast.server.metrics import Metrics
from holdfast.server.permissions import API_HEADS, METHODS, UPSTREAM_HEADS, Refused
from holdfast.server.replies import make_failure_reply, request_id, to_response

_log = logging.getLogger("holdfast.access")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_EXCESS: Final = re.compile(r"^(?:/v1)+(?=/v1(?:/|$))")
_EXPOSED: Final = (
    *("ETag", "Request-Id", "Retry-After", "X-Artifact-Version", "X-Request-Id", "X-Session-Agent", "X-Session-Id"),
)
"""Headers of responses that scripts of other origins may read."""


class Gate:
    """Lets requests in: gives each an id, logs and counts it, refuses foreign hosts, and finds its caller.

    The resources of the caller's tenant stay open until the response is sent.

    Args:
        app: the app with the routes.
        access: authenticates requests.
        hf: the `Holdfast` of the server's own tenant.
        metrics: counts the requests.
        public: paths that need no authentication.
        hosts: host names of the server, in addition to loopback names.
        origins: origins of web pages that may call the server.
        has_pages: True if the server has the inspector, whose pages a browser gets with the cookie of its sign-in.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        hf: Holdfast,
        metrics: Metrics,
        *,
        public: Collection[str],
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        has_pages: bool = True,
    ) -> None:
        self._app = app
        self._access = access
        self._hf = hf
        self._metrics = metrics
        self._public = public
        self._hosts = {name.lower() for name in hosts}
        self._origins = frozenset(origins)
        self._has_pages = has_pages
        self._serve: ASGIApp = self._authenticate
        if origins:
            methods = [*METHODS, "HEAD"]
            self._serve = CORSMiddleware(
                self._authenticate, [*origins], methods, allow_headers=["*"], expose_headers=_EXPOSED
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = self._prepare(scope)
        named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
        if not _REQUEST_ID.fullmatch(named):  # missing, or not safe to log
            named = f"req_{uuid.uuid4().hex}"
        scope["state"]["send_body"] = (
            send  # for streams, whose parts need none of what wraps `send` for the head of a response
        )
        token, started, status = request_id.set(named), time.perf_counter(), 0
        added = [(b"x-request-id", named.encode())]
        if scope["state"].get("shaped") is to_anthropic_error:  # its clients expect another name
            added.append((b"request-id", named.encode()))

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        self._metrics.running.inc()
        try:
            self._check_place(scope)
            await self._serve(scope, receive, send_with_id)
        except Refused as exc:
            await to_response(make_failure_reply(exc), scope)(scope, receive, send_with_id)
        finally:
            self._metrics.running.dec()
            self._log_request(scope, status, time.perf_counter() - started)
            request_id.reset(token)

    def _prepare(self, scope: Scope) -> Scope:
        """Return the scope with the path of the route, and with the format that errors have for this client.

        The path stays encoded, so that ids may contain slashes; `Call.path` decodes the parameters. A client's base URL may lack `/v1`, or
        have it twice.
        """
        raw = scope.get("raw_path")
        path = _EXCESS.sub("", quote(scope["path"]) if raw is None else raw.decode("latin-1"))
        head = path[1:].partition("/")[0]
        scope = {**scope, "path": f"/v1{path}" if head in API_HEADS or head in UPSTREAM_HEADS else path}
        state = scope.setdefault("state", {})
        if self._has_pages and is_page(scope):
            # Browsers also send the empty fields of a form. An empty field counts as not given.
            scope["query_string"] = urlencode(parse_qsl(scope["query_string"].decode("latin-1"))).encode()
            scope["path"] = OVERVIEW if scope["path"] == "/" else scope["path"]
            state["shaped"] = ErrorPages(scope)
        elif scope["path"] == mcp.PATH:
            state["shaped"] = mcp.to_rpc_error
        elif is_anthropic_request(scope):
            state["shaped"] = to_anthropic_error
        return scope

    def _log_request(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requests.labels(scope["method"], route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        session = scope["state"].get("session_id") or unquote(scope.get("path_params", {}).get("session_id", ""))
        fields = {"method": scope["method"], "route": route, "status": status, "ms": round(seconds * 1000, 1)}
        caller = scope["state"].get("caller")
        if caller is not None and caller.principal.key_id is not None:
            fields |= {"key": caller.principal.key_id, "tenant": caller.principal.tenant}
        _log.info("request", extra={"fields": {**fields, **({"session_id": session} if session else {})}})

    # -- hosts and origins -------------------------------------------------------

    def _check_place(self, scope: Scope) -> None:
        """Refuse requests to host names of others, from origins of others, and for pages from other machines.

        This prevents DNS rebinding: a web page lets one of its own host names point to 127.0.0.1, and so reads the responses of a server
        on that machine. The page's host name appears in the Host header, or in the Origin header. If every request needs a key, a page
        without a key can do nothing. Then any origin is accepted, and any host unless hosts are configured.

        Raises:
            Refused: the request is not let in.
        """
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) > 1 or (not hosts and scope["http_version"] != "1.0"):
            raise Refused(400, "invalid_host", "a request must have exactly one Host header")
        host = hosts[0] if hosts else ""
        origin = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), None)
        requires_key = self._access.requires_key
        # Load balancers ask for the health by IP address.
        is_allowed = scope["path"] in HEALTH_PATHS or self._is_own(host) or (requires_key and not self._hosts)
        # Origin "null" comes from sandboxed frames of any page.
        is_allowed_origin = origin is None or requires_key or origin in self._origins
        if not is_allowed or not (is_allowed_origin or self._is_own(str(origin).partition("://")[2])):
            where = " or ".join(sorted(self._hosts)) or "localhost"
            message = f"this server answers as {where}, not to host {host!r}"
            raise Refused(403, "host_not_allowed", message + (f" from {origin!r}" if origin else ""))
        if not requires_key and self._has_pages and is_page(scope) and not _is_local(scope):
            message = (
                "the inspector is served to other machines only if requests need a key: run `holdfast keys create`"
            )
            raise Refused(403, "inspector_not_served", message)

    def _is_own(self, host: str) -> bool:
        name = re.sub(r":\d+$", "", host).strip("[]").lower()
        return is_loopback(name) or name in self._hosts

    # -- callers -----------------------------------------------------------------

    async def _authenticate(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the caller of a request, store it in the request's state, and serve the request."""
        is_for_page = self._has_pages and is_page(scope)
        if not needs_sign_in(scope) if is_for_page else scope["path"] in self._public:
            await self._app(scope, receive, send)
            return
        state, access = scope["state"], self._access
        async with AsyncExitStack() as opened:
            try:
                headers, upstream = _read_headers(scope), None
                if is_for_page:
                    principal, state["sign_in"] = await access.authenticate_page(headers)
                else:
                    principal, upstream = await access.authenticate(headers)
                is_only_user = await access.has_one_user(headers)
                hf = await opened.enter_async_context(self._hf.serve_tenant(principal.tenant))
            except Exception as exc:  # noqa: BLE001 - the last place before the response: every error becomes a response
                await to_response(make_failure_reply(exc, self._hf.guard), scope)(scope, receive, send)
                return
            own = principal.user_id is None and principal.tenant == self._hf.tenant
            state["caller"] = Caller(
                principal, hf, upstream, own=own, passthrough=access.passthrough, is_only_user=is_only_user
            )
            key_id = principal.key_id or ""
            with charge_to(Owner(principal.tenant, f"{key_id}/{principal.user_id or ''}", key_id)):
                await self._app(scope, receive, send)


def _is_local(scope: Scope) -> bool:
    """Return True if both ends of the connection are on this machine."""
    return all(end is None or is_loopback(end[0]) for end in (scope.get("client"), scope.get("server")))


def _read_headers(scope: Scope) -> Mapping[str, str]:
    """Return the headers of a request. Raise `Refused` if a header with a key or token is repeated."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in found and name in ("authorization", "x-api-key", "x-holdfast-key"):
            raise deny("the API key is not valid")
        found[name] = value.decode("latin-1")
    return found
