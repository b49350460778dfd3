"""Times in questions of further languages: the commonest, as a table has them; the rest is told by no range at all."""

# ruff: noqa: RUF001 (words of other scripts)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recall.questions import parse_question
from tests.unit.test_times import WEDNESDAY, day, format_range, list_mentioned, moments, ms, time_range

YESTERDAY = ("2023-05-16", "2023-05-17")
LAST_WEEK = ("2023-05-08", "2023-05-15")
LAST_MONTH = ("2023-04-01", "2023-05-01")


@pytest.mark.parametrize(
    ("text", "span"),
    [
        day("O que eu perguntei ontem?", *YESTERDAY),
        day("Do que falamos na semana passada?", *LAST_WEEK),
        day("O que eu disse há três dias?", "2023-05-14", "2023-05-15"),
        day("O que discutimos no mês passado?", *LAST_MONTH),
        day("O que perguntei na segunda-feira?", "2023-05-15", "2023-05-16"),
        day("O que discutimos em 8 de maio de 2023?", "2023-05-08", "2023-05-09"),
        day("Cosa ho chiesto ieri?", *YESTERDAY),
        day("Di cosa abbiamo parlato la settimana scorsa?", *LAST_WEEK),
        day("Che cosa ti ho detto tre giorni fa?", "2023-05-14", "2023-05-15"),
        day("Che cosa mi hai consigliato l'altro ieri?", "2023-05-15", "2023-05-16"),
        day("Di cosa abbiamo parlato lunedì scorso?", "2023-05-15", "2023-05-16"),
        day("Di cosa abbiamo parlato l'anno scorso?", "2022-01-01", "2023-01-01"),
        day("Wat heb ik gisteren gevraagd?", *YESTERDAY),
        day("Waar hebben we vorige week over gepraat?", *LAST_WEEK),
        day("Wat heb ik twee dagen geleden gezegd?", "2023-05-15", "2023-05-16"),
        day("Wat heb ik op maandag gevraagd?", "2023-05-15", "2023-05-16"),
        day("Что я вчера спрашивал?", *YESTERDAY),
        day("О чём мы говорили на прошлой неделе?", *LAST_WEEK),
        day("Что я спросила три дня назад?", "2023-05-14", "2023-05-15"),
        day("О чём мы говорили в понедельник?", "2023-05-15", "2023-05-16"),
        day("О чём мы говорили в мае?", "2023-05-01", "2023-06-01"),
        day("我昨天问了什么?", *YESTERDAY),
        day("我昨天问了什么？", *YESTERDAY),
        day("我們上週聊了什麼？", *LAST_WEEK),
        day("我三天前说了什么？", "2023-05-14", "2023-05-15"),
        day("我们上个月讨论了什么？", *LAST_MONTH),
        day("我们上周一聊了什么？", "2023-05-08", "2023-05-09"),
        day("我们5月8日讨论了什么？", "2023-05-08", "2023-05-09"),
        day("昨日何を聞きましたか？", *YESTERDAY),
        day("先週話したことは？", *LAST_WEEK),
        day("3日前に質問したことを教えて", "2023-05-14", "2023-05-15"),
        day("一昨日何を話しましたか", "2023-05-15", "2023-05-16"),
        day("月曜日に何を質問しましたか", "2023-05-15", "2023-05-16"),
        day("어제 내가 뭐라고 물었지?", *YESTERDAY),
        day("지난주에 우리가 무슨 이야기를 했지?", *LAST_WEEK),
        day("3일 전에 내가 질문한 것은?", "2023-05-14", "2023-05-15"),
        day("월요일에 뭘 물어봤지?", "2023-05-15", "2023-05-16"),
        ("Cosa ho chiesto negli ultimi 3 giorni?", ("2023-05-14 00:00", "2023-05-17 15:30")),
        ("Что я спросил за последние 3 дня?", ("2023-05-14 00:00", "2023-05-17 15:30")),
        ("我两小时前问了什么？", ("2023-05-17 13:00", "2023-05-17 14:00")),
    ],
)
def test_what_is_asked_for_on_a_wednesday_in_may(text: str, span: tuple[str | None, str | None]) -> None:
    assert format_range(text) == span


@pytest.mark.parametrize(
    "text",
    [
        "Onde está o meu pedido?",
        "O que acontece amanhã?",
        "A reunião de ontem foi longa",
        "Dov'è il mio ordine?",
        "Che cosa devo fare oggi?",
        "Wat is er vandaag te doen?",
        "Где мой заказ?",
        "Какие встречи у меня сегодня?",
        "今天天气怎么样？",
        "昨天的会议很长",
        "今日の天気は？",
        "昨日は雨でした",
        "오늘 날씨 어때?",
        "어제는 비가 왔다",
        "我的订单在哪里？",
    ],
)
def test_questions_that_ask_for_no_time_of_the_conversation(text: str) -> None:
    assert format_range(text) is None


def test_an_ambiguous_time_prefers_its_days_in_other_languages() -> None:
    for text in ("la riunione di ieri", "вчерашний день, вчера", "昨天的会议", "昨日は雨でした", "어제는 비가 왔다"):
        assert (1684195200000, 1684281600000) in list_mentioned(text, ms(WEDNESDAY)), text


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("O que eu perguntei ontem?", "user"),
        ("Cosa ho chiesto ieri?", "user"),
        ("Cosa mi hai consigliato ieri?", "assistant"),
        ("Wat heb ik gisteren gevraagd?", "user"),
        ("Что я вчера спрашивал?", "user"),
        ("我昨天问了什么？", "user"),
        ("我们昨天聊了什么？", None),
        ("你昨天推荐了什么？", "assistant"),
        ("昨日何を聞きましたか？", None),
        ("昨日の質問は何ですか？", None),
        ("어제 내가 뭐라고 물었지?", "user"),
        ("어제 우리가 무슨 이야기를 했지?", None),
    ],
)
def test_questions_about_a_time_alone_have_no_search_words(text: str, role: str | None) -> None:
    question = parse_question(text, now=ms(WEDNESDAY))
    assert (question.only_time, question.role, question.terms) == (True, role, ())


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
