"""Terms: how a text becomes what an index looks up, what the bits next to them say of the text's form, and how a term is spelled in a text.

A text is normalised (NFKC), cut into words by Unicode's classes, folded, freed of the stop words of its language, and stemmed
(Snowball); what no stemmer finds ("bought") comes from a table. Scripts without spaces, and those that attach particles to their words,
become overlapping pairs of characters, script by script. Identifiers, codes, addresses and numbers are kept whole and in parts. Emoji are
ignored. All of it is a pure function of the text and of `VERSION`, so that an index and a question agree, years later too.
"""

# ruff: noqa: SIM905 (words of other scripts; lists of words)

from __future__ import annotations

import hashlib
import math
import re
import threading
import unicodedata
from base64 import b32encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from holdfast.recall.word_tables import DENSE_STOPS, ENGLISH, IRREGULAR, STOPS, WEB, language_of

VERSION: Final = 2
"""Of the analysis: what another version analysed has to be analysed anew."""
MAX_TEXT: Final = 200_000
"""Characters of a text that are analysed: of a longer one the head and the tail."""
MAX_TERMS: Final = 4_000
"""Distinct terms of a text; the first ones are kept."""
MAX_TERM: Final = 64
"""Characters of a term; a longer one is its digest."""

ASKS: Final = 1
"""Trait: the text ends by asking something, so that what it is about is told behind it."""
TIMED: Final = 2
"""Trait: a time stands in it: a day, a date, "last week"."""
NUMBERED: Final = 4
"""Trait: a number stands in it, in digits or as a word."""
YOURS: Final = 8
"""Trait: it speaks of the other one more than of the one who speaks: it answers, praises, asks back."""
ASKED_BITS, ASKED_STEPS = 4, 4
"""Trait, in the bits from there on: how much of the text is questions, in quarters."""

PLAIN, WHOLE, PART, SPARE = 0, 1, 2, 3
"""What a term is of its token: a word; all of an identifier; one of its parts; a second reading, that only texts have."""

# -- what a token is ---------------------------------------------------------

