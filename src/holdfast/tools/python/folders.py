"""Work folders: where code runs. Made for a session, removed with it; what a dead server left goes when the next one starts."""

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
"""What the name of a server's folder gets for the file beside it, which is locked as long as that server lives."""
_log = logging.getLogger("holdfast.tools.python")


class WorkFolders:
    """The folder in which this process makes its work folders. Its methods block: call them in a thread.

    Args:
        base: where it is made; None: where temporary files are.
    """

    def __init__(self, base: str | None) -> None:
        self._base = Path(tempfile.gettempdir() if base is None else base)
        self._lock: int | None = None
        self._root: Path | None = None

    def open(self) -> None:
        """Remove what dead processes left, and make the folder.

        Raises:
            InvalidRequest: it cannot be made there.
        """
        try:
            self._base.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(self._base)
            self._make()
        except OSError as exc:
            message = f"no work folders can be made in {self._base}: {exc.strerror or exc}"
            raise InvalidRequest(message, param="python.workdir") from exc

    def _make(self) -> None:
        while self._root is None:
            # The lock first: what has none is nobody's, and is removed by whoever starts.
            lock, name = tempfile.mkstemp(prefix=PREFIX, suffix=LOCK, dir=self._base)
            if not _locked(lock, name):
                os.close(lock)
                continue
            self._lock, self._root = lock, Path(name.removesuffix(LOCK))
        self._root.mkdir(mode=0o711)
        # Whatever the umask: code may run as another user, who has to pass through, and need not see who else is here.
        self._root.chmod(0o711)

    def make(self) -> Path:
        """A new work folder, empty. Raises `OSError`."""
        if self._root is None or self._lock is None:
            raise RuntimeError("it is not open")
        try:
            return Path(tempfile.mkdtemp(dir=self._root))
        except FileNotFoundError:  # somebody tidied up where temporary files are; that name may be anybody's by now
            _unlocked(self._root, self._lock)
            self._root = self._lock = None
            self._make()
            return Path(tempfile.mkdtemp(dir=self._root))

    def close(self) -> None:
        """Remove all of it."""
        root, lock = self._root, self._lock
        self._root = self._lock = None
        if root is not None and lock is not None:
            _remove_all(root)
            _unlocked(root, lock)


def remove(folder: Path) -> None:
    """Remove a folder and all that is in it, however deep, and whatever rights were taken away. Logs what it cannot.

    Nobody may be at work in it. Links are removed, not followed.
    """
    try:
        grave = Path(tempfile.mkdtemp(prefix="removed-", dir=folder.parent))
        try:
            folder.chmod(0o700)
            folder.rename(grave / "0")
        except FileNotFoundError:
            grave.rmdir()
            return
        _empty(grave)
        grave.rmdir()
    except OSError as exc:
        _log.warning("a work folder could not be removed; the next start tries again", exc_info=exc)


def _remove_all(root: Path) -> None:
    """Remove a server's folder. Logs what it cannot."""
    try:
        for folder in list(root.iterdir()):
            remove(folder)
        root.rmdir()
    except FileNotFoundError:
        return
    except OSError as exc:
        _log.warning("work folders could not be removed; the next start tries again", exc_info=exc)


def _empty(grave: Path) -> None:
    """Remove the folder `0` in `grave`: folders in it are moved beside it first, so that none is deep."""
    top = os.open(grave, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        names, waiting = count(1), ["0"]
        while waiting:
            name = waiting.pop()
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            try:
                waiting += _cleared(folder, top, names)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _cleared(folder: int, top: int, names: count[int]) -> list[str]:
    """Remove the files of a folder, and move its folders to `top`; what they are called there."""
    moved = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)  # to move a folder one has to be able to write to it
            moved.append(str(next(names)))
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
        else:
            os.unlink(name, dir_fd=folder)
    return moved


# -- what dead processes left ----------------------------------------------------


def _remove_leftovers(base: Path) -> None:
    for path in base.glob(f"{PREFIX}*{LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError:  # another user's, or gone since
            continue
        if not _ours(lock) or not _locked(lock, str(path)):
            os.close(lock)
            continue
        root = path.with_suffix("")
        if root.is_dir() and not root.is_symlink():
            _remove_all(root)
        _unlocked(root, lock)


def _ours(lock: int) -> bool:
    found = os.fstat(lock)
    return stat.S_ISREG(found.st_mode) and (not hasattr(os, "geteuid") or found.st_uid == os.geteuid())


def _locked(lock: int, name: str) -> bool:
    """Take a lock; whether it is ours now, and its file still there."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), Path(name).lstat())
    except OSError:
        return False


def _unlocked(root: Path, lock: int) -> None:
    """Give up a lock, and its file with it, unless there is still something that it stands for."""
    with contextlib.suppress(OSError):
        if not root.exists():
            root.with_name(root.name + LOCK).unlink()
    os.close(lock)
