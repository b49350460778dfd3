"""Authentication: convert the key or token of a request to a principal, before anything else in the request is read.

    AuthMiddleware -> Access.authenticate -> principal

The principal comes from an API key, a token, or an upstream key. If no key is required, a request without one gets the default admin.
Unknown, expired and revoked keys get the same response, so that a caller learns nothing about other keys.
"""

from __future__ import annotations

import logging
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.access import Principal, derive_upstream_user, is_key, to_principal
from holdfast.accounting import Owner, charge_to
from holdfast.config.gateway import Auth, is_loopback
from holdfast.holdfast import Holdfast
from holdfast.server.http import Caller, refuse_missing_key
from holdfast.server.jwks import BadToken, TokenVerifier
from holdfast.server.key_cache import KeyCache, trim_cache
from holdfast.server.limits import COOKIE_CHARS, TOKEN_CHARS
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply, make_error_body, make_failure_reply, to_response

_log = logging.getLogger("holdfast.access")
_DOTS: Final = 2
"""Number of dots in a JSON Web Token."""
_MISSING: Final = "an API key is required: send it as Authorization: Bearer, x-api-key or X-Holdfast-Key"
_WRONG: Final = "the API key is not valid"


class Credentials(NamedTuple):
    """The credentials that a request sends."""

    own: str | None
    """API key or token for Holdfast, if there is one."""
    upstream: str | None
    """API key for the upstream, if there is one."""

    def __repr__(self) -> str:
        return f"Credentials({self.own is not None}, {self.upstream is not None})"


