"""Define the finding of a check."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """The result of a check."""

    check: str
    level: Level
    message: str
    remedy: str | None = None
    """Remedy for the problem, in one line; None: there is no problem."""


def ok(check: str, message: str) -> Finding:
    """Create the finding that a check passed."""
    return Finding(check, "ok", message)


def warn(check: str, message: str, remedy: str) -> Finding:
    """Create the finding that there is a problem with which Holdfast still works."""
    return Finding(check, "warn", message, remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    """Create the finding that a check failed."""
    return Finding(check, "fail", message, remedy)
