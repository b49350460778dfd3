"""Settings and limits of the tool `python`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.settings import Duration, Settings, Size, Text, Timeout, check_fields


class PythonLimits(Settings, frozen=True, kw_only=True):
    """Limits of a session's Python process, and where it runs."""

    timeout: Timeout = 60.0
    """Maximum seconds of a call; then it is interrupted, and killed soon after."""
    memory: Annotated[int, Meta(ge=64 << 20, le=1 << 40, extra={"form": "size"})] = 1 << 30
    """Maximum memory of a process, in bytes."""
    max_output: Size = 64 * 1024
    """Bytes of output kept per call."""
    max_file: Size = 32 << 20
    """Size of the largest file that code may write, in bytes."""
    max_files: Annotated[int, Meta(ge=0, le=1000)] = 32
    """Maximum number of files that are saved per call, as artifacts of the session."""
    max_sessions: Annotated[int, Meta(ge=1, le=1000)] = 16
    """Maximum number of processes; beyond it, the process that has been idle longest is ended."""
    idle: Duration = 3600.0
    """Idle seconds after which a session's process is ended and its variables are lost; 0: never."""
    workdir: Text | None = None
    """Directory in which work folders are created; unset: the directory for temporary files."""
    interpreter: Text | None = None
    """Python interpreter that runs the code and whose packages it can import; unset: the server's own."""
    unsandboxed: bool = False
    """Run code even if the system cannot keep it from the network and from other files."""


class PythonSettings(PythonLimits, frozen=True, kw_only=True):
    """Settings of the tool `python`, which is enabled by `Holdfast(python=PythonSettings())`.

    Raises:
        InvalidRequest: a value is not valid.
    """

    def __post_init__(self) -> None:
        check_fields(self, "python")
