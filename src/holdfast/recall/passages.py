"""Search the sentences of one session by the words of a question, in a table of bounded size. Pure functions.

The table stores no text, only each sentence's entry, position and terms. The text of a result is read from the log again. Adding
an entry costs time proportional to its length. A search is bounded by the table's maximum size, regardless of the length of the
session.
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
from holdfast.recall.terms import NUMBERED, TIMED, extract_terms, join_traits

MAX_PASSAGES: Final = 4_000
"""Maximum number of sentences in a table; those of the oldest entries are dropped first."""
ENTRY_CHARS: Final = 20_000
"""Number of characters of an entry that are read. Of a longer entry, the head and tail are read."""
ENTRY_PASSAGES: Final = 200
"""Number of sentences of an entry that are kept. Of a longer entry, the first and the last ones are kept."""
COMMON: Final = 0.2
FEW: Final = 100
"""A word that occurs in more than this share, and more than this number, of the sentences is too common to distinguish them."""
SHORT: Final = 160
"""A sentence of at most this many characters is short. It is shown together with adjacent short sentences."""
ANSWER: Final = 80
"""An entry of at most this many characters may consist of an answer alone."""
LEAST_TERMS: Final = 4
"""A sentence with fewer terms, none of them in the question, is skipped unless it answers the preceding question."""
_AMONG: Final = 32
"""Number of entries, chosen by their best sentence, that are ranked as a whole."""
_ENTRIES: Final = 24
"""Number of entries, chosen by their best sentence, whose sentences and neighbours are ranked."""
_PREFIX: Final = 5
"""Common initial letters of two terms that may be forms of one word (`tenant`, `tenancy`)."""
_NUMBER: Final = re.compile(r"\d|[一二三四五六七八九十百千万两]{2}")
_NAME: Final = re.compile(r"(?<![.!?:] )(?<=[\w,;] )[A-ZÀ-Þ][\w'’-]+")  # noqa: RUF001 - an apostrophe
_ASKS: Final = re.compile(r"[?？][\s\"'”’»)*]*$")  # noqa: RUF001 - question marks
_WHO: Final = re.compile(
    r"\b(?:who|whom|whose|names?|called|wer|wem|wen|wie heißt|heißen|qui|nom|appell\w+|quién|nombre|llam\w+|quem|nome|кто|зовут)\b"
    r"|谁|叫|名字|哪位|誰|名前",
    re.IGNORECASE,
)
TABLE_BYTES, ROW_BYTES, TERM_BYTES, PLACE_BYTES = 2_000, 350, 220, 40
"""Estimated memory of a table: the base, then each sentence, each distinct term, and each occurrence of a term."""
_ASKED, _NUMBERED, _NAMED, _USERS, _CORRECTS = 1, 2, 4, 8, 16
CORRECTION_LEAST: Final = 2.0
"""A later sentence replaces an earlier one if the evidence exceeds this plus the logarithm of the number of sentences. Evidence
is the sum of the logarithmic rarities of common words."""
CORRECTION_FEWEST: Final = 150
"""Rarity is computed as if there were at least this many sentences."""
CORRECTION_TRIES: Final = 2
"""Number of later sentences with a correction cue, those with the most evidence, for which the replaced sentence is searched."""
CORRECTION_COMMON: Final = 0.1
"""A word found in more than this share of the sentences is no evidence."""
CORRECTION_VALUES: Final = 2.0
"""Evidence that is added if both sentences have a number or a time, and subtracted if only one of them has."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of the signs that a sentence answers a question, tuned on `benchmarks/statements/dev`."""

    saturation: float = 0.5
    """BM25's `k1`; a term counts once per sentence."""
    by_length: float = 0.2
    """BM25's `b`."""
    form: float = 0.35
    """For a term that begins like a term of the question."""
    next_to: float = 0.3
    """For the better of the two adjacent sentences."""
    second: float = 0.2
    """For the better of the two sentences beyond the adjacent ones."""
    entry: float = 0.1
    """For the best sentence of the same entry."""
    entry_beside: float = 0.25
    """For the best sentence of the previous and of the next entry."""
    question_before: float = 0.8
    """For the question at the end of the previous entry: an answer seldom repeats its words."""
    by_user: float = 1.5
    by_role: float = 1.6
    """For a sentence by the speaker that the question names."""
    number: float = 1.5
    """For a sentence with a number or a time."""
    number_asked: float = 2.0
    """For a sentence with a number or a time if the question asks for one."""
    name: float = 1.3
    name_asked: float = 2.0
    question: float = 0.4
    """For a sentence that is a question itself."""
    whole: float = 1.0
    """For the best entry in a search for whole entries. Other entries get a share of it, in proportion to their scores."""
    entries: int = 12
    """Number of results of the search for whole entries that count."""


