"""The file of an index: whether the one at its place is still the one that was opened. Somebody may remove it under a running process."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import StoreUnavailable


class IndexFile:
    """The file that an index lies in, with what SQLite keeps beside it while it is open (`-wal`, `-shm`).

    Args:
        path: where; None: the index lies in memory, or with a server, and nothing can be removed.
        own: whether nothing else lies in it, so that it may be deleted.
    """

    def __init__(self, path: Path | None, *, own: bool = False) -> None:
        self._own = own
        self._path = None if path is None else Path(os.path.abspath(path))  # noqa: PTH100  # as SQLite opened it
        self._opened: tuple[int, int] | None = None
        self._shared: tuple[int, int] | None = None

    def opened(self) -> None:
        """It has just been opened: what lies there is it."""
        if self._path is not None:
            self._opened, self._shared = _known(f"{self._path}"), _known(f"{self._path}-shm")

    def gone(self) -> bool:
        """Whether the file that was opened is there no more."""
        return self._path is not None and _known(f"{self._path}") != self._opened

    def delete(self) -> bool:
        """Delete the file with what SQLite keeps next to it; False, and nothing is done, where it holds more than the index."""
        if self._path is None or not self._own:
            return False
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        return True

    def make_room(self) -> None:
        """Take away what the removed file has left beside itself: a new one must not share it.

        Raises:
            StoreUnavailable: another process has made a new one that shares it.
        """
        if self._path is None:
            return
        if not self._path.exists():
            for left in ("-wal", "-shm"):
                Path(f"{self._path}{left}").unlink(missing_ok=True)
        elif self._shared is not None and _known(f"{self._path}-shm") == self._shared:
            raise StoreUnavailable(
                f"{self._path}: the index was removed in part while it was open, and made again by another program;"
                f" end all that use it, remove {self._path.name}, {self._path.name}-wal and {self._path.name}-shm, and start again"
            )


def _known(path: str) -> tuple[int, int] | None:
    """What tells a file from another one at the same place; None: there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  # asked for at every use of an index: two microseconds
    except OSError:
        return None
    return found.st_dev, found.st_ino
