"""Rank the messages of one session for a question, by an index of the session's own words in memory. Pure functions.

*Postings* say which messages contain a term, and how often. They are extended message by message, and can be read as they were before any
message. A lookup reads a limited number of postings, those of the rarest terms first, so its time does not grow with the session. The found
messages are ranked by the search's own ranking (`holdfast.recall.ranking`), in which each episode of the session counts as a session.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from holdfast.recall.base import Candidate, Candidates, Similar
from holdfast.recall.questions import Question
from holdfast.recall.ranking import Ranking
from holdfast.recall.scoring import WEIGHTS, compute_rarity
from holdfast.recall.terms import extract_terms

READ: Final = 4_000
"""Maximum number of postings that a lookup reads."""
BEST: Final = 50
"""Maximum number of messages that are ranked, in addition to their neighbours. The best by their own words are chosen."""
NEAR: Final = 2
"""Distance of the neighbours that are ranked too."""
PAUSE: Final = 3 * 3_600_000
"""Milliseconds between two messages after which a new episode begins."""
PLAIN_VARIANTS: Final = 2
"""Number of first variants of a concept that count as the word itself. Later ones are words with a similar meaning."""
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


class SessionHit(NamedTuple):
    """A ranked message, and the terms of the question that it contains."""

    row: Row
    terms: Mapping[str, int]


class SessionHits(NamedTuple):
    """The messages that match a question, best first."""

    hits: Sequence[SessionHit]
    rarity: Mapping[str, float]
    """The rarity of each term of the question."""
    words: Sequence[tuple[Sequence[str], float]]
    """The terms of each word of the question, and the rarity of the word."""

    def measure_coverage(self, hit: SessionHit) -> float:
        """Return the share of the question's words, weighted by rarity, that a message itself contains; 0 to 1."""
        own = sum(worth for terms, worth in self.words if any(term in hit.terms for term in terms))
        return own / (sum(worth for _, worth in self.words) or 1.0)


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
        """Stored tokens of the entries that were added."""
        return self.rows[-1].total if self.rows else 0

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
        if before is not None:
            episode, lengths = before.episode + (row.at - before.at > PAUSE), before.lengths
        if text:
            terms = extract_terms(text)
            length, traits = terms.length, terms.traits
            for term, often in terms.counts.items():
                self._terms.setdefault(term, array("I")).append(place << _OFTEN_BITS | min(often, _MOST_OFTEN))
            self._size += len(terms.counts)
        self.rows.append(
            msgspec.structs.replace(row, length=length, traits=traits, episode=episode, lengths=lengths + length)
        )

    def keep_until(self, total: int) -> None:
        """Remove the newest entries until the stored tokens of the others are at most `total`."""
        place = len(self.rows)
        while place and self.rows[place - 1].total > total:
            place -= 1
        if place == len(self.rows):
            return
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
        stop = bisect_left(self.rows, before, key=lambda row: row.seq)
        found = self._look_up(question, stop)
        if not found.found and not similar:
            return NOTHING
        ranking = Ranking(question, found, None if not similar else self._list_similar(similar, stop))
        missing = ranking.list_missing(BEST // 2)
        ranking.fill([self._make_candidate(place, {}) for _, place in missing if 0 <= place < stop], missing)
        rarity = {term: compute_rarity(stop, often) for term, often in found.frequencies.items()}
        some = ([term for term, _ in concept.variants[:PLAIN_VARIANTS]] for concept in question.concepts)
        words = [(terms, rarity.get(terms[0], 0.0)) for terms in some]
        hits = [SessionHit(self.rows[hit.candidate.place], hit.candidate.counts) for hit in ranking.list_hits()]
        return SessionHits(hits, rarity, words)

    def _look_up(self, question: Question, stop: int) -> Candidates:
        often = {term: self._count(term, stop) for term in question.terms}
        read = list(self._read(sorted(often.items(), key=lambda one: (one[1], one[0]))))
        length = self.rows[stop - 1].lengths if stop else 0
        fixed, slope = WEIGHTS.k1 / 2, WEIGHTS.k1 / 2 / max(1.0, length / max(1, stop))
        flat: dict[int, float] = {}
        counts: dict[int, dict[str, int]] = {}
        rows = self.rows
        for term, postings in read:
            rarity = compute_rarity(stop, often[term])
            for one in postings:
                place, count = one >> _OFTEN_BITS, one & _MOST_OFTEN
                if place in counts:
                    counts[place][term] = count
                    flat[place] += rarity * count / (count + fixed + slope * rows[place].length)
                else:
                    counts[place] = {term: count}
                    flat[place] = rarity * count / (count + fixed + slope * rows[place].length)
        if len(flat) > BEST:
            best = heapq.nlargest(BEST, flat, key=lambda place: (flat[place], place))
            near = {place + step for place in best for step in range(-NEAR, NEAR + 1)}
            counts = {place: counts[place] for place in sorted(near) if place in counts}
        found = [self._make_candidate(place, counts[place]) for place in sorted(counts)]
        return Candidates(found, stop, length, often)

    def _count(self, term: str, stop: int) -> int:
        """Return how many of the first `stop` entries contain a term."""
        posting = self._terms.get(term)
        if posting is None:
            return 0
        return len(posting) if posting[-1] >> _OFTEN_BITS < stop else bisect_left(posting, stop << _OFTEN_BITS)

    def _read(self, often: Sequence[tuple[str, int]]) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield terms with their postings, `READ` postings at most. Of a term for which too few can be read, yield the newest ones.

        Args:
            often: terms, each with the number of its postings, rarest first.
        """
        left = READ
        for term, number in often:
            if number and left:
                yield term, self._terms[term][max(0, number - left) : number]
                left -= min(left, number)

    def _list_similar(self, similar: Mapping[int, float], stop: int) -> list[Similar]:
        places = ((bisect_left(self.rows, seq, key=lambda row: row.seq), value) for seq, value in similar.items())
        return [Similar(self._make_candidate(place, {}), value) for place, value in places if place < stop]

    def _make_candidate(self, place: int, counts: Mapping[str, int]) -> Candidate:
        row = self.rows[place]
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
