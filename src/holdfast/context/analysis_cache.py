"""Analyses of messages, kept by a digest of what was analysed: a view that is made anew analyses no message a second time."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from threading import Lock
from typing import Any, Final

from holdfast.limits import ANALYSIS_CACHE_BYTES

ENTRY_BYTES: Final = 200
"""What an entry takes besides its value: key, links, objects."""
STRING_BYTES: Final = 64
"""What a short string takes besides its characters, and its place in a tuple."""


class AnalysisCache:
    """A cache bounded by bytes, for several threads; the analysis that was used longest ago is forgotten first.

    Args:
        max_bytes: of all analyses together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()
        self.size = 0

    def get(self, key: bytes) -> Any:
        """Return an analysis, not to be changed; None if it is not kept."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: bytes, value: Any, size: int) -> None:
        """Keep an analysis of `size` bytes, about; one that is larger than a quarter of the cache is not kept."""
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
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self.size = 0


ANALYSES: Final = AnalysisCache(ANALYSIS_CACHE_BYTES)
"""Of this process: an analysis depends on nothing but what is analysed."""


def make_analysis_key(*parts: bytes) -> bytes:
    """Return the key of an analysis of `parts`, the first of which names its kind."""
    lengths = b"".join([len(part).to_bytes(8, "little") for part in parts])
    return hashlib.blake2b(b"".join((lengths, *parts)), digest_size=16, salt=len(parts).to_bytes(8, "little")).digest()
