"""Python processes for tests, each in a folder of its own and ended with the test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.tools.python.process import ProcessLimits, PythonProcess, detect_sandbox

MISSING = detect_sandbox().missing
sandboxed = pytest.mark.skipif(bool(MISSING), reason=f"nothing holds a process in here: {'; '.join(MISSING)}")
"""Only where the system can hold a process in; the reason says what was not run."""
Start = Callable[..., PythonProcess]


@pytest.fixture(name="start")
async def _start(tmp_path: Path) -> AsyncIterator[Start]:
    """Return a function that starts processes: `start()`, `start("other", timeout=1.0)`."""
    made: list[PythonProcess] = []

    def start(name: str = "work", /, *, interpreter: str | None = None, **limits: Any) -> PythonProcess:
        chosen = ProcessLimits(**{"timeout": 20.0, "grace": 2.0, **limits})
        process = PythonProcess(tmp_path / name, chosen, interpreter=interpreter, unsandboxed=bool(MISSING))
        made.append(process)
        return process

    yield start
    for process in made:
        await process.close()


def has_ended(pid: int) -> bool:
    """Return True if no process of that id runs, apart from a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not has_ended(pid)
