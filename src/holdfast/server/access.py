"""Who asks: a request's key or token becomes a principal, before anything else of the request is looked at.

    Admitted -> Access.caller -> key, token, upstream key, or nobody where nobody is asked

What is wrong with a key is told to nobody: one that is unknown, expired or revoked gets the same answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.access import Principal, id_in, is_key, opens, principal_of, upstream_user
from holdfast.access import hash_of as hashed
from holdfast.accounting import Owner, charge_to
from holdfast.config.gateway import Auth, is_loopback
from holdfast.errors import HoldfastError, TooLarge
from holdfast.holdfast import Holdfast
from holdfast.limits import KEYS_REMEMBERED, TOKEN_CHARS
from holdfast.server.http import Caller, not_handed
from holdfast.server.intake import declared
from holdfast.server.jwks import BadToken, Tokens
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply, error_body, failure, response_of
from holdfast.stores.keys import ApiKey, KeyStore

_log = logging.getLogger("holdfast.access")
REMEMBERED: Final = 3_000
"""Milliseconds for which a key is taken for what it was when it was looked up."""
NOTICED: Final = 2_000
"""Milliseconds after which a server that has no keys looks whether there are some."""
USED: Final = 60_000
"""Milliseconds between two notes that a key was used."""
_DOTS: Final = 2
"""In a token."""
_MISSING: Final = "this server wants an API key: send it as Authorization: Bearer, as x-api-key, or as X-Holdfast-Key"
_WRONG: Final = "the API key is not valid"


class Shown(NamedTuple):
    """What a request shows of who it is from."""

    own: str | None
    """An API key or a token for Holdfast."""
    upstream: str | None
    """A key for the upstream."""

    def __repr__(self) -> str:
        return f"Shown({self.own is not None}, {self.upstream is not None})"


class Access:
    """Decides as whom each request is made.

    Attributes:
        passthrough: whether the upstream is called with its client's own key.

    Args:
        hf: whose tenant is the server's own, and whose store has the keys.
        settings: `auth`.
        passthrough: see the attribute.
        tokens: who takes tokens; None: nobody.
    """

    def __init__(
        self,
        hf: Holdfast,
        settings: Auth | None = None,
        *,
        passthrough: bool = False,
        tokens: Tokens | None = None,
    ) -> None:
        self._hf = hf
        self._settings = settings or Auth()
        self.passthrough = passthrough
        self._tokens = tokens
        self._kept = _Kept(lambda: hf.store, hf.clock)
        self._rates = Rates(self._settings.rate, self._settings.burst, hf.clock)
        self._asks = self._settings.kind == "always"

    @property
    def asks(self) -> bool:
        """Whether nobody comes in without a key, by what is known so far."""
        return self._asks

    async def begin(self) -> None:
        """Get ready before the first request comes. Raises `ConfigError` for a file of keys that is none."""
        if self._tokens is not None:
            await self._tokens.begin()

    async def asking(self) -> bool:
        """The same, by what the store says now or has said within seconds. Once it is so, it stays so."""
        if not self._asks and self._settings.kind == "keys":
            self._notice(await self._kept.any())
        return self._asks

    def _notice(self, there_are: bool) -> None:  # noqa: FBT001 - a sentence with its name
        """Close the door for good, where there are keys."""
        if there_are and not self._asks:
            self._asks = True
            _log.info("there are API keys: from now on every request needs one")

    async def caller(self, headers: Mapping[str, str]) -> tuple[Principal, str | None]:
        """As whom a request is made, and the key that its upstream is called with, if that is the client's.

        Raises:
            Refused: without a key, with one that is not valid, or too often.
        """
        shown = self._shown(headers)
        principal = await self._principal(shown)
        wait = self._rates.wait(principal)
        if wait:
            message = "too many requests with this key; Retry-After says in how many seconds the next one is answered"
            raise Refused(429, "rate_limit_exceeded", message, retry_after=str(wait))
        return principal, shown.upstream

    def _shown(self, headers: Mapping[str, str]) -> Shown:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        bearer = value.strip() if scheme.lower() == "bearer" else None
        api_key = headers.get("x-api-key")
        handed = bearer
        if not bearer and api_key and "anthropic-version" in headers:  # where Anthropic's client puts its key
            handed, api_key = api_key.strip(), api_key if is_key(api_key.strip()) or not self.passthrough else None
        upstream = handed if self.passthrough and handed and not is_key(handed) else None
        if upstream is not None and len(upstream) > TOKEN_CHARS:
            raise denied(_WRONG)
        given = [headers.get("x-holdfast-key"), None if upstream else bearer, api_key]
        shown = [value.strip() for value in given if value]
        # Some clients send a key of somebody else's beside ours.
        return Shown(next((value for value in shown if is_key(value)), next(iter(shown), None)), upstream)

    async def _principal(self, shown: Shown) -> Principal:
        own = shown.own
        if own is not None and is_key(own):
            kept = await self._kept.valid(own)
            if kept is None:
                raise denied(_WRONG)
            self._notice(self._settings.kind == "keys")
            return principal_of(kept)
        if own is not None and self._tokens is not None and (self._asks or own.count(".") == _DOTS):
            try:
                return await self._tokens.principal(own)
            except BadToken as exc:
                _log.info("a token was refused: %s", exc)
                raise denied(_WRONG) from exc
        if await self.asking():
            raise denied(_MISSING if own is None else _WRONG)
        tenant = self._hf.tenant
        if shown.upstream is not None:
            user = upstream_user(tenant, shown.upstream)
            return Principal(tenant=tenant, user_id=user, role="write", key_id="upstream")
        if self.passthrough:  # else whoever leaves the key out would be everybody
            raise not_handed()
        return Principal(tenant=tenant, role="admin")


def denied(message: str) -> Refused:
    """Nobody comes in like that."""
    return Refused(401, "invalid_api_key", message, www_authenticate="Bearer")


# -- keys --------------------------------------------------------------------


class _Remembered(NamedTuple):
    """A key as it was looked up."""

    key: ApiKey
    at: int


class _Kept:
    """The keys of the store, each remembered for some seconds, so that a turn pays no look-up.

    What is not there is not remembered: a key opens as soon as it is made.
    """

    def __init__(self, store: Callable[[], KeyStore], clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._looked: int | None = None
        self._noted: OrderedDict[str, int] = OrderedDict()
        self._notes: set[asyncio.Task[None]] = set()

    async def any(self) -> bool:
        """Whether there are keys, revoked ones too; asked now and then."""
        now = self._clock()
        if self._looked is not None and 0 <= now - self._looked < NOTICED:
            return False
        found = await self._store().keys(limit=1)
        self._looked = now
        return bool(found)

    async def valid(self, text: str) -> ApiKey | None:
        """The key, if it is one and may be used."""
        if id_in(text) is None:
            return None
        now, name = self._clock(), hashed(text)
        known = self._known.get(name)
        if known is None or not 0 <= now - known.at < REMEMBERED:
            found = await self._store().key_of(name)
            if found is None:
                self._known.pop(name, None)
                return None
            # From before the look-up: what is revoked while it is on its way is not taken for valid any longer.
            known = self._known[name] = _Remembered(found, now)
            _trim(self._known, name)
        if not opens(known.key, text, now):
            return None
        self._note(known.key.id, now)
        return known.key

    def _note(self, key_id: str, now: int) -> None:
        """Have it written down that a key was used, now and then, behind the request's back."""
        if 0 <= now - self._noted.get(key_id, -USED) < USED:
            return
        self._noted[key_id] = now
        _trim(self._noted, key_id)
        task = asyncio.ensure_future(self._used(key_id, now))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _used(self, key_id: str, now: int) -> None:
        try:
            await self._store().use_key(key_id, timestamp=now)
        except HoldfastError as exc:
            _log.warning("the use of key %s could not be noted: %s", key_id, exc)


