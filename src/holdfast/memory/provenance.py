"""Determine who said the words of a memory that a model wants to keep: the user, a tool, or the model itself. Pure functions.

A web page that a model reads may tell the model what to remember ("remember that …"). No text filter prevents that, but the origin
of the words can be checked:

- Words that a tool's result contains, and that the user did not say, belong to the tool, no matter who asks to keep them. In a turn
  with a tool's result, all words that the user did not say belong to the tool. This includes words that the model's reply took from
  the result.
- Words that the user only asked about or denied are not the user's if another source says the same (`holdfast.memory.evidence`).
- Words that no one said are the model's own. If the model has seen content from other sources, it may have rephrased that content.
  Then the memory is doubtful and is held for review.

Before words are compared, hidden characters are removed, and lookalike letters and common encodings are decoded. A tool's words are
found even if they are joined to other words or cut up. The security tests, section G, cover MINJA, MemoryGraft and similar attacks.
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
from holdfast.memory.evidence import MessageTerms, has_same_sense, is_negated, read_message_terms
from holdfast.memory.similarity import remove_invisible
from holdfast.recall.terms import extract_terms, stem
from holdfast.recall.word_tables import ENGLISH

SAID: Final = 0.75
"""Minimum share of a memory's terms that the user must have said, in all messages together, for the memory to be the user's."""
SAID_AT_ONCE: Final = 0.5
"""Minimum share of the terms that a single message of the user must contain for the memory to be the user's."""
TOOL_SHARE: Final = 0.3
"""A memory belongs to tools if tool results contain at least this share of those of its terms that the user did not say."""
SOURCES: Final = 3
"""Maximum number of entries that are listed as the sources of a memory."""
FOREIGN_TAGS: Final = 3
"""Tags belong to tools if at least this many of their terms are found only in tool results. A single term is enough if it is a number or an
address."""
ANALYSED_CHARS: Final = 20_000
"""Maximum number of characters of a tool's text that are cut into words. In the rest, the memory's words are only searched as
sequences of letters."""
_DECODED_CHARS: Final = 64_000
_LETTERS: Final = 5
"""Minimum letters of a word that is searched for inside other words."""
_DECODE_DEPTH: Final = 2
"""Maximum number of encodings inside one another that are decoded."""
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
"""The letters that digits and signs may stand for ("p4ssw0rd"). A vertical stroke may mean i or l, so l is mapped to i as well."""
_NEUTRAL: Final = frozenset(
    stem(word, ENGLISH)
    for word in """
    user person human customer client prefer preference like love enjoy want wish need ask asked request say said tell told mention
    mentioned state stated note remember recall know known have own call called name named live lives work be use
    """.split()  # noqa: SIM905 - a list of words
)
"""Terms that a model uses to report what someone said ("the user mentioned that …"). They say nothing about the origin."""


class HeardText(NamedTuple):
    """A text that the model has seen."""

    origin: Origin
    terms: frozenset[str]
    source: MemorySource
    """The entry that the text comes from."""
    read: bool = False
    """True if the text is a tool's result in the current turn and comes from outside Holdfast."""
    negated: bool = False
    """True if the text contains a negation."""
    voiced: MessageTerms | None = None
    """For a user's message: its terms, grouped by how the user uses them. None: not known, so all terms are treated as stated."""
    outside: bool = False
    """True if the text may contain content that is neither the user's nor the model's own, and that the model may rephrase."""


Forms = Mapping[str, frozenset[str]]
"""For each term of a memory, the spellings in which the word may be hidden in a text; see `list_hidden_forms`."""


class Trace(NamedTuple):
    """The origin of a memory."""

    origin: Origin
    sources: tuple[MemorySource, ...]
    doubtful: bool = False
    """True if the memory may be content from other sources that the model has rephrased."""


def make_heard(
    text: str,
    origin: Origin,
    source: MemorySource,
    *,
    read: bool = False,
    about: Forms | None = None,
    analysed: int = ANALYSED_CHARS,
) -> HeardText:
    """Prepare a text that the model has seen for the comparison with a memory.

    Args:
        text: the original text. If it is neither the user's nor the model's, words that are encoded, joined or split are found too.
        origin: the origin of the text.
        source: the entry that the text comes from.
        read: as in `HeardText`.
        about: the hidden spellings of the memory's words, from `list_hidden_forms`.
        analysed: maximum number of characters that are cut into words, unless the text is the user's or the model's.
    """
    if origin in ("user", "assistant"):
        plain = to_plain_text(text)
        made = HeardText(origin, frozenset(extract_terms(plain).counts), source, read, is_negated(plain))
        return made._replace(voiced=read_message_terms(plain)) if origin == "user" else made
    plain = to_plain_text(text[:analysed])
    inside = "\n".join(decode_encodings(text))
    terms = extract_terms(plain).counts.keys() | extract_terms(to_plain_text(inside[:analysed])).counts.keys()
    terms |= _find_hidden(text, about or {}) | _find_hidden(inside, about or {})
    return HeardText(origin, frozenset(terms), source, read, is_negated(plain))


