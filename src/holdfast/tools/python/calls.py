"""A call of the Python process: how far it may go, and what came of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.limits import MIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How far a process may go."""

    timeout: float = 60.0
    """Seconds that a call may run; then it is interrupted."""
    grace: float = 3.0
    """Seconds that it has to end after that; then its process is killed."""
    memory: int = 1024 * MIB
    """Bytes of address space."""
    max_output: int = 64 * 1024
    """Bytes of each text of a call that are kept: stdout, stderr, result, exception."""
    max_file: int = 32 * MIB
    """Largest file that it may write, bytes."""
    max_folder: int = 512 * MIB
    """Bytes of all files of the work folder together. A call that passes it is killed, and the folder emptied."""
    max_entries: int = 10_000
    """Files and folders in the work folder; the same happens."""
    max_plots: int = 16
    """Figures of a call that are kept."""
    max_threads: int = 128
    """Threads at once; a process that passes it is killed."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call."""

    status: Literal["success", "error", "timeout", "killed"]
    """`killed`: the process died of the call (`os._exit`, a signal, memory), or had to be killed."""
    stdout: str = ""
    """Cut at `max_output`, with a marker that says how much is missing; so are the others."""
    stderr: str = ""
    result: str | None = None
    """`repr` of the last expression; None: there was none, or it was None."""
    exception: str | None = None
    """Traceback of the code's own frames."""
    files: tuple[str, ...] = ()
    """Files that were created or changed, relative to the work folder, sorted. A name may hold newlines and surrogates (bytes
    that are no UTF-8). Open them with `holdfast.tools.python.contents.open_file`, which follows no links."""
    plots: tuple[bytes, ...] = ()
    """PNGs of the figures of matplotlib that were open, and of an image of PIL as last expression."""
    note: str | None = None
    """For the model: what was done to its process."""
    seconds: float = 0.0
    restarted: bool = False
    """Whether an earlier process had died, so that its variables were gone when this call began."""
