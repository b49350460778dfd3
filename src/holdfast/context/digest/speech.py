"""Read the sentences of users and assistants for a digest. Text of others that a user quotes is separated from the user's own words."""

from __future__ import annotations

import math
import re
from itertools import islice
from typing import Final

from holdfast.context.digest.texts import MAX_LEAVES, Fact, Kind, Line, deduplicate_facts, keep_ends, read_text_facts
from holdfast.context.own_words import separate_own_words
from holdfast.context.statements import is_courtesy, rate_sentence
from holdfast.context.values import NUMBERED, QUESTION, SHORT, clean, estimate_tokens, weigh_words
from holdfast.domain.messages import Message

LONGER, USUAL = 0.6, 12.0
"""The weight of a user's sentence is multiplied by its tokens divided by `USUAL`, raised to the power `LONGER`.

A longer sentence is rarely a mere phrase."""
STATEMENT_WEIGHT: Final = (10.0, 3.0)
"""Minimum weight of a sentence that is certainly worth keeping, of a user and of an assistant. For other sentences the minimum is proportional
to the probability."""
QUOTE_FACTOR: Final = 0.5
"""Factor for a sentence without an identifier that the user quotes."""
QUESTION_FACTOR: Final = 0.15
"""Factor for a user's question without a value, because the answer says more."""
CLAUSE: Final = 4
"""If the text after a label has fewer spaces than this, it is a value that the user filled in. Otherwise it is spoken text."""
_WORD: Final = re.compile(r"\w+")


def read_speech(message: Message, seq: int, by: str) -> list[Line]:
    """Return the sentences of a message as at most two lines: one for its author, and one for text that a user quotes or pastes.

    Args:
        message: the message.
        seq: `seq` of the message's unit.
        by: name of the other agent that wrote the message; empty if there is none.
    """
    kind: Kind = "user" if message.role == "user" else "assistant" if message.role == "assistant" else "other"
    read = (fact for fact in read_text_facts(message.text, said=True) if fact.key or not is_courtesy(fact.value))
    facts = deduplicate_facts(islice(read, MAX_LEAVES))
    role = clean(message.role)[:20]
    own, quoted = _separate_quotes(message.text, facts) if kind == "user" else (facts, [])
    for fact in own if kind in ("user", "assistant") else ():
        _weigh(fact, assistant=kind == "assistant")
    for fact in quoted:
        if all(weight < NUMBERED for _, weight in weigh_words(fact.value)):
            fact.weight = round(QUOTE_FACTOR * fact.weight, 2)
    return [*_make_line(f"{role} said", seq, kind, own, by), *_make_line(f"{role} quoted", seq, "other", quoted, by)]


def _make_line(said: str, seq: int, kind: Kind, facts: list[Fact], by: str) -> list[Line]:
    if not facts:
        return []
    handle = f"agent {by} {said.rpartition(' ')[2]}" if by else said
    return [Line(handle, f"{said}#{seq}", seq, kind, facts, cost=2.0 + round(estimate_tokens(handle), 1))]


def _separate_quotes(text: str, facts: list[Fact]) -> tuple[list[Fact], list[Fact]]:
    """Divide the facts of a user's message into the user's own sentences and those of others.

    Args:
        text: the text of the message.
        facts: the facts of the message.
    """
    mine = _flatten(separate_own_words(keep_ends(text)).own)
    own: list[Fact] = []
    quoted: list[Fact] = []
    for fact in facts:
        sentence = f"{fact.key}: {fact.value}" if fact.key else fact.value
        filled_in = fact.key and fact.value.count(" ") < CLAUSE
        (own if filled_in or _flatten(sentence) in mine else quoted).append(fact)
    return own, quoted


def _flatten(text: str) -> str:
    """Return the words of a text, separated and enclosed by single spaces, without punctuation."""
    return f" {' '.join(_WORD.findall(text))} "


def _weigh(fact: Fact, *, assistant: bool) -> None:
    """Set the weight of a sentence of a user or an assistant."""
    usual = fact.weight if assistant else fact.weight * (fact.cost / USUAL) ** LONGER
    asks = fact.value.endswith(QUESTION)
    if asks and not assistant and not any(weight >= SHORT for _, weight in weigh_words(fact.value)):
        usual *= QUESTION_FACTOR
    rated = rate_sentence(fact.value, assistant=assistant)
    least = 0.0 if rated is None else STATEMENT_WEIGHT[assistant] / (1 + math.exp(-rated.score))
    fact.weight = round(max(usual, least), 2)
