"""Rank the messages of one session for a question, by an index of the session's own words in memory. Pure functions.

*Postings* say which messages contain a term, and how often. They are extended message by message, and can be read as they were before any
message. A lookup reads a limited number of postings, those of the rarest terms first, and only of the newest messages. So its time does not
grow with the session, also after a restart. The found messages are ranked by the search's own ranking (`holdfast.recall.ranking`), in which
each episode of the session counts as a session.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from holdfast.limits import RECALL_TOKENS
from holdfast.recall.base import Candidate, Candidates, Similar
from holdfast.recall.chunks import find_sentences
from holdfast.recall.questions import Question
from holdfast.recall.ranking import Ranking
from holdfast.recall.scoring import WEIGHTS, compute_rarity
from holdfast.recall.terms import extract_terms

READ: Final = 1_500
"""Maximum number of postings that a lookup reads."""
BEST: Final = 50
"""Maximum number of messages that are ranked, in addition to their neighbours. The best by their own words are chosen."""
NEAR: Final = 2
"""Distance of the neighbours that are ranked too."""
PAUSE: Final = 3 * 3_600_000
"""Milliseconds between two messages after which a new episode begins."""
PLAIN_VARIANTS: Final = 2
"""Number of first variants of a concept that count as the word itself. Later ones are words with a similar meaning."""
MOST_CHARS, MOST_SENTENCES = 20_000, 400
"""Only this part of a message, its beginning, is shown as an excerpt."""
_OFTEN_BITS, _MOST_OFTEN = 8, 255
"""A posting is the place of a message, and in its lowest bits the number of occurrences of the term."""
ROW_BYTES, TERM_BYTES, POSTING_BYTES = 250, 180, 5
"""Estimated memory of a message, a distinct term, and a posting, in bytes."""


class Row(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A live entry of the session. Its *place* is the number of live entries before it."""

    seq: int
    total: int
    """Stored tokens of all live entries up to and including this one."""
    tokens: int
    role: str
    name: str | None
    at: int
    """Milliseconds since the epoch."""
    length: int = 0
    """Number of terms, counting repetitions; 0 for an entry that cannot be found."""
    traits: int = 0
    """Bit flags of `holdfast.recall.terms`."""
    episode: int = 0
    lengths: int = 0
    """Sum of the lengths up to and including this one."""
    sentences: Sequence[int] = ()
    """In turn, the first character and the end (exclusive) of each sentence that an excerpt may show."""


class SessionHit(NamedTuple):
    """A ranked message, and the terms of the question that it contains."""

    row: Row
    terms: Mapping[str, int]


class SessionHits(NamedTuple):
    """The messages that match a question, best first."""

    hits: Sequence[SessionHit]
    rarity: Mapping[str, float]
    """The rarity of each term of the question."""
    words: Sequence[tuple[frozenset[str], float]]
    """The terms of each word of the question, and the rarity of the word as a share of all words' rarities."""

    def measure_coverage(self, hit: SessionHit) -> float:
        """Return the share of the question's words, weighted by rarity, that a message itself contains; 0 to 1."""
        return sum([worth for terms, worth in self.words if not terms.isdisjoint(hit.terms)])


NOTHING: Final = SessionHits((), {}, ())


