"""Verify JSON Web Tokens (JWT) that another server issued, with the issuer's public keys.

joserfc is imported only if tokens are configured. The public keys come from the configured address or file, never from an address in a
token. If a token is rejected, the reason is logged, but not returned to the client.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
import msgspec

from holdfast.access import ROLES, Principal
from holdfast.config.gateway import Jwt
from holdfast.errors import ConfigError, InvalidRequest, MissingExtra
from holdfast.models.http import find_proxy
from holdfast.server.limits import JWKS_BYTES, TOKEN_CHARS
from holdfast.server.permissions import Refused
from holdfast.stores.checks import check_id

if TYPE_CHECKING:
    from joserfc.jwk import Key

_log = logging.getLogger("holdfast.access")
HOUR: Final = 3_600_000
FRESH: Final = HOUR
"""Milliseconds after which the keys are fetched again."""
KEY_LIFETIME_MS: Final = 24 * HOUR
"""Milliseconds for which fetched keys stay valid if they cannot be fetched again."""
PAUSE: Final = 60_000
"""Minimum milliseconds between two fetches that tokens with an unknown key cause."""
RETRY: Final = 5_000
"""Minimum milliseconds between two fetches while there are no keys at all."""
FETCH_SECONDS: Final = 10.0
LEEWAY_SECONDS: Final = 30
"""Maximum difference between the clocks of issuer and server."""
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "ES256K"),
    "EdDSA",
)
"""Accepted signature algorithms. All use a private key that only the issuer has; algorithms with a shared secret are excluded."""


class BadToken(Exception):
    """A token is not valid. The message is for the server's log only."""


class TokenVerifier:
    """Verifies tokens, and returns the principal (identity and rights) of each.

    Args:
        settings: `auth.jwt` of the configuration.
        tenant: the server's own tenant. It is the tenant of all tokens, unless `settings` names a claim.
        clock: returns the time in milliseconds since the epoch.
        fetch: returns the key set as JSON; None: the key set is read from the configured address or file.

    Raises:
        MissingExtra: joserfc is not installed.
    """

    def __init__(
        self,
        settings: Jwt,
        tenant: str,
        clock: Callable[[], int],
        *,
        fetch: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        if find_spec("joserfc") is None:
            raise MissingExtra("auth.jwt", "jwt")
        from joserfc.errors import SecurityWarning

        # Issuers call the algorithm EdDSA. joserfc warns that RFC 9864 has two other names for it.
        warnings.simplefilter("ignore", SecurityWarning)
        self._settings = settings
        self._tenant = tenant
        self._clock = clock
        self._keys = _Keys(fetch or (lambda: fetch_key_set(settings)), clock)

    async def begin(self) -> None:
        """Fetch the keys. Raise `ConfigError` if the configured file has none. A configured address may provide keys later."""
        await self._keys.refresh()
        if self._settings.file is not None and not self._keys.known:
            raise ConfigError([f"auth.jwt.jwks_url: {self._settings.file} contains no usable keys"])

    async def principal(self, token: str) -> Principal:
        """Verify a token and return its principal.

        Raises:
            BadToken: the token is not valid.
            Refused: no keys are available to verify the token.
        """
        from joserfc import jws, jwt
        from joserfc.errors import JoseError

        if len(token) > TOKEN_CHARS:
            raise BadToken("too long")
        settings = self._settings
        registry = jwt.JWTClaimsRegistry(
            now=self._clock() // 1000,
            leeway=LEEWAY_SECONDS,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "values": list(settings.audience)},
            exp={"essential": True},
        )
        try:
            kid = jws.extract_compact(token.encode()).headers().get("kid")
            key = await self._keys.get(kid) if isinstance(kid, str | None) else None
            if key is None:
                raise BadToken("unknown key")
            claims = jwt.decode(token, key, algorithms=ALGORITHMS).claims
            registry.validate(claims)
        except (JoseError, ValueError) as exc:
            raise BadToken(type(exc).__name__) from exc
        return self._make_principal(claims)

    def _make_principal(self, claims: Mapping[str, Any]) -> Principal:
        settings = self._settings
        user = _check_claim(claims, settings.user_claim)
        tenant = self._tenant if settings.tenant_claim is None else _check_claim(claims, settings.tenant_claim)
        role_claim = None if settings.role_claim is None else claims.get(settings.role_claim)
        # A list of roles is rejected: taking its highest or its lowest role would both be surprising.
        role = settings.role if role_claim is None else next((role for role in ROLES if role == role_claim), None)
        if role is None:
            raise BadToken("unknown role")
        expires_at = int((claims["exp"] + LEEWAY_SECONDS) * 1000)
        return Principal(tenant=tenant, user_id=user, role=role, key_id="jwt", expires_at=expires_at)


