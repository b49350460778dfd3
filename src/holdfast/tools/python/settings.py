"""Define the settings of the tool `python`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.sections import Mistake, Settings, Text, Timeout, check_fields


class PythonSettings(Settings, frozen=True, kw_only=True):
    """Settings of the tool `python`. `Holdfast(python=PythonSettings())` enables the tool.

    Raises:
        InvalidRequest: a value is not valid.
    """

    timeout: Timeout = 60.0
    """Time limit of a call in seconds. Code that takes longer is interrupted, and soon after that its process is killed."""
    memory: Annotated[int, Meta(ge=64 << 20, le=1 << 40, extra={"form": "size"})] = 1 << 30
    """Maximum memory of a process, in bytes."""
    interpreter: Text | None = None
    """Python interpreter that runs the code and whose packages it can import; unset: the server's own."""
    unsandboxed: bool = False
    """Run code even if the system cannot keep it from the network and from other files."""

    def __post_init__(self) -> None:
        check_fields(self, "python")

    def find_mistakes(self) -> list[Mistake]:
        return [("interpreter", "a path must not contain a NUL character")] * ("\0" in (self.interpreter or ""))
