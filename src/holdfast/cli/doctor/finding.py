"""One finding."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """What a check found."""

    check: str
    level: Level
    message: str
    remedy: str | None = None
    """What to do about it, in one line; None where all is well."""


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", message)


def warn(check: str, message: str, remedy: str) -> Finding:
    """It works, and yet somebody should know."""
    return Finding(check, "warn", message, remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    """Something is broken."""
    return Finding(check, "fail", message, remedy)
