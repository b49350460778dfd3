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


def find_sentences(text: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each sentence of a text, without the white space around it; a line never holds part of two.

    Args:
        text: as it was written.
        start: first character that is looked at.
        stop: character before which to stop; None: the end.
    """
    for found in _SENTENCE.finditer(text, start, len(text) if stop is None else stop):
        said = found.group()
        first = found.start() + len(said) - len(said.lstrip())
        for begin in range(first, last := found.start() + len(said.rstrip()), SENTENCE_CHARS):
            yield begin, min(begin + SENTENCE_CHARS, last)
