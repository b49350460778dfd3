"""Modules can be imported on systems that lack POSIX, such as Windows, and without warnings of newer Python releases."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

SOURCES = sorted(Path(holdfast.__file__).parent.rglob("*.py"))
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


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: "/".join(file.parts[-2:]))
def test_no_statement_leaves_a_finally_block(file: Path) -> None:
    """Python 3.14 warns about `return`, `break` and `continue` that leave a `finally` block (PEP 765)."""
    tries = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Try))
    leaving = [node.lineno for one in tries for statement in one.finalbody for node in find_jumps(statement)]
    assert leaving == []


def find_jumps(node: ast.AST, *, looping: bool = False) -> Iterator[ast.stmt]:
    """Yield the statements below a node of a `finally` block that leave the block."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    if isinstance(node, ast.Return) or (isinstance(node, ast.Break | ast.Continue) and not looping):
        yield node
    inside = looping or isinstance(node, ast.For | ast.AsyncFor | ast.While)
    for child in ast.iter_child_nodes(node):
        yield from find_jumps(child, looping=inside)
