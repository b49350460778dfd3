"""Scale how much a test tries by the profile of Hypothesis: examples of a property, recorded sessions."""

from __future__ import annotations

import math

from hypothesis import settings

BASE = 100
"""The number of examples that the numbers in tests are written for."""
THOROUGH = 500
"""The number of examples of `make test-thorough`."""


def examples(number: int) -> int:
    """Return `number` scaled to the profile: an eighth of it with 12 examples, five times as many with 500, rounded up."""
    return math.ceil(number * settings().max_examples / BASE)


def sampling_step(number: int) -> int:
    """Return `number`, the step by which a test samples recorded sessions; 1, which is all of them, in `make test-thorough`."""
    return 1 if settings().max_examples >= THOROUGH else number
