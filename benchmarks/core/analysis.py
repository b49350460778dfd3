"""Analyse an entry once, when it is appended: its terms, its sentences, and the statements that may become standing facts."""

from __future__ import annotations

from typing import Final

import msgspec

from benchmarks.core.statements import Read, Statement, find_statements
from holdfast.context.statements import ASKED
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
    """Sentences that may be worth keeping as standing facts."""


def analyse(entry: Entry) -> Analysis:
    """Return the analysis of an entry. It depends on the entry alone."""
    message = entry.message
    text = "\n".join([message.text, *(f"{call.name} {call.arguments}" for call in message.tool_calls)])
    language = choose_language(split_words(text[:4_000]))
    counts: dict[str, int] = {}
    sentences: list[Sentence] = []
    read: list[Read] = []
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
            if stop <= len(message.text):
                read.append(Read(start, stop, sentences[-1].terms, one.traits))
    return Analysis(
        text=text,
        counts=counts,
        length=length,
        asked=min(1.0, asked / max(1, len(text))),
        asks=asked > 0,
        ends_asking=asks,
        traits=traits | (YOURS if mine < 0 else 0),
        sentences=tuple(sentences),
        statements=find_statements(entry, message.text, read, language),
    )
