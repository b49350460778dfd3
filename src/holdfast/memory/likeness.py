"""When two memories say the same, when one gives a new value for what the other says, and when they are only alike. Pure.

What is lost by a wrong merge is lost in silence, and what is kept twice does little harm. So two texts say the same only when
their words do, one by one and in order: inflection, case, punctuation, articles, copulas and a few words that add nothing aside.
Numbers, negations, names, prepositions and identifiers are words like any other: "room 12" is not "room 13", "from Rome to Paris" is
not "to Rome from Paris". Texts that share half of their terms are alike, which is told and changes nothing.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdfast.recall.stops import ENGLISH, language_of
from holdfast.recall.terms import normal, stem, terms_of, tokens_of

ALIKE: Final = 0.5
"""Share of two texts' terms, of all that either has, from which on they are alike (Jaccard)."""
MAX_WORDS: Final = 400
"""Words of a text that are compared; longer ones say the same only where they are equal."""
_TOLD_BY: Final = 800
"""Characters of a text that its language is told by."""
_FACT_CHARS: Final = 240
"""Longest text that is read as one fact."""
_SUBJECT_WORDS: Final = 6
_VALUE_WORDS: Final = 6


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_EMPTY: Final = _set("""
    a an the is are am be being do does really very quite just simply actually currently presently now please kindly
    indeed certainly definitely that using
    """)
"""English words that change nothing of what a memory says."""
_NOTS: Final = {
    "cannot": "can", "cant": "can", "dont": "", "doesnt": "", "didnt": "did", "isnt": "", "arent": "", "wasnt": "was",
    "werent": "were", "hasnt": "has", "havent": "have", "hadnt": "had", "wouldnt": "would", "couldnt": "could",
    "shouldnt": "should", "wont": "will", "shant": "shall", "mustnt": "must", "neednt": "need", "aint": "",
}  # fmt: skip
"""English words with a "not" in them, apostrophes aside, and what stands before it."""
_MARKS: Final = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f]"
)
"""Characters that nobody sees: they hide words from whoever compares them."""

# -- facts ---------------------------------------------------------------------

_FACT: Final = re.compile(
    r"(?P<subject>[^:=.;!?\n]{3,120}?)(?:\s+is(?:\s+(?:now|currently))?\s+|\s*[:=]\s+)(?P<value>[^;!?\n]{1,120}?)[.!]?\s*"
)
_SINGLE: Final = frozenset(
    stem(word, ENGLISH)
    for word in _set("""
    name nickname surname username login email mail phone telephone address postcode zip age birthday birthdate timezone
    locale currency deadline status version budget salary price height weight size employer
    """)
)
"""What something has one of at a time: a new value takes the place of the old one."""
_SINGLE_PAIRS: Final = frozenset(
    {("phone", "number"), ("time", "zone"), ("date", "birth"), ("job", "titl"), ("shoe", "size")}
)
_CHOSEN: Final = frozenset(
    stem(word, ENGLISH)
    for word in _set("""
    favourite favorite preferred default primary current
    """)
)
"""Before anything it makes it one: a favourite colour."""
_SEVERAL: Final = frozenset(
    stem(word, ENGLISH)
    for word in _set("""
    friend colleague coworker child kid son daughter brother sister sibling cousin uncle aunt nephew niece neighbour
    neighbor pet dog cat horse client customer guest student teacher room page file item task ticket order account
    card device server
    """)
)
"""What people have several of: which one is meant nobody knows."""
_OF: Final = frozenset({"of", "for"})
_CONDITIONS: Final = _set("""
    and or but if when whenever unless until while during since because except also too either neither nor not never no
    without who whom whose which where than then maybe perhaps might may could would should was were in at on for with by
    from to about usually sometimes often mostly partly instead like via as
    """)
"""In a value or a subject: it is more than one value, or holds at times."""
_PERSONAL: Final = frozenset({"my", "our", "i", "we"})


class Fact(NamedTuple):
    """Something that has one value at a time, and that value."""

    subject: tuple[str, ...]
    value: tuple[str, ...]
    personal: bool
    """Whether the subject is whoever speaks."""


def visible(text: str) -> str:
    """A text without the characters that nobody sees."""
    return text if text.isascii() else _MARKS.sub("", text)


