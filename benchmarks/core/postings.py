"""Postings of one session: which entries contain a term. They are extended by appends, and read at any earlier length."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.core.analysis import Analysis
from holdfast.domain.session import Entry

READ: Final = 4_000
"""Maximum number of postings that a lookup reads, rarest terms first, so that its time does not grow with the session."""
PAUSE: Final = 3 * 3_600_000
"""Milliseconds between two entries after which a new episode of the conversation begins."""
USER, ASSISTANT, TOOL = 0, 1, 2
_ROLES: Final = {"user": USER, "assistant": ASSISTANT, "tool": TOOL}


class Postings:
    """The postings of a session. Only `append` changes them, and only by adding an entry at the end."""

    def __init__(self) -> None:
        self._seqs: dict[str, array[int]] = {}
        self._often: dict[str, array[int]] = {}
        self.lengths: array[int] = array("I")
        self.totals: array[int] = array("Q", [0])
        """Sum of the lengths of all earlier entries."""
        self.asked: array[float] = array("f")
        self.ends_asking = bytearray()
        self.traits = bytearray()
        self.roles = bytearray()
        self.at: array[int] = array("q")
        self.episodes: array[int] = array("I")
        self.names: list[str | None] = []
        self.speakers: dict[str, set[str]] = {}
        """The words of each speaker's name."""

    def __len__(self) -> int:
        return len(self.lengths)

    def append(self, entry: Entry, analysis: Analysis) -> None:
        """Add the next entry of the log."""
        seq, name = len(self.lengths), entry.message.name or entry.agent
        new = bool(self.at) and entry.timestamp - self.at[-1] > PAUSE
        self.episodes.append(self.episodes[-1] + new if self.episodes else 0)
        self.lengths.append(analysis.length)
        self.totals.append(self.totals[-1] + analysis.length)
        self.asked.append(analysis.asked)
        self.ends_asking.append(analysis.ends_asking)
        self.traits.append(analysis.traits)
        self.roles.append(_ROLES.get(entry.message.role, ASSISTANT))
        self.at.append(entry.timestamp)
        self.names.append(name)
        if name and name not in self.speakers:
            self.speakers[name] = set(name.casefold().split())
        for term, often in analysis.counts.items():
            if term not in self._seqs:
                self._seqs[term], self._often[term] = array("I"), array("H")
            self._seqs[term].append(seq)
            self._often[term].append(min(often, 65_535))

    def drop(self, analysis: Analysis) -> None:
        """Remove the newest entry."""
        for term in analysis.counts:
            self._seqs[term].pop()
            self._often[term].pop()
            if not self._seqs[term]:
                del self._seqs[term], self._often[term]
        for column in (
            self.lengths,
            self.totals,
            self.asked,
            self.ends_asking,
            self.traits,
            self.roles,
            self.at,
            self.episodes,
            self.names,
        ):
            column.pop()

    def count(self, term: str, stop: int) -> int:
        """Return how many of the first `stop` entries contain a term."""
        seqs = self._seqs.get(term)
        return 0 if seqs is None else len(seqs) if seqs[-1] < stop else bisect_left(seqs, stop)

    def read(self, terms: Sequence[tuple[str, int]]) -> Iterator[tuple[str, Sequence[int], Sequence[int]]]:
        """Yield each term with the entries that contain it and the occurrences in each, rarest terms first, `READ` postings at most.

        Of a term for which too few postings are left to read, only the newest are returned.

        Args:
            terms: terms, each with the number of its postings.
        """
        left = READ
        for term, number in sorted(terms, key=lambda one: (one[1], one[0])):
            first = max(0, number - left)
            if number > first:
                yield term, self._seqs[term][first:number], self._often[term][first:number]
            left -= number - first
            if left <= 0:
                return
