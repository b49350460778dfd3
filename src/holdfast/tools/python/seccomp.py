"""Build the seccomp filter that decides which system calls a session's Python may make. The module `sandbox` applies it.

This file uses only the standard library. Its interpreter may be another Python, 3.9 or later, in which Holdfast is not installed.
"""

from __future__ import annotations

import errno
import os
import struct

_AF_UNIX = 1
_SOCK_STREAM = 1
_CLONE_THREAD = 0x10000 | 0x400
"""Flags for a new thread that shares open files with its process. Other threads are rejected, because their open files could not be counted."""
_CLOSE_RANGE_UNSHARE = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_RET_ALLOW = 0x7FFF0000
RET_KILL = 0x80000000
_RET_ERRNO = 0x00050000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEWEST_CALL = 451
"""Number of the newest system call that this file knows. Newer calls, whose numbers are the same on all processors, are reported as missing."""

DENIED: dict[str, tuple[int, int]] = {
    # Other processes: creating, replacing and inspecting them.
    "fork": (57, -1),
    "vfork": (58, -1),
    "execve": (59, 221),
    "execveat": (322, 281),
    "tkill": (200, 130),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "setrlimit": (160, 164),
    "setpriority": (141, 140),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # Network, and local sockets.
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendmsg": (46, 211),  # passes open files, which cannot be counted in transit
    "sendmmsg": (307, 269),
    # Memory and queues that outlive a process or are shared with other processes of the same user.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # Files, by ways that Landlock does not restrict.
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    # Parts of the kernel with a history of vulnerabilities.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "modify_ldt": (154, -1),
    "personality": (135, 92),
    # System administration.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "lookup_dcookie": (212, 18),
    "uselib": (134, -1),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "vhangup": (153, 58),
}
"""System calls that are rejected with EPERM, each with its numbers on x86_64 and on aarch64. -1: the call does not exist there."""
UNKNOWN: dict[str, tuple[int, int]] = {"clone3": (435, 435), "openat2": (437, 437)}
"""System calls that are reported as missing, because a filter cannot read their arguments, which are in memory. The C library uses older calls
instead."""
NOTHING: dict[str, tuple[int, int]] = {
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, -1),
    "lchown": (94, -1),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, -1),
    "utimes": (235, -1),
    "futimesat": (261, -1),
    "utimensat": (280, 88),
    "sync": (162, 81),
    "syncfs": (306, 267),
}
"""System calls that have no effect and report success, as on a file system without permissions.

Landlock does not restrict them. The last two would affect every file on the system, the others every file of the server's user. They report
success because copying a file requires that they do not fail.
"""
UNSUPPORTED: dict[str, tuple[int, int]] = {
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "fgetxattr": (193, 10),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "flistxattr": (196, 13),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
"""System calls that are reported as unsupported. Code can handle that, because some file systems lack them."""
OWN_SIGNALS = {"kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)}
"""System calls that send a signal. They are allowed only if this process is the receiver."""
CLONE, SOCKETPAIR, PRLIMIT, FCNTL, IOCTL = (56, 220), (53, 199), (302, 261), (72, 25), (16, 29)
_OPEN, OPENAT, PRCTL, AFFINITY, _TRUNCATE = (2, -1), (257, 56), (157, 167), (203, 122), (76, 45)
_CLOSE_RANGE = 436
_FCNTL_DENIED = (8, 10, 15, 1024)
"""Commands of `fcntl` that are rejected. F_SETOWN, F_SETSIG and F_SETOWN_EX would send signals to any process. F_SETLEASE would make other
processes wait for a file."""
_IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409)
"""Commands of `ioctl` that are allowed: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX and FICLONE.

All others are rejected, because Landlock does not restrict them. Some of them change the attributes of a file that is open only for reading,
and one seals it permanently.
"""
_TRUNC = os.O_TRUNC
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR

_LOAD, _EQUAL, _ABOVE, _RETURN, _AND = 0x20, 0x15, 0x25, 0x06, 0x54
"""Operations of a filter: load a word, jump if equal, jump if greater, return, bitwise and."""
_EPERM, _ENOSYS, _OK, _EOPNOTSUPP = (_RET_ERRNO | code for code in (errno.EPERM, errno.ENOSYS, 0, errno.EOPNOTSUPP))

Instruction = tuple[int, int, int, int]
"""Operation, number of instructions to skip if true, number of instructions to skip if false, value."""


def _load_argument(at: int) -> Instruction:
    """Return the instruction that loads the low half of the argument with index `at`."""
    return (_LOAD, 0, 0, 16 + 8 * at)


def _return(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _allow_only(at: int, value: int) -> list[Instruction]:
    """Return instructions that allow a call only if the argument with index `at` has this value."""
    return [_load_argument(at), (_EQUAL, 0, 1, value), _return(_RET_ALLOW), _return(_EPERM)]


def _reject_any_of(at: int, values: tuple[int, ...]) -> list[Instruction]:
    """Return instructions that reject a call if the argument with index `at` has one of these values."""
    checks = [step for value in values for step in ((_EQUAL, 0, 1, value), _return(_EPERM))]
    return [_load_argument(at), *checks, _return(_RET_ALLOW)]


def _reject_hidden_truncation(at: int) -> list[Instruction]:
    """Return instructions that reject emptying a file by opening it for reading. Early versions of Landlock do not restrict this.

    The argument with index `at` contains the flags for opening.
    """
    masked = (_AND, 0, 0, _TRUNC | _ACCESS)
    return [_load_argument(at), masked, (_EQUAL, 0, 1, _TRUNC), _return(_EPERM), _return(_RET_ALLOW)]


def _build_rules(here: int, landlock: int) -> dict[int, list[Instruction]]:
    """Return the instructions for each restricted system call, by number of the call.

    Args:
        here: processor: 0 for x86_64, 1 for aarch64.
        landlock: version of Landlock, which restricts truncation only since version 3.
    """
    rules: dict[int, list[Instruction]] = {}
    for group, code in ((DENIED, _EPERM), (UNKNOWN, _ENOSYS), (NOTHING, _OK), (UNSUPPORTED, _EOPNOTSUPP)):
        rules.update({numbers[here]: [_return(code)] for numbers in group.values()})
    rules.update({numbers[here]: _allow_only(0, os.getpid()) for numbers in OWN_SIGNALS.values()})
    thread = (_AND, 0, 0, _CLONE_THREAD), (_EQUAL, 0, 1, _CLONE_THREAD)
    rules[CLONE[here]] = [_load_argument(0), *thread, _return(_RET_ALLOW), _return(_EPERM)]
    shares = (_AND, 0, 0, _CLOSE_RANGE_UNSHARE), (_EQUAL, 0, 1, 0)
    rules[_CLOSE_RANGE] = [_load_argument(2), *shares, _return(_RET_ALLOW), _return(_EPERM)]
    rules[SOCKETPAIR[here]] = [
        *(_load_argument(0), (_EQUAL, 1, 0, _AF_UNIX), _return(_EPERM)),
        *(_load_argument(1), (_AND, 0, 0, 0xF), (_EQUAL, 1, 0, _SOCK_STREAM), _return(_EPERM), _return(_RET_ALLOW)),
    ]
    rules[PRLIMIT[here]] = [  # reading limits is allowed, setting is not: the pointer to new limits must be null
        *(_load_argument(2), (_EQUAL, 1, 0, 0), _return(_EPERM)),
        *((_LOAD, 0, 0, 16 + 8 * 2 + 4), (_EQUAL, 1, 0, 0), _return(_EPERM), _return(_RET_ALLOW)),
    ]
    rules[AFFINITY[here]] = _allow_only(0, 0)
    rules[FCNTL[here]] = _reject_any_of(1, _FCNTL_DENIED)
    checks = [step for value in _IOCTL_ALLOWED for step in ((_EQUAL, 0, 1, value), _return(_RET_ALLOW))]
    rules[IOCTL[here]] = [_load_argument(1), *checks, _return(_EPERM)]
    rules[PRCTL[here]] = _reject_any_of(0, (_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE))
    if landlock < 3:
        rules[_TRUNCATE[here]] = [_return(_EPERM)]
    rules[_OPEN[here]], rules[OPENAT[here]] = _reject_hidden_truncation(1), _reject_hidden_truncation(2)
    rules.pop(-1, None)
    return rules


def build_filter(machine: str, landlock: int) -> bytes:
    """Return the filter as bytes. It allows all system calls up to `_NEWEST_CALL` for which there is no rule.

    Args:
        machine: processor: `x86_64` or `aarch64`.
        landlock: version of Landlock, which restricts truncation only since version 3.
    """
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), _return(RET_KILL), (_LOAD, 0, 0, 0)]
    steps += [(_ABOVE, 0, 1, _NEWEST_CALL), _return(_ENOSYS)]
    for number, then in sorted(_build_rules(0 if machine == "x86_64" else 1, landlock).items()):
        steps += [(_EQUAL, 0, len(then), number), *then]
    return b"".join(struct.pack("HBBI", *step) for step in [*steps, _return(_RET_ALLOW)])
