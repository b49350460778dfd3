"""Cache analyses of messages by a hash of the analysed text, so that rebuilding a view does not repeat them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from threading import Lock
from typing import Any, Final

from holdfast.limits import ANALYSIS_CACHE_BYTES

ENTRY_BYTES: Final = 200
"""Bytes of a cache entry in addition to its value: the key, links and object headers."""
STRING_BYTES: Final = 64
"""Bytes of a short string in a tuple, in addition to its characters."""


class AnalysisCache:
    """A thread-safe cache with a limit in bytes. It evicts the least recently used analyses first.

    Args:
        max_bytes: maximum bytes of all analyses together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()
        self.size = 0

    def get(self, key: bytes) -> Any:
        """Return the cached analysis with this key, which the caller must not modify. Return None if there is none."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: bytes, value: Any, size: int) -> None:
        """Cache an analysis of about `size` bytes. An analysis larger than a quarter of the cache is not cached."""
        size += ENTRY_BYTES
        if size * 4 > self._max_bytes:
            return
        with self._lock:
            before = self._entries.pop(key, None)
            self.size += size - (before[1] if before else 0)
            self._entries[key] = (value, size)
            while self.size > self._max_bytes:
                self.size -= self._entries.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Remove all analyses."""
        with self._lock:
            self._entries.clear()
            self.size = 0


ANALYSES: Final = AnalysisCache(ANALYSIS_CACHE_BYTES)
"""The cache of this process. All sessions share it, because an analysis depends only on the analysed text."""


def make_analysis_key(*parts: bytes) -> bytes:
    """Return the cache key of an analysis. The first of `parts` names the kind of analysis, the others are the analysed texts."""
    lengths = b"".join([len(part).to_bytes(8, "little") for part in parts])
    return hashlib.blake2b(b"".join((lengths, *parts)), digest_size=16, salt=len(parts).to_bytes(8, "little")).digest()
