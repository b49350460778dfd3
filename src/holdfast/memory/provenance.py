"""Where the words of a memory come from that a model wants to be kept: the user, a tool's result, or the model itself. Pure.

A model writes down what it was told, and a page that it read may tell it what to write ("remember that …"). No filter of texts keeps
that out, but where words stand can be looked up: what the user did not say, and a tool's result did, is the tool's, whoever asks for it to
be kept; so is what the user did not say in a turn in which a tool was read, and what the model made of a result for its reply. Words
that the user only asked about or denied are not the user's where others say the same (`holdfast.memory.evidence`). What nobody said is the
model's own; where something from elsewhere was in view, which it may be in other words, it is doubtful, and held for review. Hidden
characters, letters that look like others, and usual encodings are undone before words are compared, and a tool's words are looked
for in whatever they are joined to or cut into. Of MINJA, MemoryGraft and their like: security tests, section G.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from holdfast.domain.memory import MemorySource, Origin, find_least_trusted
from holdfast.memory.evidence import Voiced, has_same_sense, is_negated, read_voiced
from holdfast.memory.similarity import visible
from holdfast.recall.terms import stem, terms_of
from holdfast.recall.word_tables import ENGLISH

SAID: Final = 0.75
"""Share of a memory's terms that the user has to have said, over all messages, for it to be the user's."""
SAID_AT_ONCE: Final = 0.5
"""The share that one message has to have of them."""
PLANTED: Final = 0.3
"""Share of the terms that the user did not say which, standing in results of tools, make a memory the tools'."""
SOURCES: Final = 3
"""Entries that are named as where it comes from."""
FOREIGN_TAGS: Final = 3
"""Terms of a memory's tags that only results of tools have, from which on the tags are theirs; of names and numbers one is enough."""
ANALYSED_CHARS: Final = 20_000
"""Characters of a text whose words are compared in any form; behind them, letter by letter alone."""
_DECODED_CHARS: Final = 64_000
_LETTERS: Final = 5
"""Letters of a word that is looked for inside of others."""
_NESTED: Final = 2
"""How often what was decoded is decoded again."""
_RUN_CHARS: Final = 16
_RUN: Final = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2}[ :]?){12,}")
_UNICODE: Final = re.compile(r"\\u([0-9A-Fa-f]{4})|\\x([0-9A-Fa-f]{2})")
_CODES: Final = re.compile(r"(?:(?<![\w.])\d{2,3}[\s,;]+){8,}\d{2,3}(?![\w.])")
_BITS: Final = re.compile(r"(?:[01]{8}[\s,]*){8,}")
_BASE32: Final = re.compile(r"[A-Z2-7]{24,}={0,6}")
_SPACED: Final = re.compile(r"(?<!\w)\w(?:[ ._-]\w){3,}(?!\w)")
_WEB: Final = re.compile(r"web|brows|fetch|http|url|crawl|scrap|internet|google|bing", re.IGNORECASE)
_LOOKALIKES: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456\u0458\u0455\u0432\u043d\u043a\u043c\u0442\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u03b1\u03bf\u03c1\u03bd\u03b9\u03ba\u03c4\u03c5\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7",
    "aeopcxyijsbhkmtABEKMHOPCTXIaopviktuABEZHIKMNOPTYX",
)
"""Cyrillic and Greek letters that look like Latin ones."""
_DIGITS: Final = str.maketrans("013457@$!|l", "oieastasiii")
"""Digits and signs that stand for letters; a stroke for one of two."""
_NEUTRAL: Final = frozenset(
    stem(word, ENGLISH)
    for word in """
    user person human customer client prefer preference like love enjoy want wish need ask asked request say said tell told mention
    mentioned state stated note remember recall know known have own call called name named live lives work be use
    """.split()  # noqa: SIM905 - a list of words
)
"""Terms with which a model retells what somebody said: they stand for nothing by themselves."""


class Heard(NamedTuple):
    """Something that was said where the model could hear it."""

    origin: Origin
    terms: frozenset[str]
    source: MemorySource
    """The one entry that it is."""
    read: bool = False
    """Whether it is a tool's result of this very turn, from outside of Holdfast."""
    negated: bool = False
    voiced: Voiced | None = None
    """What a user's message does with its terms; None: it is not known, and it states them all."""
    outside: bool = False
    """Whether it may have brought something to the session that the model can tell in words of its own: not the user's, not its own."""


Forms = Mapping[str, frozenset[str]]
"""How the words of a memory may be written where they are hidden, by term: letters only; see `forms_of`."""


