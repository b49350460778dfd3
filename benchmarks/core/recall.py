"""Recall for one message: how much room it deserves, and which earlier entries fill that room. Pure functions.

The room follows from the *need*: the probability that the message asks for something that only evicted entries hold. Three signs tell it:
the message asks; some evicted entry covers most of its rare words; and many evicted entries rank above the best entry in the prompt.
The first hits are sent whole as far as possible, further hits as excerpts, so that both likely and less likely answers have a place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from benchmarks.core.analysis import Analysis
from benchmarks.core.ranking import Ranked

NEED_BASE, NEED_ASKS, NEED_COVERED, NEED_AHEAD = -4.0, 1.55, 6.3, 0.12
"""Logistic regression on the tuning kinds: log odds of any message; of one that asks; for the covered share of its rare words; and for
each evicted entry that ranks above the best entry in the prompt, up to `LOOKED_AT`."""
NONE_BELOW, FULL_FROM = 0.1, 0.4
"""The room grows from its least to its most between these needs."""
LEAST_SHARE, MOST_SHARE = 0.03, 0.5
LEAST_TOKENS, MOST_TOKENS = 600, 6_000
"""The room as a share of the budget, and its limits in tokens, for the least and the most need."""
REMARK, QUESTION = 2_048, 128
"""Recall ends at the n-th hit that the prompt already contains: the budget divided by a number between these, and at least 1."""
LOOKED_AT: Final = 20
FRAME, HEADING = 8, 24
"""Tokens of the frame of an item, and of the block."""
WHOLE_SHARE, MOST_SHORT = 0.35, 800
"""Hits are sent in their full form in this share of the room, or in all of it but `MOST_SHORT` tokens if that is more."""
MIN_ITEM: Final = 40


class Form(NamedTuple):
    """Limits of an item in tokens: an entry up to `whole` is sent whole, a longer one as an excerpt."""

    whole: int
    excerpt: int


FULL: Final = {True: Form(300, 120), False: Form(100, 80)}
SHORT: Final = {True: Form(120, 60), False: Form(60, 40)}
"""The forms of the first and of further hits, for a user's message (True) and any other entry."""


class Item(msgspec.Struct, frozen=True, gc=False):
    """A recalled entry: all of it, or the numbers of the sentences of an excerpt."""

    seq: int
    sentences: tuple[int, ...] | None
    tokens: int


class Sent(NamedTuple):
    """The part of the log that a prompt contains without recall."""

    start: int
    """All entries from this one on are in the prompt, unless they are cut."""
    whole: Collection[int]
    """Earlier entries that are sent whole."""


def estimate_need(ranked: Ranked, sent: Sent, *, asks: bool) -> float:
    """Return the probability that a message needs entries that the prompt does not contain."""
    evicted = [hit for hit in ranked.hits if hit.seq < sent.start][:LOOKED_AT]
    if not evicted:
        return 0.0
    ahead = next((at for at, hit in enumerate(ranked.hits) if hit.seq >= sent.start), LOOKED_AT)
    odds = NEED_BASE + NEED_ASKS * asks + NEED_COVERED * max(hit.coverage for hit in evicted)
    odds += NEED_AHEAD * min(ahead, LOOKED_AT)
    return 1 / (1 + math.exp(-odds))


class Plan(NamedTuple):
    """How much a message may recall."""

    tokens: float
    patience: int
    """Recall ends at this hit of those that the prompt already contains."""


def plan_recall(ranked: Ranked, sent: Sent, budget: int, *, asks: bool) -> Plan:
    """Return how much a message may recall in a prompt of `budget` tokens.

    Args:
        ranked: the ranking of the whole session.
        sent: what the prompt contains.
        budget: tokens of the whole prompt.
        asks: True if the message contains a question.
    """
    need = estimate_need(ranked, sent, asks=asks)
    grade = min(1.0, max(0.0, (need - NONE_BELOW) / (FULL_FROM - NONE_BELOW)))

    def mix(least: float, most: float) -> float:
        return least + (most - least) * grade

    tokens = min(budget * mix(LEAST_SHARE, MOST_SHARE), mix(LEAST_TOKENS, MOST_TOKENS))
    return Plan(tokens, max(1, round(mix(budget / REMARK, budget / QUESTION))))


class Source(NamedTuple):
    """The parts of a log that recall reads."""

    analyses: Sequence[Analysis]
    tokens: Sequence[int]
    users: Collection[int]
    """Entries that are messages of the user."""


def recall(ranked: Ranked, source: Source, sent: Sent, plan: Plan) -> list[Item]:
    """Return the items to recall for a message, in the order of the log."""
    room, patience = plan
    found: list[Item] = []
    used = HEADING
    for hit in ranked.hits if sent.start else ():
        if hit.seq >= sent.start or hit.seq in sent.whole:
            patience -= 1
            if not patience:
                break
            continue
        forms = FULL if used < max(room * WHOLE_SHARE, room - MOST_SHORT) else SHORT
        item = _make_item(hit.seq, source, forms[hit.seq in source.users], ranked.rarity)
        if used + item.tokens > room:
            item = _make_item(hit.seq, source, Form(MIN_ITEM, MIN_ITEM), ranked.rarity)
        if used + item.tokens <= room:
            found.append(item)
            used += item.tokens
        if room - used < MIN_ITEM:
            break
    return sorted(found, key=lambda item: item.seq)


def _make_item(seq: int, source: Source, form: Form, rarity: Mapping[str, float]) -> Item:
    if source.tokens[seq] <= form.whole:
        return Item(seq, None, source.tokens[seq] + FRAME // 2)
    numbers, size = choose_sentences(source.analyses[seq], form.excerpt, rarity)
    return Item(seq, numbers, size + FRAME)


def choose_sentences(analysis: Analysis, limit: int, rarity: Mapping[str, float]) -> tuple[tuple[int, ...], int]:
    """Return the numbers of the sentences that have most in common with the message, and their tokens. The best is always among them.

    Sentences around the best one fill what is left, because answers often stand beside the words of the question.
    """
    sentences = analysis.sentences
    if not sentences:
        return (), 0
    scores = [sum(rarity[term] for term in one.terms & rarity.keys()) for one in sentences]
    order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
    best = order[0]
    chosen, size = {best}, sentences[best].tokens
    good = [at for at in order[1:] if scores[at] > 0.5 * scores[best]]
    for at in (*good, best + 1, best - 1, best + 2, best - 2, best + 3):
        if 0 <= at < len(sentences) and at not in chosen and size + sentences[at].tokens <= limit:
            chosen.add(at)
            size += sentences[at].tokens
    return tuple(sorted(chosen)), size
