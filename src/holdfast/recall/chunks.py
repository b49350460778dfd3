"""Split a text in any language into sentences, and a long text into overlapping chunks of sentences. Pure functions.

In source code, each line is a sentence. A chunk has about 60 terms. Chunks are ranked separately and shown as snippets. A chunk
ends where a sentence, a line of code or a paragraph ends. Its last sentence is repeated as the first of the next chunk, unless
that sentence is long. So any two adjacent short sentences are together in some chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from holdfast.recall.terms import (
    MAX_TEXT,
    TermCounts,
    choose_language,
    count_terms,
    is_question,
    join_traits,
    split_words,
)

SENTENCE_CHARS: Final = 1_000
"""Maximum characters of a sentence. A longer sentence is cut into pieces."""
_ENDS: Final = r"""[.!?…]{1,8}["')\]*”’»]{0,4}(?=\s|$)|[。！？；]{1,8}[”’」』）]{0,4}"""  # noqa: RUF001 - ends of sentences
_SENTENCE: Final = re.compile(rf"[^\n](?:[^\n.!?…。！？；]+|(?!{_ENDS})[^\n])*(?:{_ENDS})?")  # noqa: RUF001 - the same
"""Matches a text up to the first end of a sentence. The inner `+` skips ordinary characters in runs, which makes the pattern ten
times as fast."""
_ABBREVIATED: Final = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|Mme|Nr|ca|bzw|vs|e\.g|i\.e|z\.B|d\.h|u\.a|incl|excl|approx|resp|Jr|Sr|[A-Za-z])\.\Z"
)
_NUMBERED: Final = re.compile(r"\b(?:nos?|nr|fig|vol|pp?|art|abs|str)\.\Z", re.IGNORECASE)
"""Abbreviations that are also ordinary words. They are treated as abbreviations only before a number."""


def is_abbreviated(text: str, stop: int) -> bool:
    """Return True if the full stop before position `stop` ends an abbreviation or an initial ("Mrs.", "no. 3"), not a sentence."""
    start = max(0, stop - 8)
    if _ABBREVIATED.search(text, start, stop) is not None:
        return True
    return text[stop : stop + 2].strip()[:1].isdigit() and _NUMBERED.search(text, start, stop) is not None


def find_sentences(text: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of each sentence, without surrounding white space. A line break always ends a sentence.

    Args:
        text: the original text.
        start: position of the first character to read.
        stop: position after the last character to read; None: the end of the text.
    """
    first = -1
    for found in _SENTENCE.finditer(text, start, len(text) if stop is None else stop):
        sentence = found.group()
        if first < 0:
            first = found.start() + len(sentence) - len(sentence.lstrip())
        last = found.start() + len(sentence.rstrip())
        if sentence.endswith(".") and text[found.end() : found.end() + 1] == " " and is_abbreviated(text, found.end()):
            continue
        yield from _cut(first, last)
        first = -1
    if first >= 0:
        yield from _cut(first, last)


def _cut(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut a sentence into pieces of at most `SENTENCE_CHARS` characters; yield the start and stop of each piece."""
    return ((at, min(at + SENTENCE_CHARS, stop)) for at in range(start, stop, SENTENCE_CHARS))


LEAST, TARGET, MOST = 40, 60, 80
"""Sizes of a chunk in terms. A chunk with at least `LEAST` terms ends at the next paragraph, or before a sentence with which it
would have more than `MOST`. A chunk with at least `TARGET` terms ends at the next sentence. A text of at most `MOST` terms is not
split."""
OVERLAP: Final = 20
"""Maximum number of terms of a chunk's last sentence for it to be repeated in the next chunk."""
MAX_CHUNKS: Final = 400
"""Maximum number of chunks of a text. If there are more, chunks in the middle are dropped."""
_BLANK: Final = re.compile(r"\n[ \t\r]*\n")
_HEADING: Final = re.compile(r"```|~~~|#{1,6} ")


class Chunk(NamedTuple):
    """A part of a text that consists of whole sentences."""

    start: int
    stop: int
    """Position of the first character, and the position after the last character, in the text."""
    terms: dict[str, int]
    """Number of occurrences of each term."""
    length: int
    """Total number of terms."""
    traits: int
    """The chunk's traits: the same bit flags that `holdfast.recall.terms.Terms` has for a whole text."""


class Piece(NamedTuple):
    """A sentence, or a part of one that is too long, with its terms."""

    start: int
    stop: int
    counted: TermCounts
    asks: bool

    @property
    def length(self) -> int:
        """Total number of terms."""
        return self.counted.length


def split_pieces(text: str, language: str | None = None) -> list[Piece]:
    """Split a text into sentences and count the terms of each.

    Args:
        text: the original text. If it has more than `MAX_TEXT` characters, only the head and tail are used.
        language: the language for stemming; None: detect it from the text.
    """
    if len(text) <= MAX_TEXT:
        spans = [*find_sentences(text)]
    else:
        spans = [*find_sentences(text, 0, MAX_TEXT * 3 // 5), *find_sentences(text, len(text) - MAX_TEXT * 2 // 5)]
    texts = [text[start:stop] for start, stop in spans]
    words = [*map(split_words, texts)]
    language = language or choose_language(chain.from_iterable(words))
    return [
        Piece(*span, count_terms(some, language), is_question(sentence))
        for span, some, sentence in zip(spans, words, texts, strict=True)
    ]


def split_chunks(text: str, language: str) -> list[Chunk]:
    """Split a text into chunks.

    Args:
        text: the original text. If it has more than `MAX_TEXT` characters, only the head and tail are used.
        language: the language for stemming.
    """
    return join_pieces(text, split_pieces(text, language))


def join_pieces(text: str, pieces: Iterable[Piece]) -> list[Chunk]:
    """Group the consecutive sentences of a text (from `split_pieces`) into chunks."""
    chunks: list[Chunk] = []
    group: list[Piece] = []
    length = 0
    last = 0
    for piece in pieces:
        breaks = bool(group) and (
            _BLANK.search(text, last, piece.start) is not None or _HEADING.match(text, piece.start) is not None
        )
        if group and (
            length >= TARGET or (breaks and length >= LEAST) or (length >= LEAST and length + piece.length > MOST)
        ):
            chunks.append(_join_group(group))
            again = group[-1]
            group = [again] if not breaks and len(group) > 1 and again.length <= OVERLAP else []
            length = sum(one.length for one in group)
        group.append(piece)
        length += piece.length
        last = piece.stop
    if group:
        chunks.append(_join_group(group))
    if len(chunks) <= MAX_CHUNKS:
        return chunks
    first = MAX_CHUNKS * 3 // 5
    return [*chunks[:first], *chunks[first - MAX_CHUNKS :]]


def _join_group(group: Sequence[Piece]) -> Chunk:
    terms: dict[str, int] = {}
    for piece in group:
        for term, count in piece.counted.counts.items():
            terms[term] = terms.get(term, 0) + count
    size = sum(one.stop - one.start for one in group)
    asked = sum(one.stop - one.start for one in group if one.asks)
    traits = join_traits((one.counted.traits for one in group), asked / size if size else 0.0, asks=group[-1].asks)
    return Chunk(group[0].start, group[-1].stop, terms, sum(one.length for one in group), traits)
