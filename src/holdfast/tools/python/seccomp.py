"""Which system calls the Python of a session has: a seccomp filter, as the bytes of its program. Nothing is done here.

It runs in another Python, 3.9 or later, which has no Holdfast: the standard library only.
"""

from __future__ import annotations

import errno
import os
import struct

_AF_UNIX = 1
_SOCK_STREAM = 1
_CLONE_THREAD = 0x10000 | 0x400
"""A thread that shares the open files: what one keeps for itself nobody could count."""
_CLOSE_RANGE_UNSHARE = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_RET_ALLOW = 0x7FFF0000
RET_KILL = 0x80000000
_RET_ERRNO = 0x00050000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEWEST_CALL = 451
"""The last system call that this file knows of; newer ones are not there for what runs here. They are the same everywhere."""

DENIED: dict[str, tuple[int, int]] = {
    # Other processes: to make them, to become them, to look into them.
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
    # Network, and sockets of this machine.
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendmsg": (46, 211),  # hands over open files, which are nowhere on their way
    "sendmmsg": (307, 269),
    # Memory and queues that outlive a process, or are shared with others of the same user.
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
    # Files, by ways that Landlock does not watch.
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    # Where holes in kernels have been.
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
    # The system's own affairs.
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
"""Refused with EPERM: a system call's number on x86_64 and on aarch64; -1: it has none there."""
UNKNOWN: dict[str, tuple[int, int]] = {"clone3": (435, 435), "openat2": (437, 437)}
"""Their arguments are in memory, where a filter cannot look: not there, so that the C library takes their older forms."""
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
"""They succeed and do nothing, as on a file system without rights: Landlock does not watch them, so they would reach every
file of the server's user; and copying a file wants no more than that they do not fail. The last two reach every file there is."""
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
"""The same, where code knows that a file system may lack them."""
OWN_SIGNALS = {"kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)}
"""Allowed to this process itself."""
CLONE, SOCKETPAIR, PRLIMIT, FCNTL, IOCTL = (56, 220), (53, 199), (302, 261), (72, 25), (16, 29)
_OPEN, OPENAT, PRCTL, AFFINITY, _TRUNCATE = (2, -1), (257, 56), (157, 167), (203, 122), (76, 45)
_CLOSE_RANGE = 436
_FCNTL_DENIED = (8, 10, 15, 1024)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: signals to whom one likes. F_SETLEASE: makes others wait for a file."""
_IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FICLONE. Landlock does not watch the others: some change the
attributes of a file that is open for reading only, one seals it for good."""
_TRUNC = os.O_TRUNC
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR

_LOAD, _EQUAL, _ABOVE, _RETURN, _AND = 0x20, 0x15, 0x25, 0x06, 0x54
"""Instructions of a filter: load a word, jump if equal, greater; return; and."""
_EPERM, _ENOSYS, _OK, _EOPNOTSUPP = (_RET_ERRNO | code for code in (errno.EPERM, errno.ENOSYS, 0, errno.EOPNOTSUPP))

Instruction = tuple[int, int, int, int]
"""What to do, how far to jump if so, and if not, and with which value."""


def _argument(at: int) -> Instruction:
    """Load the low half of an argument."""
    return (_LOAD, 0, 0, 16 + 8 * at)


def _answer(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _only(at: int, value: int) -> list[Instruction]:
    """Allowed if an argument is this."""
    return [_argument(at), (_EQUAL, 0, 1, value), _answer(_RET_ALLOW), _answer(_EPERM)]


def _none_of(at: int, values: tuple[int, ...]) -> list[Instruction]:
    """Refused if an argument is one of these."""
    checks = [step for value in values for step in ((_EQUAL, 0, 1, value), _answer(_EPERM))]
    return [_argument(at), *checks, _answer(_RET_ALLOW)]


def _one_of(at: int, values: tuple[int, ...]) -> list[Instruction]:
    """Refused if an argument is none of these."""
    checks = [step for value in values for step in ((_EQUAL, 0, 1, value), _answer(_RET_ALLOW))]
    return [_argument(at), *checks, _answer(_EPERM)]


def _no_hidden_truncation(at: int) -> list[Instruction]:
    """Refused: to empty a file by opening it for reading, which Landlock did not watch at first."""
    masked = (_AND, 0, 0, _TRUNC | _ACCESS)
    return [_argument(at), masked, (_EQUAL, 0, 1, _TRUNC), _answer(_EPERM), _answer(_RET_ALLOW)]


def _rules(here: int, landlock: int) -> dict[int, list[Instruction]]:
    """What is done about which system call.

    Args:
        here: 0 on x86_64, 1 on aarch64.
        landlock: its version; before the third it did not watch how files are made shorter.
    """
    rules: dict[int, list[Instruction]] = {}
    for group, code in ((DENIED, _EPERM), (UNKNOWN, _ENOSYS), (NOTHING, _OK), (UNSUPPORTED, _EOPNOTSUPP)):
        rules.update({numbers[here]: [_answer(code)] for numbers in group.values()})
    rules.update({numbers[here]: _only(0, os.getpid()) for numbers in OWN_SIGNALS.values()})
    thread = (_AND, 0, 0, _CLONE_THREAD), (_EQUAL, 0, 1, _CLONE_THREAD)
    rules[CLONE[here]] = [_argument(0), *thread, _answer(_RET_ALLOW), _answer(_EPERM)]
    shares = (_AND, 0, 0, _CLOSE_RANGE_UNSHARE), (_EQUAL, 0, 1, 0)
    rules[_CLOSE_RANGE] = [_argument(2), *shares, _answer(_RET_ALLOW), _answer(_EPERM)]
    rules[SOCKETPAIR[here]] = [
        *(_argument(0), (_EQUAL, 1, 0, _AF_UNIX), _answer(_EPERM)),
        *(_argument(1), (_AND, 0, 0, 0xF), (_EQUAL, 1, 0, _SOCK_STREAM), _answer(_EPERM), _answer(_RET_ALLOW)),
    ]
    rules[PRLIMIT[here]] = [  # to read limits, not to set them: the pointer to new ones is null
        *(_argument(2), (_EQUAL, 1, 0, 0), _answer(_EPERM)),
        *((_LOAD, 0, 0, 16 + 8 * 2 + 4), (_EQUAL, 1, 0, 0), _answer(_EPERM), _answer(_RET_ALLOW)),
    ]
    rules[AFFINITY[here]] = _only(0, 0)
    rules[FCNTL[here]] = _none_of(1, _FCNTL_DENIED)
    rules[IOCTL[here]] = _one_of(1, _IOCTL_ALLOWED)
    rules[PRCTL[here]] = _none_of(0, (_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE))
    if landlock < 3:
        rules[_TRUNCATE[here]] = [_answer(_EPERM)]
    rules[_OPEN[here]], rules[OPENAT[here]] = _no_hidden_truncation(1), _no_hidden_truncation(2)
    rules.pop(-1, None)
    return rules


def program(machine: str, landlock: int) -> bytes:
    """The filter: whatever it does not name is allowed, if it is known at all.

    Args:
        machine: `x86_64` or `aarch64`.
        landlock: its version; before the third it did not watch how files are made shorter.
    """
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), _answer(RET_KILL), (_LOAD, 0, 0, 0)]
    steps += [(_ABOVE, 0, 1, _NEWEST_CALL), _answer(_ENOSYS)]
    for number, then in sorted(_rules(0 if machine == "x86_64" else 1, landlock).items()):
        steps += [(_EQUAL, 0, len(then), number), *then]
    return b"".join(struct.pack("HBBI", *step) for step in [*steps, _answer(_RET_ALLOW)])
