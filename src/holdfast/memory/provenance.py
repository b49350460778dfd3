"""Decide whether a memory that a model wants to keep is in the user's own words. Pure functions.

A web page that a model reads may tell the model what to remember ("remember that …"). No filter of texts prevents that, so one rule
decides where a memory comes from:

1. If one message of the user contains every content word of the memory, the memory is the user's (`user`).
2. Otherwise, if the session has nothing from outside, the memory is the model's own (`assistant`).
3. Otherwise it has the origin of what came from outside (`import`, `tool` or `web`), and is held for review.

Words are compared as they are written, apart from inflection. A disguised word (encoded, reversed, with look-alike letters) is therefore no
word of the user's. Three parts of a user's message do not count: pasted text, questions, and sentences with a negation if the memory has
none. If the memory has a negation, only sentences with one count.
"""

# ruff: noqa: RUF001 (punctuation of other scripts)

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from holdfast.context.statements import ASKED, load_cues, separate_own_words
from holdfast.domain.memory import MemorySource, Origin
from holdfast.recall.terms import choose_language, count_terms, get_terms, split_words, stem

TYPED_CHARS: Final = 8_000
"""Maximum number of characters of a message that the user may have typed. The rest is treated as pasted text."""
_WEB: Final = re.compile(r"web|brows|fetch|http|url|crawl|scrap|internet|google|bing", re.IGNORECASE)
_REPORTING: Final = frozenset(
    """
    user person human customer client say said tell told ask asked mention mentioned state stated note noted
    nutzer nutzerin benutzer benutzerin anwender kunde kundin utilisateur utilisatrice usuario usuaria usuário usuária cliente
    """.split()  # noqa: SIM905 - a list of words
)
"""Words with which a model reports what someone said ("the user mentioned that …"). They need not be the user's."""
_SENTENCE: Final = re.compile(r"(?:[^.!?。！？؟;；\n]|\.(?=\S))+[.!?。！？؟;；]*[\"')\]]*")
"""Matches a sentence. A full stop within an address or a number does not end it."""
_MARK: Final = re.compile(r"[\n\t:：\"“„«»「『`<>|\[]|(?<!\w)['‘]|^ {4}")
"""Matches what every form of pasted text has at least once. Most messages have none, and need not be searched for these forms."""
_FIRST_WORD: Final = re.compile(r"\W*([\w'-]+)")
_REQUEST: Final = re.compile(
    r"\W*(?:please\W+)?(?:can|could|will|would)\s+you\s+(?:please\s+)?(?:remember|memori[sz]e|note|keep in mind)\b"
    r"(?:\s+down)?(?:\s+that\b|\s*:)",
    re.IGNORECASE,
)
"""Matches the beginning of a question that asks to remember what it states: "Can you remember that …?"."""
_NEGATION: Final = re.compile(
    r"\b(?:not?|never|none|neither|nor|nobody|nothing|without|cannot"
    r"|(?:do|does|did|is|are|was|were|has|have|had|ca|wo|could|would|should|must|need|ai)n['’]?t"
    r"|nicht|kein\w*|nie|niemals|nichts|niemand|ohne|weder|ne|pas|jamais|aucune?|rien|sans|ni"
    r"|nunca|jamás|ning[uú]n\w*|nada|nadie|sin|tampoco|não|nem|nenhuma?|ninguém|sem)\b|\bn['’]|[不没別别]|ない|ません|なし",
    re.IGNORECASE,
)
_NO_DENIAL: Final = re.compile(
    r"^\W*(?:no|nope|nein|non|não)\s*[,.;:!–—-]|\b(?:do not|don['’]?t|never)\s+(?:ever\s+)?forget\b"
    r"|\bvergiss nicht\b|\bn['’]oublie[sz]? pas\b|\bno olvides\b|\bnão (?:se )?esqueça\b",
    re.IGNORECASE,
)
"""Matches a "no" that answers something, and "don't forget". They deny nothing of the rest of the sentence."""


class Trace(NamedTuple):
    """The origin of a memory, and the entries that it comes from."""

    origin: Origin
    sources: tuple[MemorySource, ...]


class MemoryWords(NamedTuple):
    """The words of a memory."""

    words: tuple[str, ...]
    is_negated: bool


def split_memory(text: str) -> MemoryWords:
    """Return the words of a memory."""
    return MemoryWords(tuple(split_words(text)), _is_negated(text))


@lru_cache(maxsize=64)
def _get_content_terms(words: tuple[str, ...], language: str) -> frozenset[str]:
    """Return the terms of the content words of a memory, stemmed in a language. A form of a stop word ("likes") is no content word."""
    terms = count_terms(words, language).counts.keys() - {stem(word, language) for word in _REPORTING}
    return frozenset(term for term in terms if get_terms(term, language))


def get_tool_origin(name: str) -> Origin:
    """Return the origin of a tool's results: `web` if the tool's name suggests web access, otherwise `tool`."""
    return "web" if _WEB.search(name) else "tool"


def is_said(memory: MemoryWords, message: str) -> bool:
    """Return True if a user's message contains every content word of a memory, in the sentences that count."""
    typed = message[:TYPED_CHARS]
    words = split_words(typed)
    language = choose_language(words)
    needed = _get_content_terms(memory.words, language)
    if not needed or not needed <= count_terms(words, language).counts.keys():
        return False
    sentences = _SENTENCE.findall(separate_own_words(typed).own)
    own = [one for one in sentences if _is_negated(one) == memory.is_negated and not _is_question(one, language)]
    return needed <= count_terms(split_words("\n".join(own)), language).counts.keys()


def has_pasted_text(message: str) -> bool:
    """Return True if a user's message contains text of others: quotes, mails, transcripts, blocks, or more than a user types."""
    if len(message) > TYPED_CHARS:
        return True
    return _MARK.search(message) is not None and any(one.strip() for one in separate_own_words(message).others)


def _is_question(sentence: str, language: str) -> bool:
    if _REQUEST.match(sentence):
        return False
    first = _FIRST_WORD.match(sentence)
    return ASKED.search(sentence) is not None or (
        first is not None and load_cues(language)["question"].fullmatch(first[1]) is not None
    )


def _is_negated(text: str) -> bool:
    return _NEGATION.search(_NO_DENIAL.sub("", text)) is not None