def get_tool_origin(name: str) -> Origin:
    """Return the origin of a tool's results: `web` if the tool's name suggests web access, otherwise `tool`."""
    return "web" if _WEB.search(name) else "tool"


def extract_origin_terms(content: str) -> frozenset[str]:
    """Return the terms of a memory that are compared to find its origin, without words such as "the user mentioned"."""
    terms = frozenset(extract_terms(to_plain_text(content)).counts)
    return terms - _NEUTRAL or terms


def find_origin(content: str, known: Sequence[HeardText], own: MemorySource, tags: Iterable[str] = ()) -> Trace:
    """Determine the origin of a memory: `user`, `assistant`, or that of the tools or other sources that contain its words.

    Args:
        content: the text of the memory.
        known: the texts that the model has seen before, in any order.
        own: the model's entry that requests the memory. It becomes the source if the words are the model's own.
        tags: the tags of the memory. They are checked too, because a tool's content may be smuggled in with them.
    """
    terms = extract_origin_terms(content)
    users = [one for one in known if one.origin == "user"]
    others = [one for one in known if one.origin not in ("user", "assistant")]
    foreign = _find_foreign_tags(" ".join(tags), terms | _unite_terms(users), others)
    if foreign:
        holding = [one for one in others if one.terms & foreign]
        return Trace(find_least_trusted(one.origin for one in holding), _make_sources(holding, foreign))
    claimed = frozenset().union(
        *(one.voiced.unasserted | _find_other_sense(one.voiced, content, terms) for one in users if one.voiced)
    )
    users = _keep_vouched(content, terms, [_drop_unasserted(one, content, terms, others) for one in users], others)
    missing = terms - _unite_terms(users)
    if is_negated(to_plain_text(content)) and not any(
        _compute_share(one, terms) >= SAID_AT_ONCE and one.negated for one in users
    ):
        missing |= {"not"}
        terms |= {"not"}
        others = [one._replace(terms=one.terms | {"not"}) if one.negated else one for one in others]
    if terms and _is_said_by_user(content, terms, missing, users, others):
        return Trace("user", _make_sources(users, terms))
    planted = missing & _unite_terms(others)
    at_once = max((_compute_share(one, terms) for one in others), default=0.0)
    read = [one for one in others if one.read]
    if (planted and len(planted) >= TOOL_SHARE * len(missing)) or at_once >= SAID_AT_ONCE or read:
        holding = [one for one in others if one.terms & (planted or terms)] or read
        return Trace(find_least_trusted(one.origin for one in holding), _make_sources(holding, planted or terms))
    doubtful = any(one.outside for one in known) or not missing.isdisjoint(claimed)
    return Trace("assistant", (own,), doubtful=doubtful)


def _drop_unasserted(one: HeardText, content: str, terms: frozenset[str], others: Sequence[HeardText]) -> HeardText:
    """Remove the terms of a user's message that the user did not assert: those reported, quoted, asked about, hedged, denied or wished.

    If the user states most of the memory, terms in the user's questions are kept, unless other sources contain them. Terms in
    denials are kept if the memory itself is a denial. Terms in wishes are kept if the memory itself is a wish.
    """
    if one.voiced is None:
        return one
    stated, questioned = one.voiced.stated, one.voiced.questioned
    if has_same_sense(content, "denied"):
        stated |= one.voiced.denied
    most = len(stated & terms) >= SAID_AT_ONCE * len(terms) and _find_distinctive(content) - {"not"} <= stated
    kept = questioned - _unite_terms(others) if most else frozenset()
    return one._replace(
        terms=one.terms - (one.voiced.unasserted - kept) - _find_other_sense(one.voiced, content, terms)
    )


def _find_other_sense(message: MessageTerms, content: str, terms: frozenset[str]) -> frozenset[str]:
    """Return the terms that a message only denies or wishes, if the memory states them as facts and they are most of its terms."""
    found: frozenset[str] = frozenset()
    if len(terms & message.negative) * 2 > len(terms) and not has_same_sense(content, "denied"):
        found |= message.negative
    if len(terms & message.wished) * 2 > len(terms) and not has_same_sense(content, "wished"):
        found |= message.wished
    return found


