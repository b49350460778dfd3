"""What is in a work folder, as somebody left it who may mean ill: looked at and read without following a link or running out of anything.

A name in it may be any bytes, a file may be a pipe that never says anything, a folder may lie ten thousand deep. The process
may be at work in it meanwhile: whatever was looked at may be something else by now.
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
"""Folders at the top where libraries keep what is theirs: counted, never told."""
DEPTH: Final = 64
"""Folders inside each other."""
_NAMES_BYTES: Final = 4 * MIB
"""All paths together."""
_STEPS: Final = 50_000
"""To all folders from the top, one after the other: each is opened by all that it lies in."""
_FOLDER_FLAGS: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Without waiting: a FIFO that nobody writes to is opened at once, and refused."""

Mark = tuple[int, int, int, int]
"""Of a file: inode, size, times of change of its content and of itself in nanoseconds. Another one: it was changed."""


class Contents(msgspec.Struct, frozen=True):
    """What was found in a folder."""

    files: Mapping[str, Mark] = {}
    """The regular files by their path relative to it; without those of `HIDDEN`."""
    size: int = 0
    """Bytes of all files, those of `HIDDEN` too. Bytes on the disk where a file has holes, but no fewer than one each."""
    entries: int = 0
    """Files, folders and whatever else."""
    too_many: bool = False
    """Whether looking was given up: more entries than asked for, too deep, or names too long together."""

    def changed_since(self, earlier: Contents) -> tuple[str, ...]:
        """Files that are new or other than in `earlier`, sorted."""
        return tuple(sorted(name for name, mark in self.files.items() if earlier.files.get(name) != mark))


class _Found:
    """What has been found so far."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.files: dict[str, Mark] = {}
        self.size = self.entries = self.names = self.steps = 0
        self.inodes: set[int] = set()

    def too_many(self) -> bool:
        return self.entries > self.most or self.names > _NAMES_BYTES or self.steps > _STEPS

    def add(self, path: str, found: os.stat_result) -> None:
        self.entries += 1
        self.names += len(path)
        if not stat.S_ISREG(found.st_mode):
            return
        if found.st_ino not in self.inodes:  # several names of one file take its space once
            self.inodes.add(found.st_ino)
            self.size += max(1, getattr(found, "st_blocks", 0) * 512)
        if path.partition("/")[0] not in HIDDEN:
            self.files[path] = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def look(folder: Path, most: int) -> Contents:
    """What is in a folder; nothing if it is not there. Blocks: call it in a thread.

    Args:
        folder: which.
        most: entries after which to give up.
    """
    found, waiting, deep = _Found(most), [""], False
    while waiting and not found.too_many():
        path = waiting.pop()
        for name, status in _entries(folder, path):
            inner = f"{path}/{name}" if path else name
            found.add(inner, status)
            if stat.S_ISDIR(status.st_mode):
                waiting.append(inner)
                found.steps += inner.count("/") + 1
            if found.too_many():
                break
        deep = deep or path.count("/") >= DEPTH
        if deep:
            break
    return Contents(found.files, found.size, found.entries, deep or found.too_many())


def _entries(folder: Path, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """The entries of a folder in it; none where it cannot be read, or is one no longer."""
    opened = _opened(folder, path.split("/") if path else [])
    if opened is None:
        return
    try:
        with os.scandir(opened) as entries:
            for entry in entries:
                try:
                    yield entry.name, entry.stat(follow_symlinks=False)
                except OSError:  # gone since
                    continue
    except OSError:
        return
    finally:
        os.close(opened)


def _opened(folder: Path, names: list[str]) -> int | None:
    """A descriptor of a folder inside `folder`, reached without a link; None: there is none."""
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


def steps_of(name: str) -> list[str] | None:
    """The steps of a path inside of a folder; None: it leads out of it, or is none."""
    steps = name.split("/")
    return None if any(step in ("", ".", "..") or "\0" in step for step in steps) else steps


def open_file(folder: Path, name: str) -> int | None:
    """A descriptor for reading a regular file of a folder; None: there is none that can be read, or not without a link on its way.

    Blocks: call it in a thread. Close what it gives.

    Args:
        folder: the work folder.
        name: relative to it, as `Ran.files` has it.
    """
    steps = steps_of(name)
    if steps is None:
        return None
    *folders, last = steps
    parent = _opened(folder, folders)
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
