"""Run tasks in forked child processes with time limits, so that a fault cannot break or block the main process."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")
MEMORY: Final = 4 * 2**30
"""Bytes of address space of a child: some faults allocate without end."""
POLL: Final = 0.01
"""Seconds between two checks of the children."""


class Task(NamedTuple, Generic[T]):
    """A task for a child process."""

    about: T
    run: Callable[[], Any]
    """The function to run; its result must be JSON-serializable."""
    seconds: float
    """Time limit."""


class TaskResult(NamedTuple, Generic[T]):
    """Result of a task."""

    about: T
    result: Any
    """None if the child ended without a result."""
    late: bool


class _Child(NamedTuple, Generic[T]):
    task: Task[T]
    folder: Path
    until: float


def run_in_children(tasks: Iterator[Task[T]], jobs: int) -> Iterator[TaskResult[T]]:
    """Run each task in its own child process, `jobs` at a time; yield results as the children end."""
    children: dict[int, _Child[T]] = {}
    try:
        while True:
            while len(children) < jobs and (task := next(tasks, None)) is not None:
                folder = Path(tempfile.mkdtemp(prefix="mutants-"))
                children[_fork(task, folder)] = _Child(task, folder, time.monotonic() + task.seconds)
            if not children:
                return
            time.sleep(POLL)
            for pid in list(children):
                if result := _check_child(pid, children[pid]):
                    shutil.rmtree(children.pop(pid).folder, ignore_errors=True)
                    yield result
    finally:
        for pid, child in children.items():
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            shutil.rmtree(child.folder, ignore_errors=True)


def _check_child(pid: int, child: _Child[T]) -> TaskResult[T] | None:
    ended_pid, _ = os.waitpid(pid, os.WNOHANG)
    late = not ended_pid and time.monotonic() > child.until
    if not ended_pid and not late:
        return None
    if late:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    path = child.folder / "result"
    result = json.loads(path.read_bytes()) if path.exists() else None
    return TaskResult(child.task.about, result, late and result is None)


def _fork(task: Task[T], folder: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        os.setpgid(pid, pid)
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(folder)
        result = task.run()
        (folder / "partial").write_text(json.dumps(result), encoding="utf-8")
        (folder / "partial").rename(folder / "result")
        code = 0
    finally:
        os._exit(code)
