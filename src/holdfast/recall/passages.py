"""Search one session for the sentences that answer a question, by words, in a table of bounded size. Pure functions.

The table does not store the text, only each sentence's entry, position and terms. The text of a result is read from the log again.
Adding an entry takes time proportional to its length. The time of a search is bounded by the maximum size of the table, however
long the session is.
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
"""Maximum number of sentences in a table. The oldest entries are dropped first."""
ENTRY_CHARS: Final = 20_000
"""Maximum number of characters of an entry that are read. Of a longer entry, only the head and tail are read."""
ENTRY_PASSAGES: Final = 200
"""Maximum number of sentences of an entry that are kept. Of a longer entry, the first and the last sentences are kept."""
COMMON: Final = 0.2
FEW: Final = 100
"""A word is ignored as too common if it occurs in more than a share `COMMON` of the sentences and in more than `FEW` sentences."""
SHORT: Final = 160
"""Maximum characters of a short sentence. A short sentence is shown together with adjacent short sentences."""
ANSWER: Final = 80
"""Maximum characters of an entry that may be nothing but the answer to the question before it ("Yes, on Monday.")."""
LEAST_TERMS: Final = 4
"""A sentence with fewer terms than this is skipped if none of its terms is in the question and it does not answer the question at
the end of the previous entry."""
_AMONG: Final = 32
"""Number of entries that are ranked as a whole. The entries with the best sentences are chosen."""
_ENTRIES: Final = 24
"""Number of entries whose sentences are ranked, together with those of the adjacent entries. The best entries are chosen."""
_PREFIX: Final = 5
"""Number of initial letters that two terms must share to be treated as forms of one word (`tenant`, `tenancy`)."""
_NUMBER: Final = re.compile(r"\d|[一二三四五六七八九十百千万两]{2}")
_NAME: Final = re.compile(r"(?<![.!?:] )(?<=[\w,;] )[A-ZÀ-Þ][\w'’-]+")  # noqa: RUF001 - an apostrophe
_ASKS: Final = re.compile(r"[?？][\s\"'”’»)*]*$")  # noqa: RUF001 - question marks
_WHO: Final = re.compile(
    r"\b(?:who|whom|whose|names?|called|wer|wem|wen|wie heißt|heißen|qui|nom|appell\w+|quién|nombre|llam\w+|quem|nome|кто|зовут)\b"
    r"|谁|叫|名字|哪位|誰|名前",
    re.IGNORECASE,
)
TABLE_BYTES, ROW_BYTES, TERM_BYTES, PLACE_BYTES = 2_000, 350, 220, 40
"""Estimated memory in bytes: of an empty table, of each sentence, of each distinct term, and of each occurrence of a term."""
_ASKED, _NUMBERED, _NAMED, _USERS, _CORRECTS = 1, 2, 4, 8, 16
CORRECTION_LEAST: Final = 2.0
"""A later sentence corrects (replaces) an earlier one if the evidence is at least this value plus the logarithm of the number of
sentences. The evidence is the sum of the rarities, which are logarithms, of the words that both sentences contain."""
CORRECTION_FEWEST: Final = 150
"""For the rarities of words, a table with fewer sentences is treated as having this many."""
CORRECTION_TRIES: Final = 2
"""Number of later sentences that are examined as possible corrections. The ones with the most evidence are chosen."""
CORRECTION_COMMON: Final = 0.1
"""A word that occurs in more than this share of the sentences, and in more than two, is not evidence for a correction."""
CORRECTION_VALUES: Final = 2.0
"""Evidence that is added if both sentences have a number or a time, and subtracted if neither has one."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that decide how well a sentence answers a question, tuned on `benchmarks/statements/dev`."""

    saturation: float = 0.5
    """BM25's `k1`. A term counts only once per sentence."""
    by_length: float = 0.2
    """BM25's `b`."""
    form: float = 0.35
    """Weight of a term that is not in the question, but begins like one of its terms. A term of the question has weight 1."""
    next_to: float = 0.3
    """A sentence's score is increased by this share of the BM25 score of the better adjacent sentence."""
    second: float = 0.2
    """Like `next_to`, but for the better of the two sentences at distance two."""
    entry: float = 0.1
    """Like `next_to`, but for the best sentence of the same entry."""
    entry_beside: float = 0.25
    """Like `next_to`, but for the best sentence of the previous entry and the best sentence of the next entry."""
    question_before: float = 0.8
    """Like `next_to`, but for the question at the end of the previous entry. An answer seldom repeats the words of its question."""
    by_user: float = 1.5
    """Factor for the score of a sentence by the user."""
    by_role: float = 1.6
    """Factor for a sentence by the speaker (user or assistant) that the question names."""
    number: float = 1.5
    """Factor for a sentence with a number or a time."""
    number_asked: float = 2.0
    """Factor for a sentence with a number or a time if the question asks for one; replaces `number`."""
    name: float = 1.3
    """Factor for a sentence with a name."""
    name_asked: float = 2.0
    """Factor for a sentence with a name if the question asks for one; replaces `name`."""
    question: float = 0.4
    """Factor for a sentence that is a question itself."""
    whole: float = 1.0
    """Bonus for sentences of the entry that is best when entries are ranked as a whole; 1.0 equals the best sentence's score.
    Other entries get a bonus in proportion to their scores."""
    entries: int = 12
    """Number of entries, the best when ranked as a whole, that get a bonus."""


DEFAULT: Final = Weights()