def _check_claim(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str):
        raise BadToken(f"{name} is missing or not a string")
    try:
        check_id(value, name)
    except InvalidRequest as exc:
        raise BadToken(f"{name} is not a valid id") from exc
    return value


class _Keys:
    """The issuer's key set, which is fetched when a key is needed."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]], clock: Callable[[], int]) -> None:
        self._fetch = fetch
        self._clock = clock
        self.known: dict[str | None, Key] = {}
        self._got = 0
        self._asked: int | None = None
        self._asking = asyncio.Lock()

    async def get(self, kid: str | None) -> Key | None:
        """Return the key with this id, or None if there is no such key. Fetch the keys first if they are old or the key is unknown.

        Args:
            kid: id of the key; None: the only key of the set.

        Raises:
            Refused: there are no keys, or they are too old.
        """
        found = self._find_key(kid)
        if found is None or not self._is_recent(self._got, FRESH):
            await self.refresh(pause=PAUSE if self.known else RETRY)
            found = self._find_key(kid)
        if not self.known or not self._is_recent(self._got, KEY_LIFETIME_MS):
            raise Refused(
                503, "tokens_unavailable", "the server cannot verify tokens at the moment: try again", retry_after="5"
            )
        return found

    def _find_key(self, kid: str | None) -> Key | None:
        if kid is None and len(self.known) == 1:
            return next(iter(self.known.values()))
        return self.known.get(kid)

    def _is_recent(self, since: int | None, most: int) -> bool:
        return since is not None and 0 <= self._clock() - since < most

    async def refresh(self, *, pause: int = 0) -> None:
        """Fetch the keys unless they were fetched less than `pause` milliseconds ago."""
        async with self._asking:
            if self._is_recent(self._asked, pause):
                return
            self._asked = self._clock()
            try:
                self.known = _parse_key_set(await self._fetch())
                self._got = self._clock()
            except _FAILURES as exc:
                _log.warning("cannot fetch the key set for tokens: %s: %s", type(exc).__name__, exc)


_FAILURES: Final = (OSError, ValueError, TimeoutError, msgspec.MsgspecError)


def _parse_key_set(content: bytes) -> dict[str | None, Key]:
    """Return the public keys in a key set, by id. Other keys, such as shared secrets, are ignored.

    Raises:
        ValueError: the content is not a key set, or contains no public key.
    """
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key

    data = msgspec.json.decode(content)
    keys = data.get("keys") if isinstance(data, dict) else None
    found: dict[str | None, Key] = {}
    for one in keys if isinstance(keys, list) else ():
        if isinstance(one, dict) and one.get("kty") in ("RSA", "EC", "OKP"):
            with suppress(JoseError, ValueError):
                found[one["kid"] if isinstance(one.get("kid"), str) else None] = import_key(one)
    if not found:
        raise ValueError("the key set contains no public key")
    return found


async def fetch_key_set(settings: Jwt) -> bytes:
    """Return the content of the configured file or address.

    Raises:
        OSError: the file or the address cannot be read.
        ValueError: the address answered with another status than 200, or with too much data.
    """
    if settings.file is not None:
        return await anyio.to_thread.run_sync(Path(settings.file).read_bytes)
    import aiohttp

    url = settings.jwks_url
    timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as pool,
            pool.get(url, allow_redirects=False, proxy=find_proxy(url)) as response,
        ):
            if response.status != 200:
                raise ValueError(f"the address answered with status {response.status}")
            content = await response.content.read(JWKS_BYTES + 1)
            while len(content) <= JWKS_BYTES and (piece := await response.content.read(JWKS_BYTES)):
                content += piece
    except aiohttp.ClientError as exc:
        raise OSError(f"the address cannot be reached: {type(exc).__name__}") from exc
    if len(content) > JWKS_BYTES:
        raise ValueError(f"the key set has more than {JWKS_BYTES} bytes")
    return content