class Trace(NamedTuple):
    """Where a memory comes from."""

    origin: Origin
    sources: tuple[MemorySource, ...]
    doubtful: bool = False
    """Whether it may be something from elsewhere in the model's own words: it is its own, and nobody can tell whose thought."""


def make_heard(
    text: str,
    origin: Origin,
    source: MemorySource,
    *,
    read: bool = False,
    about: Forms | None = None,
    analysed: int = ANALYSED_CHARS,
) -> Heard:
    """Something that was said, to be compared.

    Args:
        text: as it was said; of what is not the user's, what stands in it encoded, joined or cut up counts too.
        origin: whose words they are.
        source: the entry.
        read: see `Heard`.
        about: the memory that it is compared with, as `forms_of` has it.
        analysed: characters of `text` whose words are compared in any form; of a user's or the model's all are.
    """
    if origin in ("user", "assistant"):
        plain = plainly(text)
        made = Heard(origin, frozenset(terms_of(plain).counts), source, read, is_negated(plain))
        return made._replace(voiced=read_voiced(plain)) if origin == "user" else made
    plain = plainly(text[:analysed])
    inside = "\n".join(decode_encodings(text))
    terms = terms_of(plain).counts.keys() | terms_of(plainly(inside[:analysed])).counts.keys()
    terms |= _find_hidden(text, about or {}) | _find_hidden(inside, about or {})
    return Heard(origin, frozenset(terms), source, read, is_negated(plain))


def tool_origin(name: str) -> Origin:
    """Whether a tool of that name is of the web, or another one."""
    return "web" if _WEB.search(name) else "tool"


def terms_in(content: str) -> frozenset[str]:
    """The terms of a memory that say where it is from: those that a model retells with are not among them."""
    terms = frozenset(terms_of(plainly(content)).counts)
    return terms - _NEUTRAL or terms


def find_origin(content: str, known: Sequence[Heard], own: MemorySource, tags: Iterable[str] = ()) -> Trace:
    """Where a memory comes from: `user`, `assistant`, or where tools, or others, had it.

    Args:
        content: what the memory says.
        known: what was said before, in any order.
        own: the entry of the model that asks for it, for what nobody said before it.
        tags: its tags, in which a tool may have had more put than words to find it by.
    """
    terms = terms_in(content)
    users = [one for one in known if one.origin == "user"]
    others = [one for one in known if one.origin not in ("user", "assistant")]
    foreign = _foreign(" ".join(tags), terms | _union(users), others)
    if foreign:
        holding = [one for one in others if one.terms & foreign]
        return Trace(find_least_trusted(one.origin for one in holding), _sources(holding, foreign))
    claimed = frozenset().union(
        *(one.voiced.unasserted | _in_another_sense(one.voiced, content, terms) for one in users if one.voiced)
    )
    users = _vouching(content, terms, [_asserting(one, content, terms, others) for one in users], others)
    missing = terms - _union(users)
    if is_negated(plainly(content)) and not any(_share(one, terms) >= SAID_AT_ONCE and one.negated for one in users):
        missing |= {"not"}
        terms |= {"not"}
        others = [one._replace(terms=one.terms | {"not"}) if one.negated else one for one in others]
    if terms and _is_said_by_user(content, terms, missing, users, others):
        return Trace("user", _sources(users, terms))
    planted = missing & _union(others)
    at_once = max((_share(one, terms) for one in others), default=0.0)
    read = [one for one in others if one.read]
    if (planted and len(planted) >= PLANTED * len(missing)) or at_once >= SAID_AT_ONCE or read:
        holding = [one for one in others if one.terms & (planted or terms)] or read
        return Trace(find_least_trusted(one.origin for one in holding), _sources(holding, planted or terms))
    doubtful = any(one.outside for one in known) or not missing.isdisjoint(claimed)
    return Trace("assistant", (own,), doubtful=doubtful)


def _asserting(one: Heard, content: str, terms: frozenset[str], others: Sequence[Heard]) -> Heard:
    """What a user said, without the terms that they only reported, quoted, asked about or hedged.

    Next to most of a memory, stated, a word of a question stays that nobody else has.
    """
    if one.voiced is None:
        return one
    stated, questioned = one.voiced.stated, one.voiced.questioned
    if has_same_sense(content, "denied"):
        stated |= one.voiced.denied
    most = len(stated & terms) >= SAID_AT_ONCE * len(terms) and _striking(content) - {"not"} <= stated
    kept = questioned - _union(others) if most else frozenset()
    return one._replace(
        terms=one.terms - (one.voiced.unasserted - kept) - _in_another_sense(one.voiced, content, terms)
    )


