"""Standing facts: a block of the user's instructions and statements that have left the prompt. Pure functions.

Instructions have a tier of their own, which gets its room first. The best other statements for their tokens fill the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from holdfast.context.escaping import END, escape_inline, format_tag
from holdfast.context.standing_facts import find_corrections
from holdfast.context.statements import Position, Statement

INSTRUCTIONS: Final = (
    "[Instructions that the user gave for later replies{tag}; newer messages and the system prompt take precedence]"
)
STATEMENTS: Final = "[Earlier statements of the user{tag}; newer messages take precedence]"
INSTRUCTION_SHARE: Final = 1 / 3
POWER: Final = 0.6
LEAST: Final = math.log(0.03 / 0.97)
"""Minimum log odds of a statement in the block."""
LEAST_ROOM: Final = 60
CANDIDATES: Final = 500
LINE: Final = 3
FRAME: Final = 30
"""Tokens of both headings and the end."""


class Facts(msgspec.Struct, frozen=True, gc=False):
    """The candidates for the block, and the lines that are in it."""

    statements: tuple[Statement, ...] = ()
    instructions: frozenset[Position] = frozenset()
    chosen: frozenset[Position] = frozenset()
    corrected: frozenset[Position] = frozenset()


def add_statements(facts: Facts, new: Sequence[Statement], instructions: Collection[Position], room: int) -> Facts:
    """Return the facts with the statements of evicted messages, and the lines chosen for `room` tokens."""
    statements = (*facts.statements, *new)
    given = facts.instructions | set(instructions)
    corrected = (
        facts.corrected | find_corrections(statements).keys() if any(one.corrects for one in new) else facts.corrected
    )
    if len(statements) > CANDIDATES:
        ranked = sorted(statements, key=lambda one: (one.position not in given, -_rate(one)))
        statements = tuple(sorted(ranked[: CANDIDATES * 3 // 4], key=lambda one: one.position))
    live = _drop_repeats(one for one in statements if one.position not in corrected)
    chosen = _choose(live, given, room) if room >= LEAST_ROOM else []
    return Facts(statements, given, frozenset(one.position for one in chosen), corrected)


def _choose(statements: Sequence[Statement], given: Collection[Position], room: int) -> list[Statement]:
    """Return the newest instructions that fit in their tier, and the best statements for the rest of the room."""
    left, tier = float(room - FRAME), room * INSTRUCTION_SHARE
    chosen: list[Statement] = []
    orders = [one for one in statements if one.position in given]
    others = [one for one in statements if one.position not in given and one.score >= LEAST]
    for one in (*reversed(orders), *sorted(others, key=_rate, reverse=True)):
        size = one.cost + LINE
        if size > left or (one.position in given and size > tier):
            continue
        left -= size
        tier -= size if one.position in given else 0
        chosen.append(one)
    return chosen


def _rate(one: Statement) -> float:
    return float(1 / (1 + math.exp(-one.score)) / max(one.cost, 6) ** POWER)


def _drop_repeats(statements: Iterable[Statement]) -> list[Statement]:
    """Return the statements without earlier ones of the same words."""
    newest = {" ".join(one.text.casefold().split()): one for one in statements}
    return sorted(newest.values(), key=lambda one: one.position)


def write_facts(facts: Facts, marker: str) -> str:
    """Return the text of the block; empty if it has no lines."""
    chosen = [one for one in facts.statements if one.position in facts.chosen]
    orders = [one for one in chosen if one.position in facts.instructions]
    others = [one for one in chosen if one.position not in facts.instructions]
    lines: list[str] = []
    for heading, some in ((INSTRUCTIONS, orders), (STATEMENTS, others)):
        if some:
            lines += [heading.format(tag=format_tag(marker)), *(f"- {escape_inline(one.text, marker)}" for one in some)]
    return "\n".join((*lines, END)) if lines else ""
