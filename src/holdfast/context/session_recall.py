"""Choose what a prompt recalls from its own session: how much the current message deserves, and which older messages. Pure functions.

The whole session is ranked for the current message. How much may be recalled follows from the *need*: the probability that the message asks
for something that only messages outside the prompt hold. Three signs tell it: the message asks; some message outside the prompt has most of
its rare words; and many messages outside the prompt rank above the best one in the prompt. Thresholds on scores did worse, because long
remarks score higher than questions.

The best messages are recalled whole as far as possible, further ones as excerpts: the sentences that have most in common with the current
message, and those around them, because answers often stand beside the words of a question. A statement that was corrected is only recalled
together with its correction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from holdfast.context.build import Draft
from holdfast.context.statements import ASKED, Statement
from holdfast.context.window import Window
from holdfast.recall.chunks import find_sentences
from holdfast.recall.postings import Row, SessionHits
from holdfast.recall.snippets import TermMatcher
from holdfast.recall.terms import NUMBERED, TIMED, is_question

NEED_BASE, NEED_ASKS, NEED_COVERED, NEED_AHEAD = -4.0, 1.55, 6.3, 0.12
"""Logistic regression: log odds of any message; of one that asks; for the covered share of its rare words; and for each message outside the
prompt that ranks above the best one in the prompt, up to `LOOKED_AT`."""
NONE_BELOW, FULL_FROM = 0.1, 0.4
"""The room grows from its least to its most between these needs."""
LEAST_SHARE, MOST_SHARE = 0.03, 0.5
LEAST_TOKENS, MOST_TOKENS = 600, 6_000
"""The room as a share of the conversation's budget, and its limits in tokens, for the least and the most need."""
REMARK, QUESTION = 2_048, 128
"""Recall ends at the n-th hit that the prompt already has: the budget divided by a number between these, and at least 1."""
LOOKED_AT: Final = 20
FRAME, HEADING = 8, 32
"""Tokens of the frame of an item, and of the block."""
WHOLE_SHARE, MOST_SHORT = 0.35, 800
"""Hits have their full form in this share of the room, or in all of it but `MOST_SHORT` tokens if that is more."""
EARLY: Final = 0.6
"""Share of the budget from which messages are evicted early if the current message needs the tokens for recall."""
LEAST_ITEM: Final = 40
LEAST_TERMS: Final = 3
"""A message with fewer terms is only recalled if it has a word of the current message, a number or a time: "Noted, thanks." says nothing."""
READ_MORE, MOST_READ = 1.3, 160
"""Messages are read for this multiple of the room, because excerpts may be shorter than expected, and at most this number."""
_NEAR: Final = (1, -1, 2, -2, 3)
"""Sentences around the best one that an excerpt adds if there is room, by distance."""


class Form(NamedTuple):
    """Limits of an item in tokens: a message of up to `whole` is recalled whole, a longer one as an excerpt."""

    whole: int
    excerpt: int


FULL: Final = {True: Form(300, 120), False: Form(100, 80)}
SHORT: Final = {True: Form(120, 60), False: Form(60, 40)}
"""The forms of the first and of further hits, for a user's message (True) and any other."""
_LEAST_FORM: Final = Form(LEAST_ITEM, LEAST_ITEM)


class Sent(NamedTuple):
    """The entries that a prompt has whole, without recall."""

    start: int
    """All entries from this one on are in the prompt."""
    cut: Collection[int]
    """Entries that are not whole there."""
    head: Collection[int]
    """Earlier entries in the prompt."""

    @classmethod
    def from_window(cls, window: Window) -> Sent:
        """Return what a window sends."""
        start = window.units[0].first if window.units else 0
        cut = {seq for seq, cut in window.cuts.items() if not cut.whole}
        return cls(start, cut, {entry.seq for unit in window.head for entry in unit.entries})

    def has(self, seq: int) -> bool:
        """Return True if the prompt has the whole entry."""
        return (seq >= self.start or seq in self.head) and seq not in self.cut


class Plan(NamedTuple):
    """Limit of what a message may recall."""

    tokens: int
    patience: int
    """Recall ends at this hit of those that the prompt already has."""


