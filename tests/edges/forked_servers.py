"""Start servers as copies of one process that has imported them already: importing takes longer than most tests do.

A copy runs the same code as `python -m holdfast serve` in a process of its own, which can be signalled and killed.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TextIO

_LENGTH = 1 << 16
"""Bytes that are read of a request at a time."""


class Copy:
    """A running copy, used as a `subprocess.Popen` is."""

    def __init__(self, stdout: int, stderr: int, status: int) -> None:
        self.stdout: TextIO = os.fdopen(stdout)
        self.stderr: TextIO = os.fdopen(stderr)
        self._status: TextIO = os.fdopen(status)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Return its exit code, or minus the number of the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: it is still running.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


class Template:
    """The process that is copied. It ends when this one does."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL
            )

    def copy(self, program: Sequence[str], env: Mapping[str, str]) -> Copy:
        """Run a program in a copy: `-m` and a module, or a file, and its arguments."""
        pipes = [os.pipe() for _ in range(3)]
        request = json.dumps({"program": list(program), "env": dict(env), "folder": str(Path.cwd())}) + "\n"
        socket.send_fds(self._socket, [request.encode()], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        return Copy(*(read for read, _ in pipes))

    def close(self) -> None:
        """End it; copies of it run on."""
        self._socket.close()
        self._process.wait(60)


_one_at_a_time = threading.Lock()


@cache
def _template() -> Template:
    return Template()


def template() -> Template:
    """Return the template of this process, which is started on first use; tests may start servers in several threads at once."""
    with _one_at_a_time:
        return _template()


def leave() -> None:
    """End the template, if there is one."""
    if _template.cache_info().currsize:
        _template().close()
        _template.cache_clear()


def _receive(requests: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next request, a line, and the descriptors that came with it; an empty one at the end."""
    text, pipes = b"", list[int]()
    while not text.endswith(b"\n"):
        part, descriptors, _, _ = socket.recv_fds(requests, _LENGTH, 3)
        if not part:
            return b"", []
        text += part
        pipes += descriptors
    return text, pipes


def _become_copy(requests: socket.socket) -> list[str] | None:
    """Serve requests; return the program to run in each copy, and None in the template when there are no more requests."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the template waits for no process; one between it and a copy does
    while True:
        text, pipes = _receive(requests)
        if not text:
            return None
        if os.fork() == 0:
            break
        for pipe in pipes:
            os.close(pipe)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    copy = os.fork()
    if copy:
        _report(copy, pipes)
    asked = json.loads(text)
    for number, pipe in zip((1, 2), pipes, strict=False):
        os.dup2(pipe, number)
    for pipe in pipes:
        os.close(pipe)
    # The template's own were opened on other kinds of files.
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", 1, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["folder"])
    sys.path[0] = asked["folder"]
    program: list[str] = asked["program"]
    return program


def _report(copy: int, pipes: list[int]) -> None:
    """Write a copy's number, and later how it ended, to the third pipe; never return."""
    for pipe in (*pipes[:2], 0, 1, 2):
        os.close(pipe)
    os.write(pipes[2], f"{copy}\n".encode())
    _, status = os.waitpid(copy, 0)
    with suppress(BrokenPipeError):  # no test waits for it any more
        os.write(pipes[2], f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run(program: list[str]) -> None:
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")


def _prepare() -> None:
    """Load what every server loads when it starts, whatever its settings."""
    import holdfast.cli
    import holdfast.server.run
    import holdfast.stores.sqlite  # noqa: F401
    from holdfast.config.loader import load_settings
    from holdfast.tokens import load_vocabularies

    load_settings({}, {})
    load_vocabularies()


if __name__ == "__main__":
    _prepare()
    asked_for = _become_copy(socket.socket(fileno=int(sys.argv[1])))
    if asked_for is not None:
        _run(asked_for)
