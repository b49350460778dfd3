"""Passages of one session: a bounded table of its sentences, searched by words for what a message asks about. Pure.

The table keeps no text: of each sentence its entry, its place in it, and its terms. What it finds is read from the log again.
Adding an entry costs what the entry holds; a search costs what the table may hold at most, whatever the length of the session.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import nlargest
from typing import Final, NamedTuple

import msgspec

from holdfast.recall.base import Candidate, Candidates
from holdfast.recall.chunks import find_sentences
from holdfast.recall.questions import MAX_ASKING, Question
from holdfast.recall.ranking import Ranking
from holdfast.recall.terms import NUMBERED, TIMED, join_traits, terms_of

MAX_PASSAGES: Final = 4_000
"""Sentences that a table keeps; those of the oldest entries are dropped first."""
ENTRY_CHARS: Final = 20_000
"""Characters of an entry that are read: of a longer one the head and the tail."""
ENTRY_PASSAGES: Final = 200
"""Sentences of an entry that are kept: the first and the last ones."""
COMMON: Final = 0.2
FEW: Final = 100
"""The part of the sentences that may hold a word that is looked for, and how many may in any case: a more common one tells none apart."""
SHORT: Final = 160
"""Characters of a sentence up to which those beside it that are as short come along."""
ANSWER: Final = 80
"""Characters of an entry up to which it may be no more than an answer."""
LEAST_TERMS: Final = 4
"""Terms below which a sentence that has no word of the question says nothing by itself, unless it answers the question before it."""
_AMONG: Final = 32
"""Entries, the best by their best sentence, that are ranked as a whole."""
_ENTRIES: Final = 24
"""Entries, the best by their best sentence, whose sentences and those of their neighbours are ranked."""
_PREFIX: Final = 5
"""First letters that two terms have in common that may be forms of one word (`tenant`, `tenancy`)."""
_NUMBER: Final = re.compile(r"\d|[一二三四五六七八九十百千万两]{2}")
_NAME: Final = re.compile(r"(?<![.!?:] )(?<=[\w,;] )[A-ZÀ-Þ][\w'’-]+")  # noqa: RUF001 - an apostrophe
_ASKS: Final = re.compile(r"[?？][\s\"'”’»)*]*$")  # noqa: RUF001 - question marks
_WHO: Final = re.compile(
    r"\b(?:who|whom|whose|names?|called|wer|wem|wen|wie heißt|heißen|qui|nom|appell\w+|quién|nombre|llam\w+|quem|nome|кто|зовут)\b"
    r"|谁|叫|名字|哪位|誰|名前",
    re.IGNORECASE,
)
TABLE_BYTES, ROW_BYTES, TERM_BYTES, PLACE_BYTES = 2_000, 350, 220, 40
"""What a table takes in memory: itself, each sentence, each different term, and each occurrence of a term."""
_ASKED, _NUMBERED, _NAMED, _USERS, _CORRECTS = 1, 2, 4, 8, 16
CORRECTION_LEAST: Final = 2.0
"""Evidence, in logarithms of how rare the words in common are, from which a later sentence replaces an earlier one, beyond the logarithm of
the number of sentences."""
CORRECTION_FEWEST: Final = 150
"""Sentences that rarity is measured against at least."""
CORRECTION_TRIES: Final = 2
"""Later sentences with a cue of correction, those with most in common, of which each is asked what it replaces."""
CORRECTION_COMMON: Final = 0.1
"""Part of the sentences that may have a word; a more common one is no evidence of that."""
CORRECTION_VALUES: Final = 2.0
"""What it adds that both have a number or a time, and what it takes away that one alone has."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """How much each sign counts that a sentence answers a question; tuned on `benchmarks/statements/dev`."""

    saturation: float = 0.5
    """BM25's `k1`; a term counts once in a sentence."""
    by_length: float = 0.2
    """BM25's `b`."""
    form: float = 0.35
    """A term that begins like one of the question's."""
    next_to: float = 0.3
    """The better of the two sentences beside it."""
    second: float = 0.2
    """The better of the two beyond these."""
    entry: float = 0.1
    """The best sentence of its entry."""
    entry_beside: float = 0.25
    """The best sentence of the entry before it, and of the one after it."""
    question_before: float = 0.8
    """A question that the entry before it ends with: an answer seldom repeats its words."""
    by_user: float = 1.5
    by_role: float = 1.6
    """It was said by whom the question names."""
    number: float = 1.5
    """It has a number or a time."""
    number_asked: float = 2.0
    """It has one, and the question asks for that."""
    name: float = 1.3
    name_asked: float = 2.0
    question: float = 0.4
    """It asks itself."""
    whole: float = 1.0
    """Its entry is the best one of a search for whole entries; others by their share of its score."""
    entries: int = 12
    """Entries of that search which count."""