class Access:
    """Authenticates requests.

    Attributes:
        passthrough: True if the upstream is called with the client's own key.

    Args:
        hf: the `Holdfast` of the server's own tenant. Its store contains the API keys.
        settings: `auth` of the configuration; None: the defaults.
        passthrough: True to call the upstream with the client's own key.
        tokens: verifies tokens; None: all tokens are rejected.
    """

    def __init__(
        self,
        hf: Holdfast,
        settings: Auth | None = None,
        *,
        passthrough: bool = False,
        tokens: TokenVerifier | None = None,
    ) -> None:
        self._hf = hf
        self._settings = settings or Auth()
        self.passthrough = passthrough
        self._tokens = tokens
        self._key_cache = KeyCache(lambda: hf.store, hf.clock)
        self._rates = RateLimiter(self._settings.rate, hf.clock)
        self._has_keys = False

    @property
    def requires_key(self) -> bool:
        """True if every request needs a key, as of the last check of the store; see `check_requires_key`."""
        kind = self._settings.kind
        return kind == "always" or (kind == "keys" and self._has_keys)

    async def begin(self) -> None:
        """Fetch the public keys with which tokens are verified. Raise `ConfigError` if `auth.jwt.jwks_url` is a file without usable keys."""
        if self._tokens is not None:
            await self._tokens.begin()

    async def check_requires_key(self) -> bool:
        """Return True if every request needs a key.

        If the configuration does not decide this, keys are required as soon as the store has one. Then this checks the store every few
        seconds. Once the result is True, it stays True.
        """
        if self._settings.kind == "keys":
            await self._check_has_keys()
        return self.requires_key

    async def _check_has_keys(self) -> bool:
        if not self._has_keys and await self._key_cache.has_keys():
            self.note_key()
        return self._has_keys

    def note_key(self) -> bool:
        """Take note that the store has a key now. Return True if this is why every request needs a key from now on."""
        required, self._has_keys = self.requires_key, True
        if self.requires_key and not required:
            _log.info("API keys exist: every request needs one from now on")
        return self.requires_key and not required

    async def has_one_user(self, headers: Mapping[str, str]) -> bool:
        """Return True if a request can only come from the one person who uses this machine.

        This holds while the server has no keys and accepts no tokens. It then listens on loopback only, see `holdfast.server.run`. A request
        that a proxy forwarded may come from any machine.
        """
        is_forwarded = any(name == "forwarded" or name.startswith("x-forwarded-") for name in headers)
        if is_forwarded or self.passthrough or self._tokens is not None or self._settings.kind == "always":
            return False
        return not await self._check_has_keys()

    async def authenticate(self, headers: Mapping[str, str]) -> tuple[Principal, str | None]:
        """Return the principal (identity and rights) of a request, and the key for the model provider that the request sends, or None.

        Raises:
            Refused: the key is missing or not valid, or the rate limit is exceeded.
        """
        credentials = self._read_credentials(headers)
        principal = await self._identify(credentials)
        self._check_rate(principal)
        return principal, credentials.upstream

    async def authenticate_page(self, headers: Mapping[str, str]) -> tuple[Principal, str | None]:
        """Return the principal of a request for a page, and the token of its sign-in, or None if it has none.

        Without a valid sign-in, the request is authenticated like any other.

        Raises:
            Refused: the caller has to sign in, or the rate limit is exceeded.
        """
        token = read_cookie(headers)
        principal = None if token is None else await self._find_sign_in(token)
        if principal is None:
            return (await self.authenticate(headers))[0], None
        self._check_rate(principal)
        return principal, token

    async def sign_in(self, credential: str) -> str | None:
        """Return the cookie with which a browser acts for an API key or a token; None if the caller needs no credential.

        The cookie of a key is signed with the key, and does not contain it. The cookie of a token is the token, which ends soon.

        Raises:
            Refused: the credential is not valid, or is a token that is too long for a cookie; or the rate limit is exceeded.
        """
        principal, _ = await self.authenticate({"x-holdfast-key": credential} if credential else {})
        if principal.key_id is None:
            return None
        key = await self._key_cache.find_valid(credential)
        if key is None and len(credential) > COOKIE_CHARS:
            message = (
                f"the token has more than {COOKIE_CHARS} characters, which is too long for a cookie: use an API key"
            )
            raise Refused(400, "invalid_request", message)
        return credential if key is None else self._key_cache.sign(key)

    async def _find_sign_in(self, cookie: str) -> Principal | None:
        """Return the principal of a sign-in; None if it has ended, or if the text is not the cookie of a sign-in."""
        key = await self._key_cache.find_signed(cookie)
        if key is not None:
            return to_principal(key)
        try:
            return None if self._tokens is None else await self._tokens.principal(cookie)
        except BadToken:
            return None

    def _check_rate(self, principal: Principal) -> None:
        """Count a request. Raise `Refused` if the principal sends too many."""
        wait = self._rates.consume(principal)
        if wait:
            message = "rate limit of this key exceeded; retry after the seconds in Retry-After"
            raise Refused(429, "rate_limit_exceeded", message, retry_after=str(wait))

    def _read_credentials(self, headers: Mapping[str, str]) -> Credentials:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        bearer = value.strip() if scheme.lower() == "bearer" else None
        api_key = headers.get("x-api-key")
        forwarded = bearer
        if not bearer and api_key and "anthropic-version" in headers:  # Anthropic's client sends its key there
            forwarded, api_key = api_key.strip(), api_key if is_key(api_key.strip()) or not self.passthrough else None
        upstream = forwarded if self.passthrough and forwarded and not is_key(forwarded) else None
        if upstream is not None and len(upstream) > TOKEN_CHARS:
            raise deny(_WRONG)
        given = [headers.get("x-holdfast-key"), None if upstream else bearer, api_key]
        credentials = [value.strip() for value in given if value]
        # Some clients send a key for another service next to ours.
        return Credentials(
            next((value for value in credentials if is_key(value)), next(iter(credentials), None)), upstream
        )

    async def _identify(self, credentials: Credentials) -> Principal:
        own = credentials.own
        if own is not None and is_key(own):
            api_key = await self._key_cache.find_valid(own)
            if api_key is None:
                raise deny(_WRONG)
            self.note_key()
            return to_principal(api_key)
        if own is not None and self._tokens is not None and (self.requires_key or own.count(".") == _DOTS):
            try:
                return await self._tokens.principal(own)
            except BadToken as exc:
                _log.info("rejected a token: %s", exc)
                raise deny(_WRONG) from exc
        if await self.check_requires_key():
            raise deny(_MISSING if own is None else _WRONG)
        tenant = self._hf.tenant
        if credentials.upstream is not None:
            user = derive_upstream_user(tenant, credentials.upstream)
            return Principal(tenant=tenant, user_id=user, role="write", key_id="upstream")
        if self.passthrough:  # otherwise a client could become admin by leaving out its key
            raise refuse_missing_key()
        return Principal(tenant=tenant, role="admin")


def deny(message: str) -> Refused:
    """Return the error for missing or invalid credentials."""
    return Refused(401, "invalid_api_key", message, www_authenticate="Bearer")


# -- rates -------------------------------------------------------------------


class _Bucket(NamedTuple):
    left: float
    at: int


