"""Convert a text to the ids of its pieces: BERT's uncased WordPiece tokenizer in plain Python.

The results are those of the tokenizer of `bert-base-uncased` (Devlin et al. 2018, `BasicTokenizer` and `WordpieceTokenizer`) as
implemented by Hugging Face's `BertNormalizer` and `BertPreTokenizer`. Control characters and accents are removed, and the text is
converted to lower case. CJK characters and punctuation become words of their own. Then each word is split: the longest known piece
is taken from its beginning, again and again. Text that looks like a special token, such as `[SEP]`, is treated as ordinary text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from holdfast.errors import EmbeddingFailed

CLS: Final = "[CLS]"
SEP: Final = "[SEP]"
UNKNOWN: Final = "[UNK]"
WORD_CHARS: Final = 100
"""Maximum characters of a word that is split into pieces. A longer word becomes the unknown piece."""
_WORDS_KEPT: Final = 20_000
"""Number of words whose pieces are cached."""
_BEGINNING: Final = 4096
"""Number of characters of a text that are split first. They usually contain all the pieces that are needed."""
_CJK: Final = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
    *((0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)
_ASCII_WORD: Final = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
_ASCII_CONTROL: Final = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127])


class WordPiece:
    """A tokenizer with its vocabulary.

    Args:
        pieces: the pieces of the vocabulary, in the order of their ids.

    Raises:
        EmbeddingFailed: a piece that every text needs is missing.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._ids = {piece: at for at, piece in enumerate(pieces)}
        missing = [name for name in (CLS, SEP, UNKNOWN) if name not in self._ids]
        if missing:
            raise EmbeddingFailed(f"the vocabulary has no {missing[0]}: it is not one of BERT's")
        self._first, self._last = self._ids[CLS], self._ids[SEP]
        self._unknown = (self._ids[UNKNOWN],)
        self._pieces = lru_cache(maxsize=_WORDS_KEPT)(self._cut)

    def __len__(self) -> int:
        return len(self._ids)

    def encode(self, text: str, most: int) -> list[int]:
        """Return the ids of a text's pieces, with BERT's start piece before them and its end piece after them.

        Args:
            text: any text.
            most: maximum number of ids, including those of the start and end pieces. The rest of the text is ignored.
        """
        room = most - 2
        # Only the last word of the part read so far may continue, and it has at most WORD_CHARS pieces.
        size = min(_BEGINNING, len(text))
        found = self._split(text[:size])
        while size < len(text) and len(found) < room + WORD_CHARS:
            size = min(4 * size, len(text))
            found = self._split(text[:size])
        return [self._first, *found[:room], self._last]

    def _split(self, text: str) -> list[int]:
        pieces = self._pieces
        return [piece for word in split_words(text) for piece in pieces(word)]

    def _cut(self, word: str) -> tuple[int, ...]:
        """Split a word into the longest known pieces, from left to right. If part of the word is unknown, return the unknown piece."""
        if len(word) > WORD_CHARS:
            return self._unknown
        found, start, ids = [], 0, self._ids
        while start < len(word):
            mark = "##" if start else ""
            end = next((end for end in range(len(word), start, -1) if mark + word[start:end] in ids), None)
            if end is None:
                return self._unknown
            found.append(ids[mark + word[start:end]])
            start = end
        return tuple(found)


def split_words(text: str) -> list[str]:
    """Split a text into words like BERT's basic tokenizer: in lower case and without accents.

    Each punctuation mark and each CJK character is a word of its own.

    >>> split_words("Crème brûlée, 東京!")
    ['creme', 'brulee', ',', '東', '京', '!']
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.translate(_ASCII_CONTROL).lower())
    # Replace capital sigma first: str.lower() makes it a final sigma at the end of a word, BERT never does.
    plain = unicodedata.normalize("NFD", text.translate(_CLEANED)).translate(_BARE).replace("Σ", "\u03c3").lower()
    return plain.translate(_APART).split()


class _Cleaned(dict[int, str | int | None]):
    """Table for `str.translate` that removes control characters, replaces white space by blanks, and puts blanks around CJK characters.

    Entries are computed on first use.
    """

    def __missing__(self, code: int) -> str | int | None:
        char = chr(code)
        found: str | int | None = code
        if char in "\t\n\r":
            found = " "
        elif code in {0, 0xFFFD} or unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co"}:
            found = None  # checked before white space, because some control characters are both
        elif char.isspace():
            found = " "
        elif any(first <= code <= last for first, last in _CJK):
            found = f" {char} "
        self[code] = found
        return found


class _Bare(dict[int, int | None]):
    """Table for `str.translate` that removes combining marks."""

    def __missing__(self, code: int) -> int | None:
        found = None if unicodedata.category(chr(code)) == "Mn" else code
        self[code] = found
        return found


class _Apart(dict[int, str | int]):
    """Table for `str.translate` that puts blanks around punctuation marks."""

    def __missing__(self, code: int) -> str | int:
        char = chr(code)
        mark = unicodedata.category(char).startswith("P") or (33 <= code <= 126 and not char.isalnum())
        found = f" {char} " if mark else code
        self[code] = found
        return found


_CLEANED, _BARE, _APART = _Cleaned(), _Bare(), _Apart()


def read_vocabulary(lines: Iterable[str]) -> Iterator[str]:
    """Yield the pieces of a vocabulary from the lines of its file `vocab.txt`."""
    for line in lines:
        yield line.rstrip("\r\n")
