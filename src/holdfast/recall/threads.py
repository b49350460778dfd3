"""Limit the threads of native libraries. They read the number from the environment only once, when they are loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THREADS: Final = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Number of threads for linear algebra: half of the cores, so that other requests can use the other half."""
_SETTINGS: Final = {
    **dict.fromkeys(
        ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), str(THREADS)
    ),
    "OMP_WAIT_POLICY": "passive",  # otherwise idle threads keep a core busy, which is slow on shared cores
}


@contextmanager
def limit_threads() -> Iterator[None]:
    """Limit the threads of native libraries loaded in the block, by environment variables that are not set yet."""
    unset = [name for name in _SETTINGS if name not in os.environ]
    os.environ.update({name: _SETTINGS[name] for name in unset})
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)