class RateLimiter:
    """Limits the rate of each caller with a token bucket. The number of requests that `rate` allows in 15 seconds may arrive at once.

    Args:
        rate: requests per minute for keys without their own limit; 0: unlimited.
        clock: returns the time in milliseconds since the epoch.
    """

    def __init__(self, rate: int, clock: Callable[[], int]) -> None:
        self._rate = rate
        self._clock = clock
        self._buckets: OrderedDict[tuple[str | None, ...], _Bucket] = OrderedDict()

    def consume(self, principal: Principal) -> int:
        """Count a request and return 0. If the request exceeds the limit, return the seconds until the next request is allowed."""
        if principal.key_id is None:
            return 0
        rate = self._rate if principal.rate is None else principal.rate
        if not rate:
            return 0
        size = max(1, math.ceil(rate / 4))
        # Tokens and upstream keys share a key id, so tenant and user are part of the name.
        name = (principal.key_id, principal.tenant, principal.user_id)
        now = self._clock()
        bucket = self._buckets.get(name, _Bucket(size, now))
        left = min(size, bucket.left + max(0, now - bucket.at) * rate / 60_000)
        is_allowed = left >= 1
        self._buckets[name] = _Bucket(left - is_allowed, now)
        trim_cache(self._buckets, name)
        return 0 if is_allowed else math.ceil((1 - left) * 60 / rate)


# -- middleware ------------------------------------------------------------------


