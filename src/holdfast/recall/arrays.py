"""NumPy: what is computed with it over blocks of vectors.

Imported only where NumPy is wanted; `holdfast.recall.vectors` does without where it is not installed.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import MissingExtra
from holdfast.recall.threads import THREADS, few_threads

EXTRA: Final = "embeddings"

try:
    with few_threads():
        import numpy as np
except ImportError as exc:
    raise MissingExtra("NumPy", EXTRA) from exc

__all__ = ["EXTRA", "THREADS", "np", "packed", "similarities", "unpacked"]


def similarities(query: bytes, block: bytes, dimension: int) -> list[float]:
    """See `holdfast.recall.vectors.similarities`; the sizes were checked."""
    wanted = np.frombuffer(query, "<f4")
    rows = np.frombuffer(block, "<f4").reshape(-1, dimension)
    found: list[float] = (rows @ wanted).tolist()
    return found


def packed(vectors: bytes) -> bytes:
    """See `holdfast.recall.vectors.packed`."""
    return np.frombuffer(vectors, "<f4").astype("<f2").tobytes()


def unpacked(halves: bytes) -> bytes:
    """See `holdfast.recall.vectors.unpacked`."""
    return np.frombuffer(halves, "<f2").astype("<f4").tobytes()
