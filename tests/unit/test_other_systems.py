"""Modules can be imported on systems that lack POSIX, such as Windows."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, os, pkgutil, signal, socket, sys
import holdfast

walked = pkgutil.walk_packages(holdfast.__path__, "holdfast.", onerror=lambda name: None)
names = [found.name for found in walked if not found.name.endswith("__main__")]
importable = []
for name in names:
    try:
        importlib.import_module(name)
    except ImportError:  # the framework of an adapter is missing
        continue
    importable.append(name)

# Other packages stay loaded; only Holdfast is imported again, on a system without POSIX.
for name in [name for name in sys.modules if name.partition(".")[0] == "holdfast"]:
    del sys.modules[name]
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "readline", "curses", "uvloop"):
    sys.modules[name] = None
OS = (
    "chown fchmod fchown fork geteuid getgid getloadavg getpgid getuid killpg memfd_create mkfifo nice O_CLOEXEC O_DIRECTORY "
    "O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC posix_fadvise pread pwrite register_at_fork sched_getaffinity sendfile setsid "
    "statvfs sysconf uname wait4 waitid WNOHANG"
)
SIGNALS = "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH SIGXCPU alarm setitimer"
for module, missing in ((os, OS), (signal, SIGNALS), (socket, "AF_UNIX")):
    for name in missing.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"
for name in importable:
    importlib.import_module(name)
print(len(importable))
"""


@pytest.mark.slow
def test_all_modules_are_importable_without_posix() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 500
