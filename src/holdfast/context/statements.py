"""Statements: the sentences in which a user says how things are, or how they want them. Found without a model, and rated. Pure.

A message is freed of what it quotes and pastes (`holdfast.context.own_words`) and taken apart into sentences. Each is rated by cue words and by its form, with the weights of a
logistic regression over labelled conversations (`benchmarks/statements`, the six kinds under `dev`): what people want remembered is a full
sentence in a message of several, more often than its first, its only one, or a question. The weight of length was set by hand, lower than it was learned,
so that short instructions stay: that cost one statement in a hundred.
"""

# ruff: noqa: RUF001 (punctuation of other scripts)

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from holdfast.context.analysis_cache import ANALYSES, analysis_key
from holdfast.context.cues import DENSE_LANGUAGES, count_cues, cues_of, spoken_language
from holdfast.context.own_words import own_words
from holdfast.context.values import cost_of
from holdfast.domain.fact_choices import Choice
from holdfast.recall.chunks import is_abbreviated
from holdfast.recall.terms import terms_of
from holdfast.recall.word_tables import ENGLISH

LONGEST: Final = 160
"""Characters from which a sentence is taken apart where a part of it begins."""
LONG_MESSAGE: Final = 4_000
"""Characters, about 1,000 tokens, from which a message is likely to hold material: of such a one only the last paragraph counts."""
MOST_SENTENCES: Final = 60
"""Sentences of one message that are looked at."""
WEIGHTS: Final[Mapping[str, float]] = {
    "standing": 0.85,
    "prohibition": 0.5,
    "preference": 1.15,
    "name": 1.9,
    "correction": 0.65,
    "decision": 0.5,
    "time": 1.0,
    "number": 0.3,
    "hedge": -0.55,
    "health": 1.2,
    "passing": -1.5,
}
"""What each cue adds, twice at most. The last two were set by hand: what harms a person, and what matters only at its moment."""
QUESTION, ASKING_WORD, ONLY, FIRST, LENGTH, BASE = -1.7, -0.4, -0.5, -1.15, 1.0, -4.65
"""What is added for a question mark, for a first word that asks, for the only and for the first sentence of a message, for the logarithm of its
words; and for every sentence."""
LEAST_CONTENT: Final = 2
"""Words that a sentence with a courtesy in it must have besides, not counting those that say nothing by themselves."""
LEAST_WORDS: Final = 3
STATEMENT_BYTES: Final = 250
"""What a statement takes in memory besides its text."""
DENSE_WORD: Final = 1.7
"""Characters of a script without spaces that stand for a word."""
_DENSE: Final = re.compile("[\u2e80-\u9fff\u3041-\u30ff\uac00-\ud7ff]")
_WORD: Final = re.compile(r"[\w'\u2019]+")
_END: Final = re.compile(r"[.!?…]+[\"')\]]*(?=\s|$)|[。！？；]+|;(?=\s)")
_NO_END: Final = re.compile(r"(?:(?:^|\s)\d\d?|\betc)\.\Z")
"""Ends in the number of an item, or in an abbreviation that may end a sentence elsewhere: no sentence ends there."""
_BULLET: Final = re.compile(r"\A(?:[-*#>•–]+|\d{1,3}[.)])\s+")
_JOINTS: Final = (
    re.compile(r",\s+(?=(?:and|but|so|because|which|then|also)\b)|\s[-–—]\s|，|:\s+", re.IGNORECASE),
    re.compile(r"\s+(?=(?:and|but|so|oh|okay|um|uh|because|then|anyway)\b)", re.IGNORECASE),
    re.compile(r"[,，]\s*|\s+"),
)
"""Where a long sentence is taken apart, the best places first; the second is how transcripts of speech go on."""
_MARGIN: Final = 30
_GOES_ON: Final = ",;:)，；：）、"
"""Begins what is left of a sentence whose beginning was quoted."""
_CODE: Final = re.compile(r"[{}<>=;$|\\]|\w/\w|\w_\w|\w\(\)|^\s*(?:\$|>>>|import|def|class|git|npm|pip|cd|ls)\b")
_ASKED: Final = re.compile(r"[?？؟]\W*\Z|[吗呢]\W*\Z|(?:ですか|ますか)\W*\Z")


Position = tuple[int, int]
"""Where a statement is: its message, and its number in it."""


