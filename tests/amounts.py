"""How many examples a property is tried with: what its test asks for, or less where the profile is a quick one."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""Examples of a property that asks for no number, in the usual profile."""


def examples(number: int) -> int:
    """`number`, made for the usual profile; a part of it in one with fewer examples, at least one."""
    return max(1, min(number, number * settings().max_examples // USUAL))