class Passage(NamedTuple):
    """A sentence that was found, and its score."""

    seq: int
    start: int
    stop: int
    """Position of the first character, and the position after the last character, in the text of the entry."""
    score: float
    evidence: float = 0.0
    """Sum of the weights of the question's words that the sentence and its surroundings contain. A word that occurs in half of the
    sentences adds about 1, a rare word about 5."""
    covered: float = 0.0
    """`evidence` divided by the total weight of all words of the question."""


class Finding(NamedTuple):
    """A passage and its context."""

    passage: Passage
    whole: Passage
    """The passage extended by adjacent short sentences; a passage that is not short itself is not extended."""
    question: Passage | None
    """The question at the end of the previous entry, if this entry is so short that it may be nothing but the answer; else None."""
    newer: Passage | None = None
    """A later sentence of the user that corrects (replaces) the passage; None: none was found."""


class _Matched(NamedTuple):
    """BM25 scores of the sentences that match a question."""

    rows: Mapping[int, float]
    """Score by number of the sentence in the table."""
    whole: float
    """Total weight of all words of the question."""


class _Row(NamedTuple):
    seq: int
    start: int
    stop: int
    length: int
    """Number of terms."""
    flags: int
    terms: tuple[str, ...]


class PassageTable:
    """The sentences of one session, for searches.

    Args:
        corrects: returns True if a sentence of the user corrects something that was said before.

    Attributes:
        begins: all entries from this `seq` up to `through` were added. Of the entries before it, only some may have been added,
            because an index found them.
        through: entries from this `seq` on were not added yet.
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
            seq: the entry's position in the log.
            role: the role of the entry's speaker.
            text: the complete text of the entry.
        """
        if seq in self._entries:
            return
        self._add_rows(
            seq, [self._make_row(seq, role, text, start, stop) for start, stop in _find_bounded_sentences(text)]
        )
        if len(self._rows) > MAX_PASSAGES:
            self._keep_newest(MAX_PASSAGES * 3 // 4)

    def add_context(self, passage: Passage, *, newer: bool = True) -> Finding:
        """Return a passage with its context.

        Args:
            passage: a result of `search`.
            newer: False to leave out the search for a correction, which is the slowest part.
        """
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
            boosts: bonus by `seq` for entries that were found in another way, such as by an index; 1.0 equals the score of the best
                sentence.
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
        """Rank whole entries in the way that a search of the index ranks them (`holdfast.recall.ranking`).

        Args:
            question: the question.
            limit: maximum number of entries to return.
            among: rank only the entries with these `seq`; None: all entries of the table.

        Returns:
            The `seq` of the best entries, each with its score divided by the best score.
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
        """Describe an entry as a candidate for `Ranking`. The adjacent entries in the table become its neighbours."""
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
        """Return a later sentence of the user that corrects a passage, or None.

        A sentence is a correction if `corrects` returns True for it and if it has enough rare words in common with the passage.
        """
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
        """Drop the oldest entries until at most `most` sentences remain. The newest entry always remains."""
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
        """Return the evidence, by row, that one sentence corrects another.

        Args:
            at: the row of a sentence.
            later: True: weigh the later sentences that may correct this sentence. False: weigh the earlier sentences of the user that
                this sentence may correct.
        """
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
        """Return True if an entry (its first row, and the row after its last) is so short that it may be nothing but an answer."""
        return self._rows[end - 1].stop - self._rows[first].start <= ANSWER

    def _find_row(self, passage: Passage) -> int:
        return next(at for at in range(*self._entries[passage.seq]) if self._rows[at].start == passage.start)

    def _find_question_row(self, seq: int) -> int:
        """Return the last row of the entry before `seq` if that row is a question; otherwise -1."""
        at = bisect_left(self._order, seq)
        first, end = self._entries[self._order[at - 1]] if at else (0, 0)
        return end - 1 if first < end and self._rows[end - 1].flags & _ASKED else -1

    def _list_adjacent(self, seq: int) -> list[int]:
        """Return the `seq` of the previous and of the next entry in the table, if there are such entries."""
        at = bisect_left(self._order, seq)
        return [*self._order[max(at - 1, 0) : at], *self._order[at + 1 : at + 2]]

    def _match(self, question: Question, weights: Weights) -> _Matched:
        """Compute the BM25 scores of the sentences that contain words of the question."""
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
        """Yield the terms of the table that match a word of the question, each with its weight.

        Args:
            variants: the terms of the word, with their weights. The first is the word's own term.
            form: weight of other terms that begin like the word's own term.
        """
        known: dict[str, float] = dict(variants)
        own = next(iter(known), "")
        if _has_form(own):
            for other in self._forms.get(own[:_PREFIX], ()):
                known.setdefault(other, form)
        yield from ((term, weight) for term, weight in known.items() if term in self._postings)


class _Ranking:
    """Scores the sentences of one search by their own words and by the surrounding sentences."""

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
        """Yield the sentences of an entry that may answer the question, with their scores.

        Args:
            seq: the entry's position.
            boost: bonus of the entry.
            alone: True if the entry was found by its words only, not by other means.
        """
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
    """Return the start and stop of each sentence of a text; of a long text, only the sentences in its head and tail."""
    if len(text) <= ENTRY_CHARS:
        found = list(find_sentences(text))
    else:
        head = ENTRY_CHARS * 3 // 5
        found = [*find_sentences(text, 0, head), *find_sentences(text, len(text) - ENTRY_CHARS + head)]
    if len(found) <= ENTRY_PASSAGES:
        return found
    first = ENTRY_PASSAGES * 3 // 5
    return [*found[:first], *found[first - ENTRY_PASSAGES :]]