Spans = Sequence[tuple[int, int]]
"""Parts of a text: first character and end character (exclusive) of each."""
Corrected = Mapping[int, Sequence[tuple[Statement, Statement]]]
"""Statements that the prompt must not hold alone, each with its correction, by the `seq` of the corrected one."""


class Excerpt(NamedTuple):
    """A recalled entry."""

    seq: int
    spans: Spans
    """The parts of its text that are shown."""
    tokens: int
    """Estimated tokens of the item."""


def is_asking(text: str) -> bool:
    """Return True if a sentence of a message asks something."""
    sentences = (text[start:stop] for start, stop in find_sentences(text))
    return any(is_question(one) or ASKED.search(one) is not None for one in sentences)


def estimate_need(ranked: SessionHits, sent: Sent, *, asks: bool) -> float:
    """Return the probability that a message needs entries that the prompt does not have."""
    ahead = next((at for at, hit in enumerate(ranked.hits) if sent.has(hit.row.seq)), LOOKED_AT)
    outside = list(islice((hit for hit in ranked.hits if not sent.has(hit.row.seq)), LOOKED_AT))
    if not outside:
        return 0.0
    odds = (
        NEED_BASE
        + NEED_ASKS * asks
        + NEED_COVERED * max(map(ranked.measure_coverage, outside))
        + NEED_AHEAD * min(ahead, LOOKED_AT)
    )
    return 1 / (1 + math.exp(-odds))


def plan_recall(ranked: SessionHits, sent: Sent, budget: int, *, asks: bool) -> Plan:
    """Return how much a message may recall.

    Args:
        ranked: the ranking of the whole session.
        sent: what the prompt has.
        budget: maximum tokens of the conversation.
        asks: True if the message asks something.
    """
    need = estimate_need(ranked, sent, asks=asks)
    grade = min(1.0, max(0.0, (need - NONE_BELOW) / (FULL_FROM - NONE_BELOW)))

    def mix(least: float, most: float) -> float:
        return least + (most - least) * grade

    tokens = min(budget * mix(LEAST_SHARE, MOST_SHARE), mix(LEAST_TOKENS, MOST_TOKENS))
    return Plan(int(tokens), max(1, round(mix(budget / REMARK, budget / QUESTION))))


def is_early(drafted: Draft, plan: Plan) -> bool:
    """Return True if a message needs more tokens for recall than are free, and an eviction would soon be due anyway."""
    return drafted.fitted.tokens > drafted.limit * EARLY and plan.tokens > drafted.session_room


def list_wanted(ranked: SessionHits, sent: Sent, plan: Plan) -> list[Row]:
    """Return the entries that may be recalled, best first, so that the caller reads them."""
    return list(_iter_wanted(ranked, sent, plan))


def _iter_wanted(ranked: SessionHits, sent: Sent, plan: Plan) -> Iterator[Row]:
    patience, left = plan.patience, READ_MORE * plan.tokens
    short = left - _measure_full_room(plan.tokens)
    number = 0
    for hit in ranked.hits:
        if sent.has(hit.row.seq):
            patience -= 1
            if not patience:
                return
            continue
        if not hit.terms and hit.row.length < LEAST_TERMS and not hit.row.traits & (NUMBERED | TIMED):
            continue
        form = (FULL if left > short else SHORT)[hit.row.role == "user"]
        left -= FRAME + (hit.row.tokens if hit.row.tokens <= form.whole else form.excerpt)
        yield hit.row
        number += 1
        if left < LEAST_ITEM or number == MOST_READ:
            return


def choose_excerpts(
    wanted: Sequence[Row], texts: Mapping[int, str], corrected: Corrected, matcher: TermMatcher, room: int
) -> list[Excerpt]:
    """Return what is recalled, best first. Corrections come before what they correct.

    Args:
        wanted: the result of `list_wanted`.
        texts: the texts of these entries, and of the corrections, by `seq`. Entries that must not be recalled are missing.
        corrected: corrections that the prompt does not have.
        matcher: finds the terms of the message.
        room: maximum tokens, with the frame.
    """
    found: dict[int, Excerpt] = {}
    used, whole = HEADING, _measure_full_room(room)
    for row in wanted:
        text = texts.get(row.seq)
        if not text:
            continue
        forms = FULL if used < whole else SHORT
        for form in (forms[row.role == "user"], _LEAST_FORM):
            item = _make_excerpt(row, text, form, matcher)
            added = [*_find_corrections(item, texts, corrected), item]
            if used + sum(one.tokens for one in added) <= room:
                for one in added:
                    found[one.seq] = _join(found.get(one.seq), one)
                    used += one.tokens
                break
        if room - used < LEAST_ITEM:
            break
    return [*found.values()]


