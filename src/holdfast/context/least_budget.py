"""Which budget would keep a message whole: tried by building the prompt again with larger ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.context.build import Request, build
from holdfast.context.dialects import RESERVE
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall

CLOSE_ENOUGH: Final = 0.05
"""Share of a budget by which the least one may be missed."""
ROUND: Final = 10
"""Budgets are tried in multiples of this."""
STEPS: Final = 4
"""Budgets that are tried with the strategy itself, after the search without its digest; each is a tenth more."""


def find_least_budget(request: Request, entries: Sequence[Entry], seq: int, current: int) -> int | None:
    """Find a budget close to the least one with which the prompt has a message whole.

    The search goes without digests, which take most of the time of a build; what it finds is tried with the strategy itself.

    Args:
        request: what the prompt is built for.
        entries: the live path that it is built from.
        seq: the message.
        current: tokens that the conversation may have now.

    Returns:
        A budget that was tried, in tokens; None if the strategy has no budget to change, or none of this model is enough.
    """
    policy = request.policy
    if policy.window_size is not None or policy.summarizer is not None or policy.history or not policy.bounded:
        return None
    unlimited = msgspec.structs.replace(request, policy=msgspec.structs.replace(policy, budget=None))
    cap = unlimited.limit(unlimited.overhead())
    total = entries[-1].total if entries else 0
    high = min(cap, _rounded(total * request.count.factor + RESERVE))
    low = current
    if low >= high or not _keeps(request, entries, seq, high):
        return None
    quick = msgspec.structs.replace(request, policy=msgspec.structs.replace(policy, condense=False))
    found = high
    while found - low > max(ROUND, found * CLOSE_ENOUGH):
        middle = min(found, _rounded((low + found) / 2))
        if middle == found:
            break
        low, found = (low, middle) if _keeps(quick, entries, seq, middle) else (middle, found)
    for _ in range(STEPS):
        if found >= high or _keeps(request, entries, seq, found):
            break
        found = min(high, _rounded(found * 1.1))
    else:
        return high
    return min(found, high)


def _rounded(tokens: float) -> int:
    return math.ceil(tokens / ROUND) * ROUND


def _keeps(request: Request, entries: Sequence[Entry], seq: int, budget: int) -> bool:
    """Return True if a prompt with that budget has the message whole."""
    tried = msgspec.structs.replace(request, policy=msgspec.structs.replace(request.policy, budget=budget))
    try:
        built = build(tried, None, (), entries)
    except BudgetTooSmall:
        return False
    return seq in built.window.whole() and seq not in built.refused
