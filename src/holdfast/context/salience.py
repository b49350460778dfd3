"""Salience: choose the units that are most worth their tokens, by ratings of callers and scorers or else by the text itself.

Without a rating, the importance of a unit is computed from its facts, as the digest reads them: values of tool calls, and sentences, rated by
`holdfast.context.statements`:

- A value is worth more if later units used it again, or if its key is the name of an argument of some tool call.
- A value that a newer unit contains too is worth little.
- Each further fact of a unit is worth less, and the sum is divided by a power of the unit's size. A listing therefore does not displace short
  messages with specific content.
- Older units are worth less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from holdfast.context.digest.facts import read_unit
from holdfast.context.digest.texts import Fact, Line
from holdfast.context.units import Unit
from holdfast.context.values import has_error, split_words
from holdfast.context.window import Window

CROWD, USERS_CROWD, CROWDING = 1.5, 10.0, 1.5
"""The worth of each further fact of a unit is divided by `(1 + before / CROWD) ** CROWDING`. `before` is the number of its facts that are worth
more, without the best one.

A listing of any length is therefore worth about as much as a few of its rows. For users' messages `USERS_CROWD` replaces `CROWD`, because
users repeat what matters to them."""
USE_WEIGHT, MAX_USES = 0.7, 4
"""The worth of a value grows by the fraction `USE_WEIGHT` with each later unit that uses it again, for at most `MAX_USES` units."""
ARGUMENT_FACTOR = 3.0
"""Factor for a value whose key is the name of an argument of some call."""
UNIT_HALF_LIFE, OLD_UNIT = 150, 0.35
"""The worth of a unit falls with the number of messages after it, because work moves on to other subjects. `UNIT_HALF_LIFE` is the half-life
in messages. `OLD_UNIT` is the fraction of the worth that always remains."""
REPEATED = 0.25
"""Factor for a value that a newer unit contains too."""
USERS, FAILED, ASSISTANTS = 1.25, 2.0, 0.7
"""Factors for a user's message, for a call that failed, which the agent will retry in nearly the same form or must not retry, and for an
assistant's message, which repeats much."""
LEAST = 0.5
"""Added to the worth of every unit, so that a unit without any facts has some worth too."""
POWER, HEADING = 0.7, 20
"""The size of a unit is `(HEADING + tokens) ** POWER`. `HEADING` prevents a high rating of very short messages such as "ok"."""
SCALE = 4.0
"""Factor that spreads the importance of most units around 0.5, the middle of the range that callers' ratings have too."""
FAILURE = 400
"""A tool result is treated as the result of a failed call if it mentions an error and has at most this many characters."""


def rate_units(units: Sequence[Unit]) -> list[float]:
    """Return the importance of each unit, from 0 to 1.

    Args:
        units: all units of a window in order, including those that cannot be evicted.
    """
    read = [read_unit(unit).lines for unit in units]
    asked = {name for lines in read for line in lines for name in line.asked}
    mentions: dict[str, list[int]] = {}
    for at, lines in enumerate(read):
        for word in {word for line in lines for word in _list_mentioned(line)}:
            mentions.setdefault(word, []).append(at)
    now = units[-1].last if units else 0
    importances = []
    for at, (unit, lines) in enumerate(zip(units, read, strict=True)):
        worths = [_rate_fact(fact, mentions, asked, at) for line in lines for fact in line.facts]
        crowd = USERS_CROWD if unit.asks else CROWD
        worths.sort(reverse=True)
        total = LEAST + sum(worth / (1 + max(0, before - 1) / crowd) ** CROWDING for before, worth in enumerate(worths))
        size = (HEADING + sum(entry.tokens for entry in unit.entries)) ** POWER
        worth = SCALE * total * _compute_factor(unit) * _fade(now - unit.last)
        importances.append(worth / (size + worth))
    return importances


