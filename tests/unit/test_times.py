"""Times in questions: which span of time is asked for, in a given zone; and when none is."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.recall.questions import TimeRange, find_question_times, parse_question

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Pacific/Apia",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
]
WEDNESDAY = datetime(2023, 5, 17, 15, 30, tzinfo=UTC)
moments = st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)).map(lambda one: one.replace(tzinfo=UTC))  # noqa: DTZ001


def time_range(text: str, now: int, zone: str = "UTC") -> TimeRange | None:
    """The time in which something was said that is asked for."""
    return find_question_times(text, now, zone)[0]


def list_mentioned(text: str, now: int) -> tuple[tuple[int, int], ...]:
    """All times that are named, whatever for."""
    return find_question_times(text, now)[1]


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def format_range(text: str, now: datetime = WEDNESDAY, zone: str = "UTC") -> tuple[str | None, str | None] | None:
    """A range as local times."""
    found = time_range(text, ms(now), zone)
    if found is None:
        return None
    start, stop = (
        None if one is None else datetime.fromtimestamp(one / 1000, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M")
        for one in (found.start, found.stop)
    )
    return start, stop


def day(text: str, first: str, last: str) -> tuple[str, tuple[str, str]]:
    return text, (f"{first} 00:00", f"{last} 00:00")


@pytest.mark.parametrize(
    ("text", "span"),
    [
        day("What did I ask about today?", "2023-05-17", "2023-05-18"),
        day("What did I ask about yesterday?", "2023-05-16", "2023-05-17"),
        day("what did we discuss the day before yesterday", "2023-05-15", "2023-05-16"),
        day("What did I say this week?", "2023-05-15", "2023-05-22"),
        day("What did I tell you last week?", "2023-05-08", "2023-05-15"),
        day("what did you tell me last month about taxes?", "2023-04-01", "2023-05-01"),
        day("What did we decide last year?", "2022-01-01", "2023-01-01"),
        day("what did I ask 3 days ago", "2023-05-14", "2023-05-15"),
        ("what did we discuss in the last hour?", ("2023-05-17 14:30", "2023-05-17 15:30")),
        ("what did I say in the past minute?", ("2023-05-17 15:29", "2023-05-17 15:30")),
        day("Show me yesterday's questions", "2023-05-16", "2023-05-17"),
        day("What did we decide at 3 p.m. yesterday? I forgot.", "2023-05-16", "2023-05-17"),
        day("Fix the bug I told you about yesterday. It is in the parser.", "2023-05-16", "2023-05-17"),
        day("Tell me about the harbour. What did I say in May?", "2023-05-01", "2023-06-01"),
        day("Zeig mir meine Fragen von gestern", "2023-05-16", "2023-05-17"),
        day("Was hast du mir gestern empfohlen?", "2023-05-16", "2023-05-17"),
        day("what did I ask three days ago", "2023-05-14", "2023-05-15"),
        day("What did I ask last weekend?", "2023-05-13", "2023-05-15"),
        day("our conversation on Friday", "2023-05-12", "2023-05-13"),
        day("What did we talk about last Tuesday?", "2023-05-16", "2023-05-17"),
        day("What did I ask on Wednesday?", "2023-05-10", "2023-05-11"),
        day("on Monday last week what did we talk about?", "2023-05-08", "2023-05-09"),
        day("What did we talk about in May?", "2023-05-01", "2023-06-01"),
        day("What did we talk about in June?", "2022-06-01", "2022-07-01"),
        day("What did we discuss in December 2022?", "2022-12-01", "2023-01-01"),
        day("What did we discuss in 2021?", "2021-01-01", "2022-01-01"),
        day("What did we talk about on 8 May, 2023?", "2023-05-08", "2023-05-09"),
        day("What did I mention on May 8th, 2023?", "2023-05-08", "2023-05-09"),
        day("What did I mention on the 20th of May?", "2022-05-20", "2022-05-21"),
        day("what did I ask on 2023-05-08", "2023-05-08", "2023-05-09"),
        day("what did I ask on 25/12/2022", "2022-12-25", "2022-12-26"),
        day("What did we decide between May 3 and 8 May?", "2023-05-03", "2023-05-09"),
        day("What did we decide between November and January?", "2022-11-01", "2023-02-01"),
        day("Worüber haben wir gestern gesprochen?", "2023-05-16", "2023-05-17"),
        day("Was habe ich letzte Woche gefragt?", "2023-05-08", "2023-05-15"),
        day("Was habe ich vor drei Tagen gesagt?", "2023-05-14", "2023-05-15"),
        day("Was haben wir am 8. Mai besprochen?", "2023-05-08", "2023-05-09"),
        day("Was habe ich am 08.05.2023 gesagt?", "2023-05-08", "2023-05-09"),
        day("¿Qué pregunté ayer?", "2023-05-16", "2023-05-17"),
        day("¿De qué hablamos la semana pasada?", "2023-05-08", "2023-05-15"),
        day("¿Qué dije hace dos días?", "2023-05-15", "2023-05-16"),
        day("De quoi avons-nous parlé hier ?", "2023-05-16", "2023-05-17"),
        day("Qu'est-ce que j'ai demandé la semaine dernière ?", "2023-05-08", "2023-05-15"),
        ("what did I ask an hour ago", ("2023-05-17 14:00", "2023-05-17 15:00")),
        ("what did I say this morning?", ("2023-05-17 05:00", "2023-05-17 12:00")),
        ("what did you suggest last night?", ("2023-05-16 18:00", "2023-05-17 06:00")),
        ("What did I ask in the last 3 days?", ("2023-05-14 00:00", "2023-05-17 15:30")),
        ("what did I say over the past two weeks", ("2023-05-03 00:00", "2023-05-17 15:30")),
        ("What have we discussed since last Tuesday?", ("2023-05-16 00:00", None)),
        ("What have I asked since May?", ("2023-05-01 00:00", None)),
        ("What did I say before March 2023?", (None, "2023-03-01 00:00")),
        ("What did I say after 8 May?", ("2023-05-09 00:00", None)),
    ],
)
def test_what_is_asked_for_on_a_wednesday_in_may(text: str, span: tuple[str | None, str | None]) -> None:
    assert format_range(text) == span


@pytest.mark.parametrize(
    "text",
    [
        "What will happen tomorrow?",
        "Where is my order?",
        "What did I say about yesterday's meeting?",
        "What did I say about the trip in May?",
        "What did Ana do in May 2023?",
        "When did we go to the lake?",
        "What are we going to discuss next week?",
        "May I ask something?",
        "She will march on, may they say.",
        "What did I ask on 31 June?",
        "What did I write on 5/8/2023?",
        "What meetings do I have today?",
        "What flights do I have on Monday?",
        "Welche Termine habe ich heute?",
        "I have a flight on Monday. What should I pack?",
        "Hi! I was sick last week. Can you help me plan today?",
        "I told you that I moved. What meetings are there this week?",
        "Quick question: is there a flight on 2023-05-20?",
        "Write a message to my boss that he can read yesterday's report",
        "How do I parse yesterday's log in Python?",
        "How do I parse yesterday's messages.log?",
        "",
    ],
)
def test_questions_that_ask_for_no_time_of_the_conversation(text: str) -> None:
    assert format_range(text) is None


def test_events_of_a_time_are_searched_from_that_time_on() -> None:
    """Ana's week is told in that week or later: nothing is left out that lies behind its beginning."""
    assert format_range("What did Ana do last week?") == ("2023-05-08 00:00", None)


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("Which questions did I ask yesterday?", "user"),
        ("What were my questions yesterday?", "user"),
        ("List everything I asked last week", "user"),
        ("Can you remind me what we talked about yesterday?", None),
        ("Summarise what I asked about on Monday", "user"),
        ("What topics came up in our chat yesterday?", None),
        ("Was habe ich dich gestern gefragt?", "user"),
        ("Wonach habe ich gestern gefragt?", "user"),
        ("Was hast du mir gestern empfohlen?", "assistant"),
        ("¿Qué me dijiste ayer?", "assistant"),
        ("Qu'est-ce que tu m'as conseillé hier ?", "assistant"),
    ],
)
def test_questions_about_a_time_alone_have_no_search_words(text: str, role: str | None) -> None:
    """Nobody said "remind" or "questions" then: a search for these would find nothing."""
    question = parse_question(text, now=ms(WEDNESDAY))
    assert (question.only_time, question.role) == (True, role)


