"""API keys of the store, cached for a few seconds, and the times of their last use."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from holdfast.access import hash_key, is_valid_key, parse_key_id
from holdfast.errors import HoldfastError
from holdfast.server.limits import KEYS_REMEMBERED
from holdfast.stores.keys import ApiKey, KeyStore

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
        self._known: OrderedDict[bytes, _CachedKey] = OrderedDict()
        self._checked_at: int | None = None
        self._uses = UseRecorder("key", lambda key_id, now: store().use_key(key_id, timestamp=now))

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
        if parse_key_id(text) is None:
            return None
        now, name = self._clock(), hash_key(text)
        known = self._known.get(name)
        if known is None or not 0 <= now - known.at < KEY_CACHE_MS:
            found = await self._store().key_of(name)
            if found is None:
                self._known.pop(name, None)
                return None
            # `now` is from before the lookup, so that a key revoked during the lookup does not stay valid longer.
            known = self._known[name] = _CachedKey(found, now)
            trim_cache(self._known, name)
        if not is_valid_key(known.key, text, now):
            return None
        self._uses.note(known.key.id, now)
        return known.key


class UseRecorder:
    """Records the time of last use of keys or sign-ins, in the background, and at most once per `USE_UPDATE_MS` milliseconds for each.

    Args:
        kind: names in the log what was used.
        record: writes the time to the store.
    """

    def __init__(self, kind: str, record: Callable[[str, int], Awaitable[None]]) -> None:
        self._kind = kind
        self._record = record
        self._noted: OrderedDict[str, int] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, name: str, now: int) -> None:
        """Record that `name` is used now."""
        if 0 <= now - self._noted.get(name, -USE_UPDATE_MS) < USE_UPDATE_MS:
            return
        self._noted[name] = now
        trim_cache(self._noted, name)
        task = asyncio.ensure_future(self._write(name, now))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, name: str, now: int) -> None:
        try:
            await self._record(name, now)
        except HoldfastError as exc:
            _log.warning("cannot record the use of %s %s: %s", self._kind, name, exc)


def trim_cache(known: OrderedDict[Any, Any], newest: object) -> None:
    """Mark an entry of a cache as used, and delete the entries that were not used for the longest time, if there are too many."""
    known.move_to_end(newest)
    while len(known) > KEYS_REMEMBERED:
        known.popitem(last=False)
