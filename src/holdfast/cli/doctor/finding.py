"""The result of one check of `holdfast doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """The result of a check: its name, `ok`, `warn` or `fail`, a message, and a remedy."""

    check: str
    level: Level
    message: str
    remedy: str | None = None
    """Remedy for the problem, in one line; None if there is no problem."""


def ok(check: str, message: str) -> Finding:
    """Return a finding for a check that passed."""
    return Finding(check, "ok", message)


def warn(check: str, message: str, remedy: str) -> Finding:
    """Return a finding for a problem that does not stop Holdfast from working."""
    return Finding(check, "warn", message, remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    """Return a finding for a check that failed."""
    return Finding(check, "fail", message, remedy)