def _in_another_sense(said: Voiced, content: str, terms: frozenset[str]) -> frozenset[str]:
    """The terms that a user denies or wishes, of a memory that states most of them as facts."""
    found: frozenset[str] = frozenset()
    if len(terms & said.negative) * 2 > len(terms) and not has_same_sense(content, "denied"):
        found |= said.negative
    if len(terms & said.wished) * 2 > len(terms) and not has_same_sense(content, "wished"):
        found |= said.wished
    return found


def _vouching(content: str, terms: frozenset[str], users: Sequence[Heard], others: Sequence[Heard]) -> list[Heard]:
    """What the user said, with those terms alone that the user stands for where others say as much, or name the same names.

    Whoever asks about something, or denies it, did not say that it is so.
    """
    elsewhere = max((_share(one, terms) for one in others), default=0.0)
    named = not (_striking(content) - {"not"}).isdisjoint(_union(others))
    asked = not others or not (named or elsewhere >= SAID_AT_ONCE or terms - _union(users))
    denied = not others or not (named or elsewhere >= SAID) or is_negated(plainly(content))
    if asked and denied:
        return list(users)
    found: list[Heard] = []
    for one in users:
        stated, wanted, refused = (one.voiced or Voiced(one.terms, frozenset(), frozenset()))[:3]
        if not asked:  # beside most of it, stated, a word of a question may stand that nobody else has
            most = len(stated & terms) >= SAID_AT_ONCE * len(terms) and _striking(content) - {"not"} <= stated
            wanted = wanted - _union(others) if most else frozenset()
        found.append(one._replace(terms=one.terms & (stated | wanted | (refused if denied else frozenset()))))
    return found


def _is_said_by_user(
    content: str, terms: frozenset[str], missing: frozenset[str], users: Sequence[Heard], others: Sequence[Heard]
) -> bool:
    """Whether the user said it, as far as words can tell."""
    at_once = max((_share(one, terms) for one in users), default=0.0)
    if len(terms) - len(missing) < SAID * len(terms) or at_once < SAID_AT_ONCE or missing & _striking(content):
        return False
    elsewhere = max((_share(one, terms) for one in others), default=0.0)
    if missing & _union(others):
        return False
    return at_once >= SAID or elsewhere <= at_once


def _foreign(tags: str, known: frozenset[str], others: Sequence[Heard]) -> frozenset[str]:
    """The terms of tags that results of tools have, and nobody else; none, where they may be words of the model's own."""
    if not tags:
        return frozenset()
    found = (frozenset(terms_of(plainly(tags)).counts) - _NEUTRAL - known) & _union(others)
    return found if len(found) >= FOREIGN_TAGS or found & _find_numbers(tags) else frozenset()


def _find_numbers(text: str) -> frozenset[str]:
    """The terms of words with digits, and of addresses."""
    words = [word for word in plainly(text).split() if any(map(str.isdigit, word)) or not {"@", "/"}.isdisjoint(word)]
    return frozenset().union(*(terms_of(word).counts for word in words))


def _striking(content: str) -> frozenset[str]:
    """The terms of a memory that nobody takes for a word of their own: names, numbers, identifiers, negations."""
    found = {"not"}
    for at, word in enumerate(plainly(content).split()):
        if any(map(str.isdigit, word)) or "@" in word or "/" in word or "." in word[:-1] or (at and word[:1].isupper()):
            found |= terms_of(word).counts.keys()
    return frozenset(found) - _NEUTRAL


def _share(one: Heard, terms: frozenset[str]) -> float:
    return len(one.terms & terms) / len(terms) if terms else 0.0


def _union(known: Iterable[Heard]) -> frozenset[str]:
    return frozenset().union(*(one.terms for one in known))


def _sources(known: Sequence[Heard], terms: frozenset[str]) -> tuple[MemorySource, ...]:
    ranked = sorted(known, key=lambda one: (-len(one.terms & terms), *(-seq for seq in one.source.seqs)))
    found: dict[tuple[str, str, str, Origin], MemorySource] = {}
    for one in ranked[:SOURCES]:
        source = one.source
        key = (source.session_id, source.user_id, source.identity, source.origin)
        before = found[key].seqs if key in found else ()
        found[key] = MemorySource(
            session_id=source.session_id,
            user_id=source.user_id,
            identity=source.identity,
            seqs=tuple(sorted({*before, *source.seqs})),
            origin=source.origin,
        )
    return tuple(found.values())