DEFAULT: Final = Weights()


class Passage(NamedTuple):
    """A sentence of an entry."""

    seq: int
    start: int
    stop: int
    """Start (inclusive) and stop (exclusive) in the characters of the entry's words."""
    score: float
    evidence: float = 0.0
    """How much of the question the sentence and its surroundings contain. A word in half of the sentences counts about 1, a rare
    word 5."""
    covered: float = 0.0
    """`evidence` as a share of that of all words in the question."""


class Finding(NamedTuple):
    """A passage and its context."""

    passage: Passage
    whole: Passage
    """The passage with adjacent short sentences, if it is short itself."""
    question: Passage | None
    """The question at the end of the previous entry, if this entry is so short that it may consist of the answer alone."""
    newer: Passage | None = None
    """The later sentence of the user that replaces the passage."""


class _Matched(NamedTuple):
    """Scores of the sentences that match a question."""

    rows: Mapping[int, float]
    whole: float
    """The total weight of all words of the question."""


class _Row(NamedTuple):
    seq: int
    start: int
    stop: int
    length: int
    """Number of terms."""
    flags: int
    terms: tuple[str, ...]


class PassageTable:
    """The sentences of one session.

    Args:
        corrects: returns True for a sentence of the user that corrects something.

    Attributes:
        begins: entries before this `seq` were not read in order, but some may have been added because an index found them.
        through: all entries from `begins` up to (excluding) this `seq` were added.
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
        """Estimate the memory of the table in bytes."""
        return TABLE_BYTES + ROW_BYTES * len(self._rows) + TERM_BYTES * len(self._postings) + PLACE_BYTES * self._terms

    def __contains__(self, seq: object) -> bool:
        return seq in self._entries

    def add(self, seq: int, role: str, text: str) -> None:
        """Add the sentences of an entry, unless the entry was added before.

        Args:
            seq: the entry's position.
            role: the role of its speaker.
            text: all of its words.
        """
        if seq in self._entries:
            return
        self._add_rows(
            seq, [self._make_row(seq, role, text, start, stop) for start, stop in _find_bounded_sentences(text)]
        )
        if len(self._rows) > MAX_PASSAGES:
            self._keep_newest(MAX_PASSAGES * 3 // 4)

    def add_context(self, passage: Passage, *, newer: bool = True) -> Finding:
        """Return a passage with its context. `newer` includes its correction, which is the slowest part."""
        first, end = self._entries[passage.seq]
        whole, rows = passage, self._rows[first:end]
        if passage.stop - passage.start <= SHORT:
            at = self._find_row(passage) - first
            for row in rows[max(at - 1, 0) : at + 2]:
                if row.stop - row.start <= SHORT:
                    whole = whole._replace(start=min(whole.start, row.start), stop=max(whole.stop, row.stop))
        asked = self._find_question_row(passage.seq) if self._is_short(first, end) else -1
        return Finding(
            passage,
            whole,
            None if asked < 0 else self._make_passage(asked, 0.0),
            self.find_correction(passage) if newer else None,
        )

    def search(
        self,
        question: Question,
        boosts: Mapping[int, float] | None = None,
        weights: Weights = DEFAULT,
    ) -> list[Passage]:
        """Find the sentences that answer a question, best first.

        Args:
            question: the question.
            boosts: bonus by `seq` for entries found by other means; 1.0 equals the score of the best sentence.
            weights: the weights of the ranking.
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
        near = {seq for one in leading for seq in (one, *self._list_adjacent(one))}
        rank = _Ranking(self, question, weights, matched, best)
        found = [
            one for seq in near for one in rank.iter_passages(seq, more.get(seq, 0.0), alone=seq not in (boosts or {}))
        ]
        return sorted(found, key=lambda one: (-one.score, -one.seq, one.start))

    def rank_entries(
        self, question: Question, limit: int, among: Collection[int] | None = None
    ) -> list[tuple[int, float]]:
        """Rank whole entries like a search does (see `holdfast.recall.ranking`). If `among` is given, rank only its entries.

        Returns:
            The `seq` of the best entries, each with its score as a share of the best score, 0 to 1.
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
                    entry_counts = counts.setdefault(seq, {})
                    entry_counts[term] = entry_counts.get(term, 0) + 1
        found = [self._make_candidate(seq, entry_counts) for seq, entry_counts in sorted(counts.items())]
        ranking = Ranking(question, Candidates(found, len(self._entries), self._terms, frequencies))
        missing = ranking.list_missing(limit)
        ranking.fill([self._make_candidate(self._order[at], {}) for _, at in missing if at < len(self._order)], missing)
        hits = ranking.list_hits(limit)
        return [(hit.candidate.seq, hit.score / hits[0].score) for hit in hits]

    def _make_candidate(self, seq: int, counts: Mapping[str, int]) -> Candidate:
        """Make the candidate for an entry. Its neighbours are the adjacent entries of the table."""
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
        """Return a later sentence of the user that replaces an earlier one, judged by common rare words, or None."""
        at = self._find_row(passage)
        if not self._rows[at].flags & _USERS:
            return None
        later = self._weigh_evidence(at, later=True)
        for other in nlargest(CORRECTION_TRIES, later, key=lambda one: (later[one], one)):
            earlier = self._weigh_evidence(other, later=False)
            best = max(earlier, key=lambda one: (earlier[one], one))
            if best == at and earlier[best] >= CORRECTION_LEAST + math.log(len(self._rows)):
                return self._make_passage(other, passage.score)
        return None

    # -- internals -------------------------------------------------------------

    def _make_row(self, seq: int, role: str, text: str, start: int, stop: int) -> _Row:
        sentence = text[start:stop]
        terms = extract_terms(sentence)
        flags = 0
        if role == "user":
            flags |= _USERS | (_CORRECTS if self._corrects(sentence) else 0)
        flags |= _ASKED if _ASKS.search(sentence) else 0
        flags |= _NUMBERED if terms.traits & (NUMBERED | TIMED) or _NUMBER.search(sentence) else 0
        flags |= _NAMED if _NAME.search(sentence) else 0
        return _Row(seq, start, stop, terms.length, flags, tuple(terms.counts))

    def _add_rows(self, seq: int, rows: Iterable[_Row]) -> None:
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
        """Drop the oldest entries until at most `most` sentences are left; always keep the newest entry."""
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
            self._add_rows(seq, rows[slice(*entries[seq])])
        self.begins = max(self.begins, kept[-1])

    def _make_passage(self, row: int, score: float) -> Passage:
        found = self._rows[row]
        return Passage(found.seq, found.start, found.stop, score)

    def _weigh_evidence(self, at: int, *, later: bool) -> dict[int, float]:
        """Return evidence, by row, that later correcting sentences replace a sentence, or that it replaces earlier sentences."""
        rows, number, found = self._rows, len(self._rows), dict[int, float]()
        one = rows[at]
        for term in one.terms:
            posting = self._postings[term]
            if term.isdigit() or len(posting) > max(CORRECTION_COMMON * number, 2):
                continue
            rarity = _compute_rarity(max(number, CORRECTION_FEWEST), len(posting))
            for other in posting:
                row = rows[other]
                if row.flags & (_CORRECTS if later else _USERS) and (row.seq > one.seq if later else row.seq < one.seq):
                    found[other] = found.get(other, 0.0) + rarity
        for other in found:
            values = (one.flags & _NUMBERED) + (rows[other].flags & _NUMBERED)
            found[other] += CORRECTION_VALUES * (values // _NUMBERED - 1)
        return found

    def _is_short(self, first: int, end: int) -> bool:
        """Return True if an entry with these sentences may consist of an answer alone."""
        return self._rows[end - 1].stop - self._rows[first].start <= ANSWER

    def _find_row(self, passage: Passage) -> int:
        return next(at for at in range(*self._entries[passage.seq]) if self._rows[at].start == passage.start)

    def _find_question_row(self, seq: int) -> int:
        """Return the row of the question at the end of the previous entry; -1 if the entry does not end with a question."""
        at = bisect_left(self._order, seq)
        first, end = self._entries[self._order[at - 1]] if at else (0, 0)
        return end - 1 if first < end and self._rows[end - 1].flags & _ASKED else -1

    def _list_adjacent(self, seq: int) -> list[int]:
        """Return the entries before and after an entry, as far as the table has them."""
        at = bisect_left(self._order, seq)
        return [*self._order[max(at - 1, 0) : at], *self._order[at + 1 : at + 2]]

    def _match(self, question: Question, weights: Weights) -> _Matched:
        """Score the sentences that contain words of the question, by BM25."""
        rows, number = self._rows, len(self._rows)
        average = max(self._terms / number, 1.0) if number else 1.0
        scores: dict[int, float] = {}
        whole = 0.0
        for concept in question.concepts:
            best: dict[int, float] = {}
            rarest: float | None = None
            for term, weight in self._iter_terms(concept.variants, weights.form):
                posting = self._postings[term]
                if len(posting) > max(COMMON * number, FEW):
                    rarest = rarest or 0.0
                    continue
                rarity = weight * _compute_rarity(number, len(posting))
                rarest = max(rarest or 0.0, rarity)
                for row in posting:
                    length = 1 - weights.by_length + weights.by_length * rows[row].length / average
                    score = rarity * (weights.saturation + 1) / (1 + weights.saturation * length)
                    if score > best.get(row, 0.0):
                        best[row] = score
            for row, score in best.items():
                scores[row] = scores.get(row, 0.0) + score
            whole += _compute_rarity(number, 0) if rarest is None else rarest
        return _Matched(scores, whole)

    def _iter_terms(self, variants: Iterable[tuple[str, float]], form: float) -> Iterator[tuple[str, float]]:
        """Yield the table's terms that match a word of the question, with their weights."""
        known: dict[str, float] = dict(variants)
        own = next(iter(known), "")
        if _has_form(own):
            for other in self._forms.get(own[:_PREFIX], ()):
                known.setdefault(other, form)
        yield from ((term, weight) for term, weight in known.items() if term in self._postings)


