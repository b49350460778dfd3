"""Cue words in several languages, by category, and the language of a short text.

`holdfast/data/cues` has a file of cues for each language. A cue is a word or a phrase that shows what a sentence does: it states a standing
rule, corrects something, asks, thanks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from holdfast.recall.word_tables import ENGLISH, find_language

DENSE_LANGUAGES: Final = frozenset({"chinese", "japanese"})
"""Languages without spaces between words. Their cues are found at any position in a text, not only at the beginning of a word."""
_LANGUAGES: Final = frozenset({ENGLISH, "german", "french", "spanish", "portuguese", *DENSE_LANGUAGES})
_CUES: Final = Path(__file__).parents[1] / "data" / "cues"
_KANA: Final = re.compile("[\u3041-\u30ff]")
_HAN: Final = re.compile("[\u3041-\u30ff\u2e80-\u9fff]")
_TOKEN: Final = re.compile(r"[\w'-]+")
_SPOKEN_WORD: Final = re.compile(r"[\w'\u2019]+")


@cache
def load_cues(language: str) -> Mapping[str, re.Pattern[str]]:
    """Return a pattern for each category of a language's cues. A language without a file of cues gets those of English."""
    return {
        category: _compile_pattern(words, dense=language in DENSE_LANGUAGES)
        for category, words in _read_cues(language).items()
    }


def count_cues(text: str, language: str) -> Mapping[str, int]:
    """Return the number of cues of each category in a sentence. Cues of one category that overlap are counted once.

    Args:
        text: the sentence.
        language: the language, as returned by `detect_language`.
    """
    if language in DENSE_LANGUAGES:
        found = {category: len(pattern.findall(text)) for category, pattern in load_cues(language).items()}
        return {category: number for category, number in found.items() if number}
    phrases, words = _load_phrases(language), [word.strip("'-") for word in _TOKEN.findall(_fold(text))]
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
def _load_phrases(language: str) -> Mapping[str, list[tuple[list[str], str]]]:
    """Return a language's cues, grouped by their first word. A cue is the list of its other words, and its category. Longer cues come first."""
    found: dict[str, list[tuple[list[str], str]]] = {}
    for category, phrases in _read_cues(language).items():
        for phrase in phrases:
            first, *rest = [word.strip("'-") for word in _TOKEN.findall(_fold(phrase))]
            found.setdefault(first, []).append((rest, category))
    return {first: sorted(entries, key=lambda one: -len(one[0])) for first, entries in found.items()}


def _fold(text: str) -> str:
    return text.casefold().replace("\u2019", "'")


def _read_cues(language: str) -> dict[str, list[str]]:
    name = language if language in _LANGUAGES else ENGLISH
    data: dict[str, list[str]] = json.loads((_CUES / f"{name}.json").read_bytes())
    return data


def _compile_pattern(words: list[str], *, dense: bool) -> re.Pattern[str]:
    longest_first = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(longest_first if dense else rf"(?<![\w'\u2019-])(?:{longest_first})(?!\w)", re.IGNORECASE)


def detect_language(text: str, otherwise: str = ENGLISH) -> str:
    """Return the language of a text, found by its script or else by its stop words.

    Args:
        text: one or more sentences.
        otherwise: the language to return if the text shows none for which there are cues.
    """
    if not text.isascii() and 2 * len(_HAN.findall(text)) > len(text.replace(" ", "")):
        return "japanese" if _KANA.search(text) else "chinese"
    found = find_language(word.casefold() for word in _SPOKEN_WORD.findall(text))
    return found if found in _LANGUAGES else otherwise
