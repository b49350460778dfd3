"""Rate how likely an agent needs a piece of text again, by its form alone.

Identifiers, dates, numbers and words differ in form in every language, whatever they mean.
"""

# ruff: noqa: RUF001 (punctuation of other scripts is what some patterns are about)

from __future__ import annotations

import json
import re
from functools import lru_cache
from operator import mul
from typing import Any

IDENTIFIER, NUMBERED, DATE, PATH, PHRASE, DIGITS, LONG_DATE, NAME, SHORT, TIME, WORD = (
    3.0,
    2.5,
    2.0,
    2.0,
    1.6,
    1.3,
    1.2,
    0.65,
    0.8,
    0.7,
    0.6,
)
"""Weights of values by their form. They were tuned on the recorded sessions of half of the tasks, and on invented sessions of other kinds."""
LEAST_NAME = 4
"""A word with digits is an identifier if it has at least this many characters: `s3` or `1st` hardly identifies anything."""
LONG_NUMBER = 7
"""A number in a text is an identifier if it has at least this many digits: it may be an account, a telephone number or an article."""

MAX_TEXT = 40_000
"""Longest text that is read completely, in characters. Of a longer text, only the beginning and the end are read."""
MAX_VALUE = 160
"""Longest value, in characters. A longer text is split into sentences."""
MAX_KEY = 40
"""Longest key, in characters."""

Words = tuple[tuple[str, float], ...]
"""Case-folded words, each with its weight."""

_DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f"
"""Character ranges of scripts without spaces between words, and of Hangul, whose particles are attached to words."""
_WORD = re.compile(rf"(?:[^\W{_DENSE}]|[@#$€£¥%+/\\.:~=&_-])+|[{_DENSE}]+")
_PIECE = re.compile(r"[^\W_]+")
_DENSE_RUN = re.compile(rf"[{_DENSE}]{{4,}}")
DENSE_WORD = 3
"""About this many characters of a script without spaces make one word."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}|\d{1,4}年\d{1,2}月")
_TIME = re.compile(r"[+-]?\d{1,2}:\d{2}(?::\d{2})?(?:[+-]\d+)?")
_ERROR = re.compile(
    r"\b(?:\w*errors?|failed|failure|\w*exception|traceback|denied|forbidden|not found|invalid|unable|timed? ?out|refused)\b"
    r"|\berreur|\bfehler|ошибк|错误|失敗|失败|エラー|오류|خطأ",
    re.IGNORECASE,
)
_ERROR_PART = re.compile(
    "error|fail|exception|traceback|denied|forbidden|not found|invalid|unable|time|refused"
    "|erreur|fehler|ошибк|错误|失敗|失败|エラー|오류|خطأ"
)
"""Matches the lower-case form of every text that `_ERROR` matches. It is ten times faster, so it is tried first."""
_SEPARATORS = {code: " " for code in range(128) if not chr(code).isalnum() and chr(code) not in "@#$%+/\\.:~=&_-"}
"""Translation table that replaces the ASCII characters between words by spaces. Splitting the result finds the same words as `_WORD`."""
COLONS = (":", "：")
"""Characters that end a heading, in several scripts."""
QUESTION = ("?", "？", "؟", "՞", "።", "፧")
"""Characters that end a question, in several scripts."""
_ID = re.compile(r"(?:^|[_\s.-])(?:id|Id|ID)$|[a-z]I[dD]$")
_EDGE = ".-/\\#~:=+&"


def split_words(text: str) -> list[str]:
    """Split `text` into words at white space and punctuation. Paths, addresses, numbers and amounts are not split.

    ASCII text is split with a table, which is three times as fast as the equivalent pattern.
    """
    found = text.translate(_SEPARATORS).split() if text.isascii() else _WORD.findall(text)
    return [word for piece in found if (word := piece.strip(_EDGE))]


def split_all_words(texts: list[str]) -> list[str]:
    """Split several texts into words, and return all words in order."""
    whole = " ".join(texts)
    return split_words(whole) if whole.isascii() else [word for text in texts for word in split_words(text)]


@lru_cache(maxsize=8_192)
def split_pieces(value: str) -> frozenset[str]:
    """Return the lower-case words of a short text, split at all punctuation. `Full-size` and `full size` have the same words."""
    return frozenset(_PIECE.findall(value.lower()))


@lru_cache(maxsize=8_192)
def weigh_value(value: str) -> float:
    """Return the weight of a value by its form: identifiers have the highest, then dates, numbers and words.

    Cached, because most words of a conversation occurred in it before.
    """
    if len(value) > 64:
        return PATH if "/" in value and len(value) <= MAX_VALUE and " " not in value else 0.2
    if _DATE.match(value):
        return DATE if len(value) <= 10 else LONG_DATE
    digits = sum(map(str.isdigit, value))
    if digits:
        return _weigh_with_digits(value, digits)
    if any(mark in value for mark in "@_/\\"):
        return PATH
    return NAME if value[:1].isupper() else WORD


def weigh_keyed_value(key: str, value: str) -> float:
    """Return the weight of a value with a key. If the key is like `order_id`, a plain word has the weight of an identifier."""
    weight = weigh_value(value)
    if weight <= NAME and len(value) >= LEAST_NAME and value.isalnum() and _ID.search(key):
        return IDENTIFIER
    return weight


def _weigh_with_digits(value: str, digits: int) -> float:
    if _TIME.fullmatch(value):
        return TIME
    if any(map(str.isalpha, value)):
        return IDENTIFIER if " " not in value and len(value) >= LEAST_NAME else PHRASE
    if any(mark in value for mark in "@_/\\"):
        return PATH
    if digits >= LONG_NUMBER and "." not in value:
        return NUMBERED
    return DIGITS if digits >= 4 else SHORT


@lru_cache(maxsize=2_048)
def weigh_words(text: str) -> Words:
    """Return the case-folded words of a sentence with their weights.

    Cached, because a sentence is weighed when it is read, and again for every digest that may contain it.
    """
    return tuple([(word.casefold(), weigh_value(word)) for word in split_words(text)])


_SHARES = tuple(1 / (1.5 * place) for place in range(1, 7))


def weigh_sentence(sentence: str) -> float:
    """Return the weight of a sentence, computed from its six best words, each with a lower factor than the one before.

    A short sentence that ends with a colon is a heading, and has a very low weight.
    """
    weights = sorted([weight for _, weight in weigh_words(sentence)], reverse=True)
    if not sentence.isascii():
        weights += [WORD] * sum([len(run) // DENSE_WORD for run in _DENSE_RUN.findall(sentence)])
    if not weights or (len(weights) < 6 and sentence.endswith(COLONS)):
        return 0.1
    return float(round(sum(map(mul, weights, _SHARES)), 2))


def estimate_tokens(text: str) -> float:
    """Estimate the tokens of `text`: one per 2.4 characters in an identifier, per 4 in other ASCII text, and per 1.8 in any other text."""
    if not text.isascii():
        return len(text) / 1.8
    return len(text) / (2.4 if " " not in text and any(map(str.isdigit, text)) else 4.0)


def format_label(name: str) -> str:
    """Return a key as a digest shows it: on one line, with at most `MAX_KEY` characters."""
    return _format_short_label(name) if len(name) <= MAX_KEY else clean(name[: 4 * MAX_KEY])[:MAX_KEY]


@lru_cache(maxsize=2_048)
def _format_short_label(name: str) -> str:
    """Return a short key on one line. Cached, because results of the same tool have the same keys."""
    return clean(name)


def has_error(text: str) -> bool:
    """Return True if a text mentions an error or a failure, in one of several languages."""
    return _ERROR_PART.search(text.lower()) is not None and _ERROR.search(text) is not None


def clean(text: str) -> str:
    """Return `text` on one line, with characters that UTF-8 cannot encode replaced. Each source must stay on one line of a digest."""
    flat = " ".join(text.split())
    return flat if flat.isascii() else flat.encode("utf-8", "replace").decode()


class Number(str):
    """A JSON number that keeps its original spelling, such as `12.50`."""

    __slots__ = ()


def decode_json(text: str) -> Any:
    """Decode a JSON object or list, with each number as a `Number`; return any other text unchanged."""
    stripped = text.strip()
    if stripped[:1] not in {"{", "["}:
        return text
    try:
        return json.loads(stripped, parse_float=Number, parse_int=Number, parse_constant=Number)
    except (ValueError, RecursionError):
        return text
