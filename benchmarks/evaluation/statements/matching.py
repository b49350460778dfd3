"""Detect a statement in a prompt: one of its values and one of its topics must be in the same line.

Before the comparison, both texts are normalized. Differences in case, character width, quotes, dashes and white space are ignored, and
escapes of JSON strings are decoded. Phrases are compared as follows:

- Only whole words match. A topic may be followed by up to three more letters: `review` matches "reviewing".
- In Han, kana, Hangul, Thai and Lao, phrases match anywhere in a text.
- Numbers match with or without thousands separators: `34,600` matches "34600" and "34 600". But `600` does not match "34,600".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

ENDING: Final = 3
"""Maximum number of additional letters at the end of a topic."""
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1100-\u11ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)
_LETTER: Final = r"[^\W_]"
_GROUPS: Final = re.compile(r"\d{1,3}(?:[,.' ]\d{3})+(?!\d)|\d+")
_SEPARATOR: Final = "[,.' ]?"
_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-fA-F]{4})|([nrt])|(["/]))')
_LINE_END: Final = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_BLANK: Final = re.compile(r"[^\S\n]+")
_ALIKE: Final = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b`\xb4", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys("\u2010\u2012\u2013\u2014\u2015\u2212", "-")
)
"""Plain character for each typographic quote and dash."""


@lru_cache(maxsize=8192)
def normalize(text: str) -> str:
    """Return a text in the normalized form in which texts are compared.

    Line breaks are kept. Characters of scripts without spaces between words are separated from other characters by spaces.
    """
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[3] or " ", text)
    text = unicodedata.normalize("NFKC", _LINE_END.sub("\n", text)).translate(_ALIKE).casefold()
    return _BLANK.sub(" ", text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text))


class Matcher:
    """Finds the values of a statement in normalized text, alone or together with a topic in the same line."""

    def __init__(self, values: Iterable[str], topics: Iterable[str]) -> None:
        self._value = _compile_any(_make_pattern(value, 0) for value in values)
        self._topic = _compile_any(_make_pattern(topic, ENDING) for topic in topics)

    @property
    def pattern(self) -> re.Pattern[str]:
        """Pattern that matches any of the values in normalized text."""
        return self._value

    def is_present(self, text: str) -> bool:
        """Return True if normalized text contains one of the values."""
        return self._value.search(text) is not None

    def is_with_topic(self, text: str) -> bool:
        """Return True if a line of normalized text contains one of the values and one of the topics."""
        for found in self._value.finditer(text):
            begin, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
            if self._topic.search(text, begin, len(text) if end < 0 else end):
                return True
        return False


def _compile_any(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


def _make_pattern(phrase: str, ending: int) -> str:
    """Return a pattern that matches a phrase. Its last word may be followed by up to `ending` more letters."""
    phrase = normalize(phrase).strip()
    parts, done = [], 0
    for number in _GROUPS.finditer(phrase):
        parts += [re.escape(phrase[done : number.start()]), _match_number(number[0])]
        done = number.end()
    body = "".join([*parts, re.escape(phrase[done:])]).replace(r"\ ", " ?" if done else " ")
    return _check_before(phrase[0]) + body + _check_after(phrase[-1], ending)


def _match_number(text: str) -> str:
    """Return a pattern that matches a number with or without thousands separators."""
    digits = re.sub(r"\D", "", text)
    first = len(digits) % 3 or 3
    groups = [digits[:first], *(digits[at : at + 3] for at in range(first, len(digits), 3))]
    return _SEPARATOR.join(groups)


def _check_before(character: str) -> str:
    """Return a pattern that fails if a phrase that begins with `character` would begin inside a word or number."""
    if not character.isalnum() or _UNSPACED.match(character):
        return ""
    return rf"(?<!{_LETTER})" + (r"(?<!\d[,.'])" if character.isdecimal() else "")


def _check_after(character: str, ending: int) -> str:
    """Return a pattern for the text after a phrase that ends with `character`.

    It allows `ending` more letters after a letter, and fails if the phrase would end inside a word or number.
    """
    if not character.isalnum() or _UNSPACED.match(character):
        return ""
    if character.isdecimal():
        return rf"(?!{_LETTER})(?![,.']\d{{3}}(?!\d))"
    return rf"{_LETTER}{{0,{ending}}}(?!{_LETTER})"
