"""Limits of the tool `python`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.settings import Duration, Settings, Size, Text, Timeout, check_fields


class PythonLimits(Settings, frozen=True, kw_only=True):
    """Limits of a session's Python process, and where it runs."""

    timeout: Timeout = 60.0
    """Seconds that a call may run; then it is interrupted, and a little later killed."""
    memory: Annotated[int, Meta(ge=64 << 20, le=1 << 40, extra={"form": "size"})] = 1 << 30
    """Bytes that its process may have."""
    max_output: Size = 64 * 1024
    """Bytes of output of a call that are kept."""
    max_file: Size = 32 << 20
    """Largest file that it may write, bytes."""
    max_files: Annotated[int, Meta(ge=0, le=1000)] = 32
    """Files that are kept of a call, as artifacts of the session."""
    max_sessions: Annotated[int, Meta(ge=1, le=1000)] = 16
    """Processes at once; past it the one that was idle longest is ended."""
    idle: Duration = 3600.0
    """Idle seconds after which a session's process is ended, and its variables with it; 0: never."""
    workdir: Text | None = None
    """Where the sessions' work folders are made; unset: where temporary files are."""
    interpreter: Text | None = None
    """The Python that runs the code, whose packages it can import; unset: the server's own."""
    unsandboxed: bool = False
    """Whether code runs also where the system cannot keep it from the network and from other files."""


class PythonSettings(PythonLimits, frozen=True, kw_only=True):
    """The tool `python`: `Holdfast(python=PythonSettings())` turns it on.

    Raises:
        InvalidRequest: a value is wrong.
    """

    def __post_init__(self) -> None:
        check_fields(self, "python")
