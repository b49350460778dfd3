"""Bounds the threads of native libraries: they read the number from the environment when they are loaded, and from nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THREADS: Final = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Threads of linear algebra: half the cores, so that other requests have the other half."""
_SETTINGS: Final = {
    **dict.fromkeys(
        ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), str(THREADS)
    ),
    "OMP_WAIT_POLICY": "passive",  # else threads without work keep a core busy, which is slow where cores are shared
}


@contextmanager
def few_threads() -> Iterator[None]:
    """Load a native library within this: variables that are set already win, and the environment is unchanged afterwards."""
    unset = [name for name in _SETTINGS if name not in os.environ]
    os.environ.update({name: _SETTINGS[name] for name in unset})
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)
