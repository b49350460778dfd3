"""Speech: what users and agents say, sentence by sentence, with the words of others told apart from the user's own."""

from __future__ import annotations

import re
from itertools import islice

from holdfast.context.digest.lines import Fact, Kind, Line
from holdfast.context.digest.text_facts import MAX_LEAVES, ends_of, numbered, text_facts
from holdfast.context.digest.wording import has_value, is_courtesy, is_promise
from holdfast.context.own_words import own_words
from holdfast.context.statements import rate_sentence
from holdfast.context.values import NUMBERED, QUESTION, SHORT, clean, cost_of, weighed_words
from holdfast.domain.messages import Message

LONGER, USUAL = 0.6, 12.0
"""How much more a longer sentence of a user weighs: of two the longer one is hardly a phrase."""
STATED = 10.0
"""What a sentence weighs at least that its user surely wants kept."""
QUOTED, LEAST_QUOTED = 0.5, 5.0
"""What a sentence weighs that the user quotes, and the least it costs: "Kind regards, Tony" is none. Identifiers count in full."""
ASKED = 0.15
"""What a question of a user weighs that has no value in it: its answer says more."""
CLAUSE = 4
"""Spaces from which what follows a label is a clause, which somebody says, and no value in a form that the user filled in."""
LEAST_OWN = 3
"""Words of the user's own in a sentence with a quote in it from which the sentence is the user's."""
PROMISED, PROMISE_LEAST = 1.5, 1.0
"""What a sentence of the assistant weighs more that says what it will do, and the least it weighs before that."""

_WORD = re.compile(r"\w+")


def said_lines(message: Message, seq: int, by: str) -> list[Line]:
    """Return what a message says: a line for its author, and one for what a user quotes or pastes."""
    kind: Kind = "user" if message.role == "user" else "assistant" if message.role == "assistant" else "other"
    read = (fact for fact in text_facts(message.text, said=True) if not is_courtesy(fact.value))
    facts = numbered(islice(read, MAX_LEAVES))
    role = clean(message.role)[:20]
    if kind != "user":
        if kind == "assistant":
            for fact in facts:
                if is_promise(fact.value):
                    fact.weight = round(max(fact.weight, PROMISE_LEAST) * PROMISED, 2)
        return _line(f"{role} said", seq, kind, facts, by)
    own, quoted = _separate_quotes(message.text, facts)
    return _line(f"{role} said", seq, kind, own, by) + _line(f"{role} quoted", seq, "other", quoted, by)


def _line(said: str, seq: int, kind: Kind, facts: list[Fact], by: str) -> list[Line]:
    if not facts:
        return []
    handle = f"agent {by} {said.rpartition(' ')[2]}" if by else said
    return [Line(handle, f"{said}#{seq}", seq, kind, facts, cost=2.0 + round(cost_of(handle), 1))]


def _separate_quotes(text: str, facts: list[Fact]) -> tuple[list[Fact], list[Fact]]:
    """Return the sentences of a user, weighed by the user's own words in them, and those of others that hold a value."""
    mine = _flat(own_words(ends_of(text), strict=False).own)
    own, quoted = [], []
    for fact in facts:
        sentence = f"{fact.key}: {fact.value}" if fact.key else fact.value
        filled_in = fact.key and fact.value.count(" ") < CLAUSE
        words = fact.value if filled_in or _flat(sentence) in mine else _own_part(sentence, mine)
        if words:
            _weigh(fact, words)
            own.append(fact)
        elif any(weight >= NUMBERED for _, weight in weighed_words(fact.value)):
            quoted.append(fact)
        elif has_value(fact.value) and cost_of(fact.value) >= LEAST_QUOTED:
            fact.weight = round(QUOTED * fact.weight, 2)
            quoted.append(fact)
    return own, quoted


def _own_part(sentence: str, mine: str) -> str:
    """Return a sentence without the quotes in it, if enough of it is left and the user's."""
    part = own_words(sentence, strict=False).own
    pieces = [_flat(piece) for piece in part.splitlines() if _WORD.search(piece)]
    whole = sum(piece.count(" ") - 1 for piece in pieces) >= LEAST_OWN and all(piece in mine for piece in pieces)
    return " ".join(part.split()) if whole else ""


def _flat(text: str) -> str:
    """Return the words of a text between spaces, whatever stands between them."""
    return f" {' '.join(_WORD.findall(text))} "


def _weigh(fact: Fact, words: str) -> None:
    """Weigh a sentence by the words of the user in it."""
    usual = fact.weight * (fact.cost / USUAL) ** LONGER
    if words.endswith(QUESTION) and not any(weight >= SHORT for _, weight in weighed_words(words)):
        usual *= ASKED
    fact.weight = round(max(usual, STATED * rate_sentence(words)), 2)
