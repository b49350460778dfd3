"""Detect if the process that holds a lease, or the lock of a session's turn, is still running on this host.

Each process locks one byte of a file in shared memory, at an offset that is part of its holder names. The kernel
releases the lock when the process ends, whatever the reason. So an unlocked byte proves that the process is gone.

A holder name also identifies the file, by the kernel's boot id, the device and the inode. A live holder keeps its file open,
so no other file can have the same identity.

A process that does not have exactly this file open cannot tell, and relies on the holder's heartbeat. This is the case on
another host, in a container with its own `/dev/shm`, for another user, after the file was removed, and on a system without
open-file-description locks. "Cannot tell" is the safe answer: a wrong "it is dead" would let two turns of a session run at
once.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import struct
import threading
import uuid
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own in it, which is checked
"""A file system that is always local to this kernel. Network file systems do not work: they can lose a lock while its holder lives."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_FLOCK: Final = struct.Struct("hhqqi0q")
"""C's `struct flock` with 64-bit offsets. Its fields are type, whence, start, length and pid."""
_SLOT_BITS: Final = 60
_NAME: Final = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{15})\.")


class ProcessLock:
    """A lock on one byte that belongs to this process; it can also check the bytes of other processes.

    Attributes:
        place: identifies the file, 16 hexadecimal digits.
        slot: offset of the locked byte.

    Args:
        folder: folder of the file, created if missing. Only this user may have access to it.

    Raises:
        OSError: the folder is not private, or such locks do not work here.
    """

    def __init__(self, folder: Path) -> None:
        boot = _BOOT_ID.read_text("ascii").strip()
        _make_private_folder(folder)
        path, flags = folder / "processes", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        # A lock is not visible through the descriptor that holds it, so a second descriptor is used for queries.
        self._holding = os.open(path, flags, 0o600)
        self._looking = -1
        try:
            self._looking = os.open(path, flags, 0o600)
            self.place = self._identify(boot)
            self.slot = secrets.randbits(_SLOT_BITS)
            self._take()
        except BaseException:
            self.close()
            raise

    def _identify(self, boot: str) -> str:
        held, seen = os.fstat(self._holding), os.fstat(self._looking)
        if (held.st_dev, held.st_ino) != (seen.st_dev, seen.st_ino):
            raise OSError("the file was replaced while it was opened")
        return hashlib.sha256(f"{boot}:{held.st_dev}:{held.st_ino}".encode()).hexdigest()[:16]

    def _take(self) -> None:
        fcntl.fcntl(self._holding, fcntl.F_OFD_SETLK, _pack_flock(fcntl.F_WRLCK, self.slot))
        if not self.is_locked(self.slot) or self.is_locked(self.slot ^ 1):
            raise OSError("locks do not work on this file system")

    def is_locked(self, slot: int) -> bool:
        """Return True if a process has locked the byte at offset `slot`. Raises `OSError` if the system refuses the query."""
        found = fcntl.fcntl(self._looking, fcntl.F_OFD_GETLK, _pack_flock(fcntl.F_WRLCK, slot))
        kind: int = _FLOCK.unpack(found)[0]
        return kind != fcntl.F_UNLCK

    def close(self) -> None:
        """Release the lock. In a forked child, the lock stays with the parent, because the parent has the file open too."""
        for descriptor in (self._holding, self._looking):
            if descriptor >= 0:
                os.close(descriptor)
        self._holding = self._looking = -1


def _pack_flock(kind: int, slot: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, slot, 1, 0)


def _make_private_folder(folder: Path) -> None:
    """Create the folder, or raise `OSError` if it exists and is not private: anyone may create files in its parent folder."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise OSError(f"{folder} is not a private folder of this user") from None


_guard = threading.Lock()
_opened = False
_lock: ProcessLock | None = None


def _own_lock() -> ProcessLock | None:
    """Return this process's lock, or None if locks are not supported here. The first call takes the lock."""
    global _opened, _lock  # noqa: PLW0603 - one for the process
    with _guard:
        if not _opened:
            _opened = True
            try:
                if hasattr(fcntl, "F_OFD_SETLK") and SHARED_MEMORY.is_dir():
                    _lock = ProcessLock(SHARED_MEMORY / f"holdfast-{os.geteuid()}")
            except (OSError, ValueError):
                _lock = None
        return _lock


def _forget_lock() -> None:
    """Close the parent's lock object in a forked child. The child takes its own lock when it first needs one."""
    global _guard, _opened, _lock  # noqa: PLW0603
    _guard = threading.Lock()  # a thread of the parent may have had it
    inherited, _opened, _lock = _lock, False, None
    if inherited is not None:
        inherited.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def make_holder() -> str:
    """Return a unique name that identifies a holder of leases and claims. Callers may append to it."""
    lock, unique = _own_lock(), uuid.uuid4().hex
    return unique if lock is None else f"{lock.place}.{lock.slot:015x}.{unique}"


def is_dead(holder: str) -> bool:
    """Return True if the process that made this holder name has certainly ended, and False if it runs or cannot be checked.

    Args:
        holder: a name from `make_holder` of any process; it may have something appended.
    """
    return _is_running(holder) is False


def is_alive(holder: str) -> bool:
    """Return True if the process that made this holder name is certainly running and is not this process."""
    return _is_running(holder) is True and not _is_own(holder)


def _is_running(holder: str) -> bool | None:
    """Return True if the process that made this holder name runs on this host, False if it does not, None if that is unknown."""
    named = _NAME.match(holder)
    lock = None if named is None else _own_lock()
    if named is None or lock is None or named[1] != lock.place:
        return None
    try:
        return lock.is_locked(int(named[2], 16))
    except OSError:
        return None


def _is_own(holder: str) -> bool:
    named, lock = _NAME.match(holder), _own_lock()
    return named is not None and lock is not None and int(named[2], 16) == lock.slot
