"""Checks that run on one database only, because their outcome cannot depend on the database.

A check runs on every database unless it is marked with `once` and a reason. The databases differ in locks and races, what a commit,
a cancelled caller or a death leaves, how ids and names compare, orders and pages, numbers, JSON, times and bytes, sizes of columns,
what one statement does to many rows, and what a deletion takes along. A check that shows one of these has no mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

Check = TypeVar("Check", bound=Callable[..., Any])

REFUSED: Final = "refused before the first statement"
RULE: Final = "a rule in Python, over statements that other checks run on every database"


def once(reason: str) -> Callable[[Check], Check]:
    """Mark a check to run on one database only. A project with a store of its own runs it as well."""

    def mark(check: Check) -> Check:
        check.once = reason  # type: ignore[attr-defined]  # functions have attributes
        return check

    return mark
