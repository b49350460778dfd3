"""Sentences of a text, in any language, and lines of code: the pieces that passages and chunks are made of. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

SENTENCE_CHARS: Final = 1_000
"""Characters of a sentence; a longer one is several."""
_ENDS: Final = r"""[.!?…]{1,8}["')\]*”’»]{0,4}(?=\s|$)|[。！？；]{1,8}[”’」』）]{0,4}"""  # noqa: RUF001 - ends of sentences
_SENTENCE: Final = re.compile(rf"[^\n](?:[^\n.!?…。！？；]+|(?!{_ENDS})[^\n])*(?:{_ENDS})?")  # noqa: RUF001 - the same
"""Up to the first place where one ends. Characters that end none are passed at once: one by one would take ten times as long."""
_ABBREVIATED: Final = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|Mme|Nr|ca|bzw|vs|e\.g|i\.e|z\.B|d\.h|u\.a|incl|excl|approx|resp|Jr|Sr|[A-Za-z])\.\Z"
)
_NUMBERED: Final = re.compile(r"\b(?:nos?|nr|fig|vol|pp?|art|abs|str)\.\Z", re.IGNORECASE)
"""Abbreviations that are words as well: only before a number."""


def is_abbreviated(text: str, stop: int) -> bool:
    """Return True if the full stop before `stop` ends an abbreviation or an initial, and no sentence: "Mrs.", "no. 3"."""
    start = max(0, stop - 8)
    if _ABBREVIATED.search(text, start, stop) is not None:
        return True
    return text[stop : stop + 2].strip()[:1].isdigit() and _NUMBERED.search(text, start, stop) is not None


def find_sentences(text: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each sentence of a text, without the white space around it; a line never holds part of two.

    Args:
        text: as it was written.
        start: first character that is looked at.
        stop: character before which to stop; None: the end.
    """
    first = -1
    for found in _SENTENCE.finditer(text, start, len(text) if stop is None else stop):
        said = found.group()
        if first < 0:
            first = found.start() + len(said) - len(said.lstrip())
        last = found.start() + len(said.rstrip())
        if said.endswith(".") and text[found.end() : found.end() + 1] == " " and is_abbreviated(text, found.end()):
            continue
        yield from _cut(first, last)
        first = -1
    if first >= 0:
        yield from _cut(first, last)


def _cut(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of the pieces of at most `SENTENCE_CHARS` that a sentence is cut into."""
    return ((at, min(at + SENTENCE_CHARS, stop)) for at in range(start, stop, SENTENCE_CHARS))