class Statement(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A sentence of a user that may be worth keeping."""

    seq: int
    """Of its message."""
    place: int
    """Number of the sentence in the message, from 0."""
    text: str
    """Verbatim but for white space."""
    score: float
    """Log odds of being worth keeping, whatever else was said."""
    cost: float
    """Tokens, roughly."""
    corrects: bool = False
    """True if it says that something is different now."""
    at: int = 0
    """When its message was written, milliseconds since the epoch."""
    choice: Choice | None = None
    """What a caller chose for it; None: the selection decides."""

    @property
    def position(self) -> Position:
        """Its message and its number in it."""
        return self.seq, self.place

    @property
    def id(self) -> str:
        """Name of the statement within its session: `message.sentence`."""
        return f"{self.seq}.{self.place}"


def statements_of(
    text: str, seq: int, *, at: int = 0, choices: Mapping[int, Choice] = MappingProxyType({})
) -> list[Statement]:
    """Return the statements of a user's message, in order, without courtesies.

    Args:
        text: of the message.
        seq: its place in the log.
        at: when it was written, milliseconds since the epoch.
        choices: what a caller chose for some of them, by place.
    """
    return [
        msgspec.structs.replace(one, seq=seq, at=at, choice=choices.get(one.place) if choices else None)
        for one in _analyse(text)
    ]


def _analyse(text: str) -> tuple[Statement, ...]:
    """Cached: a message is looked at before it leaves, to know how much room its statements need, and when it does."""
    key = analysis_key(b"statements", text.encode(errors="surrogatepass"))
    kept: tuple[Statement, ...] | None = ANALYSES.get(key)
    if kept is None:
        kept = _rate_all(text)
        ANALYSES.put(key, kept, sum(STATEMENT_BYTES + len(one.text) for one in kept))
    return kept


def _rate_all(text: str) -> tuple[Statement, ...]:
    if len(text) > LONG_MESSAGE:
        text = text.rstrip().rpartition("\n\n")[2][-LONG_MESSAGE:]
    own = own_words(text, strict=False).own
    language = spoken_language(own)
    sentences = split_sentences(own)[:MOST_SENTENCES]
    rated = (_rate(sentence, at, len(sentences), language) for at, sentence in enumerate(sentences))
    return tuple(one for one in rated if one is not None)


def rate_sentence(sentence: str) -> float:
    """Return the probability that a sentence of a user is worth keeping, whatever stands around it; 0.0 for a courtesy or code."""
    rated = _rate_form(sentence, ENGLISH)
    return 1 / (1 + math.exp(-rated.score)) if rated else 0.0


class _Rated(NamedTuple):
    """What a sentence's own form says."""

    score: float
    corrects: bool


def _rate(sentence: str, at: int, among: int, otherwise: str) -> Statement | None:
    """Rate a sentence in its place; None for a courtesy, a fragment, or code."""
    rated = _rate_form(sentence, otherwise)
    if rated is None:
        return None
    score = rated.score + (ONLY if among == 1 else FIRST if at == 0 else 0.0)
    return Statement(0, at, sentence, round(score, 2), round(cost_of(sentence) + 2, 1), rated.corrects)


@lru_cache(maxsize=4_096)
def _rate_form(sentence: str, otherwise: str) -> _Rated | None:
    """Cached: the digest rates the sentences that are statements, too."""
    language = spoken_language(sentence, otherwise)
    words = _WORD.findall(sentence)
    length = len(sentence) / DENSE_WORD if language in DENSE_LANGUAGES else len(words)
    if length < LEAST_WORDS or sentence[0] in _GOES_ON or len(_CODE.findall(sentence)) * 4 > length:
        return None
    counts = count_cues(sentence, language)
    if counts.get("courtesy") and _is_courtesy(sentence, cues_of(language)["courtesy"]):
        return None
    score = BASE + LENGTH * math.log(length)
    score += sum(WEIGHTS[name] * min(2, number) for name, number in counts.items() if name in WEIGHTS)
    asks = _ASKED.search(sentence) is not None
    score += QUESTION if asks else 0.0
    score += ASKING_WORD if words and cues_of(language)["question"].fullmatch(words[0]) else 0.0
    return _Rated(score, not asks and counts.get("correction", 0) > 0)


def _is_courtesy(sentence: str, courtesies: re.Pattern[str]) -> bool:
    """Return True if nothing is left of a sentence without its courtesies and the words that say nothing by themselves."""
    rest = courtesies.sub(" ", sentence)
    return len(rest) < len(sentence) and len(terms_of(rest).counts) < LEAST_CONTENT


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences and items of lists, long ones into parts."""
    return [piece for line in text.splitlines() for piece in _split_line(line)]


def _split_line(line: str) -> Iterator[str]:
    line, start = _BULLET.sub("", " ".join(line.split()), count=1), 0
    for end in _END.finditer(line):
        stop = end.end()
        if end.group() != "." or not (_NO_END.search(line, max(0, stop - 8), stop) or is_abbreviated(line, stop)):
            yield from _parts(line[start : end.end()].strip())
            start = end.end()
    if rest := line[start:].strip():
        yield from _parts(rest)


def _parts(sentence: str) -> Iterator[str]:
    weight = 2.2 if _DENSE.search(sentence) else 1.0
    if len(sentence) * weight <= LONGEST:
        if sentence:
            yield sentence
        return
    last = len(sentence) - _MARGIN / weight
    for joint in _JOINTS:
        places = [found.end() for found in joint.finditer(sentence) if _MARGIN / weight < found.end() < last]
        if places:
            middle = min(places, key=lambda place: abs(2 * place - len(sentence)))
            yield from _parts(sentence[:middle].strip())
            yield from _parts(sentence[middle:].strip())
            return
    yield sentence[: 4 * LONGEST]
