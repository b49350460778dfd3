"""Numbers as somebody gives them: which are whole, which are within their bounds, and what is said of those that are not."""

from __future__ import annotations

import math
from typing import Any, Final, TypeGuard

from holdfast.errors import InvalidRequest

MOST: Final = 2**53 - 1
"""The largest whole number that JSON carries everywhere."""


def is_whole(value: object, low: int = 0, high: int = MOST) -> TypeGuard[int]:
    """Whether it is a whole number within bounds; `true` is none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: object, low: float = -math.inf, high: float = math.inf) -> TypeGuard[float]:
    """Whether it is a finite number within bounds, whole or not; `true` is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and low <= value <= high


def check_whole(
    value: Any, name: str, low: int = 0, high: int = MOST, *, param: str | None = None, kind: str = "whole number"
) -> None:
    """Refuse what is not a whole number within bounds.

    Args:
        value: as it was given.
        name: of what it is, as whoever gave it wrote it.
        low: the least.
        high: the most.
        param: which parameter is wrong; `name`, unless given.
        kind: what it must be.

    Raises:
        InvalidRequest: it is something else.
    """
    if not is_whole(value, low, high):
        raise InvalidRequest(_format_error(name, kind, low, high, value), param=param or name)


def check_number(
    value: Any, name: str, low: float, high: float = math.inf, *, param: str | None = None, kind: str = "number"
) -> None:
    """Refuse what is not a finite number within bounds. For the arguments, and what is raised, see `check_whole`."""
    if not is_number(value, low, high):
        raise InvalidRequest(_format_error(name, kind, low, high, value), param=param or name)


def _format_error(name: str, kind: str, low: float, high: float, value: Any) -> str:
    bounds = f"from {low:,}" if high in (MOST, math.inf) else f"from {low:,} to {high:,}"
    return f"{name} must be a {kind} {bounds}, not {value!r:.80}"
