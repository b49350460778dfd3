"""Work in forked children, some at a time, each with an end: what a fault breaks, or never lets end, stays in there."""

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
"""Bytes of addresses that a child may have: some faults never stop to collect."""
POLL: Final = 0.01
"""Seconds between two looks at the children."""


class Task(NamedTuple, Generic[T]):
    """Something to be done in a child."""

    about: T
    run: Callable[[], Any]
    """What it returns is told as JSON."""
    seconds: float
    """When it is given up."""


class Done(NamedTuple, Generic[T]):
    """What came of it."""

    about: T
    result: Any
    """None where the child ended without a word."""
    late: bool


class _Child(NamedTuple, Generic[T]):
    task: Task[T]
    folder: Path
    until: float


def in_children(tasks: Iterator[Task[T]], jobs: int) -> Iterator[Done[T]]:
    """Each task in a child of its own, `jobs` at once, in the order in which they end; the next is taken when there is room for it."""
    children: dict[int, _Child[T]] = {}
    try:
        while True:
            while len(children) < jobs and (task := next(tasks, None)) is not None:
                folder = Path(tempfile.mkdtemp(prefix="mutants-"))
                children[_forked(task, folder)] = _Child(task, folder, time.monotonic() + task.seconds)
            if not children:
                return
            time.sleep(POLL)
            for pid in list(children):
                if done := _ended(pid, children[pid]):
                    shutil.rmtree(children.pop(pid).folder, ignore_errors=True)
                    yield done
    finally:
        for pid, child in children.items():
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            shutil.rmtree(child.folder, ignore_errors=True)


def _ended(pid: int, child: _Child[T]) -> Done[T] | None:
    gone, _ = os.waitpid(pid, os.WNOHANG)
    late = not gone and time.monotonic() > child.until
    if not gone and not late:
        return None
    if late:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    told = child.folder / "result"
    result = json.loads(told.read_bytes()) if told.exists() else None
    return Done(child.task.about, result, late and result is None)


def _forked(task: Task[T], folder: Path) -> int:
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
        (folder / "told").write_text(json.dumps(result), encoding="utf-8")
        (folder / "told").rename(folder / "result")
        code = 0
    finally:
        os._exit(code)
