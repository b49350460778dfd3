"""What this process holds open: files, sockets and threads; for finding what a store did not give back."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
"""Where the system tells; elsewhere only threads are counted."""


class HeldResources:
    """What is held now, to compare with later."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._files = _open_files()

    def more(self, *, patience: float = 3.0) -> list[str]:
        """What is held beyond that, by name; empty when all was given back.

        Args:
            patience: seconds; a thread that was told to end may need a moment.
        """
        until = time.monotonic() + patience
        while (found := self._now()) and time.monotonic() < until:
            gc.collect()
            time.sleep(0.01)
        return found

    def _now(self) -> list[str]:
        files = (_open_files() - self._files).elements()
        threads = [f"thread {one.name}" for one in threading.enumerate() if one not in self._threads]
        return sorted([*files, *threads])


def _open_files() -> Counter[str]:
    """The targets of this process's descriptors; sockets and pipes only by kind, as their numbers are new each time."""
    if not _DESCRIPTORS.is_dir():
        return Counter()
    return Counter(filter(None, map(_target, _DESCRIPTORS.iterdir())))


def _target(descriptor: Path) -> str:
    """What a descriptor is of; nothing of one that is closed meanwhile, as the folder's own is."""
    try:
        target = str(descriptor.readlink())
    except OSError:
        return ""
    kind, numbered, _ = target.partition(":[")
    return kind if numbered else target
