"""Extract from a text the terms by which an index finds it, and traits such as "ends with a question".

- A text is normalised (NFKC) and cut into words by Unicode classes.
- Words are case-folded. Stop words of the text's language are removed, and the other words are stemmed (Snowball). Irregular forms
  ("bought") come from a table.
- Text in scripts without spaces, or in scripts that attach particles to words, is cut into overlapping pairs of characters. Each
  run of one script is cut separately.
- Identifiers, codes, addresses and numbers become terms both whole and in parts.
- Emoji are ignored.

The result depends only on the text and on `VERSION`, so an index and a question still match years later. `Spelling` finds the
usual spelling of a term.
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

from holdfast.recall.word_tables import DENSE_STOPS, ENGLISH, IRREGULAR, STOPS, WEB, find_language

VERSION: Final = 2
"""Version of the analysis. Texts that were analysed by another version must be analysed again."""
MAX_TEXT: Final = 200_000
"""Maximum number of characters of a text that are analysed. Of a longer text, only the head and tail are analysed."""
MAX_TERMS: Final = 4_000
"""Maximum number of distinct terms of a text. The first ones are kept."""
MAX_TERM: Final = 64
"""Maximum characters of a term. A longer term is replaced by its digest."""

ASKS: Final = 1
"""Trait: the text ends with a question, so the answer probably follows in the next turn."""
TIMED: Final = 2
"""Trait: the text names a time, such as a day, a date or "last week"."""
NUMBERED: Final = 4
"""Trait: the text has a number, in digits or as a word."""
YOURS: Final = 8
"""Trait: the text speaks more about the other participant than about the speaker: it answers, praises or asks back."""
ASKED_BITS, ASKED_STEPS = 4, 4
"""Trait: the share of questions in the text, as a number of quarters (`ASKED_STEPS`). It is stored in the bits from number
`ASKED_BITS` on."""

PLAIN, WHOLE, PART, SPARE = 0, 1, 2, 3
"""The kind of a term that was read from a token: a word, a whole identifier, a part of an identifier, or a second reading of the
token."""

# -- tokens ------------------------------------------------------------------

_MARKS = "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff\u0e31-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u102b-\u103e\u1056-\u1059\u17b4-\u17d3\u200c\u200d"
"""Combining characters. Python's `\\w` does not match them, so without them the words of many scripts would be broken up."""
_WORD = rf"[\w{_MARKS}]+"
_TOKEN = re.compile(
    rf"(?<!\w)[A-Z]{{2}}\d{{2}}(?: [A-Z\d]{{4}}){{2,7}}(?: [A-Z\d]{{1,3}})?(?!\w)"  # an IBAN, in groups
    rf"|(?<![\w.,-])\d{{2,4}}(?: \d{{2,4}}){{2,}}(?![\w-])"  # a number of a card or a telephone, in groups
    rf"|\b[A-Za-z](?:\+\+|#)(?!\w)"  # C++, C#
    rf"|{_WORD}(?:(?:['\u2019._/:@+#&=?%~,-]|://){_WORD})*"
)
_SPLIT = re.compile(r",(?!\d)|(?<!\d),")
"""Matches a comma that separates two tokens: any comma that is not between two digits."""
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
    """The terms and traits of a text."""

    counts: dict[str, int]
    """Number of occurrences of each term, in the order of first occurrence."""
    length: int
    """Number of terms, counting repetitions."""
    traits: int
    """Bit flags `ASKS`, `TIMED`, `NUMBERED` and `YOURS`, and the share of questions (`get_asked_share`)."""


class Token(NamedTuple):
    """A word, an identifier or a number in a text."""

    start: int
    stop: int
    text: str
    """The token as written in the normalised text."""


def normalize(text: str) -> str:
    """Return a text in Unicode form NFKC. A text of more than `MAX_TEXT` characters is shortened to its head and tail."""
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT * 3 // 5] + "\n" + text[-MAX_TEXT * 2 // 5 :]
    return text if text.isascii() else unicodedata.normalize("NFKC", text).replace("\u2019", "'")


