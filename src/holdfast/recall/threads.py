"""Limit the number of threads that native libraries for linear algebra use.

Such a library reads the number from an environment variable only once, when it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THREADS: Final = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Maximum number of threads for linear algebra: half of the cores, at most 4. Other requests can use the other cores."""
_SETTINGS: Final = {
    **dict.fromkeys(
        ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), str(THREADS)
    ),
    "OMP_WAIT_POLICY": "passive",  # otherwise idle threads keep a core busy, which is slow on shared cores
}


@contextmanager
def limit_threads() -> Iterator[None]:
    """Limit the threads of native libraries that are loaded inside the `with` block.

    The block sets environment variables and removes them afterwards. Variables that the user has set are left unchanged.
    """
    unset = [name for name in _SETTINGS if name not in os.environ]
    os.environ.update({name: _SETTINGS[name] for name in unset})
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)
