"""Define the settings of the tool `python`, including its limits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.sections import Duration, Settings, Size, Text, Timeout, check_fields


class PythonLimits(Settings, frozen=True, kw_only=True):
    """Limits of the sessions' Python processes, their interpreter, and their folders."""

    timeout: Timeout = 60.0
    """Time limit of a call in seconds. Code that takes longer is interrupted, and soon after that its process is killed."""
    memory: Annotated[int, Meta(ge=64 << 20, le=1 << 40, extra={"form": "size"})] = 1 << 30
    """Maximum memory of a process, in bytes."""
    max_output: Size = 64 * 1024
    """Maximum bytes that are kept of each output of a call: stdout, stderr, result and exception."""
    max_file: Size = 32 << 20
    """Maximum bytes of each file that code writes."""
    max_files: Annotated[int, Meta(ge=0, le=1000)] = 32
    """Maximum number of files and plots per call that are saved as artifacts of the session."""
    max_sessions: Annotated[int, Meta(ge=1, le=1000)] = 16
    """Maximum number of sessions with a process. If another session needs one, the process that has been idle longest is ended."""
    idle: Duration = 3600.0
    """Seconds without a call after which a session's process is ended and its variables are lost; 0: never."""
    workdir: Text | None = None
    """Directory in which work folders are created; unset: the directory for temporary files."""
    interpreter: Text | None = None
    """Python interpreter that runs the code and whose packages it can import; unset: the server's own."""
    unsandboxed: bool = False
    """Run code even if the system cannot keep it from the network and from other files."""


class PythonSettings(PythonLimits, frozen=True, kw_only=True):
    """Settings of the tool `python`. `Holdfast(python=PythonSettings())` enables the tool.

    Raises:
        InvalidRequest: a value is not valid.
    """

    def __post_init__(self) -> None:
        check_fields(self, "python")
