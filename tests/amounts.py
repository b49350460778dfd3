"""Scale how many examples a property is tried with by the profile of Hypothesis."""

from __future__ import annotations

from hypothesis import settings

BASE = 100
"""The number of examples that the numbers in tests are written for."""


def examples(number: int) -> int:
    """Return `number` scaled to the profile: an eighth of it with 12 examples, five times as many with 500, at least one."""
    return max(1, number * settings().max_examples // BASE)