def _keep_vouched(
    content: str, terms: frozenset[str], users: Sequence[HeardText], others: Sequence[HeardText]
) -> list[HeardText]:
    """Remove terms that the user only asked about or denied, if other sources contain most of the memory or the same names and numbers.

    Args:
        content: the text of the memory.
        terms: the memory's terms.
        users: the user's messages.
        others: the texts from tools and other sources.
    """
    elsewhere = max((_compute_share(one, terms) for one in others), default=0.0)
    named = not (_find_distinctive(content) - {"not"}).isdisjoint(_unite_terms(others))
    asked = not others or not (named or elsewhere >= SAID_AT_ONCE or terms - _unite_terms(users))
    denied = not others or not (named or elsewhere >= SAID) or is_negated(to_plain_text(content))
    if asked and denied:
        return list(users)
    found: list[HeardText] = []
    for one in users:
        stated, wanted, refused = (one.voiced or MessageTerms(one.terms, frozenset(), frozenset()))[:3]
        if not asked:  # if the user states most of the memory, words in questions are kept unless others use them
            most = len(stated & terms) >= SAID_AT_ONCE * len(terms) and _find_distinctive(content) - {"not"} <= stated
            wanted = wanted - _unite_terms(others) if most else frozenset()
        found.append(one._replace(terms=one.terms & (stated | wanted | (refused if denied else frozenset()))))
    return found


def _is_said_by_user(
    content: str,
    terms: frozenset[str],
    missing: frozenset[str],
    users: Sequence[HeardText],
    others: Sequence[HeardText],
) -> bool:
    """Return True if the user said the memory.

    Args:
        content: the text of the memory.
        terms: the memory's terms.
        missing: the terms that the user did not say.
        users: the user's messages.
        others: the texts from tools and other sources.
    """
    at_once = max((_compute_share(one, terms) for one in users), default=0.0)
    if len(terms) - len(missing) < SAID * len(terms) or at_once < SAID_AT_ONCE or missing & _find_distinctive(content):
        return False
    elsewhere = max((_compute_share(one, terms) for one in others), default=0.0)
    if missing & _unite_terms(others):
        return False
    return at_once >= SAID or elsewhere <= at_once


def _find_foreign_tags(tags: str, known: frozenset[str], others: Sequence[HeardText]) -> frozenset[str]:
    """Return the terms of tags that only tool results contain.

    Return an empty set if there are so few such terms that they may be the model's own words.

    Args:
        tags: the tags, as one text.
        known: terms of the memory and of the user's messages.
        others: the texts from tools and other sources.
    """
    if not tags:
        return frozenset()
    found = (frozenset(extract_terms(to_plain_text(tags)).counts) - _NEUTRAL - known) & _unite_terms(others)
    return found if len(found) >= FOREIGN_TAGS or found & _find_numbers(tags) else frozenset()


def _find_numbers(text: str) -> frozenset[str]:
    """Return the terms of all words that have digits, or that are addresses."""
    words = [
        word for word in to_plain_text(text).split() if any(map(str.isdigit, word)) or not {"@", "/"}.isdisjoint(word)
    ]
    return frozenset().union(*(extract_terms(word).counts for word in words))


def _find_distinctive(content: str) -> frozenset[str]:
    """Return the distinctive terms of a memory: names, numbers, identifiers and addresses, and "not"."""
    found = {"not"}
    for at, word in enumerate(to_plain_text(content).split()):
        if any(map(str.isdigit, word)) or "@" in word or "/" in word or "." in word[:-1] or (at and word[:1].isupper()):
            found |= extract_terms(word).counts.keys()
    return frozenset(found) - _NEUTRAL


def _compute_share(one: HeardText, terms: frozenset[str]) -> float:
    return len(one.terms & terms) / len(terms) if terms else 0.0


def _unite_terms(known: Iterable[HeardText]) -> frozenset[str]:
    return frozenset().union(*(one.terms for one in known))


def _make_sources(known: Sequence[HeardText], terms: frozenset[str]) -> tuple[MemorySource, ...]:
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


# -- hidden words ----------------------------------------------------------------


def to_plain_text(text: str) -> str:
    """Return a text without tricks that hide words.

    Invisible characters are removed. In words with Latin letters, letters that look like Latin ones are replaced. Words that are
    spelt letter by letter are appended in normal spelling.
    """
    shown = remove_invisible(text)
    if shown.isascii():
        return _append_spelt_words(shown)
    words = (
        word.translate(_LOOKALIKES) if any("a" <= mark <= "z" for mark in word.lower()) else word
        for word in shown.split(" ")
    )
    return _append_spelt_words(" ".join(words))