def words_of(text: str, language: str = ENGLISH) -> tuple[str, ...]:
    """What a text says, word by word: stemmed, without the words that add nothing; see the module."""
    plain = normal(visible(text))
    tokens = [token.text for token in tokens_of(plain)]
    words: list[str] = []
    for token in tokens:
        words += _word(token, language)
    return tuple(words) or tuple(plain.casefold().split())


def same(text: str, other: str) -> bool:
    """Whether two texts say the same."""
    language = language_of(
        token.text.casefold() for one in (text, other) for token in tokens_of(normal(one[:_TOLD_BY]))
    )
    words, others = words_of(text, language or ENGLISH), words_of(other, language or ENGLISH)
    if len(words) > MAX_WORDS or len(others) > MAX_WORDS:
        return text.casefold().split() == other.casefold().split()
    return words == others and _signs(text) == _signs(other)


def fact_of(text: str) -> Fact | None:
    """The fact that a text states, and nothing else: "My favourite colour is blue"; None: it states none, or not for sure."""
    plain = normal(visible(text)).strip()
    found = _FACT.fullmatch(plain) if len(plain) <= _FACT_CHARS else None
    if found is None:
        return None
    raw = [token.text.casefold() for token in tokens_of(found["subject"])]
    values = [token.text.casefold() for token in tokens_of(found["value"])]
    subject, value = words_of(found["subject"]), words_of(found["value"])
    if not (2 <= len(subject) <= _SUBJECT_WORDS and 1 <= len(value) <= _VALUE_WORDS) or "," in found["value"]:
        return None
    if any(word in _CONDITIONS for word in values) or any(
        word in _CONDITIONS - _OF for word in [*raw, *subject, *value]
    ):
        return None
    return Fact(subject, value, not _PERSONAL.isdisjoint(raw)) if _single(subject) else None


def replaces(text: str, other: str, *, personal: bool = True) -> bool:
    """Whether a text gives a new value for just what the other one gives a value for.

    Args:
        text: the newer one.
        other: the older one.
        personal: whether "my" means the same person in both.
    """
    new, old = fact_of(text), fact_of(other)
    if new is None or old is None or new.subject != old.subject or new.value == old.value:
        return False
    return personal or not new.personal


def likeness(text: str, other: str) -> float:
    """Share of the terms of two texts that both have, 0 to 1 (Jaccard)."""
    terms, others = terms_of(visible(text)).counts.keys(), terms_of(visible(other)).counts.keys()
    return len(terms & others) / len(terms | others) if terms or others else 0.0


# -- one word ------------------------------------------------------------------


def _word(token: str, language: str) -> list[str]:
    folded = token.casefold().replace("\u2019", "'")
    negated = _NOTS.get(folded.replace("'", ""))
    if negated is not None:
        return [stem(negated, language), "not"] if negated else ["not"]
    head, joined, tail = folded.partition("'")
    if joined and tail in {"s", "re", "m"}:
        folded = head
    if language == ENGLISH and folded in _EMPTY:
        return []
    return [stem(folded, language) if folded.isalpha() else folded.strip("_-'")]


def _signs(text: str) -> list[str]:
    """What is no word and means something all the same: signs of numbers and currencies, emoji."""
    plain = visible(text)
    marks = [mark for mark in plain if not (mark.isalnum() or mark.isspace() or mark in _PUNCTUATION)]
    return sorted(marks) + _SIGNED.findall(plain)


_SIGNED: Final = re.compile(r"(?<![\w)])[-\u2212]\d+")


_PUNCTUATION: Final = frozenset(
    ".,;:!?'\"()[]{}\u2018\u2019\u201c\u201d\u00ab\u00bb\u2026\u2013\u2014-_*`\u3002\u3001\uff0c\uff01\uff1f"
)


def _single(subject: tuple[str, ...]) -> bool:
    """Whether a subject has one value at a time."""
    of = next((at for at, word in enumerate(subject) if word in _OF), len(subject))
    head = subject[:of]
    if not head or any(word in _SEVERAL for word in subject):
        return False
    chosen = any(word in _CHOSEN for word in head[:-1])
    return chosen or head[-1] in _SINGLE or head[-2:] in _SINGLE_PAIRS