class AuthMiddleware:
    """ASGI middleware that authenticates requests and stores a `Caller` in the request state.

    The resources of the caller's tenant stay open until the response is sent. Paths in `public` need no authentication. If `has_pages` is
    True, the server has the inspector, whose pages a browser gets with the cookie of its sign-in.
    """

    def __init__(self, app: ASGIApp, access: Access, hf: Holdfast, public: Collection[str], *, has_pages: bool) -> None:
        self._app = app
        self._has_pages = has_pages
        self._public = public
        self._access = access
        self._hf = hf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_public(scope):
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        async with AsyncExitStack() as opened:
            try:
                headers = _read_headers(scope)
                if self._has_pages and is_page(scope):
                    upstream = None
                    principal, state["sign_in"] = await self._access.authenticate_page(headers)
                else:
                    principal, upstream = await self._access.authenticate(headers)
                is_only_user = await self._access.has_one_user(headers)
                hf = await opened.enter_async_context(self._hf.serve_tenant(principal.tenant))
            except Exception as exc:  # noqa: BLE001 - the last place before the response: every error becomes a response
                await to_response(make_failure_reply(exc, self._hf.guard), scope)(scope, receive, send)
                return
            own = principal.user_id is None and principal.tenant == self._hf.tenant
            passthrough = self._access.passthrough
            state["caller"] = Caller(
                principal, hf, upstream, own=own, passthrough=passthrough, is_only_user=is_only_user
            )
            with charge_to(get_work_owner(principal)):
                await self._app(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        if self._has_pages and is_page(scope):
            return not needs_sign_in(scope)
        return scope["path"] in self._public


def get_work_owner(principal: Principal) -> Owner:
    """Return the owner whose limits the work of a request counts against: the key, and the key's user if it has one."""
    key_id = principal.key_id or ""
    return Owner(principal.tenant, f"{key_id}/{principal.user_id or ''}", key_id)


def _read_headers(scope: Scope) -> Mapping[str, str]:
    """Return the headers of a request. Raise `Refused` if a header with a key or token is repeated."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in found and name in ("authorization", "x-api-key", "x-holdfast-key"):
            raise deny(_WRONG)
        found[name] = value.decode("latin-1")
    return found


# -- hosts and origins -----------------------------------------------------------

_NOT_ONE_HOST: Final = "a request must have exactly one Host header"


def _has_one_host(scope: Scope) -> bool:
    """Return True if the request has exactly one Host header. An HTTP/1.0 request may also have none."""
    hosts: int = sum(name == b"host" for name, _ in scope["headers"])
    least = 0 if scope["http_version"] == "1.0" else 1
    return least <= hosts <= 1


class HostMiddleware:
    """ASGI middleware that accepts only requests to the server's own host names, and only from allowed origins.

    This prevents DNS rebinding: a web page lets one of its own host names point to 127.0.0.1, and so reads the responses of a server
    on that machine. The page's host name appears in the Host header, or in the Origin header. If every request needs a key, a page
    without a key can do nothing. Then any origin is accepted, and any host unless hosts are configured.

    Args:
        app: the wrapped app.
        allowed: host names of the server, in addition to loopback names.
        origins: origins of web pages that may call the server.
        requires_key: returns True if every request needs a key.
        any_host: paths that are answered under any host name, because load balancers call them by IP address.
    """

    def __init__(
        self,
        app: ASGIApp,
        allowed: Collection[str] = (),
        origins: Collection[str] = (),
        *,
        requires_key: Callable[[], bool],
        any_host: Collection[str] = (),
    ) -> None:
        self._app = app
        self._any_host = frozenset(any_host)
        self._allowed = {name.lower() for name in allowed}
        self._origins = frozenset(origins)
        self._requires_key = requires_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if not _has_one_host(scope):
                body = make_error_body(_NOT_ONE_HOST, kind="invalid_request_error", code="invalid_host")
                await to_response(Reply(body, 400), scope)(scope, receive, send)
                return
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            host, origin = headers.get(b"host", ""), headers.get(b"origin")
            is_allowed_host = scope["path"] in self._any_host or self._is_own_host(host)
            is_allowed_host = is_allowed_host or (not self._allowed and self._requires_key())
            if not is_allowed_host or not self._is_allowed_origin(origin):
                where = " or ".join(sorted(self._allowed)) or "localhost"
                message = f"this server answers as {where}, not to host {host!r}"
                message += f" from {origin!r}" if origin else ""
                body = make_error_body(message, kind="invalid_request_error", code="host_not_allowed")
                await to_response(Reply(body, 403), scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_allowed_origin(self, origin: str | None) -> bool:
        # Origin "null" comes from sandboxed frames of any page.
        return (
            origin is None
            or self._requires_key()
            or origin in self._origins
            or self._is_own_host(origin.partition("://")[2])
        )

    def _is_own_host(self, host: str) -> bool:
        name = re.sub(r":\d+$", "", host).strip("[]").lower()
        return is_loopback(name) or name in self._allowed


PAGES: Final = "/inspect/"
"""Beginning of the paths of all pages except `/`."""
SIGN_IN: Final = "/inspect/sign-in"
ASSETS: Final = "/inspect/assets/{name}"
COOKIE: Final = "holdfast_session"


def prefers_html(accept: str) -> bool:
    """Return True if the header `Accept` prefers HTML to JSON. Browsers do. Programs send `*/*` or no header."""
    kinds = [kind.partition(";")[0].strip().lower() for kind in accept.split(",")]
    named = [kind for kind in kinds if kind in ("text/html", "application/xhtml+xml", "application/json")]
    return bool(named) and named[0] != "application/json"


def is_page(scope: Scope) -> bool:
    """Return True if a request is for a page of the inspector, or for something that a page loads."""
    path: str = scope["path"]
    if path == "/":
        accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        return prefers_html(accept.decode("latin-1"))
    return path.startswith(PAGES)


def needs_sign_in(scope: Scope) -> bool:
    """Return True if a request is for a page that only an authenticated caller may see."""
    path: str = scope["path"]
    return is_page(scope) and path != SIGN_IN and not path.startswith(ASSETS.partition("{")[0])


def read_cookie(headers: Mapping[str, str]) -> str | None:
    """Return the token in the cookie of a request, or None if the request has none.

    All servers of a host name share its cookies, whatever their port, so cookies of others may have any form. If the cookie is there twice,
    the last one counts.
    """
    pairs = (pair.partition("=") for pair in headers.get("cookie", "").split(";"))
    found = [value.strip() for name, _, value in pairs if name.strip() == COOKIE]
    return found[-1] if found else None


def make_cookie(token: str, *, is_secure: bool, seconds: int) -> str:
    """Return the header `Set-Cookie` for a token. With an empty token and 0 seconds, the browser forgets the cookie.

    Args:
        token: token of the sign-in.
        is_secure: True if the browser uses HTTPS; it then sends the cookie over HTTPS only.
        seconds: time after which the browser forgets the cookie.
    """
    # SameSite=Lax, not Strict: a link in a chat or a ticket must open the page for a user who is signed in.
    secure = "; Secure" if is_secure else ""
    return f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}"


def is_same_origin(headers: Mapping[str, str], origins: Collection[str]) -> bool:
    """Return True if a request with a form comes from this server's own pages.

    Browsers send `Sec-Fetch-Site`, `Origin` or both. A request without either is not from a page.

    Args:
        headers: headers of the request, with lower-case names.
        origins: origins that the configuration allows, such as that of a proxy.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    # No page can add the header of a proxy to a form, so it may be believed here.
    hosts = {headers.get("host"), headers.get("x-forwarded-host")} - {None, ""}
    return origin is None or origin in origins or origin.partition("://")[2] in hosts
