"""The server process returns memory of large requests to the system, even if small objects allocated meanwhile remain
in use.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_PROGRAM = """
import sys
from pathlib import Path
from holdfast.server.run import _bound_free_memory

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "bounded":
    _bound_free_memory()
large = bytearray(8 << 20)
del large  # from now on glibc by itself takes blocks of this size from its heap
before, kept = resident(), []
large = []
for _ in range(30):
    large.append(bytearray(3 << 20))
    kept.append(bytearray(2000))
del large
print((resident() - before) >> 20)
"""


def measure_kept_megabytes(how: str) -> int:
    """Return how many of 90 MB a process keeps after freeing them."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="glibc's allocator alone has this switch",
)
def test_memory_of_large_bodies_is_returned() -> None:
    """Regression: after texts of 5 MB a server stayed at 711 MB."""
    assert measure_kept_megabytes("bounded") < 10
    assert measure_kept_megabytes("as it is") > 60, "nothing is shown by this test any more"