def iter_tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a normalised text in order, with their positions."""
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


def _split_words(text: str) -> list[str]:
    """Return the texts of the tokens of a normalised text, as `iter_tokens` finds them, but faster."""
    words: list[str] = _TOKEN.findall(text)
    if "," not in text:
        return words
    return [part for word in words for part in (_SPLIT.split(word) if "," in word else (word,)) if part]


def extract_terms(text: str) -> Terms:
    """Return the terms and traits of a text that is to be indexed.

    Args:
        text: the original text. Only `MAX_TEXT` characters, its head and tail, are analysed.
    """
    text = normalize(text)
    words = _split_words(text)
    found = count_terms(words, choose_language(words))
    return Terms(found.counts, found.length, found.traits | find_question_traits(text))


class TermCounts(NamedTuple):
    """The terms and traits of a list of words."""

    counts: dict[str, int]
    """Number of occurrences of each term, in the order of first occurrence."""
    length: int
    """Number of terms, counting repetitions."""
    traits: int
    """Bit flags `TIMED`, `NUMBERED` and `YOURS`."""
    mine: int
    """Number of words about the speaker minus words about the other participant; `YOURS` is set if the result is negative."""


def split_words(text: str) -> list[str]:
    """Return the texts of the tokens of a text that is not normalised, or of a part of it."""
    return _split_words(normalize(text))


def choose_language(words: Iterable[str]) -> str:
    """Return the language in which the words of a text are stemmed. Only the first words are examined."""
    return find_language(map(str.casefold, words)) or ENGLISH


def count_terms(words: Iterable[str], language: str) -> TermCounts:
    """Count the terms of a list of words, and find their traits.

    Args:
        words: the result of `split_words`.
        language: the language of the text that the words come from.
    """
    counts: dict[str, int] = {}
    length = traits = mine = 0
    for word in words:
        terms, trait, whose = (
            _analyse_cached(word, language) if len(word) <= MAX_TERM else _analyse_token(word, language)
        )
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
    return TermCounts(counts, length, traits | (YOURS if mine < 0 else 0), mine)


def is_question(sentence: str) -> bool:
    """Return True if a sentence ends with a question mark, which quotes, brackets or the like may follow."""
    return sentence.rstrip(_CLOSING)[-1:] in _ASKING


def join_traits(traits: Iterable[int], asked: float, *, asks: bool) -> int:
    """Combine the traits of several sentences into the traits of the text that they form.

    Args:
        traits: for each sentence, the bit flags `TIMED`, `NUMBERED` and `YOURS`.
        asked: the share of questions in the text, 0 to 1.
        asks: True if the last sentence is a question.
    """
    found = yours = count = 0
    for one in traits:
        found |= one & ~YOURS
        yours += bool(one & YOURS)
        count += 1
    found |= YOURS if yours * 2 > count else 0
    return found | (ASKS if asks else 0) | math.ceil(ASKED_STEPS * asked) << ASKED_BITS


def get_asked_share(traits: int) -> float:
    """Return the share of questions in a text, which its traits contain: 0 to 1, in quarters."""
    return ((traits >> ASKED_BITS) & 7) / ASKED_STEPS


def find_question_traits(text: str) -> int:
    """Return `ASKS`, if it applies to a normalised text, and the share of questions, both as trait bits."""
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


def _analyse_token(word: str, language: str) -> tuple[tuple[str, ...], int, int]:
    """Return the terms of a token, its traits, and whom it speaks about.

    The last value is 1 for a word about the speaker ("my"), -1 for a word about the other participant ("your"), otherwise 0.
    """
    folded = word.casefold()
    traits = TIMED if folded in _TIMES else NUMBERED if folded in _NUMBERS else 0
    if any(map(str.isdigit, word)):
        traits |= NUMBERED
        if len(word) == 4 and word.isdecimal() and 1900 <= int(word) < 2100:
            traits |= TIMED
    return _collect_terms(word, language), traits, (folded in _MINE) - (folded in _YOURS)


_analyse_cached = lru_cache(maxsize=8_192)(_analyse_token)
"""`_analyse_token` with a cache, because words repeat and stemming is slow. Callers do not use it for very long tokens."""


def get_terms(word: str, language: str) -> tuple[str, ...]:
    """Return the terms of a token as `extract_terms` counts them. Results are cached.

    Args:
        word: a `Token.text`.
        language: the language of the surrounding text.
    """
    known = _analyse_cached if len(word) <= MAX_TERM else _analyse_token
    return known(word, language)[0]


def _collect_terms(word: str, language: str) -> tuple[str, ...]:
    return tuple(bound_term(term) for term, _ in iter_readings(word, language))


def iter_readings(word: str, language: str) -> Iterator[tuple[str, int]]:
    """Yield the terms of a token, each with its kind (`PLAIN`, `WHOLE`, `PART` or `SPARE`). A stop word has no terms.

    Args:
        word: a `Token.text`.
        language: the language of the surrounding text.
    """
    if word.isalpha() and word.isascii():
        if not (word.islower() or word.istitle()) and _CAMEL.search(word):
            yield from _read_compound(word, language)
        elif not _is_stop_word(word, language):
            yield stem(word.casefold(), language), PLAIN
    elif is_dense(word):
        yield from _read_dense(word, language)
    else:
        yield from _read_compound(word, language)


@lru_cache(maxsize=8_192)
def to_key(term: str) -> str:
    """Return the key under which full-text engines store a term.

    The key is the term itself, or a hash if an engine might not treat the term as one word. It has only letters, digits and
    underscores, so no engine can interpret anything in it as syntax.
    """
    if _PLAIN.fullmatch(term):
        return term
    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=15).digest()
    return "_" + b32encode(digest).decode().lower()


_PLAIN: Final = re.compile("[a-z0-9]{1,32}")


def bound_term(term: str) -> str:
    """Return a term, or its digest if the term is longer than `MAX_TERM`."""
    if len(term) <= MAX_TERM:
        return term
    return "#" + hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


# -- one token ---------------------------------------------------------------


def _is_stop_word(word: str, language: str) -> bool:
    """Return True for a stop word. A short word in capitals ("IT", "US") is a name, not a stop word."""
    if word.isupper() and 2 <= len(word) <= 5:
        return False
    return word.casefold() in STOPS[language]


def _read_compound(word: str, language: str) -> Iterator[tuple[str, int]]:
    """Yield the terms of a word with an apostrophe or hyphen, a number, an identifier or an address."""
    if "'" in word or "\u2019" in word:
        word, rest = _strip_clitics(word)
        if rest:
            yield stem(rest, language), SPARE
    if word[-1] in "+#":
        yield word.casefold(), PLAIN
        return
    parts = [part for piece in _PIECES.findall(word) for part in _CAMEL.split(piece)]
    if len(parts) <= 1:
        yield from _read_simple(parts[0] if parts else word, language)
        return
    kind = WHOLE if is_code(word) else SPARE
    if kind == SPARE and all(_is_stop_word(part, language) for part in parts):
        return
    for whole in _join_token(word, language):
        yield whole, kind
    for part in parts:
        for term, _ in _read_simple(part, language):
            if term not in WEB:
                yield term, PART if kind == WHOLE else PLAIN


def is_dense(word: str) -> bool:
    """Return True if a word has characters of scripts that are cut into pairs, such as Chinese, Japanese, Korean or Thai."""
    return not word.isascii() and _DENSE.search(word) is not None


def is_code(word: str) -> bool:
    """Return True if a token is a code or an identifier: it has digits, underscores, dots, camel case or signs of an address."""
    return any(mark.isdigit() or mark in "_@/:=#+" for mark in word) or "." in word or bool(_CAMEL.search(word))


def _read_simple(part: str, language: str) -> Iterator[tuple[str, int]]:
    if not part or _is_stop_word(part, language):
        return
    if part.isalpha() or not part.isalnum():
        yield stem(part.casefold(), language), PLAIN
    elif part.isdecimal() and not part.isascii():
        yield "".join(str(unicodedata.decimal(mark)) for mark in part), PLAIN
    else:
        yield part.casefold(), PLAIN


def _join_token(word: str, language: str) -> Iterator[str]:
    """Yield the whole token as one term, without separators: "ORD-12345" becomes "ord12345", and "1,000" becomes "1000"."""
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


def _strip_clitics(word: str) -> tuple[str, str]:
    """Return a word without the parts that apostrophes join to it, and a second reading.

    The second reading is the joined form if the word may be a name ("obrien" for "O'Brien"), otherwise empty.
    """
    parts = [part for part in word.replace("\u2019", "'").split("'") if part]
    while len(parts) > 1 and parts[-1].casefold() in _CLITICS:
        parts.pop()
    if len(parts) == 1:
        return parts[0], ""
    joined = "".join(parts).casefold()
    return parts[-1], joined if len(parts[0]) == 1 and parts[0].isupper() and parts[-1][:1].isupper() else ""


_CLITICS: Final = frozenset({"s", "t", "re", "ve", "ll", "d", "m", "em", "all"})


def _read_dense(word: str, language: str) -> Iterator[tuple[str, int]]:
    """Yield pairs of characters for each run of a script without spaces, and the usual terms for the text between the runs."""
    at = 0
    for run in _DENSE.finditer(word):
        if between := word[at : run.start()].strip(_QUOTES):
            yield from _read_compound(between, language)
        at = run.end()
        yield from _read_pairs(run.group(), run.lastgroup or "")
    if rest := word[at:].strip(_QUOTES):
        yield from _read_compound(rest, language)


_QUOTES: Final = "'\u2019"
"""Quotation marks that some Chinese texts use without spaces. They are removed between two runs, because they are not words."""


def _read_pairs(run: str, script: str) -> Iterator[tuple[str, int]]:
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
    """Return the stem of a word, without accents.

    Args:
        word: a case-folded word. If it is longer than `MAX_TERM`, it is not stemmed.
        language: selects the stemmer for a word in Latin script. For other scripts, the script selects the stemmer.
    """
    return _stem_cached(word, language) if len(word) <= MAX_TERM else _strip_accents(word)


@lru_cache(maxsize=8_192)
def _stem_cached(word: str, language: str) -> str:
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
    stemmed = _stemmers.get(name)(word) if name and len(word) > 2 else word
    return (stemmed or word) if stemmed.isascii() else _strip_accents(stemmed)


def _strip_accents(word: str) -> str:
    """Remove accents from Latin, Greek and Cyrillic letters, and vowel marks from Arabic and Hebrew letters."""
    if ord(word[0]) >= 0x700:
        return word
    marks = (mark for mark in unicodedata.normalize("NFKD", word) if not unicodedata.combining(mark))
    return "".join(marks) or word


class _Stemmers(threading.local):
    """The stemmers of the current thread. A stemmer has mutable state, so threads must not share a stemmer."""

    def __init__(self) -> None:
        self.get = cache(_load_stemmer)


def _load_stemmer(name: str) -> Callable[[str], str]:
    """Load the stemmer of a language: always the version in pure Python, so that stems are the same on every system."""
    module = import_module(f"snowballstemmer.{name}_stemmer")
    stemmed: Callable[[str], str] = getattr(module, f"{name.capitalize()}Stemmer")().stemWord
    return stemmed


_stemmers: Final = _Stemmers()


_SPELLED: Final = re.compile(r"[^\W_]+")


class Spelling:
    """Collects the spellings of terms in texts, and returns the usual spelling of a term."""

    def __init__(self) -> None:
        self._written: dict[str, Counter[str]] = {}

    def read(self, text: str) -> None:
        """Record how the words of a text are spelled."""
        words = [token.text for token in iter_tokens(normalize(text))]
        language = find_language(word.casefold() for word in words) or ENGLISH
        for word in words:
            if not is_dense(word):
                for term, written in _match_spellings(word, language):
                    self.note(term, written)

    def note(self, term: str, written: str) -> None:
        """Record one spelling of a term, unless the spelling is longer than `MAX_TERM`."""
        if len(written) <= MAX_TERM:
            self._written.setdefault(term, Counter())[written] += 1

    def get_form(self, term: str) -> str:
        """Return the most frequent spelling of a term, or the term itself if no spelling was recorded.

        Spellings that differ only in case are counted together. If several are equally frequent, the shortest is returned; of those,
        the first in the alphabet.
        """
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

    def list_forms(self, terms: Iterable[str], most: int) -> tuple[str, ...]:
        """Return the distinct usual spellings of some terms, at most `most`. Spellings that differ only in case are not distinct."""
        seen: dict[str, str] = {}
        for term in terms:
            form = self.get_form(term)
            seen.setdefault(form.casefold(), form)
            if len(seen) == most:
                break
        return tuple(seen.values())


def _match_spellings(word: str, language: str) -> Iterable[tuple[str, str]]:
    """Yield the terms of a word, each with the part of the word that it comes from."""
    terms = get_terms(word, language)
    if len(terms) == 1 and word.isalnum():
        yield terms[0], word
        return
    pieces = {bound_term(term): piece for piece in _SPELLED.findall(word) for term in get_terms(piece, language)}
    for term in terms:
        yield term, pieces.get(term, word)
