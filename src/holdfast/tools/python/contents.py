"""List and read an untrusted work folder without following links or exhausting resources.

A name may be any bytes, a file may be a pipe that never delivers data, and folders may be nested ten thousand deep. The session's Python process
may be running at the same time, so anything that was checked may have changed since.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.limits import MIB

HIDDEN: Final = frozenset({".cache", ".config", ".tmp"})
"""Top-level folders in which libraries keep their own files. These files are counted, but never listed."""
DEPTH: Final = 64
"""Maximum depth of nested folders."""
_NAMES_BYTES: Final = 4 * MIB
"""Maximum bytes of all paths together."""
_STEPS: Final = 50_000
"""Maximum number of path components, summed over all folders. To open a folder, all its parents are opened first, one by one."""
_FOLDER_FLAGS: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags for opening a file without waiting. A FIFO without a writer opens at once, and is rejected after that."""

Mark = tuple[int, int, int, int]
"""Inode, size, modification time and change time of a file, with times in nanoseconds. Each change of the file changes this value."""


class Contents(msgspec.Struct, frozen=True):
    """Contents of a folder."""

    files: Mapping[str, Mark] = {}
    """`Mark` of each regular file, by path relative to the folder. Files in `HIDDEN` are not included."""
    size: int = 0
    """Bytes on disk of all files, including those in `HIDDEN`. A file that takes no space on disk is counted as one byte."""
    entries: int = 0
    """Number of files, folders and other entries."""
    too_many: bool = False
    """True if listing was stopped because there were too many entries, folders were nested too deep, or all paths together were too long."""

    def list_changed(self, earlier: Contents) -> tuple[str, ...]:
        """Return the files that are new or changed since `earlier`, sorted."""
        return tuple(sorted(name for name, mark in self.files.items() if earlier.files.get(name) != mark))


class _Counter:
    """Accumulates the contents of a folder."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.files: dict[str, Mark] = {}
        self.size = self.entries = self.names = self.steps = 0
        self.inodes: set[int] = set()

    def is_full(self) -> bool:
        return self.entries > self.most or self.names > _NAMES_BYTES or self.steps > _STEPS

    def add(self, path: str, found: os.stat_result) -> None:
        self.entries += 1
        self.names += len(path)
        if not stat.S_ISREG(found.st_mode):
            return
        if found.st_ino not in self.inodes:  # a file with several names uses its space only once
            self.inodes.add(found.st_ino)
            self.size += max(1, getattr(found, "st_blocks", 0) * 512)
        if path.partition("/")[0] not in HIDDEN:
            self.files[path] = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def list_contents(folder: Path, most: int) -> Contents:
    """List the contents of a work folder. A missing folder has no contents. This function blocks, so call it in a thread.

    Args:
        folder: the work folder.
        most: maximum number of entries; if there are more, listing stops.
    """
    found, waiting, deep = _Counter(most), [""], False
    while waiting and not found.is_full():
        path = waiting.pop()
        for name, status in _list_entries(folder, path):
            inner = f"{path}/{name}" if path else name
            found.add(inner, status)
            if stat.S_ISDIR(status.st_mode):
                waiting.append(inner)
                found.steps += inner.count("/") + 1
            if found.is_full():
                break
        deep = deep or path.count("/") >= DEPTH
        if deep:
            break
    return Contents(found.files, found.size, found.entries, deep or found.is_full())


def _list_entries(folder: Path, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the entries of a subfolder. Yield nothing if it cannot be read or is no longer a folder."""
    opened = _open_folder(folder, path.split("/") if path else [])
    if opened is None:
        return
    try:
        with os.scandir(opened) as entries:
            for entry in entries:
                try:
                    yield entry.name, entry.stat(follow_symlinks=False)
                except OSError:  # removed by now
                    continue
    except OSError:
        return
    finally:
        os.close(opened)


def _open_folder(folder: Path, names: list[str]) -> int | None:
    """Open a subfolder without following links. Return its descriptor, or None if it cannot be opened."""
    try:
        current = os.open(folder, _FOLDER_FLAGS)
    except OSError:
        return None
    for name in names:
        try:
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=current)
        except OSError:
            return None
        finally:
            os.close(current)
        current = inner
    return current


def split_path(name: str) -> list[str] | None:
    """Split a relative path into its components. Return None if the path is not valid or leads out of its folder."""
    steps = name.split("/")
    return None if any(step in ("", ".", "..") or "\0" in step for step in steps) else steps


def open_file(folder: Path, name: str) -> int | None:
    """Open a regular file of a work folder for reading.

    This function blocks, so call it in a thread. The caller must close the descriptor.

    Args:
        folder: the work folder.
        name: path of the file relative to the folder, as in `CallResult.files`.

    Returns:
        A descriptor, or None if the file is not a regular file, cannot be read, or has a link in its path.
    """
    steps = split_path(name)
    if steps is None:
        return None
    *folders, last = steps
    parent = _open_folder(folder, folders)
    if parent is None:
        return None
    try:
        opened = os.open(last, _FILE_FLAGS, dir_fd=parent)
    except OSError:
        return None
    finally:
        os.close(parent)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        return None
    return opened
