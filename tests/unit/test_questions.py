"""Questions: which kind of answer is asked for, and which words may stand for those of the question."""

from __future__ import annotations

import pytest

from holdfast.recall.questions import question_of


@pytest.mark.parametrize(
    "text",
    [
        "How strong are the tablets?",
        "What is our total budget?",
        "And the salary?",
        "Wie hoch ist die Miete?",
        "Quel est le loyer ?",
        "¿Cuál es el precio?",
        "Qual é o preço?",
        "学费要多少",
        "家賃はいくらですか",
    ],
)
def test_a_question_about_an_amount_asks_for_a_number(text: str) -> None:
    assert question_of(text, now=0).asks_number


@pytest.mark.parametrize(
    "text",
    [
        "At what minute did it begin?",
        "What was the deadline?",
        "Um wie viel Uhr fängt es an?",
        "À quelle heure commence le cours ?",
        "¿A qué hora empieza?",
        "A que horas começa?",
        "面谈是几点",
        "会議は何時からですか",
    ],
)
def test_a_question_about_a_moment_asks_for_a_time(text: str) -> None:
    assert question_of(text, now=0).asks_time


def test_a_question_about_neither_asks_for_neither() -> None:
    question = question_of("Who is the new manager?", now=0)
    assert not question.asks_time
    assert not question.asks_number


@pytest.mark.parametrize(
    ("text", "term"),
    [("What is my salary?", "wage"), ("Wer ist mein Chef?", "vorgesetzt"), ("Comment s'appelle mon chien ?", "animal")],
)
def test_everyday_words_for_the_same_thing_count_less_and_only_where_they_are_asked_for(text: str, term: str) -> None:
    weights = [dict(concept.variants).get(term, 0.0) for concept in question_of(text, now=0, everyday=True).concepts]
    assert 0 < max(weights) < 1
    assert term not in question_of(text, now=0).terms
