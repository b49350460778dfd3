"""Define limits and results of calls of a Python process."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.limits import MIB


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a process."""

    timeout: float = 60.0
    """Maximum seconds of a call; then it is interrupted."""
    grace: float = 3.0
    """Seconds that an interrupted call has to end; then its process is killed."""
    memory: int = 1024 * MIB
    """Maximum bytes of address space."""
    max_output: int = 64 * 1024
    """Maximum bytes of each text of a call: stdout, stderr, result, exception."""
    max_file: int = 32 * MIB
    """Size of the largest file that code may write, in bytes."""
    max_folder: int = 512 * MIB
    """Maximum bytes of all files in the work folder. A process that exceeds it is killed, and the folder is emptied."""
    max_entries: int = 10_000
    """Maximum number of files and folders in the work folder; the same happens beyond it."""
    max_plots: int = 16
    """Maximum number of figures that are kept of a call."""
    max_threads: int = 128
    """Maximum number of threads; a process that exceeds it is killed."""


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a call."""

    status: Literal["success", "error", "timeout", "killed"]
    """`killed`: the call ended the process (`os._exit`, a signal, memory), or the process had to be killed."""
    stdout: str = ""
    """Output, cut at `max_output`. A marker says how much is missing; the same applies to the other texts."""
    stderr: str = ""
    result: str | None = None
    """`repr` of the last expression; None if the last statement is not an expression, or its value is None."""
    exception: str | None = None
    """Traceback, without frames outside the code."""
    files: tuple[str, ...] = ()
    """Created or changed files, relative to the work folder, sorted. A name may contain newlines and surrogates (bytes that are not
    UTF-8). Open them with `holdfast.tools.python.contents.open_file`, which follows no links.
    """
    plots: tuple[bytes, ...] = ()
    """PNGs of open matplotlib figures, and of a PIL image that is the last expression."""
    note: str | None = None
    """Note for the model about what happened to the process."""
    seconds: float = 0.0
    restarted: bool = False
    """True if an earlier process had ended, so that its variables were lost before this call."""
