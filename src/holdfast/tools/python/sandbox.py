"""Restrict a session's Python process. The process applies the restrictions to itself before it runs any code, and cannot undo them.

- Landlock restricts files. The work folder is writable, Python and the system's libraries are readable, and nothing else can be opened.
- A filter of system calls (`seccomp`, next to this file) blocks the network, other processes, and rarely used parts of the kernel.
- Resource limits restrict memory, files and CPU time.

A process of root keeps its user id but loses its privileges.

This file uses only the standard library. Its interpreter may be another Python, 3.9 or later, in which Holdfast is not installed.
"""

# pathlib is slow to import, which would add to each start.
# ruff: noqa: PTH112, PTH118, PTH120, PTH123

from __future__ import annotations

import ctypes
import errno
import os
import site
import struct
import sys
from typing import Any

if __package__:
    from holdfast.tools.python import seccomp
else:  # in the session's Python
    import seccomp  # type: ignore[import-not-found, no-redef]

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_CAPABILITY_VERSION_3 = 0x20080522
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SECCOMP_GET_ACTION_AVAIL = 2

_READ = 1 << 2 | 1 << 3
"""Landlock rights to read files and list folders."""
_READ_FILE = 1 << 2
_WRITE_FILE = 1 << 1
_MAKE_CHAR, _MAKE_SOCKET, _MAKE_FIFO, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 10, 1 << 11
_FILE_RIGHTS = 1 | _READ_FILE | _WRITE_FILE | 1 << 14 | 1 << 15
_SYSTEM = (
    *("/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/libexec"),
    *(
        "/usr/share",
        "/usr/include",
        "/usr/local/lib",
        "/usr/local/lib64",
        "/usr/local/share",
        "/nix/store",
        "/gnu/store",
    ),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/fonts"),
    *("/etc/mime.types", "/etc/matplotlibrc", "/sys/devices/system/cpu", "/proc/cpuinfo", "/proc/meminfo"),
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
)
"""Readable paths of the system. Not all of /usr is readable, because some people install their server there."""
_WRITABLE = ("/dev/null", "/dev/zero", "/dev/full")
_OPEN_FILES = 256
_STACK = 8 << 20


# -- detecting ---------------------------------------------------------------------


def probe() -> dict[str, Any]:
    """Return the restrictions that this system supports.

    Returns:
        An object with three values. `landlock` is the version of Landlock, or 0 without it. `seccomp` is True if filters of system calls are
        available and this file knows the processor. `limits` is True if there are resource limits.
    """
    return {"landlock": _get_landlock_version(), "seccomp": _has_seccomp(), "limits": os.name == "posix"}


def _load_libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *arguments: Any) -> int:
    """Make a system call by number and return its result. Raise `OSError` if the call fails."""
    passed = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(_load_libc().syscall(ctypes.c_long(number), *passed))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _get_landlock_version() -> int:
    if not sys.platform.startswith("linux") or os.uname().machine not in _SECCOMP:
        return 0
    try:
        return _syscall(444, None, 0, 1)
    except OSError:  # the kernel lacks Landlock, or it is not enabled
        return 0


def _has_seccomp() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    number = _SECCOMP.get(os.uname().machine)
    if number is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    try:
        _syscall(number, _SECCOMP_GET_ACTION_AVAIL, 0, ctypes.byref(ctypes.c_uint32(seccomp.RET_KILL)))
    except OSError:
        return False
    return True


# -- applying ----------------------------------------------------------------------


def confine(folder: str, limits: dict[str, int], parent: int) -> dict[str, Any]:
    """Restrict this process permanently. It must have only one thread when this is called.

    Args:
        folder: the only writable folder.
        limits: the limits `memory` and `max_file`, in bytes.
        parent: id of the parent process. When the parent ends, this process is killed.

    Returns:
        The restrictions that apply, in the form that `probe` returns.

    Raises:
        OSError: a supported restriction could not be applied.
    """
    found = probe()
    if sys.platform.startswith("linux"):
        os.nice(5)
        try:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write("1000")
        except OSError:
            pass
        _prctl(_PR_SET_PDEATHSIG, 9)
        if os.getppid() != parent:  # the parent died before the signal was set up
            os._exit(1)
        _drop_capabilities()
    if found["limits"]:
        _set_limits(limits)
    if found["landlock"]:
        _apply_landlock(folder, found["landlock"])
    if found["seccomp"]:
        machine = os.uname().machine
        steps = seccomp.build_filter(machine, found["landlock"])
        kept = ctypes.create_string_buffer(steps, len(steps))
        program = struct.pack("HxxxxxxQ", len(steps) // 8, ctypes.addressof(kept))
        _syscall(_SECCOMP[machine], 1, 1, program)
    return found


def _prctl(*arguments: int) -> None:
    filled = [ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0, 0)[1:5]]
    if _load_libc().prctl(ctypes.c_int(arguments[0]), *filled) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _drop_capabilities() -> None:
    """Drop all capabilities of this process, and prevent it from gaining new ones."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(64):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError:  # this process has no capabilities to drop, or the number is above the last capability
            break
    try:
        _prctl(_PR_CAP_AMBIENT, 4)
    except OSError:  # old kernels have no ambient capabilities
        pass
    header, none = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    if _load_libc().capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _set_limits(limits: dict[str, int]) -> None:
    import resource  # not available on Windows

    wanted = {
        "RLIMIT_AS": limits["memory"],
        "RLIMIT_FSIZE": limits["max_file"],
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_STACK": _STACK,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    for name, asked in wanted.items():
        number = getattr(resource, name, None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        most = asked if hard == resource.RLIM_INFINITY else min(asked, hard)
        try:
            resource.setrlimit(number, (most, most))
        except (ValueError, OSError):
            if sys.platform.startswith("linux"):  # other systems lack some of them
                raise


# -- files -------------------------------------------------------------------------


def _apply_landlock(folder: str, version: int) -> None:
    rights = (1 << 13) - 1
    for since, right in ((2, 1 << 13), (3, 1 << 14), (5, 1 << 15)):
        rights |= right if version >= since else 0
    words = [
        rights,
        3,
        3,
    ]  # the last two: no TCP connections; abstract sockets and signals only among this process and its children
    attributes = struct.pack("3Q", *words)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _syscall(444, attributes, len(attributes), 0)
    try:
        prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
        inner = ("lib", "lib64", "share/zoneinfo", "pyvenv.cfg")
        own = [os.path.join(prefix, name) for prefix in prefixes for name in inner]
        for path in [*_SYSTEM, *own, os.path.dirname(os.__file__), *site.getsitepackages()]:
            writing = _WRITE_FILE | 1 << 14 if path in _WRITABLE else 0
            _allow(ruleset, path, (_READ | writing) & rights)
        nothing_special = ~(1 | _MAKE_CHAR | _MAKE_SOCKET | _MAKE_FIFO | _MAKE_BLOCK)
        if not _allow(ruleset, folder, rights & nothing_special):
            raise OSError(errno.ENOENT, "no work folder", folder)
        _syscall(446, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> bool:
    """Grant Landlock rights for a file or folder. Return False if it cannot be opened."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        _syscall(445, ruleset, 1, struct.pack("=Qi", rights, opened), 0)
    finally:
        os.close(opened)
    return True


# -- system calls ----------------------------------------------------------------------