# -- words that are hidden -----------------------------------------------------


def plainly(text: str) -> str:
    """A text with nothing hidden, and letters that look like Latin ones as those, in words that have some of both."""
    shown = visible(text)
    if shown.isascii():
        return _joined(shown)
    words = (
        word.translate(_LOOKALIKES) if any("a" <= mark <= "z" for mark in word.lower()) else word
        for word in shown.split(" ")
    )
    return _joined(" ".join(words))


def _joined(text: str) -> str:
    """With words that were spelt out letter by letter, too."""
    spelt = [re.sub(r"[ ._-]", "", one) for one in _SPACED.findall(text)]
    return f"{text} {' '.join(spelt)}" if spelt else text


def forms_of(content: str) -> Forms:
    """How the words of a memory may be written where somebody hides them: as they are, stemmed, backwards, by ROT13."""
    found: dict[str, set[str]] = {}
    for word in plainly(content).split():
        for term in terms_of(word).counts.keys() - _NEUTRAL:
            forms = {form for form in (_letters(word), _letters(term)) if len(form) >= _LETTERS}
            found.setdefault(term, set()).update(
                form for one in forms for form in (one, one[::-1], codecs.encode(one, "rot13"))
            )
    return {term: frozenset(forms) for term, forms in found.items() if forms}


def _find_hidden(text: str, about: Forms) -> set[str]:
    """The terms of a memory whose words stand in a text, whatever is between their letters, before and behind them."""
    if not about:
        return set()
    letters, other = _letters(text), _letters(text.casefold().translate(_DIGITS))
    found = {term for term, forms in about.items() if any(form in letters for form in forms)}
    left = about.keys() - found
    return found | {term for term in left if any(form.translate(_DIGITS) in other for form in about[term])}


def _letters(text: str) -> str:
    """Letters and digits of a text, and nothing else: folded, without accents, those that look like Latin ones as these."""
    plain = text if text.isascii() else unicodedata.normalize("NFKD", visible(text).translate(_LOOKALIKES))
    return _NO_LETTER.sub("", plain.casefold())


_NO_LETTER: Final = re.compile(r"[\W_]+")


def decode_encodings(text: str, depth: int = _NESTED) -> Iterator[str]:
    """What stands in a text in base64 or base32, hexadecimal digits, codes of characters, percent signs, HTML entities or JSON escapes.

    Args:
        text: some of a long one is looked at.
        depth: how often what comes out is decoded again.
    """
    text = text[:_DECODED_CHARS]
    for found in _all_decoded(text):
        yield found
        if depth > 1:
            yield from decode_encodings(found, depth - 1)


def _all_decoded(text: str) -> Iterator[str]:
    for other in (unquote(text, errors="replace"), html.unescape(text), _UNICODE.sub(_character, text)):
        if other != text:
            yield other
    for found in _RUN.finditer(text):
        run = found.group().rstrip("=").replace("-", "+").replace("_", "/")
        for piece in {run, *run.split("/")}:  # what stands before it may look like a part of it
            if len(piece) >= _RUN_CHARS:
                yield from _text_in(_from_base64, piece)
    for pattern, decode in _DECODERS:
        for found in pattern.finditer(text):
            yield from _text_in(decode, found.group())


def _from_base64(run: str) -> bytes:
    return base64.b64decode(run[: len(run) - (len(run) % 4 == 1)] + "=" * (-len(run) % 4))


def _from_base32(run: str) -> bytes:
    plain = run.rstrip("=")
    return base64.b32decode(plain + "=" * (-len(plain) % 8))


_DECODERS: Final[tuple[tuple[re.Pattern[str], Callable[[str], bytes]], ...]] = (
    (_HEX, lambda run: bytes.fromhex(run.replace(":", " "))),
    (_CODES, lambda run: bytes(int(code) for code in re.findall(r"\d+", run))),
    (_BITS, lambda run: bytes(int(bits, 2) for bits in re.findall(r"[01]{8}", run))),
    (_BASE32, _from_base32),
)


def _character(found: re.Match[str]) -> str:
    return chr(int(found[1] or found[2], 16))


def _text_in(decode: Callable[[str], bytes], run: str) -> Iterator[str]:
    try:
        made = decode(run).decode()
    except (ValueError, binascii.Error):
        return
    if sum(map(str.isprintable, made)) >= 0.9 * len(made):
        yield made
