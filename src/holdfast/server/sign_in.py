"""Sign-ins to the inspector: a browser exchanges an API key or a token for an opaque text, which it keeps instead of the key.

The store has only the hash of the text, so every server of the database knows the sign-in, and can end it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import OrderedDict
from typing import Final, NamedTuple

from holdfast.access import TOKEN_KEYS, Principal, is_usable_key, to_principal
from holdfast.errors import InvalidRequest
from holdfast.holdfast import Holdfast
from holdfast.server.key_cache import KEY_CACHE_MS, UseRecorder, trim_cache
from holdfast.server.limits import SIGN_IN_DAYS, SIGN_IN_IDLE_HOURS
from holdfast.stores.keys import ApiKey
from holdfast.stores.sign_ins import SignIn

_RANDOM: Final = 32
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")


class _Cached(NamedTuple):
    sign_in: SignIn
    key: ApiKey | None
    at: int


class SignIns:
    """Creates, finds and ends sign-ins.

    A sign-in ends `SIGN_IN_DAYS` after it was created, after `SIGN_IN_IDLE_HOURS` without a request, and with the key or token that
    it was made with. A key is found again for each sign-in, so that a revoked key ends its sign-ins on every server within `KEY_CACHE_MS`
    milliseconds.

    Args:
        hf: the `Holdfast` of the server's own tenant. Its store contains the keys and sign-ins of all tenants.
    """

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._known: OrderedDict[bytes, _Cached] = OrderedDict()
        self._uses = UseRecorder(
            "sign-in", lambda hash_, now: hf.store.use_sign_in(bytes.fromhex(hash_), timestamp=now)
        )

    async def create(self, principal: Principal) -> str:
        """Store a new sign-in with the rights of `principal`, and return its secret text, which is safe in a cookie.

        Raises:
            InvalidRequest: the principal needed no credential, or its credential has expired.
        """
        if principal.key_id is None:
            raise InvalidRequest("signing in needs an API key or a token; this server requires neither")
        now, text = self._hf.clock(), secrets.token_urlsafe(_RANDOM)
        latest = now + SIGN_IN_DAYS * 86_400_000
        expires_at = latest if principal.expires_at is None else min(latest, principal.expires_at)
        await self._hf.store.add_sign_in(
            SignIn(
                hash=_hash(text),
                tenant=principal.tenant,
                user_id=principal.user_id,
                role=principal.role,
                key_id=principal.key_id,
                created_at=now,
                expires_at=expires_at,
            )
        )
        return text

    async def find(self, token: str) -> Principal | None:
        """Return the principal of a sign-in; None if there is no such sign-in, or if it has ended.

        Args:
            token: the text that `create` returned, or any other text that a client sent.
        """
        if not _TOKEN.fullmatch(token):
            return None
        now, hash_ = self._hf.clock(), _hash(token)
        known = self._known.get(hash_)
        if known is None or not 0 <= now - known.at < KEY_CACHE_MS:
            known = await self._load(hash_, now)
        principal = None if known is None else _make_principal(known, now)
        if principal is not None:
            self._uses.note(hash_.hex(), now)
        return principal

    async def end(self, token: str) -> None:
        """End a sign-in. Other servers notice within `KEY_CACHE_MS` milliseconds. Does nothing if there is no such sign-in."""
        if _TOKEN.fullmatch(token):
            self._known.pop(_hash(token), None)
            await self._hf.store.remove_sign_in(_hash(token))

    async def _load(self, hash_: bytes, now: int) -> _Cached | None:
        store = self._hf.store
        self._known.pop(hash_, None)
        sign_in = await store.find_sign_in(hash_)
        if sign_in is None or sign_in.key_id is None:
            return None
        key = None if sign_in.key_id in TOKEN_KEYS else await store.get_key(sign_in.key_id)
        # `now` is from before the lookup, so that a key revoked during the lookup does not stay valid longer.
        known = self._known[hash_] = _Cached(sign_in, key, now)
        trim_cache(self._known, hash_)
        return known


def _make_principal(known: _Cached, now: int) -> Principal | None:
    sign_in, key = known.sign_in, known.key
    used_at = max(sign_in.created_at, sign_in.used_at or 0)
    if now >= sign_in.expires_at or now - used_at >= SIGN_IN_IDLE_HOURS * 3_600_000:
        return None
    if key is not None:
        return to_principal(key) if is_usable_key(key, now) else None
    if sign_in.key_id not in TOKEN_KEYS:
        return None  # the key was deleted
    return Principal(
        tenant=sign_in.tenant,
        user_id=sign_in.user_id,
        role=sign_in.role,
        key_id=sign_in.key_id,
        expires_at=sign_in.expires_at,
    )


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
