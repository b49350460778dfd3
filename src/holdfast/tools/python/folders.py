"""Create and remove the work folders in which code runs. If a server process dies, the next one that starts removes its work folders."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Final

from holdfast.errors import InvalidRequest

PREFIX: Final = "holdfast-python-"
LOCK: Final = ".lock"
"""Suffix of the lock file next to the folder of a server process. The file is locked as long as the server process lives."""
_log = logging.getLogger("holdfast.tools.python")


class WorkFolders:
    """The folder in which this server process creates work folders. The methods block, so call them in a thread.

    Args:
        base: parent directory of the folder.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self._lock: int | None = None
        self._root: Path | None = None

    def open(self) -> None:
        """Remove the folders of server processes that died, and create the folder of this process.

        Raises:
            InvalidRequest: folders cannot be created in the parent directory.
        """
        try:
            self._base.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(self._base)
            self._make()
        except OSError as exc:
            message = f"work folders cannot be created in {self._base}: {exc.strerror or exc}"
            raise InvalidRequest(message, param="python") from exc

    def _make(self) -> None:
        while self._root is None:
            # Create the lock first: a folder without a lock has no owner and is removed by the next server that starts.
            lock, name = tempfile.mkstemp(prefix=PREFIX, suffix=LOCK, dir=self._base)
            if not _try_lock(lock, name):
                os.close(lock)
                continue
            self._lock, self._root = lock, Path(name.removesuffix(LOCK))
        self._root.mkdir(mode=0o711)
        # Regardless of the umask: code may run as another user, who must be able to pass through but need not list the folder.
        self._root.chmod(0o711)

    def make(self) -> Path:
        """Create an empty work folder and return its path. Raise `OSError` if the folder cannot be created."""
        if self._root is None or self._lock is None:
            raise RuntimeError("open() was not called")
        try:
            return Path(tempfile.mkdtemp(dir=self._root))
        except FileNotFoundError:  # temporary files were cleaned up; another process may have taken the name by now
            _unlock(self._root, self._lock)
            self._root = self._lock = None
            self._make()
            return Path(tempfile.mkdtemp(dir=self._root))

    def close(self) -> None:
        """Remove the folder of this process with all work folders."""
        root, lock = self._root, self._lock
        self._root = self._lock = None
        if root is not None and lock is not None:
            _remove_all(root)
            _unlock(root, lock)


def remove(folder: Path) -> None:
    """Remove a folder with all its content, whatever its depth and permissions are. Failures are logged, not raised.

    The folder must not be in use. Links are removed, not followed.
    """
    try:
        grave = Path(tempfile.mkdtemp(prefix="removed-", dir=folder.parent))
        try:
            folder.chmod(0o700)
            folder.rename(grave / "0")
        except FileNotFoundError:
            grave.rmdir()
            return
        _delete_tree(grave)
        grave.rmdir()
    except OSError as exc:
        _log.warning("a work folder could not be removed; the next start tries again", exc_info=exc)


def _remove_all(root: Path) -> None:
    """Remove the folder of a server process with all work folders. Failures are logged, not raised."""
    try:
        for folder in list(root.iterdir()):
            remove(folder)
        root.rmdir()
    except FileNotFoundError:
        return
    except OSError as exc:
        _log.warning("work folders could not be removed; the next start tries again", exc_info=exc)


def _delete_tree(grave: Path) -> None:
    """Remove the folder `0` in `grave`. Each subfolder is first moved directly into `grave`, so that paths stay short."""
    top = os.open(grave, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        names, waiting = count(1), ["0"]
        while waiting:
            name = waiting.pop()
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            try:
                waiting += _clear_folder(folder, top, names)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _clear_folder(folder: int, top: int, names: count[int]) -> list[str]:
    """Remove the files of a folder, and move its subfolders to `top` under new names. Return the new names."""
    moved = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)  # moving a folder requires write permission for it
            moved.append(str(next(names)))
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
        else:
            os.unlink(name, dir_fd=folder)
    return moved


# -- leftovers of dead processes --------------------------------------------------


def _remove_leftovers(base: Path) -> None:
    for path in base.glob(f"{PREFIX}*{LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError:  # another user's, or removed by now
            continue
        if not _is_own(lock) or not _try_lock(lock, str(path)):
            os.close(lock)
            continue
        root = path.with_suffix("")
        if root.is_dir() and not root.is_symlink():
            _remove_all(root)
        _unlock(root, lock)


def _is_own(lock: int) -> bool:
    found = os.fstat(lock)
    return stat.S_ISREG(found.st_mode) and (not hasattr(os, "geteuid") or found.st_uid == os.geteuid())


def _try_lock(lock: int, name: str) -> bool:
    """Try to lock a file without waiting. Return True if this process has the lock now and the file still exists."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), Path(name).lstat())
    except OSError:
        return False


def _unlock(root: Path, lock: int) -> None:
    """Release the lock of the folder `root`. Remove the lock file, unless the folder still exists."""
    with contextlib.suppress(OSError):
        if not root.exists():
            root.with_name(root.name + LOCK).unlink()
    os.close(lock)
