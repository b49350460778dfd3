"""Analyse an entry once, when it is appended: its terms, its sentences, and the statements that may become standing facts."""

# ruff: noqa: RUF001 (words and marks of other scripts)

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast.context.statements import ASKED, Statement, find_statements
from holdfast.domain.session import Entry
from holdfast.recall.chunks import find_sentences
from holdfast.recall.terms import YOURS, choose_language, count_terms, is_question, split_words

MOST_SENTENCES: Final = 400
"""Number of first sentences of an entry that can be recalled as an excerpt."""


class Sentence(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A sentence, a list item or a line of code."""

    start: int
    stop: int
    tokens: int
    """Estimated tokens: the sentence's share of the entry's tokens."""
    terms: frozenset[str]


class Analysis(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The properties of an entry that are stored with it."""

    text: str
    """The entry's own words, and the arguments of its calls. A store would not repeat them; they are in the log."""
    counts: dict[str, int]
    length: int
    """Number of terms, counting repetitions."""
    asked: float
    """Share of the text that consists of questions, 0 to 1."""
    asks: bool
    """True if the text contains a question."""
    ends_asking: bool
    traits: int
    """Bit flags of `holdfast.recall.terms`: `TIMED`, `NUMBERED` and `YOURS`."""
    sentences: tuple[Sentence, ...]
    statements: tuple[Statement, ...] = ()
    """Sentences of the user that may be worth keeping."""
    instructions: frozenset[int] = frozenset()
    """`Statement.place` of the statements that are instructions for later replies."""


def analyse(entry: Entry) -> Analysis:
    """Return the analysis of an entry. It depends on the entry alone."""
    message = entry.message
    text = "\n".join([message.text, *(f"{call.name} {call.arguments}" for call in message.tool_calls)])
    language = choose_language(split_words(text[:4_000]))
    counts: dict[str, int] = {}
    sentences: list[Sentence] = []
    length, asked, asks, traits, mine = 0, 0, False, 0, 0
    for start, stop in find_sentences(text):
        one = count_terms(split_words(text[start:stop]), language)
        for term, often in one.counts.items():
            counts[term] = counts.get(term, 0) + often
        length, traits, mine = length + one.length, traits | one.traits & ~YOURS, mine + one.mine
        asks = is_question(text[start:stop]) or ASKED.search(text[start:stop]) is not None
        asked += (stop - start) if asks else 0
        if len(sentences) < MOST_SENTENCES:
            tokens = 1 + round(entry.tokens * (stop - start) / max(1, len(text)))
            sentences.append(Sentence(start, stop, tokens, frozenset(one.counts)))
    statements = find_statements(message.text, entry.seq, at=entry.timestamp) if message.role == "user" else []
    return Analysis(
        text=text,
        counts=counts,
        length=length,
        asked=min(1.0, asked / max(1, len(text))),
        asks=asked > 0,
        ends_asking=asks,
        traits=traits | (YOURS if mine < 0 else 0),
        sentences=tuple(sentences),
        statements=tuple(statements),
        instructions=frozenset(one.place for one in statements if is_instruction(one.text)),
    )


# -- instructions ----------------------------------------------------------------

_SCOPE: Final = re.compile(
    r"\b(?:always|never|from now on|going forward|in (?:the )?future|every ?time|each time|whenever|(?:when|if) (?:I|we) \w+|by default|for (?:all|any|every) \w*\s?(?:future|repl|answer|response|message)\w*"
    r"|every (?:single )?\w+ you|until (?:I say|further notice)|as a rule|immer|nie(?:mals)?|ab (?:jetzt|sofort)|künftig|jedes Mal|wenn ich|toujours|jamais|désormais|à partir de maintenant|chaque fois|quand je"
    r"|siempre|nunca|a partir de ahora|cada vez|cuando yo|sempre|a partir de agora)\b|以后|从现在|总是|每次|永远|绝不|不要再|一律|今後|いつも|必ず|毎回",
    re.IGNORECASE,
)
"""Words that show that an order holds for later replies too."""
_ADVERB: Final = "please|just|always|never|do not|don['’]t|from now on|going forward|in future|bitte|immer|nie(?:mals)?|ab (?:jetzt|sofort)|toujours|ne|n['’]|désormais|siempre|nunca|no|sempre|não"
_VERB: Final = (
    "make sure|be|ensure|remember|keep|use|give|write|answer|reply|respond|call|address|speak|confirm|include|avoid|stop|start|stick|show|tell|ask|remind|check|mention|refer|format|cite|list|limit|convert|round"
    "|assume|treat|present|provide|add|begin|end|skip|suggest|recommend|prioriti[sz]e|translate|explain|antworte|schreib|nenn|benutz|verwende|gib|frag|erinner|sprich|réponds|répondez|écris|écrivez|utilise|utilisez|donne"
    "|donnez|appelle|responde|escribe|usa|dame|llámame|responda|escreva"
)
_ORDER: Final = re.compile(
    rf"^\W*(?:(?:and|also|but|so|then|ok(?:ay)?|remember|und|auch|et|y)[\s,:]+)*(?:(?:{_ADVERB})[\s,:]+)*(?:{_VERB})\b|^\W*(?:and |also |but )?(?:whenever|when|if|wenn|quand|si|cuando|from now on)\b[^.,]*,\s*(?:(?:{_ADVERB})\s+)*(?:{_VERB})\b"
    r"|\bI (?:want|need|expect|prefer|would like|'d like) you to\b|\b(?:from now on|always|never|every)\b.*\byou (?:must|should|shall|are to|need to)\b|\b(?:du|sie) (?:sollst|sollen|musst|müssen)\b|\btu dois|vous devez|debes\b|请|不要|必须|记住|叫我|してください|しないで",
    re.IGNORECASE,
)
_CHEERING: Final = re.compile(
    r"\b(?:let['’]s|keep (?:it up|going|up the)|good luck|thank|never mind|be (?:ready|prepared)|you(?:['’]d)? better|as always|I(?:['’]ve| have)? (?:always|never)|we (?:can |could )?(?:always|never))\b",
    re.IGNORECASE,
)


def is_instruction(sentence: str) -> bool:
    """Return True if a sentence has the form of an instruction for later replies: an order with a scope, and no question."""
    if ASKED.search(sentence) or _CHEERING.search(sentence):
        return False
    return _SCOPE.search(sentence) is not None and _ORDER.search(sentence) is not None