class _Ranking:
    """Scores the sentences of one search by their own words and their surroundings."""

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

    def iter_passages(self, seq: int, boost: float, *, alone: bool) -> Iterator[Passage]:
        """Yield the sentences of an entry that may answer. `alone`: the entry was found by words alone, without a boost."""
        weights, own, table = self._weights, self._own, self._table
        first, end = table._entries[seq]  # noqa: SLF001 - its own table
        common = weights.entry * self._best.get(seq, 0.0)
        common += weights.entry_beside * sum(self._best.get(one, 0.0) for one in table._list_adjacent(seq))  # noqa: SLF001
        question = table._find_question_row(seq)  # noqa: SLF001
        asked = own.get(question, 0.0)
        least = LEAST_TERMS if alone and (question < 0 or not table._is_short(first, end)) else 0  # noqa: SLF001
        for row in range(first, end):
            if row not in own and table._rows[row].length < least:  # noqa: SLF001
                continue
            neighbours = weights.next_to * max(
                _get_score(own, row - 1, first, end), _get_score(own, row + 1, first, end)
            )
            neighbours += weights.second * max(
                _get_score(own, row - 2, first, end), _get_score(own, row + 2, first, end)
            )
            answers = weights.question_before * asked / (1 + (row - first) / 2)
            evidence = own.get(row, 0.0) + neighbours + common + answers
            if evidence + boost > 0:
                found = table._make_passage(row, (evidence + boost) * self._compute_factor(row))  # noqa: SLF001
                yield found._replace(evidence=evidence, covered=evidence / self._whole)

    def _compute_factor(self, row: int) -> float:
        weights, found = self._weights, self._table._rows[row]  # noqa: SLF001
        factor = weights.by_user if found.flags & _USERS else 1.0
        if self._question.role is not None and (self._question.role == "user") == bool(found.flags & _USERS):
            factor *= weights.by_role
        if found.flags & _NUMBERED:
            factor *= weights.number_asked if self._asks_number else weights.number
        if found.flags & _NAMED:
            factor *= weights.name_asked if self._asks_name else weights.name
        return factor * weights.question if found.flags & _ASKED else factor


def _compute_rarity(number: int, holders: int) -> float:
    return math.log(1 + (number - holders + 0.5) / (holders + 0.5))


def _get_score(scores: Mapping[int, float], row: int, first: int, end: int) -> float:
    return scores.get(row, 0.0) if first <= row < end else 0.0


def _has_form(term: str) -> bool:
    return len(term) >= _PREFIX and term.isalpha()


def _find_bounded_sentences(text: str) -> list[tuple[int, int]]:
    """Return start and stop of the sentences of a text. Of a long text, only the sentences of head and tail are returned."""
    if len(text) <= ENTRY_CHARS:
        found = list(find_sentences(text))
    else:
        head = ENTRY_CHARS * 3 // 5
        found = [*find_sentences(text, 0, head), *find_sentences(text, len(text) - ENTRY_CHARS + head)]
    if len(found) <= ENTRY_PASSAGES:
        return found
    first = ENTRY_PASSAGES * 3 // 5
    return [*found[:first], *found[first - ENTRY_PASSAGES :]]