def _trim(known: OrderedDict[Any, Any], newest: object) -> None:
    known.move_to_end(newest)
    while len(known) > KEYS_REMEMBERED:
        known.popitem(last=False)


# -- rates -------------------------------------------------------------------


class _Bucket(NamedTuple):
    left: float
    at: int


class Rates:
    """How often each caller may ask: a bucket that fills evenly, and holds as many requests as may come at once.

    Args:
        rate: requests a minute for whoever has none of their own; 0: any number.
        burst: how many may come at once; 0: those of a quarter of a minute.
        clock: milliseconds since the epoch.
    """

    def __init__(self, rate: int, burst: int, clock: Callable[[], int]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[tuple[str | None, ...], _Bucket] = OrderedDict()

    def wait(self, principal: Principal) -> int:
        """Seconds until the next request is answered; 0: this one is, and is counted."""
        if principal.key_id is None:
            return 0
        rate = self._rate if principal.rate is None else principal.rate
        if not rate:
            return 0
        size = max(1, self._burst or math.ceil(rate / 4))
        # Tokens and upstream keys are known by whom they stand for.
        name = (principal.key_id, principal.tenant, principal.user_id)
        now = self._clock()
        bucket = self._buckets.get(name, _Bucket(size, now))
        left = min(size, bucket.left + max(0, now - bucket.at) * rate / 60_000)
        told = left >= 1
        self._buckets[name] = _Bucket(left - told, now)
        _trim(self._buckets, name)
        return 0 if told else math.ceil((1 - left) * 60 / rate)


# -- middleware ------------------------------------------------------------------


class Admitted:
    """ASGI middleware: lets in who may come in, as whom they are; see `Caller` in the request's state.

    The tenant's memories stay open until the reply has gone. `public` paths are answered whoever asks.
    """

    def __init__(self, app: ASGIApp, access: Access, hf: Holdfast, public: Collection[str]) -> None:
        self._app = app
        self._public = public
        self._access = access
        self._hf = hf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._public:
            await self._app(scope, receive, send)
            return
        async with AsyncExitStack() as opened:
            try:
                principal, upstream = await self._access.caller(_headers(scope))
                if principal.max_body is not None:
                    receive = _bounded(scope, receive, principal.max_body)
                hf = await opened.enter_async_context(self._hf.serving(principal.tenant))
            except Exception as exc:  # noqa: BLE001 - the last place before the wire: whatever happened becomes a reply
                await response_of(failure(exc, self._hf.guard), scope)(scope, receive, send)
                return
            own = principal.user_id is None and principal.tenant == self._hf.tenant
            scope.setdefault("state", {})["caller"] = Caller(
                principal, hf, upstream, own=own, passthrough=self._access.passthrough
            )
            with charge_to(owner_of(principal)):
                await self._app(scope, receive, send)


def owner_of(principal: Principal) -> Owner:
    """Return whom a request's work is charged to: the key, and the user where the key is one user's."""
    return Owner(principal.tenant, f"{principal.key_id or ''}/{principal.user_id or ''}")


def _headers(scope: Scope) -> Mapping[str, str]:
    """A request's headers. Raises `Refused` for two answers to who it is from."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in found and name in ("authorization", "x-api-key", "x-holdfast-key"):
            raise denied(_WRONG)
        found[name] = value.decode("latin-1")
    return found


def _bounded(scope: Scope, receive: Receive, most: int) -> Receive:
    """`receive`, for a body of at most so many bytes. Raises `TooLarge`, now or when it has become more."""
    too_large = TooLarge(f"the body is larger than {most} bytes, the most that this key may send")
    said = declared(dict(_headers(scope)))
    if said is not None and said > most:
        raise too_large
    size = 0

    async def bounded() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise too_large
        return message

    return bounded


# -- hosts and origins -----------------------------------------------------------

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
