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

from holdfast.recall.word_tables import ENGLISH, language_of

DENSE_LANGUAGES: Final = frozenset({"chinese", "japanese"})
"""Languages without spaces between words: there a cue is found anywhere."""
_LANGUAGES: Final = frozenset({ENGLISH, "german", "french", "spanish", "portuguese", *DENSE_LANGUAGES})
_CUES: Final = Path(__file__).parents[1] / "data" / "cues"
_KANA: Final = re.compile("[\u3041-\u30ff]")
_HAN: Final = re.compile("[\u3041-\u30ff\u2e80-\u9fff]")
_TOKEN: Final = re.compile(r"[\w'-]+")
_WORD: Final = re.compile(r"[\w'\u2019]+")


@cache
def cues_of(language: str) -> Mapping[str, re.Pattern[str]]:
    """Return a pattern for each category of a language's cues; those of English for a language without a file."""
    return {category: _pattern(words, dense=language in DENSE_LANGUAGES) for category, words in _read(language).items()}


def count_cues(text: str, language: str) -> Mapping[str, int]:
    """Return how many cues of each category a text has; those of one category do not overlap.

    Args:
        text: a sentence.
        language: see `spoken_language`.
    """
    if language in DENSE_LANGUAGES:
        return {category: len(pattern.findall(text)) for category, pattern in cues_of(language).items()}
    phrases, words = _phrases_of(language), [word.strip("'-") for word in _TOKEN.findall(_fold(text))]
    counts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for at, word in enumerate(words):
        for rest, category in phrases.get(word, ()):
            end = at + 1 + len(rest)
            if at >= ends.get(category, 0) and (not rest or words[at + 1 : end] == rest):
                counts[category] = counts.get(category, 0) + 1
                ends[category] = end
    return counts


@cache
def _phrases_of(language: str) -> Mapping[str, list[tuple[list[str], str]]]:
    """Return by their first words the rests of a language's cues and their categories, the longest first."""
    found: dict[str, list[tuple[list[str], str]]] = {}
    for category, phrases in _read(language).items():
        for phrase in phrases:
            first, *rest = [word.strip("'-") for word in _TOKEN.findall(_fold(phrase))]
            found.setdefault(first, []).append((rest, category))
    return {first: sorted(entries, key=lambda one: -len(one[0])) for first, entries in found.items()}


def _fold(text: str) -> str:
    return text.casefold().replace("\u2019", "'")


def _read(language: str) -> dict[str, list[str]]:
    name = language if language in _LANGUAGES else ENGLISH
    data: dict[str, list[str]] = json.loads((_CUES / f"{name}.json").read_bytes())
    return data


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
