"""NumPy: what is computed with it over blocks of vectors, and how many threads its linear algebra takes from a server.

Imported only where NumPy is wanted; `holdfast.recall.vectors` does without where it is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.errors import MissingExtra

EXTRA: Final = "embeddings"
THREADS: Final = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Threads of NumPy's linear algebra: half the cores, so that whoever is answered meanwhile has the other half."""
_VARIABLES: Final = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@contextmanager
def _few_threads() -> Iterator[None]:
    """The libraries below NumPy read their number of threads once, when they are loaded, and from nowhere else."""
    unset = [name for name in _VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, str(THREADS)))
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)


try:
    with _few_threads():
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
