"""Find statements that later statements correct, by rare words and values that both have. Pure functions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from holdfast.context.analysis_cache import ANALYSES, STRING_BYTES, make_analysis_key
from holdfast.context.cues import DENSE_LANGUAGES, detect_language, load_cues
from holdfast.context.statements import Position, Statement
from holdfast.recall.terms import extract_terms

LEAST_EVIDENCE: Final = 2.7
"""Minimum evidence that one statement corrects another. The logarithm of the number of statements is added to this minimum.

Evidence is a sum over the words and values that both statements have: the logarithm of how rare each is. Among many statements more evidence
is needed, because more of them have words in common by chance."""
POSSIBLE: Final = 4.5
"""Minimum evidence for a possible correction."""
SAME_KIND: Final = 3.0
"""Evidence that is added if both statements have a value of the same kind, such as a time or a day, and the values differ."""
NO_VALUE: Final = 2.0
"""Evidence that is subtracted if the statements have no value in common and no differing values of the same kind."""
FEWEST: Final = 150
"""Rarity of a word is computed as if there were at least this many statements, because every word is rare in a short conversation."""
COMMON: Final = 0.1
"""A word or number is evidence only if at most this fraction of the statements contains it."""


class Features(NamedTuple):
    """What two statements about the same thing have in common."""

    words: frozenset[str]
    """The words that show the topic, and the values, each value with a leading `=`."""
    values: frozenset[tuple[str, str]]
    """The numbers and days that the sentence mentions: the kind (a unit, `time`, `day`, or empty) and the text of each."""


class Corrections(NamedTuple):
    """The correction of each corrected statement, by the position of the corrected one."""

    sure: dict[Position, Statement]
    """Corrections of a value."""
    possible: dict[Position, Statement]
    """Later statements that say that something has changed, and may mean this statement."""

    def follow(self, one: Statement) -> Iterator[Statement]:
        """Yield a statement, its correction, the correction of that, and so on, possible ones included."""
        later: Statement | None = one
        while later is not None:
            yield later
            position = later.position
            later = self.sure.get(position) or self.possible.get(position)


def find_corrections(statements: Sequence[Statement]) -> Corrections:
    """Find statements that later ones correct.

    A statement that a caller dropped cannot correct one that a caller pinned.

    Args:
        statements: the statements in the order of the log.
    """
    features = [_read_features(one.text) for one in statements]
    wanted = frozenset[str]().union(*(of.words for one, of in zip(statements, features, strict=True) if one.corrects))
    often = Counter(chain.from_iterable(wanted & of.words for of in features))
    total, least = max(len(statements), FEWEST), LEAST_EVIDENCE + math.log(max(len(statements), 1))
    rarity = {word: math.log(total / number) for word, number in often.items() if number <= COMMON * total}
    holders: dict[str, list[int]] = {word: [] for word in rarity}
    sure: dict[Position, Statement] = {}
    possible: dict[Position, Statement] = {}
    for number, (one, of) in enumerate(zip(statements, features, strict=True)):
        rare = of.words & rarity.keys()
        best, most = None, (POSSIBLE, False, -1)
        for at in {at for word in rare for at in holders[word]} if one.corrects else ():
            earlier, common = statements[at], {word: rarity[word] for word in rare & features[at].words}
            undone = earlier.choice == "pinned" and one.choice == "dropped"
            found = *_weigh(common, features[at].values, of.values), at
            if found >= most and earlier.seq != one.seq and not undone:
                best, most = earlier, found
        is_sure = most[0] >= least and most[1]
        if best is not None and (is_sure or one.choice != "dropped"):
            (sure if is_sure else possible)[best.position] = one
        for word in rare:
            holders[word].append(number)
    return Corrections(sure, possible)


def read_words(text: str) -> frozenset[str]:
    """Return the words that show the topic of a sentence, and its values, each value with a leading `=`."""
    return _read_features(text).words


def _weigh(
    common: dict[str, float], before: Iterable[tuple[str, str]], after: Iterable[tuple[str, str]]
) -> tuple[float, bool]:
    """Return the evidence that one sentence corrects an earlier one, and True if a value is a part of it.

    Values that both sentences have are evidence only if the sentences also have words in common, or if the later one changes a value.

    Args:
        common: the rarity of each word and value that both sentences have.
        before: values of the earlier sentence.
        after: values of the later sentence.
    """
    same = [weight for word, weight in common.items() if word.startswith("=")]
    changes = any(old[0] and old[0] == new[0] and old[1] != new[1] for old in before for new in after)
    changes = changes and len({text for _, text in after}) > len(same)
    if not changes and len(same) == len(common):
        return 0.0, False
    return sum(common.values()) + (SAME_KIND if changes else 0.0 if same else -NO_VALUE), changes or bool(same)


# -- words and values of a sentence ------------------------------------------------------

_NUMBER: Final = re.compile(
    r"(?P<sign>[£$€¥])?(?P<number>\d(?:[\d.,:]*\d)?)(?P<unit>(?:st|nd|rd|th|er|e|º)\b|\s?[^\W\d_]+|\s?[%€£°]|)"
)
_HAN_NUMBER: Final = re.compile(
    r"(?P<number>[一二三四五六七八九十百千万两]+)(?P<unit>[^\W\d_一二三四五六七八九十百千万两])"
)
_NEXT_WORD: Final = re.compile(r"\s([^\W\d_]+)")
_ARTICLES: Final = frozenset(
    {"one", "half", "un", "une", "demi", "ein", "eins", "halb", "uno", "um", "uma", "medio", "media", "meia"}
)
_SIGNS: Final = "£$€¥%°"
_ORDINALS: Final = frozenset({"st", "nd", "rd", "th", "er", "e", "º"})


def _read_features(text: str) -> Features:
    """Return the topic words and the values of a sentence. Cached in `ANALYSES`.

    Words with digits, days, and words that announce a correction are not topic words.
    """
    key = make_analysis_key(b"features", text.encode(errors="surrogatepass"))
    kept: Features | None = ANALYSES.get(key)
    if kept is None:
        language = detect_language(text)
        cues = load_cues(language)
        topic = cues["correction"].sub(" ", cues["time"].sub(" ", text))
        least = 2 if language in DENSE_LANGUAGES else 1
        words = {term for term in extract_terms(topic).counts if len(term) >= least and not _has_digit(term)}
        values = extract_values(text, language)
        kept = Features(frozenset({*words, *(f"={value}" for _, value in values)}), values)
        ANALYSES.put(key, kept, sum(STRING_BYTES + len(word) for word in kept.words) + 3 * STRING_BYTES * len(values))
    return kept


def _has_digit(term: str) -> bool:
    return any(map(str.isdigit, term))


def extract_values(text: str, language: str) -> frozenset[tuple[str, str]]:
    """Return the numbers and days that a sentence mentions, each with its kind."""
    cues = load_cues(language)
    numbers = (found for form in (_NUMBER, _HAN_NUMBER) for found in form.finditer(text))
    values = {(_classify_number(found), found["number"]) for found in numbers}
    if language not in DENSE_LANGUAGES:
        words = (word for word in cues["number"].finditer(text) if word.group().casefold() not in _ARTICLES)
        values |= {(_find_next_word(text, word.end()), word.group().casefold()) for word in words}
    return frozenset(values | {("day", day.casefold().rstrip("s")) for day in cues["time"].findall(text)})


def _classify_number(number: re.Match[str]) -> str:
    unit, sign = number["unit"].strip().casefold(), number.groupdict().get("sign") or ""
    if ":" in number["number"] or unit in {"am", "pm", "uhr"}:
        return "time"
    if sign or unit in _SIGNS:
        return sign or unit
    return "date" if unit in _ORDINALS else unit


def _find_next_word(text: str, at: int) -> str:
    found = _NEXT_WORD.match(text, at)
    return found.group(1).casefold() if found else ""
