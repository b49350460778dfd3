"""Programs that the checks start: processes of their own, for several on one place, and for those that die."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A file of this folder, run by this Python, with what it says in text.

    Args:
        program: the file's name.
        arguments: of the program.
    """
    # What this process can import, that one can.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", str(Path(__file__).with_name(program)), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