class Postings:
    """The words of one session's live entries."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._terms: dict[str, array[int]] = {}
        self._size = 0

    @property
    def next_seq(self) -> int:
        """The first `seq` that was not added yet."""
        return self.rows[-1].seq + 1 if self.rows else 0

    @property
    def total(self) -> int:
        """Stored tokens of all live entries up to the newest one that was added."""
        return self.rows[-1].total if self.rows else 0

    def can_grow_to(self, total: int) -> bool:
        """Return True if no older entries are missing once the newer ones, up to `total` stored tokens, are added."""
        before = self.rows[0].total - self.rows[0].tokens if self.rows else 0
        return before <= max(0, total - RECALL_TOKENS) and total - self.total < RECALL_TOKENS

    def estimate_bytes(self) -> int:
        """Estimate the memory of the postings in bytes."""
        return ROW_BYTES * len(self.rows) + TERM_BYTES * len(self._terms) + POSTING_BYTES * self._size

    def append(self, row: Row, text: str) -> None:
        """Add the next live entry.

        Args:
            row: the entry. Fields that follow from the text and from earlier entries are ignored.
            text: the entry's searchable text; empty if it must not be found.
        """
        before, place = self.rows[-1] if self.rows else None, len(self.rows)
        length = traits = episode = lengths = 0
        sentences = array("I")
        if before is not None:
            episode, lengths = before.episode + (row.at - before.at > PAUSE), before.lengths
        if text:
            terms = extract_terms(text)
            length, traits = terms.length, terms.traits
            for term, often in terms.counts.items():
                self._terms.setdefault(term, array("I")).append(place << _OFTEN_BITS | min(often, _MOST_OFTEN))
            for span in islice(find_sentences(text, 0, MOST_CHARS), MOST_SENTENCES):
                sentences.extend(span)
            self._size += len(terms.counts) + len(sentences)
        found = msgspec.structs.replace(
            row, length=length, traits=traits, episode=episode, lengths=lengths + length, sentences=sentences
        )
        self.rows.append(found)

    def keep_until(self, total: int) -> None:
        """Remove the newest entries until the stored tokens of the others are at most `total`."""
        place = len(self.rows)
        while place and self.rows[place - 1].total > total:
            place -= 1
        if place == len(self.rows):
            return
        self._size -= sum(len(row.sentences) for row in self.rows[place:])
        del self.rows[place:]
        for term, posting in list(self._terms.items()):
            if posting[-1] >> _OFTEN_BITS >= place:
                stop = bisect_left(posting, place << _OFTEN_BITS)
                self._size -= len(posting) - stop
                del posting[stop:]
                if not posting:
                    del self._terms[term]

    def rank(self, question: Question, before: int, similar: Mapping[int, float] | None = None) -> SessionHits:
        """Rank the entries that match a question, best first.

        Args:
            question: the question.
            before: only entries with a lower `seq` are ranked.
            similar: similarity of entries to the question, by `seq`; None: entries are ranked by words only.
        """
        start = bisect_right(self.rows, self.total - RECALL_TOKENS, key=lambda row: row.total)
        stop = bisect_left(self.rows, before, key=lambda row: row.seq)
        found = self._look_up(question, start, stop)
        if not found.found and not similar:
            return NOTHING
        ranking = Ranking(question, found, None if not similar else self._list_similar(similar, start, stop))
        missing = ranking.list_missing(BEST // 2)
        ranking.fill([self._make_candidate(place, start) for _, place in missing if place < stop - start], missing)
        rarity = {term: compute_rarity(found.documents, often) for term, often in found.frequencies.items()}
        some = [[term for term, _ in concept.variants[:PLAIN_VARIANTS]] for concept in question.concepts]
        whole = sum(rarity.get(terms[0], 0.0) for terms in some) or 1.0
        words = [(frozenset(terms), rarity.get(terms[0], 0.0) / whole) for terms in some]
        hits = [SessionHit(self.rows[start + hit.candidate.place], hit.candidate.counts) for hit in ranking.list_hits()]
        return SessionHits(hits, rarity, words)

    def _look_up(self, question: Question, start: int, stop: int) -> Candidates:
        places = {term: self._find_range(term, start, stop) for term in question.terms}
        often = {term: last - first for term, (first, last) in places.items()}
        read = list(self._read(sorted(often, key=lambda term: (often[term], term)), places))
        rows, documents = self.rows, max(0, stop - start)
        length = rows[stop - 1].lengths - (rows[start - 1].lengths if start else 0) if documents else 0
        fixed, slope = WEIGHTS.k1 / 2, WEIGHTS.k1 / 2 / max(1.0, length / max(1, documents))
        weights = {term: weight for concept in question.concepts for term, weight in concept.variants}
        flat: dict[int, float] = {}
        known = flat.get
        for term, postings in read:
            weight = weights[term] * compute_rarity(documents, often[term])
            for one in postings:
                place, count = one >> _OFTEN_BITS, one & _MOST_OFTEN
                flat[place] = known(place, 0.0) + weight * count / (count + fixed + slope * rows[place].length)
        best = heapq.nlargest(BEST, zip(flat.values(), flat, strict=True))
        near = {place + step for _, place in best for step in range(-NEAR, NEAR + 1)}
        counts: dict[int, dict[str, int]] = {place: {} for place in sorted(near & flat.keys())}
        for term, postings in read:
            for one in postings:
                if one >> _OFTEN_BITS in counts:
                    counts[one >> _OFTEN_BITS][term] = one & _MOST_OFTEN
        found = [self._make_candidate(place - start, start, terms) for place, terms in counts.items()]
        return Candidates(found, documents, length, often)

    def _find_range(self, term: str, start: int, stop: int) -> tuple[int, int]:
        """Return which of a term's postings belong to entries from place `start` to `stop` (exclusive)."""
        posting = self._terms.get(term, ())
        first = bisect_left(posting, start << _OFTEN_BITS) if start else 0
        return first, max(first, bisect_left(posting, stop << _OFTEN_BITS))

    def _read(self, terms: Sequence[str], places: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield terms with their postings, `READ` postings at most. Of a term for which too few can be read, yield the newest ones.

        Args:
            terms: the terms, rarest first.
            places: which postings of each term may be read.
        """
        left = READ
        for term in terms:
            first, last = places[term]
            first = max(first, last - left)
            if first < last:
                yield term, self._terms[term][first:last]
                left -= last - first

    def _list_similar(self, similar: Mapping[int, float], start: int, stop: int) -> list[Similar]:
        places = ((bisect_left(self.rows, seq, key=lambda row: row.seq), value) for seq, value in similar.items())
        return [Similar(self._make_candidate(at - start, start), value) for at, value in places if start <= at < stop]

    def _make_candidate(self, place: int, start: int, counts: Mapping[str, int] = {}) -> Candidate:
        """Return an entry. Its place is counted from the first entry that is ranked, so it does not depend on how many are in memory."""
        row = self.rows[start + place]
        return Candidate(
            source=row.episode,
            place=place,
            seq=row.seq,
            session="",
            identity="",
            role=row.role,
            agent=None,
            name=row.name,
            at=row.at,
            length=row.length,
            counts=counts,
            traits=row.traits,
        )