def test_other_words_of_the_question_are_searched() -> None:
    for text in ("List what I asked about kettles yesterday", "What questions on kettles did I ask yesterday?"):
        question = parse_question(text, now=ms(WEDNESDAY))
        assert not question.only_time
        assert "kettl" in question.terms


def test_a_long_text_asks_for_no_time() -> None:
    """Somebody pastes a page in which days are named, and messages: any of what was said may answer that."""
    page = "Our messages of 2023-05-08 said so. What did we discuss yesterday? " + "The ferry leaves at nine. " * 40
    assert parse_question(page, now=ms(WEDNESDAY)).range is None
    assert parse_question(page[:70], now=ms(WEDNESDAY)).range is not None


def test_an_ambiguous_time_only_prefers_its_days() -> None:
    question = parse_question("What did I say about the trip in May?", now=ms(WEDNESDAY))
    assert question.range is None
    assert question.mentioned == ((ms(datetime(2023, 5, 1, tzinfo=UTC)), ms(datetime(2023, 6, 1, tzinfo=UTC))),)
    assert len(list_mentioned("from May to July 2020, and in 2021", ms(WEDNESDAY))) == 3, "several"


def test_the_words_of_the_time_are_not_searched_for() -> None:
    question = parse_question("What did I ask about taxes last month?", now=ms(WEDNESDAY))
    assert [concept.word for concept in question.concepts] == ["taxes"]
    assert not question.only_time
    assert parse_question("What did I ask about yesterday?", now=ms(WEDNESDAY)).only_time
    assert parse_question("What did you suggest yesterday?", now=ms(WEDNESDAY)).role == "assistant"


