"""What a user's message states, and what it only asks about or denies: words that somebody used are not yet words that they stand for. Pure.

    "Why do my invoices go to evil@corp.example?"   asked: whoever asks about something did not say that it is so
    "Don't send them to evil@corp.example!"         denied
    "I'm vegan, where can I eat?"                   the first part is stated, the second one asked
    "Can you remember that I'm vegan?"              stated: it is what they want to be kept

It is told by marks, and by a few English words at the beginning of a part of a sentence. What is wrongly taken for a question costs
little: it counts only where somebody else says the same; see `holdfast.memory.provenance`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.memory.assertions import unasserted
from holdfast.memory.likeness import words_of
from holdfast.recall.stops import ENGLISH, language_of
from holdfast.recall.terms import normal, terms_in, tokens_of

_SENTENCE: Final = re.compile(
    r"(?:[^.!?\u3002\uff01\uff1f\u061f\u037e\n]|\.(?=\S))+[.!?\u3002\uff01\uff1f\u061f\u037e]*"
)
"""A point within an address or a number ends nothing."""
_SPACES: Final = re.compile(r"[^\S\n]+")
_PARTS: Final = re.compile(r"\s*[,;:\u2013\u2014](?=\s)\s*|\s*[\uff0c\u3001]\s*|\s+(?=but\s)", re.IGNORECASE)
_ASKING: Final = re.compile(r"[?\u037e\u061f\uff1f][\"')\]!\s]*$")
_ASKS: Final = re.compile(
    r"(?:(?:please|now|so|and|or|then|also|ok|okay|hey|hi|well)[\s,]+)*"
    r"(?:(?:can|could|would|will)\s+(?:you|we)\s+(?:please\s+)?)?"
    r"(?:tell|find|look|check|search|summari[sz]e|show|list|explain|read|give|fetch|translate|confirm|verify|see|say|compare|describe"
    r"|would|will|what|which|who|whom|whose|where|why|how|is|are|was|were|does|did|has|have\s+you|should|shall)\b",
    re.IGNORECASE,
)
_ORDERS: Final = re.compile(r"(?:please[\s,]+|and\s+)*(?:can|could)\s+you\s", re.IGNORECASE)
"""What is to be done, where it is nothing that `_ASKS`: whoever says it wants it so."""
_OWN: Final = re.compile(
    r"\b(?:i|we|my|our|mine|me|us|ich|wir|mein\w*|unser\w*|yo|mis?|je|j|nous|mon|ma|mes|io|mio|mia|eu|meu|minha)\b",
    re.IGNORECASE,
)
"""Whoever speaks."""
_ANEW: Final = re.compile(
    r"\W*(?:but|i|we|it|he|she|they|you|the|an?|my|our|his|her|their|this|that|these|those|there|instead|rather)\b",
    re.IGNORECASE,
)
"""Begins something of its own, to which a negation in front of it does not belong."""
_KEEP: Final = re.compile(r"\b(?:remember|memori[sz]e|note\s+down|keep\s+in\s+mind|forget)\b", re.IGNORECASE)
_RECALLS: Final = re.compile(
    r"\W*(?:what|which|who|where|why|when|how|do|does|did|is|are|should|shall)\b", re.IGNORECASE
)
"""Begins what asks whether something is remembered."""
_NOT_FORGET: Final = re.compile(r"\b(?:don['\u2019]?t|do\s+not|never)\s+(?:ever\s+)?forget\b", re.IGNORECASE)
_NO: Final = re.compile(r"^\s*(?:no|nope|nah|not\s+really|never\s+mind)\s*[,.;:!\u2013\u2014-]+", re.IGNORECASE)
"""Answers something, and denies nothing that follows."""
_IS_IT: Final = re.compile(
    r"\W*(?:(?:is|isn['\u2019]?t|are|aren['\u2019]?t|does|doesn['\u2019]?t|do|don['\u2019]?t|was|wasn['\u2019]?t)\s+"
    r"(?:it|that|this|they|he|she|you|i)(?:\s+(?:so|true|right|correct|the case))?|right|really|correct|true|seriously|yes|no|eh|huh)\W*",
    re.IGNORECASE,
)
"""Makes a question of all that stands before it."""
_QUOTES: Final = " \t\"'("
NOT: Final = frozenset({"not", "no", "never", "none", "without", "nor", "neither"})


class Voiced(NamedTuple):
    """The terms of a user's message, by what is done with them; one may be in several."""

    stated: frozenset[str]
    asked: frozenset[str]
    denied: frozenset[str]
    unasserted: frozenset[str] = frozenset()
    """Those that stand in nothing but reported, quoted, asked or hedged clauses: never the user's own; see `holdfast.memory.assertions`."""
    questioned: frozenset[str] = frozenset()
    """Those of them that are in questions alone: next to what the user states, one may be the user's word."""
    negative: frozenset[str] = frozenset()
    """Those that stand in nothing but such clauses and denials."""
    wished: frozenset[str] = frozenset()
    """Those that stand in nothing but such clauses and wishes."""


def negated(text: str) -> bool:
    """Whether there is a negation in a text."""
    return not NOT.isdisjoint(words_of(text))


def voiced(text: str) -> Voiced:
    """What a message states, asks and denies."""
    text = normal(text)
    language = language_of(token.text.casefold() for token in tokens_of(text)) or ENGLISH
    found: tuple[set[str], set[str], set[str]] = (set(), set(), set())
    for sentence in _SENTENCE.findall(_NO.sub("", _SPACES.sub(" ", text))):
        for part, into in _parted(_NO.sub("", _NOT_FORGET.sub("remember", sentence))):
            found[into].update(*(terms_in(token.text, language) for token in tokens_of(part)))
    whole = Counter(term for sentence in _SENTENCE.findall(text) for term in _terms_of(sentence, language))
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in ("claimed", "asked", "denied", "wished")}
    for clause in unasserted(text):
        counts[clause.kind].update(_terms_of(clause.text, language))

    def only_in(*kinds: str) -> frozenset[str]:
        """The terms that the message has in clauses of these kinds alone."""
        within = sum((counts[kind] for kind in kinds), Counter[str]())
        return frozenset(term for term, times in within.items() if times >= whole[term])

    apart = only_in("claimed", "asked")
    stated, asked, denied = map(frozenset, found)
    return Voiced(
        stated - apart,
        asked,
        denied - apart,
        apart,
        apart - counts["claimed"].keys(),
        only_in("claimed", "asked", "denied") - apart,
        only_in("claimed", "asked", "wished") - apart,
    )


def _terms_of(text: str, language: str) -> Iterator[str]:
    return (term for token in tokens_of(text) for term in terms_in(token.text, language))


def _parted(sentence: str) -> Iterator[tuple[str, int]]:
    """The parts of a sentence, each with which field of `Voiced` it is for."""
    keep = _KEEP.search(sentence) is not None and _RECALLS.match(sentence) is None
    asking = _ASKING.search(sentence) is not None
    parts = [part for part in _PARTS.split(sentence) if part.strip()]
    whole = asking and (len(parts) == 1 or _IS_IT.fullmatch(parts[-1]) is not None)
    denies, behind = False, asking
    for at, part in enumerate(parts, 1):
        begins = _ASKS.match(part.lstrip(_QUOTES)) is not None
        behind = behind or begins
        if not begins and _ORDERS.match(part.lstrip(_QUOTES)):
            asked = False
        else:
            asked = begins or whole or (asking and at == len(parts)) or (behind and _OWN.search(part) is None)
        denies = negated(part) or (denies and _ANEW.match(part) is None)
        yield part, 1 if asked and not keep else 2 if denies else 0
