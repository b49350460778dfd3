"""API keys of the store, cached for a few seconds, and the times of their last use; and the cookies of sign-ins, which keys sign."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from itsdangerous import BadData, TimestampSigner

from holdfast.access import is_usable_key, is_valid_key, parse_key_id
from holdfast.errors import HoldfastError
from holdfast.server.limits import KEYS_REMEMBERED, SIGN_IN_HOURS
from holdfast.stores.keys import ApiKey
from holdfast.stores.logic.tenants import KeyStore

_log = logging.getLogger("holdfast.access")
KEY_CACHE_MS: Final = 3_000
"""Milliseconds that a key from the store is cached."""
FIRST_KEY_CHECK_MS: Final = 2_000
"""Milliseconds between two checks for keys in the store, while the store has none."""
USE_UPDATE_MS: Final = 60_000
"""Milliseconds between two updates of a key's time of last use."""


class _CachedKey(NamedTuple):
    key: ApiKey
    at: int


class KeyCache:
    """Caches keys from the store for a few seconds, so that most turns need no lookup.

    A key that the store does not have is not cached. So a new key works at once.
    """

    def __init__(self, store: Callable[[], KeyStore], clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[str, _CachedKey] = OrderedDict()
        self._checked_at: int | None = None
        self._noted: OrderedDict[str, int] = OrderedDict()
        """Times of the last use that were written to the store, or are being written."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def has_keys(self) -> bool:
        """Return True if the store has keys, including revoked keys.

        While the store has none, this queries it every `FIRST_KEY_CHECK_MS` milliseconds.
        """
        now = self._clock()
        if self._checked_at is not None and 0 <= now - self._checked_at < FIRST_KEY_CHECK_MS:
            return False
        found = await self._store().keys(limit=1)
        self._checked_at = now
        return bool(found)

    async def find_valid(self, text: str) -> ApiKey | None:
        """Return the API key with this text, or None if no such key exists or the key is not valid."""
        key_id, now = parse_key_id(text), self._clock()
        key = None if key_id is None else await self._find(key_id, now)
        if key is None or not is_valid_key(key, text, now):
            return None
        self._note_use(key.id, now)
        return key

    async def find_signed(self, cookie: str) -> ApiKey | None:
        """Return the usable API key that signed a cookie (`sign`), or None if there is none, or if the sign-in has ended."""
        signed, now = _SIGNED.fullmatch(cookie), self._clock()
        key = None if signed is None else await self._find(signed[1], now)
        if key is None or not is_usable_key(key, now):
            return None
        try:
            _Signer(key, now).unsign(cookie, max_age=SIGN_IN_HOURS * 3600 - 1)
        except BadData:
            return None
        self._note_use(key.id, now)
        return key

    def sign(self, key: ApiKey) -> str:
        """Return a cookie that stands for a key. It has the key's id and the time, and is signed with what the store knows of the key."""
        return _Signer(key, self._clock()).sign(key.id).decode()

    async def _find(self, key_id: str, now: int) -> ApiKey | None:
        known = self._known.get(key_id)
        if known is None or not 0 <= now - known.at < KEY_CACHE_MS:
            found = await self._store().get_key(key_id)
            if found is None:
                self._known.pop(key_id, None)
                return None
            # `now` is from before the lookup, so that a key revoked during the lookup does not stay valid longer.
            known = self._known[key_id] = _CachedKey(found, now)
            trim_cache(self._known, key_id)
        return known.key

    def _note_use(self, key_id: str, now: int) -> None:
        """Record the time of a key's last use in the background, at most once per `USE_UPDATE_MS` milliseconds."""
        if 0 <= now - self._noted.get(key_id, -USE_UPDATE_MS) < USE_UPDATE_MS:
            return
        self._noted[key_id] = now
        trim_cache(self._noted, key_id)
        task = asyncio.ensure_future(self._write_use(key_id, now))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_use(self, key_id: str, now: int) -> None:
        try:
            await self._store().use_key(key_id, timestamp=now)
        except HoldfastError as exc:
            _log.warning("cannot record the use of key %s: %s", key_id, exc)


_SIGNED: Final = re.compile(r"([a-z2-7]{16})\.[\w-]{1,12}\.[\w-]{43}", re.ASCII)


class _Signer(TimestampSigner):
    """Signs the id of a key with the key's hash, so that every server of a database can check the signature, and needs no secret of its own."""

    def __init__(self, key: ApiKey, now: int) -> None:
        super().__init__(key.hash, salt="holdfast sign-in", digest_method=hashlib.sha256)
        self._now = now

    def get_timestamp(self) -> int:
        """Return the time in seconds since the epoch, by the server's clock."""
        return self._now // 1000


def trim_cache(known: OrderedDict[Any, Any], newest: object) -> None:
    """Mark an entry of a cache as used, and delete the entries that were not used for the longest time, if there are too many."""
    known.move_to_end(newest)
    while len(known) > KEYS_REMEMBERED:
        known.popitem(last=False)
