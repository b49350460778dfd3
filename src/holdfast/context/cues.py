"""Cue words: what marks an instruction, a preference, a correction, a courtesy … in the languages of `holdfast/data/cues`.

Each language is one JSON file: by category, the words and phrases. They tilt a ranking and decide nothing alone; a language without a file
is read by the form of its sentences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from holdfast.recall.stops import ENGLISH, language_of

DENSE_LANGUAGES: Final = frozenset({"chinese", "japanese"})
"""Languages without spaces between words: there a cue is found anywhere."""
_LANGUAGES: Final = frozenset({ENGLISH, "german", "french", "spanish", "portuguese", *DENSE_LANGUAGES})
_CUES: Final = Path(__file__).parents[1] / "data" / "cues"
_KANA: Final = re.compile("[\u3041-\u30ff]")
_HAN: Final = re.compile("[\u3041-\u30ff\u2e80-\u9fff]")
_WORD: Final = re.compile(r"[\w'\u2019]+")


@cache
def cues_of(language: str) -> Mapping[str, re.Pattern[str]]:
    """Return a pattern for each category of a language's cues; those of English for a language without a file."""
    name = language if language in _LANGUAGES else ENGLISH
    data: dict[str, list[str]] = json.loads((_CUES / f"{name}.json").read_bytes())
    return {category: _pattern(words, dense=name in DENSE_LANGUAGES) for category, words in data.items()}


def _pattern(words: list[str], *, dense: bool) -> re.Pattern[str]:
    longest_first = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(longest_first if dense else rf"(?<![\w'\u2019-])(?:{longest_first})(?!\w)", re.IGNORECASE)


def spoken_language(text: str, otherwise: str = ENGLISH) -> str:
    """Return the language whose cues are looked for in a text: by its script, else by its stop words.

    Args:
        text: a sentence, or more.
        otherwise: the language of a text that shows none.
    """
    if not text.isascii() and 2 * len(_HAN.findall(text)) > len(text.replace(" ", "")):
        return "japanese" if _KANA.search(text) else "chinese"
    found = language_of(word.casefold() for word in _WORD.findall(text))
    return found if found in _LANGUAGES else otherwise
