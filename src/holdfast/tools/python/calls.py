"""Define the limits of a session's Python process, and the results of its calls."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.limits import MIB


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a session's Python process."""

    timeout: float = 60.0
    """Time limit of a call in seconds. A call that takes longer is interrupted."""
    grace: float = 3.0
    """Seconds that an interrupted call has to end. After that, its process is killed."""
    memory: int = 1024 * MIB
    """Maximum bytes of the process's address space."""
    max_output: int = 64 * 1024
    """Maximum bytes of each text in a result: stdout, stderr, result and exception."""
    max_file: int = 32 * MIB
    """Maximum bytes of each file that code writes."""
    max_folder: int = 512 * MIB
    """Maximum bytes of all files in the work folder. If there are more, the process is killed and the folder is emptied."""
    max_entries: int = 10_000
    """Maximum number of files and folders in the work folder. If there are more, the process is killed and the folder is emptied."""
    max_plots: int = 16
    """Maximum number of figures that are kept per call."""
    max_threads: int = 128
    """Maximum number of threads. A process with more threads is killed."""


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of running code once."""

    status: Literal["success", "error", "timeout", "killed"]
    """`error`: the code raised an exception. `timeout`: the code was interrupted at the time limit. `killed`: the code ended the process
    (by `os._exit`, a signal or its use of memory), or the process had to be killed."""
    stdout: str = ""
    """Standard output, cut to `max_output` bytes. A marker says how much is missing. The other texts are cut in the same way."""
    stderr: str = ""
    result: str | None = None
    """`repr` of the last expression. None: the last statement is not an expression, or its value is None."""
    exception: str | None = None
    """Traceback of the exception, without the frames of Holdfast's own program; None: no exception was raised."""
    files: tuple[str, ...] = ()
    """Paths of created and changed files, relative to the work folder, sorted. A path may contain newlines, and surrogates for bytes that are
    not UTF-8. Open the files with `holdfast.tools.python.contents.open_file`, which follows no links.
    """
    plots: tuple[bytes, ...] = ()
    """PNG images of the open matplotlib figures, and of the last expression if its value is a PIL image."""
    note: str | None = None
    """Note for the model about what happened to the process; None: nothing unusual happened."""
    seconds: float = 0.0
    restarted: bool = False
    """True if an earlier process had ended before this call, so that its variables were lost."""