_MARKS = "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff\u0e31-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u102b-\u103e\u1056-\u1059\u17b4-\u17d3\u200c\u200d"
"""Combining characters, which Python's `\\w` leaves out: without them the words of half the world's scripts fall apart."""
_WORD = rf"[\w{_MARKS}]+"
_TOKEN = re.compile(
    rf"(?<!\w)[A-Z]{{2}}\d{{2}}(?: [A-Z\d]{{4}}){{2,7}}(?: [A-Z\d]{{1,3}})?(?!\w)"  # an IBAN, in groups
    rf"|(?<![\w.,-])\d{{2,4}}(?: \d{{2,4}}){{2,}}(?![\w-])"  # a number of a card or a telephone, in groups
    rf"|\b[A-Za-z](?:\+\+|#)(?!\w)"  # C++, C#
    rf"|{_WORD}(?:(?:['\u2019._/:@+#&=?%~,-]|://){_WORD})*"
)
_SPLIT = re.compile(r",(?!\d)|(?<!\d),")
"""A comma joins digits only."""
_CAMEL = re.compile(r"(?<=[a-z\d])(?=[A-Z])")
_PIECES = re.compile(rf"[^\W_]+(?:[{_MARKS}]+[^\W_]*)*")
_GROUPED = re.compile(r"\d{1,3}(?:[,.]\d{3})+")
_DENSE = re.compile(
    "(?P<han>[\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+)"
    "|(?P<hira>[\u3041-\u309f]+)|(?P<kata>[\u30a0-\u30ff\u31f0-\u31ff]+)|(?P<hangul>[\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff]+)"
    "|(?P<thai>[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf]+)"
)
_SCRIPTS: Final = (
    (0x0590, ""),
    (0x0530, "armenian"),
    (0x0400, "russian"),
    (0x0370, "greek"),
    (0x0600, "arabic"),
    (0x0900, "hindi"),
    (0x0B80, "tamil"),
)
_TIMES: Final = frozenset(
    """
    yesterday today tonight tomorrow ago week weeks weekend weekends month months year years day days morning evening night
    afternoon monday tuesday wednesday thursday friday saturday sunday january february march april june july august september
    october november december recently summer winter spring fall autumn last next since
    gestern heute morgen woche monat jahr letzte letzten ayer hoy mañana semana mes año hier demain semaine mois an ontem hoje ieri oggi
    вчера сегодня завтра неделю
    """.split()
)
_NUMBERS: Final = frozenset(
    """
    two three four five six seven eight nine ten eleven twelve thirteen fifteen twenty thirty forty fifty hundred thousand
    dozen couple half twice double triple first second third
    """.split()
)
_MINE: Final = frozenset(
    "i my we our me mine us i'm i've i'd i'll we're we've ich mein meine wir yo mi mis nosotros je j'ai mon ma mes nous".split()
)
_YOURS: Final = frozenset(
    "you your yours you're you've you'll you'd du dein deine ihr euer tú tu tus usted vous votre vos ton ta tes".split()
)
_SENTENCE: Final = re.compile(r"[^.!?\u3002\uff01\uff1f\u061f\u037e\n]+[.!?\u3002\uff01\uff1f\u061f\u037e\n]*")


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What an index keeps of a text."""

    counts: dict[str, int]
    """How often each term stands in it, in the order of their first places."""
    length: int
    """All of them together."""
    traits: int
    """Bits: `ASKS`, `TIMED`, `NUMBERED`, `YOURS`, and how much of it asks (`asked_share`)."""


class Token(NamedTuple):
    """A word, an identifier, a number of a text."""

    start: int
    stop: int
    text: str
    """As it is written, normalised."""


def normal(text: str) -> str:
    """The text as it is analysed: NFKC, and of a very long one the head and the tail."""
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT * 3 // 5] + "\n" + text[-MAX_TEXT * 2 // 5 :]
    return text if text.isascii() else unicodedata.normalize("NFKC", text).replace("\u2019", "'")


def tokens_of(text: str) -> Iterator[Token]:
    """The tokens of a text that is `normal` already, with their places."""
    for found in _TOKEN.finditer(text):
        start, whole = found.start(), found.group()
        if "," in whole:
            at = 0
            for comma in [*_SPLIT.finditer(whole), None]:
                stop = comma.start() if comma else len(whole)
                if stop > at:
                    yield Token(start + at, start + stop, whole[at:stop])
                at = stop + 1
        else:
            yield Token(start, found.end(), whole)


def _words_of(text: str) -> list[str]:
    """The texts of `tokens_of`."""
    words: list[str] = _TOKEN.findall(text)
    if "," not in text:
        return words
    return [part for word in words for part in (_SPLIT.split(word) if "," in word else (word,)) if part]


def terms_of(text: str) -> Terms:
    """The terms of a text that is to be found.

    Args:
        text: as it was written; at most `MAX_TEXT` characters of it count.
    """
    text = normal(text)
    words = _words_of(text)
    found = count_terms(words, words_language(words))
    return Terms(found.counts, found.length, found.traits | question_traits(text))


class Counted(NamedTuple):
    """The terms of some words."""

    counts: dict[str, int]
    """How often each of them occurs, in the order of their first places."""
    length: int
    traits: int
    """As of `Terms`, but those of questions."""
    mine: int
    """Words of the one who speaks, less those of the other; `YOURS` is a trait where it is below 0."""


def words_of(text: str) -> list[str]:
    """Return the texts of the tokens of a text or of a part of it, as it was written."""
    return _words_of(normal(text))


def words_language(words: Iterable[str]) -> str:
    """Return the language by which these words of a text are stemmed; the first ones decide."""
    return language_of(map(str.casefold, words)) or ENGLISH


def count_terms(words: Iterable[str], language: str) -> Counted:
    """Return the terms of some words.

    Args:
        words: of `words_of`.
        language: of the whole text.
    """
    counts: dict[str, int] = {}
    length = traits = mine = 0
    for word in words:
        terms, trait, whose = _indexed(word, language) if len(word) <= MAX_TERM else _one(word, language)
        traits |= trait
        mine += whose
        for term in terms:
            if term in counts:
                counts[term] += 1
            elif len(counts) < MAX_TERMS:
                counts[term] = 1
            else:
                continue
            length += 1
    return Counted(counts, length, traits | (YOURS if mine < 0 else 0), mine)


def is_question(sentence: str) -> bool:
    """Return True for a sentence that ends with a question mark, whatever closes it."""
    return sentence.rstrip(_CLOSING)[-1:] in _ASKING


def join_traits(traits: Iterable[int], asked: float, *, asks: bool) -> int:
    """Return the traits of several sentences together.

    Args:
        traits: of each, without those of questions.
        asked: share of them that is questions.
        asks: whether the last one is a question.
    """
    found = yours = count = 0
    for one in traits:
        found |= one & ~YOURS
        yours += bool(one & YOURS)
        count += 1
    found |= YOURS if yours * 2 > count else 0
    return found | (ASKS if asks else 0) | math.ceil(ASKED_STEPS * asked) << ASKED_BITS


def asked_share(traits: int) -> float:
    """How much of a text is questions, by its traits: 0 to 1, in quarters."""
    return ((traits >> ASKED_BITS) & 7) / ASKED_STEPS


def question_traits(text: str) -> int:
    """Return the traits of a `normal` text that tell of questions."""
    if not any(mark in text for mark in _ASKING):
        return 0
    asked = whole = 0
    for sentence in _SENTENCE.finditer(text):
        size = sentence.end() - sentence.start()
        whole += size
        asked += size if any(mark in sentence.group() for mark in _ASKING) else 0
    ends = ASKS if text.rstrip(_CLOSING)[-1:] in _ASKING else 0
    return ends | math.ceil(ASKED_STEPS * asked / whole) << ASKED_BITS if asked else ends


_CLOSING: Final = " \t\r\n\"')]*_~!\u201d\u00bb\ufe0f"
_ASKING: Final = frozenset("?\u037e\u061f\uff1f")


def _one(word: str, language: str) -> tuple[tuple[str, ...], int, int]:
    """The terms of a token, its traits, and whether it is of the one who speaks (1) or of the other (-1)."""
    folded = word.casefold()
    traits = TIMED if folded in _TIMES else NUMBERED if folded in _NUMBERS else 0
    if any(map(str.isdigit, word)):
        traits |= NUMBERED
        if len(word) == 4 and word.isdecimal() and 1900 <= int(word) < 2100:
            traits |= TIMED
    return _terms(word, language), traits, (folded in _MINE) - (folded in _YOURS)


_indexed = lru_cache(maxsize=8_192)(_one)
"""Words come again and again, and stemming is slow. Of a very long one nothing is kept."""


def terms_in(word: str, language: str) -> tuple[str, ...]:
    """The terms of a token, as `terms_of` has them: those of `readings`, `bounded`. Words are remembered.

    Args:
        word: a `Token.text`.
        language: of the text around it.
    """
    known = _indexed if len(word) <= MAX_TERM else _one
    return known(word, language)[0]


def _terms(word: str, language: str) -> tuple[str, ...]:
    return tuple(bounded(term) for term, _ in readings(word, language))


def readings(word: str, language: str) -> Iterator[tuple[str, int]]:
    """The terms of a token and what each is of it (`PLAIN`, `WHOLE`, `PART`, `SPARE`); none of a stop word.

    Args:
        word: a `Token.text`.
        language: of the text around it.
    """
    if word.isalpha() and word.isascii():
        if not (word.islower() or word.istitle()) and _CAMEL.search(word):
            yield from _compound(word, language)
        elif not _stops(word, language):
            yield stem(word.casefold(), language), PLAIN
    elif is_dense(word):
        yield from _dense(word, language)
    else:
        yield from _compound(word, language)


@lru_cache(maxsize=8_192)
def key_of(term: str) -> str:
    """Return what stands for a term in every engine: itself, or a hash of one that an engine would not take as one word.

    A key has letters, digits and underscores alone, so that no engine finds anything in it to interpret.
    """
    if _PLAIN.fullmatch(term):
        return term
    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=15).digest()
    return "_" + b32encode(digest).decode().lower()


_PLAIN: Final = re.compile("[a-z0-9]{1,32}")


def bounded(term: str) -> str:
    """A term, or if it is too long, what stands for it."""
    if len(term) <= MAX_TERM:
        return term
    return "#" + hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


# -- one token ---------------------------------------------------------------


def _stops(word: str, language: str) -> bool:
    """Whether it says nothing. What is written large all through is a name: "IT", "US"."""
    if word.isupper() and 2 <= len(word) <= 5:
        return False
    return word.casefold() in STOPS[language]


def _compound(word: str, language: str) -> Iterator[tuple[str, int]]:
    """A word with an apostrophe, a hyphenated one, a number, an identifier, an address."""
    if "'" in word or "\u2019" in word:
        word, rest = _without_clitics(word)
        if rest:
            yield stem(rest, language), SPARE
    if word[-1] in "+#":
        yield word.casefold(), PLAIN
        return
    parts = [part for piece in _PIECES.findall(word) for part in _CAMEL.split(piece)]
    if len(parts) <= 1:
        yield from _simple(parts[0] if parts else word, language)
        return
    kind = WHOLE if is_code(word) else SPARE
    if kind == SPARE and all(_stops(part, language) for part in parts):
        return
    for whole in _wholes(word, language):
        yield whole, kind
    for part in parts:
        for term, _ in _simple(part, language):
            if term not in WEB:
                yield term, PART if kind == WHOLE else PLAIN


def is_dense(word: str) -> bool:
    """Whether characters of scripts without spaces stand in it."""
    return not word.isascii() and _DENSE.search(word) is not None


def is_code(word: str) -> bool:
    """Whether a token is a code more than words: digits, an underline or the signs of an address stand in it."""
    return any(mark.isdigit() or mark in "_@/:=#+" for mark in word) or "." in word or bool(_CAMEL.search(word))


def _simple(part: str, language: str) -> Iterator[tuple[str, int]]:
    if not part or _stops(part, language):
        return
    if part.isalpha() or not part.isalnum():
        yield stem(part.casefold(), language), PLAIN
    elif part.isdecimal() and not part.isascii():
        yield "".join(str(unicodedata.decimal(mark)) for mark in part), PLAIN
    else:
        yield part.casefold(), PLAIN


def _wholes(word: str, language: str) -> Iterator[str]:
    """All of a token as one term, however it is joined: "ORD-12345" is "ord_12345"; numbers without what groups them."""
    folded = word.casefold().strip("_-")
    if all(mark.isdigit() or mark in " ,.-/:+_" for mark in folded):
        digits = "".join(filter(str.isdigit, folded))
        if " " in folded or len(digits) > 6:
            yield digits
        else:
            yield digits if _GROUPED.fullmatch(folded) else folded
    else:
        joined = re.sub(r"[\s_-]", "", folded)
        yield stem(joined, language) if joined.isalpha() and not is_code(word) else joined


def _without_clitics(word: str) -> tuple[str, str]:
    """A word without what an apostrophe joins to it, and if that may have been a name ("O'Brien"), both as one."""
    parts = [part for part in word.replace("\u2019", "'").split("'") if part]
    while len(parts) > 1 and parts[-1].casefold() in _CLITICS:
        parts.pop()
    if len(parts) == 1:
        return parts[0], ""
    joined = "".join(parts).casefold()
    return parts[-1], joined if len(parts[0]) == 1 and parts[0].isupper() and parts[-1][:1].isupper() else ""


_CLITICS: Final = frozenset({"s", "t", "re", "ve", "ll", "d", "m", "em", "all"})


def _dense(word: str, language: str) -> Iterator[tuple[str, int]]:
    """Runs of scripts whose words no space ends, as pairs of characters; what stands between them as usual."""
    at = 0
    for run in _DENSE.finditer(word):
        if between := word[at : run.start()].strip(_QUOTES):
            yield from _compound(between, language)
        at = run.end()
        yield from _pairs(run.group(), run.lastgroup or "")
    if rest := word[at:].strip(_QUOTES):
        yield from _compound(rest, language)


_QUOTES: Final = "'\u2019"
"""Chinese quotes with these, without spaces around them: a quote between two runs is no word."""


def _pairs(run: str, script: str) -> Iterator[tuple[str, int]]:
    if len(run) == 1:
        if script != "hira" and run not in DENSE_STOPS:
            yield run, PLAIN
        return
    for pair in map("".join, pairwise(run)):
        yield pair, PLAIN
    if script == "han":
        for one in run:
            if one not in DENSE_STOPS:
                yield one, SPARE


# -- stems -------------------------------------------------------------------


def stem(word: str, language: str) -> str:
    """The stem of a folded word: by its script, in Latin script by `language`. Accents are gone from it.

    What is longer than `MAX_TERM` is no word, and stays as it is.
    """
    return _stemmed(word, language) if len(word) <= MAX_TERM else _plain(word)


@lru_cache(maxsize=8_192)
def _stemmed(word: str, language: str) -> str:
    first = ord(word[0])
    if first < 0x250:
        if language == ENGLISH:
            word = IRREGULAR.get(word, word)
        name = language
    else:
        name = (
            max(((start, name) for start, name in _SCRIPTS if start <= first), default=(0, ""))[1]
            if first < 0x1000
            else ""
        )
    stemmed = _stemmers.of(name)(word) if name and len(word) > 2 else word
    return (stemmed or word) if stemmed.isascii() else _plain(stemmed)


def _plain(word: str) -> str:
    """Without accents: Latin, Greek and Cyrillic letters with them, the points of Arabic and Hebrew."""
    if ord(word[0]) >= 0x700:
        return word
    marks = (mark for mark in unicodedata.normalize("NFKD", word) if not unicodedata.combining(mark))
    return "".join(marks) or word


class _Stemmers(threading.local):
    """The stemmers of one thread. A stemmer holds the word that it is at, so threads that share one spoil each other's."""

    def __init__(self) -> None:
        self.of = cache(_stemmer)


