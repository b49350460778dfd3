"""Standing facts: a block of statements that have left the prompt. Pure functions.

One rule ranks all statements: the probability that a statement is worth keeping, for its tokens. Instructions of the user have a tier of
their own, which gets its room first. A statement that was corrected appears only if its correction does, later in the block or the prompt.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from benchmarks.core.statements import Position, Statement
from holdfast.context.escaping import END, escape_inline, format_tag

INSTRUCTIONS: Final = (
    "[Instructions that the user gave for later replies{tag}; newer messages and the system prompt take precedence]"
)
STATEMENTS: Final = "[Earlier statements of the user, and of others where named{tag}; newer messages take precedence]"
SHARES: Final = ((1_024, 0.62), (2_048, 0.56), (4_096, 0.5), (8_192, 0.34), (16_384, 0.2), (65_536, 0.06))
"""Largest share of the budget that the block may take, by budget. Between two budgets it is interpolated."""
MOST_TOKENS: Final = 4_000
"""Tokens of the block with a budget above the largest of `SHARES`."""
INSTRUCTION_SHARE: Final = 1 / 3
POWER: Final = 0.6
LEAST: Final = math.log(0.08 / 0.92)
"""Minimum log odds of a statement in the block."""
REPEATED, REPETITION = 5, 1.5
"""Log odds that a statement loses if at least `REPEATED` candidates have each of its terms, in proportion to the share of these terms."""
LOW: Final = 0.88
"""When the lines no longer fit, the best are chosen for this share of the room. Until then lines are only added, which keeps what is before
them in the provider's cache."""
CORRECTED: Final = 2.0
"""Log odds that a corrected statement loses."""
CANDIDATES: Final = 500
LINE: Final = 2
FRAME: Final = 40
"""Tokens of both headings and the end."""


class Facts(msgspec.Struct, frozen=True, gc=False):
    """The candidates for the block, and the lines that are in it."""

    statements: tuple[Statement, ...] = ()
    chosen: frozenset[Position] = frozenset()


def compute_facts_room(budget: int) -> int:
    """Return the largest number of tokens that the block may take of a budget."""
    for (low, more), (high, less) in pairwise(SHARES):
        if budget <= high:
            grade = max(0.0, math.log(budget / low)) / math.log(high / low)
            return int(budget * (more + (less - more) * grade))
    return MOST_TOKENS


def add_statements(facts: Facts, new: Sequence[Statement], sent: Collection[int], room: int) -> Facts:
    """Return the facts with the statements of evicted messages, and the lines chosen for `room` tokens.

    Args:
        facts: the facts of the step before.
        new: statements of the messages that leave now.
        sent: older messages that stay in the prompt. What corrects them is chosen first.
        room: maximum tokens of the block.
    """
    known = {one.text.casefold(): one for one in (*facts.statements, *new)}
    live = sorted(known.values(), key=lambda one: one.position)
    later = {old: one.position for one in live for old in one.replaces}
    due = {one.position for one in live if any(old[0] in sent or old in facts.chosen for old in one.replaces)}
    rates = _rate(live, later) | dict.fromkeys(due, math.inf)
    if len(live) > CANDIDATES:
        best = sorted(live, key=lambda one: (not one.instructs, -rates[one.position]))
        kept = {one.position for one in best[: CANDIDATES * 3 // 4]}
        live = [one for one in live if one.position in kept and later.get(one.position, one.position) in kept]
    chosen = _choose(live, rates, later, room)
    fresh = {one.position for one in new}
    stay = frozenset(one.position for one in live if one.position in facts.chosen) | {
        one for one in chosen if one in fresh
    }
    if sum(one.cost + LINE for one in live if one.position in stay) <= room - FRAME:
        chosen = stay
    elif facts.chosen:
        chosen = _choose(live, rates, later, int(room * LOW))
    return Facts(tuple(live), chosen)


def _rate(statements: Sequence[Statement], later: Mapping[Position, Position]) -> dict[Position, float]:
    """Return the probability that each statement is worth keeping, divided by a power of its tokens. `later`: the corrections."""
    often = Counter(term for one in statements for term in one.terms)
    common = {term for term, number in often.items() if number >= REPEATED}
    rates = {}
    for one in statements:
        score = one.score - REPETITION * len(one.terms & common) / len(one.terms)
        score -= CORRECTED if one.position in later else 0.0
        rates[one.position] = 1 / (1 + math.exp(-score)) / max(one.cost, 6) ** POWER
    return rates


def _choose(
    statements: Sequence[Statement], rates: Mapping[Position, float], later: Mapping[Position, Position], room: int
) -> frozenset[Position]:
    """Return the newest instructions that fit in their tier, and the best others for the rest of the room."""
    left, tier = float(room - FRAME), room * INSTRUCTION_SHARE
    chosen: dict[Position, None] = {}
    others = [
        one for one in statements if not one.instructs and (one.score >= LEAST or rates[one.position] == math.inf)
    ]
    others.sort(key=lambda one: -rates[one.position])
    for one in (*(one for one in reversed(statements) if one.instructs), *others):
        size = one.cost + LINE
        if one.position in later and later[one.position] not in chosen:
            continue
        if size > left or (one.instructs and size > tier):
            continue
        left -= size
        tier -= size if one.instructs else 0
        chosen[one.position] = None
    return frozenset(chosen)


def write_facts(facts: Facts, marker: str) -> str:
    """Return the text of the block; empty if it has no lines."""
    chosen = [one for one in facts.statements if one.position in facts.chosen]
    lines: list[str] = []
    for heading, instructs in ((INSTRUCTIONS, True), (STATEMENTS, False)):
        by_message: dict[int, list[Statement]] = {}
        for one in chosen:
            if one.instructs == instructs:
                by_message.setdefault(one.seq, []).append(one)
        if by_message:
            lines.append(heading.format(tag=format_tag(marker)))
            lines += [f"- {escape_inline(_join(some), marker)}" for some in by_message.values()]
    return "\n".join((*lines, END)) if lines else ""


def _join(statements: Sequence[Statement]) -> str:
    """Return the statements of one message as a line, with the speaker if it is not simply the user, and the date if they speak of time."""
    one = statements[0]
    day = max(other.day for other in statements)
    who = "" if one.speaker == "user" else f"{one.speaker}: "
    text, last = statements[0].text, statements[0].place
    for other in statements[1:]:
        text += (" " if other.place == last + 1 and text[-1] in ".!?。！？" else " … ") + other.text  # noqa: RUF001
        last = other.place
    return f"{day}{who}{text}"
