"""A file system for SQLite that fails where a test says so: it refuses, or it loses what was not synced and dies.

Passes everything on to the system's own; shared memory too, so that the write-ahead log works as always.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import apsw

Event = Literal["open", "write", "sync", "truncate", "delete"]
Death = Literal["kill", "tear", "drop", "shuffle"]


class FaultFile(apsw.VFSFile):
    """A file of a `FaultVFS`."""

    def __init__(self, vfs: FaultVFS, filename: Any, flags: list[int]) -> None:
        self._vfs = vfs
        self.name = filename.filename() if isinstance(filename, apsw.URIFilename) else filename
        super().__init__(vfs.base, filename, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # SQLite's name
        self._vfs.meets("write", self.name)
        self._vfs.note_write(self, len(data), offset)
        super().xWrite(data, offset)
        self._vfs.note_event("write", self.name)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._vfs.meets("sync", self.name)
        super().xSync(flags)
        self._vfs.note_sync(self.name)
        self._vfs.note_event("sync", self.name)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._vfs.meets("truncate", self.name)
        super().xTruncate(size)
        self._vfs.unsynced.pop(self.name, None)
        self._vfs.note_event("truncate", self.name)

    def plain_read(self, size: int, offset: int) -> bytes:
        """What stands there, at most up to the end."""
        end = self.xFileSize()
        return self.xRead(max(0, min(size, end - offset)), offset) if offset < end else b""


class FaultVFS(apsw.VFS):
    """The default file system while it is installed.

    Args:
        fault: called with each event and the file's name before it happens; raises what the disk would say.
    """

    def __init__(self, fault: Callable[[Event, str], None] | None = None) -> None:
        self.fault = fault
        self.events = 0
        self.unsynced: dict[str, list[tuple[int, bytes, int, int]]] = {}
        """By file: offset, what stood there, the size of the write and of the file before it; since the last sync."""
        self.base = apsw.vfs_names()[0]  # the default comes first
        self._death: Death | None = None
        self._leave: Callable[[], None] | None = None
        self.vfs_name = f"faults-{id(self)}"
        super().__init__(self.vfs_name, self.base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> FaultFile:  # noqa: N802
        self.meets("open", name.filename() if isinstance(name, apsw.URIFilename) else name or "")
        return FaultFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.meets("delete", filename)
        super().xDelete(filename, syncdir)
        self.unsynced.pop(filename, None)
        self.note_event("delete", filename)

    # -- errors ------------------------------------------------------------

    def meets(self, event: Event, name: str) -> None:
        """An event is about to happen."""
        if self.fault is not None:
            self.fault(event, name)

    # -- death -------------------------------------------------------------

    def deaths(self, death: Death, database: Path, left: Callable[[int], Path]) -> None:
        """Leave behind each event from now on, beside what goes on, what there would be had it been the last one.

        Args:
            death: `kill`: as by kill -9, the system keeps what was written. The others are a power cut: what was not
                synced is lost (`drop`), half of the last write is there (`tear`), or some writes are, in no order (`shuffle`).
            database: what is looked at, with the files beside it.
            left: given the number of an event, 1 for the next one: where what is left of the database is to be.
        """
        self.events, self._death, self._leave = 0, death, partial(self._die, database, left)

    def note_write(self, file: FaultFile, size: int, offset: int) -> None:
        """Remember what a write is about to cover."""
        if self._death not in (None, "kill"):
            before = (offset, file.plain_read(size, offset), size, file.xFileSize())
            self.unsynced.setdefault(file.name, []).append(before)

    def note_sync(self, name: str) -> None:
        """A file is on the disk as it is."""
        self.unsynced.pop(name, None)

    def note_event(self, event: Event, name: str) -> None:
        """An event has happened."""
        if event in ("write", "sync", "truncate", "delete"):
            self.events += 1
            if self._leave is not None:
                self._leave()

    def _die(self, database: Path, left: Callable[[int], Path]) -> None:
        """Copy the database's files, and take from the copies what this death would take."""
        copy, chance = left(self.events), random.Random(self.events)

        def place(name: str) -> Path:
            return copy.with_name(copy.name + Path(name).name.removeprefix(database.name))

        for file in database.parent.glob(f"{database.name}*"):
            shutil.copy(file, place(file.name))
        for name, writes in self.unsynced.items():
            self._lose(place(name), writes, chance)

    def _lose(self, file: Path, writes: list[tuple[int, bytes, int, int]], chance: random.Random) -> None:
        with file.open("r+b") as copy:
            descriptor = copy.fileno()
            for at, (offset, before, size, end) in reversed(list(enumerate(writes))):
                last = at == len(writes) - 1
                kept = {"drop": 0, "tear": size // 2 if last else size, "shuffle": chance.choice((0, size))}.get(
                    str(self._death), 0
                )
                if kept < size:
                    os.pwrite(descriptor, before[kept:] or b"", offset + kept)
                    if self._death == "drop" or (last and offset + size >= os.fstat(descriptor).st_size):
                        os.ftruncate(descriptor, max(end, offset + kept))


@contextmanager
def faulty(fault: Callable[[Event, str], None] | None = None) -> Iterator[FaultVFS]:
    """SQLite on a `FaultVFS`, for databases that are opened meanwhile; the test's own default afterwards."""
    usual = apsw.vfs_names()[0]
    vfs = FaultVFS(fault)
    try:
        yield vfs
    finally:
        apsw.set_default_vfs(usual)
        vfs.unregister()