def _stemmer(name: str) -> Callable[[str], str]:
    """A language's stemmer: always the one in Python, so that the stems are the same wherever an index goes."""
    module = import_module(f"snowballstemmer.{name}_stemmer")
    stemmed: Callable[[str], str] = getattr(module, f"{name.capitalize()}Stemmer")().stemWord
    return stemmed


_stemmers: Final = _Stemmers()


_SPELLED: Final = re.compile(r"[^\W_]+")


class Spelling:
    """How terms are written in some texts."""

    def __init__(self) -> None:
        self._written: dict[str, Counter[str]] = {}

    def read(self, text: str) -> None:
        """Take note of the words of a text."""
        words = [token.text for token in tokens_of(normal(text))]
        language = language_of(word.casefold() for word in words) or ENGLISH
        for word in words:
            if not is_dense(word):
                for term, written in _spelt(word, language):
                    self.note(term, written)

    def note(self, term: str, written: str) -> None:
        """Take note of one way to write a term. What is too long to be read is none."""
        if len(written) <= MAX_TERM:
            self._written.setdefault(term, Counter())[written] += 1

    def of(self, term: str) -> str:
        """The form that is written most often, capitals aside; of those the shortest, then the first by its letters. Without any: the term."""
        written = self._written.get(term)
        if not written:
            return term
        folded: Counter[str] = Counter()
        for form, number in written.items():
            folded[form.casefold()] += number
        best = min(folded, key=lambda form: (-folded[form], len(form), form))
        return min(
            (form for form in written if form.casefold() == best),
            key=lambda form: (-written[form], form.lower() != form, form),
        )

    def words(self, terms: Iterable[str], most: int) -> tuple[str, ...]:
        """The forms of some terms, each once, at most so many."""
        seen: dict[str, str] = {}
        for term in terms:
            form = self.of(term)
            seen.setdefault(form.casefold(), form)
            if len(seen) == most:
                break
        return tuple(seen.values())


def _spelt(word: str, language: str) -> Iterable[tuple[str, str]]:
    """The terms of a word, each with what of the word it stands for."""
    terms = terms_in(word, language)
    if len(terms) == 1 and word.isalnum():
        yield terms[0], word
        return
    pieces = {bounded(term): piece for piece in _SPELLED.findall(word) for term in terms_in(piece, language)}
    for term in terms:
        yield term, pieces.get(term, word)
