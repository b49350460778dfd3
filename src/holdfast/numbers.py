"""Checks for numbers that callers provide: whole numbers, finite numbers, and bounds; and numbers in texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from holdfast.errors import InvalidRequest

MOST: Final = 2**53 - 1
"""The largest whole number that every JSON parser represents exactly."""


def is_whole(value: object, low: int = 0, high: int = MOST) -> TypeGuard[int]:
    """Return True if the value is a whole number within the bounds. Booleans are not numbers."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: object, low: float = -math.inf, high: float = math.inf) -> TypeGuard[float]:
    """Return True if the value is a finite number within the bounds, whole or not. Booleans are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and low <= value <= high


def check_whole(
    value: Any, name: str, low: int = 0, high: int = MOST, *, param: str | None = None, kind: str = "whole number"
) -> None:
    """Raise `InvalidRequest` unless the value is a whole number within the bounds.

    Args:
        value: the value to check.
        name: name of the value, for the error message.
        low: the smallest allowed value.
        high: the largest allowed value.
        param: the parameter that the error reports; default: `name`.
        kind: the expected kind of value, for the error message.

    Raises:
        InvalidRequest: the value is not a whole number within the bounds.
    """
    if not is_whole(value, low, high):
        raise InvalidRequest(_format_error(name, kind, low, high, value), param=param or name)


def check_number(
    value: Any, name: str, low: float, high: float = math.inf, *, param: str | None = None, kind: str = "number"
) -> None:
    """Raise `InvalidRequest` unless the value is a finite number within the bounds. The arguments are the same as those of `check_whole`."""
    if not is_number(value, low, high):
        raise InvalidRequest(_format_error(name, kind, low, high, value), param=param or name)


def _format_error(name: str, kind: str, low: float, high: float, value: Any) -> str:
    bounds = f"from {low:,}" if high in (MOST, math.inf) else f"from {low:,} to {high:,}"
    return f"{name} must be a {kind} {bounds}, not {value!r:.80}"


def add_numbers(one: Any, other: Any) -> Any:
    """Return the sum of two JSON values. Numbers in objects are added at any depth; of other values, the second one counts unless it is None."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {**one, **{key: add_numbers(one.get(key), value) for key, value in other.items()}}
    if is_number(one) and is_number(other):
        return one + other
    return one if other is None else other


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun, for example `1 session` or `2,000 sessions`.

    Args:
        count: the number.
        noun: the noun in the singular.
        plural: the noun in the plural; None: `noun` and "s".
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
