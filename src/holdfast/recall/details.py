"""Details: what an index keeps of a text in addition to its terms, in one line that no engine reads. Pure.

    <mentions>;<chunks>; <key>@<chunk>.<chunk> ...

The times that the text names, in days since the epoch; length, traits and place of each chunk, if it was split; the chunks that have a
term.
All numbers are hexadecimal. A short text without times has no details.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from holdfast.recall.chunks import MOST, Chunk, Piece, join_pieces, split_chunks, split_pieces
from holdfast.recall.mentions import find_mentions
from holdfast.recall.terms import (
    MAX_TERMS,
    MAX_TEXT,
    YOURS,
    Terms,
    key_of,
    normal,
    question_traits,
    terms_of,
    words_language,
    words_of,
)

LONG: Final = 300
"""Characters from which on a text is read sentence by sentence at once: it may have chunks."""
MAX_DETAIL: Final = 64_000
"""Characters of the details of a document; of one with more, the chunks are left out."""


class ChunkShape(NamedTuple):
    """The length, the traits and the place of a chunk."""

    length: int
    traits: int
    start: int
    stop: int
    """Characters of the text, from the first until before the last."""


def analyse(text: str, at: int) -> tuple[Terms, str]:
    """Return the terms of a text that is to be found, and its details.

    Args:
        text: as it was written.
        at: when it was said, in milliseconds since the epoch.
    """
    pieces = split_pieces(text) if LONG < len(text) <= MAX_TEXT else []
    terms = _join_terms(text, pieces) if pieces else None
    chunks: list[Chunk] = []
    if terms is None:
        terms = terms_of(text)
        if terms.length > MOST:
            chunks = split_chunks(text, words_language(words_of(text)))
    elif terms.length > MOST:
        chunks = join_pieces(text, pieces)
    return terms, write_detail(chunks, find_mentions(text, at))


def _join_terms(text: str, pieces: Sequence[Piece]) -> Terms | None:
    """Return the terms of a text that are those of its pieces; None where they may not be, because a word may be in two of them."""
    if any(before.stop == piece.start for before, piece in pairwise(pieces)):
        return None
    counts: dict[str, int] = {}
    length = traits = mine = 0
    for piece in pieces:
        counted = piece.counted
        for term, count in counted.counts.items():
            counts[term] = counts.get(term, 0) + count
        length += counted.length
        traits |= counted.traits
        mine += counted.mine
    if len(counts) >= MAX_TERMS:
        return None
    traits = traits | YOURS if mine < 0 else traits & ~YOURS
    return Terms(counts, length, traits | question_traits(normal(text)))


def write_detail(chunks: Sequence[Chunk], mentions: Sequence[tuple[int, int]]) -> str:
    """Return the details of a text with these chunks and times."""
    if len(chunks) < 2:
        chunks = ()
    if not (chunks or mentions):
        return ""
    times = ",".join(f"{first:x}.{stop - first:x}" for first, stop in mentions)
    if not chunks:
        return times
    shapes = ",".join(f"{one.length:x}.{one.traits:x}.{one.start:x}.{one.stop - one.start:x}" for one in chunks)
    places: dict[str, str] = {}
    for at, chunk in enumerate(chunks):
        number = f"{at:x}"
        for term in chunk.terms:
            places[term] = f"{places[term]}.{number}" if term in places else number
    detail = f"{times};{shapes}; " + " ".join([f"{key_of(term)}@{some}" for term, some in places.items()]) + " "
    return detail if len(detail) <= MAX_DETAIL else times


def read_mentions(detail: str) -> list[tuple[int, int]]:
    """Return the times that a text names: first day and the day after the last one, in days since the epoch."""
    times = detail.partition(";")[0]
    found = []
    for one in times.split(",") if times else ():
        first, _, count = one.partition(".")
        start = int(first, 16)
        found.append((start, start + int(count, 16)))
    return found


def read_chunks(detail: str) -> list[ChunkShape]:
    """Return the shapes of the chunks of a text, in order; none if it was not split."""
    start = detail.find(";") + 1
    if not start:
        return []
    found = []
    for one in detail[start : detail.index(";", start)].split(","):
        length, traits, first, size = (int(number, 16) for number in one.split("."))
        found.append(ChunkShape(length, traits, first, first + size))
    return found


def chunks_with(detail: str, term: str) -> list[int]:
    """Return the numbers of the chunks that have a term, from 0."""
    key = f" {key_of(term)}@"
    start = detail.find(key)
    if start < 0:
        return []
    start += len(key)
    return [int(number, 16) for number in detail[start : detail.index(" ", start)].split(".")]
