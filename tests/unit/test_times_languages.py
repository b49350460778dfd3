"""Times in questions of further languages, beside other words and in any text."""

# ruff: noqa: RUF001 (words of other scripts)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recall.questions import parse_question
from tests.unit.test_times import WEDNESDAY, moments, ms, time_range


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("Cosa ho chiesto ieri sui gatti?", "gatt"),
        ("Что я вчера спрашивал про кошек?", "кошек"),
        ("我昨天问了关于猫咪的什么？", "猫咪"),
        ("昨日電車について何を聞きましたか？", "電車"),
        ("어제 고양이에 대해 뭐라고 물었지?", "고양"),
    ],
)
def test_other_words_of_the_question_are_searched(text: str, term: str) -> None:
    question = parse_question(text, now=ms(WEDNESDAY))
    assert question.range is not None
    assert not question.only_time
    assert any(term in one or one in term for one in question.terms), question.terms
    assert parse_question(text, now=ms(WEDNESDAY), narrow=False).range is None


@given(st.text(alphabet="昨今先週月日年前三3上周一問聞いた我어제지난주전 。?了什么を", max_size=40), moments)
def test_any_text_of_these_has_a_time_or_none(text: str, moment: object) -> None:
    now = ms(moment)  # type: ignore[arg-type]
    found = time_range(text, now)
    if found and found.start is not None and found.stop is not None:
        assert found.start < found.stop
        for start, stop in found.words:
            assert 0 <= start < stop
    parse_question(text, now=now)
