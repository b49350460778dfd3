"""A process that holds something and can be killed: for tests of what is left over from it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.liveness import is_dead
from tests.waits import block_until

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="dead processes are recognised on Linux only")
PROGRAM = "from holdfast.liveness import make_holder; import sys; print(make_holder(), flush=True); sys.stdin.read()"


class OtherProcess:
    """A process that does nothing until it is killed.

    Attributes:
        holder: a holder name that it made.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = process
        self.holder = process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill it as `kill -9` does, and return when the kernel has released what it held."""
        self._process.kill()
        block_until(lambda: is_dead(self.holder))


@contextmanager
def other_process() -> Iterator[OtherProcess]:
    """A process that runs until it is killed."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield OtherProcess(process)
        finally:
            process.kill()
