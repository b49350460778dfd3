"""Questions: which kind of answer is asked for, and which words may stand for those of the question."""

from __future__ import annotations

import pytest

from holdfast.recall.questions import parse_question

ASKING = {
    "asks_number": (
        "How strong are the tablets?",
        "What is our total budget?",
        "And the salary?",
        "Wie hoch ist die Miete?",
        "Quel est le loyer ?",
        "¿Cuál es el precio?",
        "Qual é o preço?",
        "学费要多少",
        "家賃はいくらですか",
    ),
    "asks_time": (
        "At what minute did it begin?",
        "What was the deadline?",
        "Um wie viel Uhr fängt es an?",
        "À quelle heure commence le cours ?",
        "¿A qué hora empieza?",
        "A que horas começa?",
        "面谈是几点",
        "会議は何時からですか",
    ),
}


@pytest.mark.parametrize(("asks", "text"), [(asks, text) for asks, texts in ASKING.items() for text in texts])
def test_a_question_about_an_amount_or_a_moment_asks_for_it(asks: str, text: str) -> None:
    assert getattr(parse_question(text, now=0), asks)


def test_a_question_about_neither_asks_for_neither() -> None:
    question = parse_question("Who is the new manager?", now=0)
    assert not question.asks_time
    assert not question.asks_number


@pytest.mark.parametrize(
    ("text", "term"),
    [("What is my salary?", "wage"), ("Wer ist mein Chef?", "vorgesetzt"), ("Comment s'appelle mon chien ?", "animal")],
)
def test_everyday_words_for_the_same_thing_count_less_and_only_where_they_are_asked_for(text: str, term: str) -> None:
    weights = [dict(concept.variants).get(term, 0.0) for concept in parse_question(text, now=0, everyday=True).concepts]
    assert 0 < max(weights) < 1
    assert term not in parse_question(text, now=0).terms


@pytest.mark.parametrize(
    ("text", "many"),
    [
        ("Which countries did I visit?", True),
        ("How many dogs do we have?", True),
        ("What are my allergies?", True),
        ("List everything that I bought", True),
        ("Welche Sorten haben wir gepflanzt?", True),
        ("我去过哪些国家？", True),  # noqa: RUF001 - a question mark
        ("Which is the best restaurant?", False),
        ("Which doctor does she see?", False),
        ("I paid the bill, which was high.", False),
        ("Thanks for all your help!", False),
        ("What were you saying?", False),
        ("What does it cost?", False),
    ],
)
def test_whether_a_question_asks_for_many(text: str, many: bool) -> None:
    assert parse_question(text, now=0).asks_many is many


def test_the_days_of_a_question_are_those_of_its_zone() -> None:
    """At 23:30 of the 20th in London it is the 21st in Tokyo, and yesterday was the 20th."""
    late = 1_700_523_000_000
    day = 1_700_438_400_000 // 86_400_000
    assert parse_question("What did I say yesterday?", now=late, zone="Asia/Tokyo").days == ((day, day + 1),)
    assert parse_question("What did I say yesterday?", now=late).days == ((day - 1, day),)