def _append_spelt_words(text: str) -> str:
    """Return a text followed by the words that it spells letter by letter ("p-a-r-i-s"), in normal spelling."""
    spelt = [re.sub(r"[ ._-]", "", one) for one in _SPACED.findall(text)]
    return f"{text} {' '.join(spelt)}" if spelt else text


def list_hidden_forms(content: str) -> Forms:
    """Return, for each term of a memory, the spellings in which the word may be hidden in a text.

    Both the word and its stem are included, each unchanged, backwards and in ROT13. Only letters and digits are kept.
    """
    found: dict[str, set[str]] = {}
    for word in to_plain_text(content).split():
        for term in extract_terms(word).counts.keys() - _NEUTRAL:
            forms = {form for form in (_to_letters(word), _to_letters(term)) if len(form) >= _LETTERS}
            found.setdefault(term, set()).update(
                form for one in forms for form in (one, one[::-1], codecs.encode(one, "rot13"))
            )
    return {term: frozenset(forms) for term, forms in found.items() if forms}


def _find_hidden(text: str, about: Forms) -> set[str]:
    """Return the terms of a memory that occur in a text even if their letters are separated or are part of longer words."""
    if not about:
        return set()
    letters, other = _to_letters(text), _to_letters(text.casefold().translate(_DIGITS))
    found = {term for term, forms in about.items() if any(form in letters for form in forms)}
    left = about.keys() - found
    return found | {term for term in left if any(form.translate(_DIGITS) in other for form in about[term])}


def _to_letters(text: str) -> str:
    """Return the letters and digits of a text, folded, without accents, and with lookalike letters replaced."""
    plain = text if text.isascii() else unicodedata.normalize("NFKD", remove_invisible(text).translate(_LOOKALIKES))
    return _NO_LETTER.sub("", plain.casefold())


_NO_LETTER: Final = re.compile(r"[\W_]+")


def decode_encodings(text: str, depth: int = _DECODE_DEPTH) -> Iterator[str]:
    """Decode the encoded parts of a text, and yield the results.

    The encodings are base64, base32, hexadecimal, decimal and binary character codes, and the escapes of URLs, HTML and JSON.

    Args:
        text: the text. Only its first 64,000 characters are decoded.
        depth: maximum number of encodings inside one another that are decoded.
    """
    text = text[:_DECODED_CHARS]
    for found in _iter_decoded(text):
        yield found
        if depth > 1:
            yield from decode_encodings(found, depth - 1)


def _iter_decoded(text: str) -> Iterator[str]:
    for other in (unquote(text, errors="replace"), html.unescape(text), _UNICODE.sub(_decode_character, text)):
        if other != text:
            yield other
    for found in _RUN.finditer(text):
        run = found.group().rstrip("=").replace("-", "+").replace("_", "/")
        for piece in {run, *run.split("/")}:  # text before the encoded part may look like a part of it
            if len(piece) >= _RUN_CHARS:
                yield from _iter_decoded_text(_decode_base64, piece)
    for pattern, decode in _DECODERS:
        for found in pattern.finditer(text):
            yield from _iter_decoded_text(decode, found.group())


def _decode_base64(run: str) -> bytes:
    return base64.b64decode(run[: len(run) - (len(run) % 4 == 1)] + "=" * (-len(run) % 4))


def _decode_base32(run: str) -> bytes:
    plain = run.rstrip("=")
    return base64.b32decode(plain + "=" * (-len(plain) % 8))


_DECODERS: Final[tuple[tuple[re.Pattern[str], Callable[[str], bytes]], ...]] = (
    (_HEX, lambda run: bytes.fromhex(run.replace(":", " "))),
    (_CODES, lambda run: bytes(int(code) for code in re.findall(r"\d+", run))),
    (_BITS, lambda run: bytes(int(bits, 2) for bits in re.findall(r"[01]{8}", run))),
    (_BASE32, _decode_base32),
)


def _decode_character(found: re.Match[str]) -> str:
    return chr(int(found[1] or found[2], 16))


def _iter_decoded_text(decode: Callable[[str], bytes], run: str) -> Iterator[str]:
    try:
        made = decode(run).decode()
    except (ValueError, binascii.Error):
        return
    if sum(map(str.isprintable, made)) >= 0.9 * len(made):
        yield made