def _list_mentioned(line: Line) -> list[str]:
    """Return the case-folded values of a line: those of a call, and the words of sentences."""
    values = [fact.value for fact in line.facts if not fact.prose]
    words = [word for fact in line.facts if fact.prose for word in split_words(fact.value)]
    return [word.casefold() for word in (*line.names, *values, *words)]


def _rate_fact(fact: Fact, mentions: Mapping[str, Sequence[int]], asked: set[str], at: int) -> float:
    if fact.prose:
        return fact.weight
    later = sum(other > at for other in mentions.get(fact.value.casefold(), ())[-MAX_USES:])
    worth = fact.weight * (ARGUMENT_FACTOR if fact.key in asked else 1.0)
    return worth * (1 + USE_WEIGHT * later) * (REPEATED if later else 1.0)


def _compute_factor(unit: Unit) -> float:
    if unit.asks:
        return USERS
    results = [entry.message.text for entry in unit.entries if entry.message.role == "tool"]
    if results:
        return FAILED if any(len(text) <= FAILURE and has_error(text) for text in results) else 1.0
    return ASSISTANTS


@lru_cache(maxsize=4_096)
def _fade(age: int) -> float:
    return float(OLD_UNIT + (1 - OLD_UNIT) * 0.5 ** (age / UNIT_HALF_LIFE))


SMALL, FULL = 2048, 8192
"""Token limits between which the default target falls from `MOST_TARGET` to `LEAST_TARGET`.

With a limit up to `SMALL`, only as much as necessary is evicted, because a stable prefix saves little there: providers do not cache prompts
below a thousand tokens. With a limit from `FULL` on, as much is evicted as by other strategies."""
LEAST_TARGET, MOST_TARGET = 0.33, 1.0
ALIKE = 0.5
"""An evicted unit may be restored only if its importance is at least this fraction of that of the last evicted unit."""


def compute_target(room: int) -> float:
    """Return the default target: the fraction of a token limit of `room` tokens that is still used after an eviction."""
    above = min(1.0, max(0.0, (room - SMALL) / (FULL - SMALL)))
    return MOST_TARGET - (MOST_TARGET - LEAST_TARGET) * above


def choose_units(window: Window, share: float | None) -> frozenset[int]:
    """Choose the units to keep, those most worth their tokens. Return the `Unit.first` of each.

    Args:
        window: a window that exceeds its token limit.
        share: fraction of the token limit that all units together may take; None for the default of `compute_target`.
    """
    room = window.room.tokens
    return choose_within(window, int((compute_target(room) if share is None else share) * room))


def choose_within(window: Window, goal: int) -> frozenset[int]:
    """Choose the units to keep if all together may take `goal` tokens. Return the `Unit.first` of each.

    The least important units are evicted first; if several are equally important, the oldest of them.
    """
    units = [*window.head, *window.units]
    free = [at for at, unit in enumerate(units[:-1]) if not window.is_protected(unit)]
    sizes = {at: window.measure_unit(units[at]) for at in free}
    over = sum(map(window.measure_unit, units)) + (window.summary.tokens if window.summary else 0) - goal
    given, rated = [_get_given_importance(unit) for unit in units], rate_units(units) if over > 0 else []
    ranked = sorted(
        (rate if (by_hand := given[at]) is None else by_hand, at) for at, rate in enumerate(rated) if at in sizes
    )
    removed: list[tuple[float, int]] = []
    while ranked and over > 0:
        removed.append(ranked.pop(0))
        over -= sizes[removed[-1][1]]
    out = {at for _, at in removed}
    for importance, at in reversed(removed[:-1]):
        # Restore what is nearly as important as the last evicted unit, if that freed more tokens than needed.
        last, newest = removed[-1]
        if importance < ALIKE * last or given[at] is not None or given[newest] is not None:
            break
        if sizes[at] <= -over:
            over += sizes[at]
            out.discard(at)
    return frozenset(units[at].first for at in free if at not in out)


def _get_given_importance(unit: Unit) -> float | None:
    return max((entry.importance for entry in unit.entries if entry.importance is not None), default=None)
