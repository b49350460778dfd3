"""Typos: candidates are one letter away and appear in the corpus."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recall.questions import CORRECTIONS, MOST, correct_typos, list_typo_candidates, parse_question
from holdfast.recall.terms import extract_terms

SAID = extract_terms(
    "The ferry to the harbour leaves at nine. I received the bicycle and a lobster soup. Паром в гавани"
).counts


@pytest.mark.parametrize(
    ("slip", "term"),
    [
        ("ferrry", "ferri"),
        ("fery", "ferri"),
        ("fetry", "ferri"),
        ("frery", "ferri"),
        ("harbuor", "harbour"),
        ("recieved", "receiv"),
        ("lobtser", "lobster"),
        ("гавонь", "гаван"),
    ],
)
def test_a_typo_is_corrected_to_a_known_word(slip: str, term: str) -> None:
    question = parse_question(slip, now=0)
    assert not set(question.terms) & set(SAID), "else there is nothing to look for"
    assert term in list_typo_candidates(question)
    found = correct_typos(question, SAID)
    assert found is not None
    assert (found.terms, found.text) == ((term,), slip)


@pytest.mark.parametrize(
    "text", ["help", "jerry", "4712", "sup", "ORD-12345", "日本語の質問", "ferry" * 10, "what is this", ""]
)
def test_words_that_are_not_corrected(text: str) -> None:
    """Another first letter, codes, scripts of their own, words that are too short or too long."""
    question = parse_question(text, now=0)
    known = dict.fromkeys(("ferri", "harbour", "receiv", "kelp", "soup", "ORD-12346", "ord12346", "su"), 1)
    assert correct_typos(question, known) is None


def test_the_most_frequent_candidates_are_used() -> None:
    said = {"booking": 1, "book": 2, "cook": 9, "boot": 4, "bool": 4, "boom": 1}
    found = correct_typos(parse_question("boox", now=0), said)
    assert found is not None
    assert found.terms == ("bool", "boot", "book")
    assert len(found.terms) == CORRECTIONS


@given(st.text(max_size=300))
def test_the_number_of_candidates_is_limited(text: str) -> None:
    """So that one question costs one look at a few thousand terms, each once and none of the question's own words."""
    question = parse_question(text, now=0)
    found = list_typo_candidates(question)
    assert len(found) == len(set(found)) <= MOST * 24 * 80
    assert all(found)
    first = {concept.variants[0][0] for concept in question.concepts}
    assert len(first) > 1 or not first & set(found)
