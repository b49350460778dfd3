"""Authentication: convert the key or token of a request to a principal, before anything else in the request is read.

    Gate -> Access.authenticate -> principal

The principal comes from an API key, a token, or an upstream key. If no key is required, a request without one gets the default admin.
Unknown, expired and revoked keys get the same response, so that a caller learns nothing about other keys.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from starlette.types import Scope

from holdfast.access import Principal, derive_upstream_user, is_key, to_principal
from holdfast.config.gateway import Auth
from holdfast.holdfast import Holdfast
from holdfast.server.http import refuse_missing_key
from holdfast.server.jwks import BadToken, TokenVerifier
from holdfast.server.key_cache import KeyCache, trim_cache
from holdfast.server.limits import COOKIE_CHARS, TOKEN_CHARS
from holdfast.server.permissions import Refused

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


# -- pages --------------------------------------------------------------------

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
