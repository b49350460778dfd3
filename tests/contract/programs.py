"""Start the programs that some checks run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start_program(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Run a file of this folder in this Python, with its output as text."""
    # What this process can import, that one can.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", str(Path(__file__).with_name(program)), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
