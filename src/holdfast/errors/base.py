"""The base of all errors."""

from __future__ import annotations

from typing import ClassVar


class HoldfastError(Exception):
    """Base of every error Holdfast raises on purpose."""

    code: ClassVar[str] = "holdfast_error"
    """A stable word for programs: `error.code` on the wire. Every class has its own."""
    http_status: ClassVar[int | None] = None
    """The status of a response that tells of it; None: it is told as a failure of the server, without its words."""
