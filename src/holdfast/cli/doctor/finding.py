"""Findings of checks."""

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
    """How to fix it, in one line; None if all is well."""


def ok(check: str, message: str) -> Finding:
    """Report that a check passed."""
    return Finding(check, "ok", message)


def warn(check: str, message: str, remedy: str) -> Finding:
    """Report a problem that does not prevent use."""
    return Finding(check, "warn", message, remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    """Report a failure."""
    return Finding(check, "fail", message, remedy)