DEFAULT: Final = Weights()


class Passage(NamedTuple):
    """A sentence of an entry."""

    seq: int
    start: int
    stop: int
    """Characters of the entry's words, from the first until before the last."""
    score: float
    evidence: float = 0.0
    """How much of the question it holds, it and what surrounds it: about 1 for a word that half of the sentences have, 5 for a rare one."""
    covered: float = 0.0
    """Part that this is of all that the question holds."""


class Finding(NamedTuple):
    """A passage with what belongs to it."""

    passage: Passage
    whole: Passage
    """With the short sentences beside it, if it is short itself."""
    question: Passage | None
    """What the entry before asks at its end, if this entry is so short that it may be no more than the answer."""
    newer: Passage | None = None
    """What the user said later instead."""


class _Matched(NamedTuple):
    """What the sentences of a table have of a question."""

    rows: Mapping[int, float]
    whole: float
    """What all words of the question weigh together."""


class _Row(NamedTuple):
    seq: int
    start: int
    stop: int
    length: int
    """Terms in it."""
    flags: int
    terms: tuple[str, ...]


class PassageTable:
    """The sentences of one session, as far as they were added.

    Args:
        corrects: returns True for a sentence of the user that says that something is different now.

    Attributes:
        begins: no entry before this `seq` was read for it; those that were found by an index may be there all the same.
        through: every entry from `begins` until before this `seq` was added.
    """

    def __init__(self, corrects: Callable[[str], bool] = lambda _: False) -> None:
        self._corrects = corrects
        self.begins = self.through = 0
        self._rows: list[_Row] = []
        self._clear()

    def _clear(self) -> None:
        self._postings: dict[str, list[int]] = {}
        self._forms: dict[str, list[str]] = {}
        self._entries: dict[int, tuple[int, int]] = {}
        self._order: list[int] = []
        self._terms = 0

    def __len__(self) -> int:
        return len(self._rows)

    def estimate_bytes(self) -> int:
        """Estimate how many bytes it takes."""
        return TABLE_BYTES + ROW_BYTES * len(self._rows) + TERM_BYTES * len(self._postings) + PLACE_BYTES * self._terms

    def __contains__(self, seq: object) -> bool:
        return seq in self._entries

    def add(self, seq: int, role: str, text: str) -> None:
        """Add an entry's sentences; one that is there already stays.

        Args:
            seq: of the entry.
            role: who said it.
            text: its words, whole.
        """
        if seq in self._entries:
            return
        self._take(seq, [self._row_of(seq, role, text, start, stop) for start, stop in _bounded_sentences(text)])
        if len(self._rows) > MAX_PASSAGES:
            self._keep_newest(MAX_PASSAGES * 3 // 4)

    def complete(self, passage: Passage, *, newer: bool = True) -> Finding:
        """Return a passage with what belongs to it; with its correction, if `newer`: that takes longest."""
        first, end = self._entries[passage.seq]
        whole, rows = passage, self._rows[first:end]
        if passage.stop - passage.start <= SHORT:
            at = self._row_at(passage) - first
            for row in rows[max(at - 1, 0) : at + 2]:
                if row.stop - row.start <= SHORT:
                    whole = whole._replace(start=min(whole.start, row.start), stop=max(whole.stop, row.stop))
        asked = self._question_row(passage.seq) if self._is_short(first, end) else -1
        return Finding(
            passage,
            whole,
            None if asked < 0 else self._passage(asked, 0.0),
            self.find_correction(passage) if newer else None,
        )

    def search(
        self,
        question: Question,
        boosts: Mapping[int, float] | None = None,
        weights: Weights = DEFAULT,
    ) -> list[Passage]:
        """Find what answers a question, the best first.

        Args:
            question: what is looked for.
            boosts: what entries that were found otherwise count on top, by `seq`: 1.0 as much as the best sentence.
            weights: of the ranking.
        """
        matched = self._match(question, weights)
        if not matched.rows and not boosts:
            return []
        best: dict[int, float] = {}
        for row, score in matched.rows.items():
            seq = self._rows[row].seq
            best[seq] = max(best.get(seq, 0.0), score)
        top = max(best.values(), default=1.0)
        among = nlargest(_AMONG, best, key=lambda seq: (best[seq], seq))
        ranked = self.rank_entries(question, weights.entries, frozenset(among)) if weights.whole else []
        more = {seq: top * weights.whole * share for seq, share in ranked}
        for seq, boost in (boosts or {}).items():
            if seq in self._entries:
                more[seq] = max(more.get(seq, 0.0), top * boost)
        leading = sorted({*best, *more}, key=lambda seq: (-best.get(seq, 0.0) - more.get(seq, 0.0), -seq))[:_ENTRIES]
        near = {seq for one in leading for seq in (one, *self._beside(one))}
        rank = _Ranking(self, question, weights, matched, best)
        found = [one for seq in near for one in rank.of_entry(seq, more.get(seq, 0.0), alone=seq not in (boosts or {}))]
        return sorted(found, key=lambda one: (-one.score, -one.seq, one.start))

    def rank_entries(
        self, question: Question, limit: int, among: Collection[int] | None = None
    ) -> list[tuple[int, float]]:
        """Rank whole entries, of which `seq` is `among` those if given, as a search does; see `holdfast.recall.ranking`.

        Returns:
            The `seq` of the best, with its score as a share of the best one's, 0 to 1.
        """
        counts: dict[int, dict[str, int]] = {}
        frequencies: dict[str, int] = {}
        for term in question.terms:
            posting = self._postings.get(term, ())
            if len(posting) > max(COMMON * len(self._rows), FEW):
                continue
            frequencies[term] = min(len(posting), len(self._entries))
            for row in posting:
                seq = self._rows[row].seq
                if among is None or seq in among:
                    held = counts.setdefault(seq, {})
                    held[term] = held.get(term, 0) + 1
        found = [self._candidate(seq, held) for seq, held in sorted(counts.items())]
        ranking = Ranking(question, Candidates(found, len(self._entries), self._terms, frequencies))
        missing = ranking.missing(limit)
        ranking.fill([self._candidate(self._order[at], {}) for _, at in missing if at < len(self._order)], missing)
        hits = ranking.hits(limit)
        return [(hit.candidate.seq, hit.score / hits[0].score) for hit in hits]

    def _candidate(self, seq: int, counts: Mapping[str, int]) -> Candidate:
        """An entry as a search has it; neighbours are those next to it in the table."""
        rows = self._rows[slice(*self._entries[seq])]
        flags = rows[-1].flags if rows else 0
        traits = NUMBERED | TIMED if any(row.flags & _NUMBERED for row in rows) else 0
        asked = sum(row.stop - row.start for row in rows if row.flags & _ASKED)
        share = asked / (rows[-1].stop - rows[0].start) if asked else 0.0
        return Candidate(
            source=0,
            place=bisect_left(self._order, seq),
            seq=seq,
            session="",
            identity="",
            role="user" if flags & _USERS else "assistant",
            agent=None,
            name=None,
            at=seq,
            length=sum(row.length for row in rows),
            counts=counts,
            traits=join_traits((traits,), min(share, 1.0), asks=bool(flags & _ASKED)),
        )

    def find_correction(self, passage: Passage) -> Passage | None:
        """Return the later sentence of the user that replaces one of theirs, by the rare words in common; None if there is none."""
        at = self._row_at(passage)
        if not self._rows[at].flags & _USERS:
            return None
        later = self._evidence(at, later=True)
        for other in nlargest(CORRECTION_TRIES, later, key=lambda one: (later[one], one)):
            earlier = self._evidence(other, later=False)
            best = max(earlier, key=lambda one: (earlier[one], one))
            if best == at and earlier[best] >= CORRECTION_LEAST + math.log(len(self._rows)):
                return self._passage(other, passage.score)
        return None

    # -- inside ----------------------------------------------------------------

    def _row_of(self, seq: int, role: str, text: str, start: int, stop: int) -> _Row:
        said = text[start:stop]
        terms = terms_of(said)
        flags = 0
        if role == "user":
            flags |= _USERS | (_CORRECTS if self._corrects(said) else 0)
        flags |= _ASKED if _ASKS.search(said) else 0
        flags |= _NUMBERED if terms.traits & (NUMBERED | TIMED) or _NUMBER.search(said) else 0
        flags |= _NAMED if _NAME.search(said) else 0
        return _Row(seq, start, stop, terms.length, flags, tuple(terms.counts))

    def _take(self, seq: int, rows: Iterable[_Row]) -> None:
        first = len(self._rows)
        for row in rows:
            self._terms += row.length
            for term in row.terms:
                if (posting := self._postings.get(term)) is None:
                    posting = self._postings[term] = []
                    if _has_form(term):
                        self._forms.setdefault(term[:_PREFIX], []).append(term)
                posting.append(len(self._rows))
            self._rows.append(row)
        self._entries[seq] = (first, len(self._rows))
        insort(self._order, seq)

    def _keep_newest(self, most: int) -> None:
        """Drop the oldest entries until at most so many sentences are left; the newest entry stays."""
        rows, order, entries = self._rows, self._order, self._entries
        kept, number = list[int](), 0
        for seq in reversed(order):
            first, end = entries[seq]
            number += end - first
            if kept and number > most:
                break
            kept.append(seq)
        self._rows = []
        self._clear()
        for seq in reversed(kept):
            self._take(seq, rows[slice(*entries[seq])])
        self.begins = max(self.begins, kept[-1])

    def _passage(self, row: int, score: float) -> Passage:
        found = self._rows[row]
        return Passage(found.seq, found.start, found.stop, score)

    def _evidence(self, at: int, *, later: bool) -> dict[int, float]:
        """Return how much speaks for it that a sentence is replaced by later ones that correct; or that it replaces earlier ones."""
        rows, number, found = self._rows, len(self._rows), dict[int, float]()
        one = rows[at]
        for term in one.terms:
            posting = self._postings[term]
            if term.isdigit() or len(posting) > max(CORRECTION_COMMON * number, 2):
                continue
            rarity = _rarity(max(number, CORRECTION_FEWEST), len(posting))
            for other in posting:
                row = rows[other]
                if row.flags & (_CORRECTS if later else _USERS) and (row.seq > one.seq if later else row.seq < one.seq):
                    found[other] = found.get(other, 0.0) + rarity
        for other in found:
            values = (one.flags & _NUMBERED) + (rows[other].flags & _NUMBERED)
            found[other] += CORRECTION_VALUES * (values // _NUMBERED - 1)
        return found

    def _is_short(self, first: int, end: int) -> bool:
        """Return True for the sentences of an entry that may be no more than an answer."""
        return self._rows[end - 1].stop - self._rows[first].start <= ANSWER

    def _row_at(self, passage: Passage) -> int:
        return next(at for at in range(*self._entries[passage.seq]) if self._rows[at].start == passage.start)

    def _question_row(self, seq: int) -> int:
        """Return the question that the entry before one ends with; -1 if it does not."""
        at = bisect_left(self._order, seq)
        first, end = self._entries[self._order[at - 1]] if at else (0, 0)
        return end - 1 if first < end and self._rows[end - 1].flags & _ASKED else -1

    def _beside(self, seq: int) -> list[int]:
        """Return the entries before and after one, as far as the table has them."""
        at = bisect_left(self._order, seq)
        return [*self._order[max(at - 1, 0) : at], *self._order[at + 1 : at + 2]]

    def _match(self, question: Question, weights: Weights) -> _Matched:
        """Score the sentences that hold words of the question, by BM25."""
        rows, number = self._rows, len(self._rows)
        average = max(self._terms / number, 1.0) if number else 1.0
        scores: dict[int, float] = {}
        whole = 0.0
        for concept in question.concepts:
            best: dict[int, float] = {}
            rarest: float | None = None
            for term, weight in self._terms_for(concept.variants, weights.form):
                posting = self._postings[term]
                if len(posting) > max(COMMON * number, FEW):
                    rarest = rarest or 0.0
                    continue
                rarity = weight * _rarity(number, len(posting))
                rarest = max(rarest or 0.0, rarity)
                for row in posting:
                    length = 1 - weights.by_length + weights.by_length * rows[row].length / average
                    score = rarity * (weights.saturation + 1) / (1 + weights.saturation * length)
                    if score > best.get(row, 0.0):
                        best[row] = score
            for row, score in best.items():
                scores[row] = scores.get(row, 0.0) + score
            whole += _rarity(number, 0) if rarest is None else rarest
        return _Matched(scores, whole)

    def _terms_for(self, variants: Iterable[tuple[str, float]], form: float) -> Iterator[tuple[str, float]]:
        """Yield the terms of the table that stand for a word of the question, and how much each counts."""
        known: dict[str, float] = dict(variants)
        own = next(iter(known), "")
        if _has_form(own):
            for other in self._forms.get(own[:_PREFIX], ()):
                known.setdefault(other, form)
        yield from ((term, weight) for term, weight in known.items() if term in self._postings)


class _Ranking:
    """The scores of one search: of a sentence, what it holds itself, and what is around it."""

    def __init__(
        self,
        table: PassageTable,
        question: Question,
        weights: Weights,
        matched: _Matched,
        best: Mapping[int, float],
    ) -> None:
        self._table, self._question, self._weights = table, question, weights
        self._own, self._whole, self._best = matched.rows, matched.whole, best
        self._asks_number = question.asks_number or question.asks_time
        self._asks_name = _WHO.search(question.text[:MAX_ASKING]) is not None

    def of_entry(self, seq: int, boost: float, *, alone: bool) -> Iterator[Passage]:
        """Yield the sentences of an entry that may answer; `alone`: nothing but words leads to it."""
        weights, own, table = self._weights, self._own, self._table
        first, end = table._entries[seq]  # noqa: SLF001 - its own table
        common = weights.entry * self._best.get(seq, 0.0)
        common += weights.entry_beside * sum(self._best.get(one, 0.0) for one in table._beside(seq))  # noqa: SLF001
        question = table._question_row(seq)  # noqa: SLF001
        asked = own.get(question, 0.0)
        least = LEAST_TERMS if alone and (question < 0 or not table._is_short(first, end)) else 0  # noqa: SLF001
        for row in range(first, end):
            if row not in own and table._rows[row].length < least:  # noqa: SLF001
                continue
            beside = weights.next_to * max(_at(own, row - 1, first, end), _at(own, row + 1, first, end))
            beside += weights.second * max(_at(own, row - 2, first, end), _at(own, row + 2, first, end))
            answers = weights.question_before * asked / (1 + (row - first) / 2)
            evidence = own.get(row, 0.0) + beside + common + answers
            if evidence + boost > 0:
                found = table._passage(row, (evidence + boost) * self._trait(row))  # noqa: SLF001
                yield found._replace(evidence=evidence, covered=evidence / self._whole)

    def _trait(self, row: int) -> float:
        weights, found = self._weights, self._table._rows[row]  # noqa: SLF001
        factor = weights.by_user if found.flags & _USERS else 1.0
        if self._question.role is not None and (self._question.role == "user") == bool(found.flags & _USERS):
            factor *= weights.by_role
        if found.flags & _NUMBERED:
            factor *= weights.number_asked if self._asks_number else weights.number
        if found.flags & _NAMED:
            factor *= weights.name_asked if self._asks_name else weights.name
        return factor * weights.question if found.flags & _ASKED else factor


def _rarity(number: int, holders: int) -> float:
    return math.log(1 + (number - holders + 0.5) / (holders + 0.5))


def _at(scores: Mapping[int, float], row: int, first: int, end: int) -> float:
    return scores.get(row, 0.0) if first <= row < end else 0.0


def _has_form(term: str) -> bool:
    return len(term) >= _PREFIX and term.isalpha()


def _bounded_sentences(text: str) -> list[tuple[int, int]]:
    """Return start and stop of the sentences of a text, of a long one those of its head and its tail."""
    if len(text) <= ENTRY_CHARS:
        found = list(find_sentences(text))
    else:
        head = ENTRY_CHARS * 3 // 5
        found = [*find_sentences(text, 0, head), *find_sentences(text, len(text) - ENTRY_CHARS + head)]
    if len(found) <= ENTRY_PASSAGES:
        return found
    first = ENTRY_PASSAGES * 3 // 5
    return [*found[:first], *found[first - ENTRY_PASSAGES :]]
