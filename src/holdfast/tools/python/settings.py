"""How far the tool `python` may go."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.numbers import check_number, check_whole

_DAY: Final = 86_400.0
_YEARS_100: Final = 100 * 365 * _DAY
_RANGES: Final[dict[str, tuple[float, float]]] = {
    "timeout": (0.001, _DAY),
    "memory": (64 << 20, 1 << 40),
    "max_output": (1 << 10, 1 << 32),
    "max_file": (1 << 10, 1 << 32),
    "max_files": (0, 1000),
    "max_sessions": (1, 1000),
    "idle": (0, _YEARS_100),
}
"""The least and the most of each number."""


class PythonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The tool `python`: `Holdfast(python=PythonSettings())` turns it on.

    Raises:
        InvalidRequest: a setting that cannot be one.
    """

    timeout: float = 60.0
    """Seconds that a call may run; then it is interrupted, and a little later killed."""
    memory: int = 1 << 30
    """Bytes that its process may have."""
    max_output: int = 64 * 1024
    """Bytes of output of a call that are kept."""
    max_file: int = 32 << 20
    """Largest file that it may write, bytes."""
    max_files: int = 32
    """Files that are kept of a call, as artifacts of the session; plots are among them."""
    max_sessions: int = 16
    """Processes at once; past it the one that was idle longest is ended."""
    idle: float = 3600.0
    """Idle seconds after which a session's process is ended, and its variables with it; 0: never."""
    workdir: str | None = None
    """Where the sessions' work folders are made; None: where temporary files are."""
    interpreter: str | None = None
    """The Python that runs the code, whose packages it can import; None: the one that runs Holdfast."""
    unsandboxed: bool = False
    """Whether code runs also where the system cannot keep it from the network and from other files."""

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            _check_number(name, getattr(self, name), least, most)
        for name in ("workdir", "interpreter"):
            value: Any = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value or "\0" in value):
                raise InvalidRequest(f"python.{name} must be a path, not {value!r:.80}", param=f"python.{name}")
        if not isinstance(self.unsandboxed, bool):
            raise InvalidRequest("python.unsandboxed must be true or false", param="python.unsandboxed")


def _check_number(name: str, value: Any, least: float, most: float) -> None:
    seconds = name in ("timeout", "idle")
    if seconds:
        check_number(value, f"python.{name}", least, most, kind="number of seconds")
    else:
        check_whole(value, f"python.{name}", int(least), int(most))