def _find_corrections(item: Excerpt, texts: Mapping[int, str], corrected: Corrected) -> list[Excerpt]:
    """Return the corrections of the statements that an excerpt shows, and the corrections of these."""
    found: list[Excerpt] = []
    pairs = corrected.get(item.seq, ())
    shown = join_spans(texts[item.seq], item.spans) if pairs else ""
    for one, later in pairs:
        text = texts.get(later.seq, "")
        if one.text in shown and (said := _find_words(later.text, text)) is not None:
            spans = [(start, stop) for start, stop in find_sentences(text) if start < said[1] and stop > said[0]]
            tokens = later.cost * sum(stop - start for start, stop in spans) / len(later.text)
            correction = Excerpt(later.seq, spans, FRAME + math.ceil(tokens))
            found += (*_find_corrections(correction, texts, corrected), correction)
    return found


def _find_words(words: str, text: str) -> tuple[int, int] | None:
    """Return where a text has some words, whatever white space is between them."""
    start = text.find(words)  # mostly right, and much faster than a new pattern
    if start >= 0:
        return start, start + len(words)
    found = re.search(r"\s+".join(map(re.escape, words.split())), text)
    return None if found is None else found.span()


def _join(known: Excerpt | None, item: Excerpt) -> Excerpt:
    """Return an excerpt with the sentences of two of the same entry."""
    if known is None:
        return item
    spans: list[tuple[int, int]] = []
    for start, stop in sorted((*known.spans, *item.spans)):
        if not spans or start >= spans[-1][1]:
            spans.append((start, stop))
        else:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
    return Excerpt(item.seq, spans, known.tokens + item.tokens)


def _measure_full_room(room: int) -> float:
    """Return the tokens of a room that hits fill in their full form."""
    return max(room * WHOLE_SHARE, room - MOST_SHORT)


def _make_excerpt(row: Row, text: str, form: Form, matcher: TermMatcher) -> Excerpt:
    if row.tokens <= form.whole:
        return Excerpt(row.seq, ((0, len(text)),), row.tokens + FRAME // 2)
    spans = choose_sentences(row, text, form.excerpt, matcher)
    size = sum(stop - start for start, stop in spans)
    return Excerpt(row.seq, spans, FRAME + len(spans) + math.ceil(row.tokens * size / len(text)))


def choose_sentences(row: Row, text: str, limit: int, matcher: TermMatcher) -> list[tuple[int, int]]:
    """Return the position of the sentences that have most in common with the message. The best one is always among them.

    Args:
        row: an entry.
        text: its text.
        limit: maximum tokens of the sentences, except for the best one.
        matcher: finds the terms of the message.
    """
    share = row.tokens / len(text)
    sentences = list(zip(row.sentences[::2], row.sentences[1::2], strict=True))
    if not sentences:
        return [(0, len(text))]
    scores = matcher.score(text[: sentences[-1][1]], row.sentences[1::2])
    costs = [1 + share * (stop - start) for start, stop in sentences]
    best = max(range(len(scores)), key=scores.__getitem__)
    chosen, size = {best}, costs[best]
    good = [at for at, score in enumerate(scores) if score > 0.5 * scores[best] and at != best]
    good.sort(key=scores.__getitem__, reverse=True)
    for at in (*good, *(best + step for step in _NEAR)):
        if 0 <= at < len(sentences) and at not in chosen and size + costs[at] <= limit:
            chosen.add(at)
            size += costs[at]
    return [sentences[at] for at in sorted(chosen)]


def join_spans(text: str, spans: Spans) -> str:
    """Return parts of a text as one line, with dots where something is left out."""
    shown, last = "", 0
    for start, stop in spans:
        gap = text[last:start].strip() != ""
        shown += f"{' ' if shown else ''}{'… ' if gap else ''}{' '.join(text[start:stop].split())}"
        last = stop
    return f"{shown} …" if text[last:].strip() else shown