def test_without_narrowing_a_time_is_words() -> None:
    question = parse_question("What did I say yesterday?", now=ms(WEDNESDAY), narrow=False)
    assert question.range is None
    assert "yesterday" in question.terms


@given(moments, st.sampled_from(ZONES), st.integers(2, 60))
def test_the_range_holds_the_day_that_is_named(moment: datetime, zone: str, back: int) -> None:
    """In any zone, over changes of the clock and ends of the year: noon of the day, and not that of the days around."""
    today = moment.astimezone(ZoneInfo(zone)).date()
    for text, count in (("yesterday", 1), ("today", 0), (f"{back} days ago", back)):
        found = time_range(f"What did I ask {text}?", ms(moment), zone)
        assert found is not None
        assert found.start is not None
        assert found.stop is not None
        for step in (-1, 0, 1):
            there = found.start <= noon(today - timedelta(days=count) + timedelta(days=step), zone) < found.stop
            assert there is (step == 0)
        assert 22 * 3_600_000 <= found.stop - found.start <= 26 * 3_600_000


@given(moments, st.dates(date(1990, 1, 1), date(2059, 12, 31)), st.sampled_from(ZONES))
def test_written_days_in_every_form(moment: datetime, asked: date, zone: str) -> None:
    forms = [
        asked.isoformat(),
        f"{asked.day} {asked:%B} {asked.year}",
        f"{asked:%B} {asked.day}, {asked.year}",
        f"the {asked.day}th of {asked:%b} {asked.year}",
        f"{asked:%d.%m.%Y}",
    ]
    spans = {time_range(f"What did we discuss on {form}?", ms(moment), zone) for form in forms}
    ranges = {(span.start, span.stop) for span in spans if span}
    assert len(ranges) == 1
    assert None not in spans
    ((start, stop),) = ranges
    assert start is not None
    assert stop is not None
    assert start <= noon(asked, zone) < stop


def test_a_moment_that_no_calendar_has() -> None:
    with pytest.raises(InvalidRequest, match="no time"):
        time_range("What did I ask yesterday?", 10**30)


def noon(one: date, zone: str) -> int:
    return ms(datetime(one.year, one.month, one.day, 12, tzinfo=ZoneInfo(zone)))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_the_first_day_of_the_calendar_is_no_error(zone: str) -> None:
    """Seen from another zone it would be the year before the first one."""
    now = ms(datetime(2026, 1, 1, 12, tzinfo=UTC))
    for text in ("What did I say in the last 2025 years?", "What did we discuss since 2025 years ago?"):
        find_question_times(text, now, zone)
