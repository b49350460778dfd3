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


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("what did you tell me last month about taxes?", (2023, 4, 1), (2023, 5, 1)),
        ("What did we decide at 3 p.m. yesterday? I forgot.", (2023, 5, 16), (2023, 5, 17)),
        ("Fix the bug I told you about yesterday. It is in the parser.", (2023, 5, 16), (2023, 5, 17)),
        ("Tell me about the harbour. What did I say in May?", (2023, 5, 1), (2023, 6, 1)),
        ("What did Ana do last week?", (2023, 5, 8), None),
    ],
)
def test_times_beside_other_words(text: str, first: tuple[int, int, int], last: tuple[int, int, int] | None) -> None:
    """What happened in a time may be told later, so that such a range has no end."""
    stop = None if last is None else ms(datetime(*last, tzinfo=UTC))
    found = time_range(text, ms(WEDNESDAY))
    assert found is not None
    assert (found.start, found.stop) == (ms(datetime(*first, tzinfo=UTC)), stop)


def test_a_long_text_asks_for_no_time() -> None:
    """Somebody pastes a page in which days are named, and messages: any of what was said may answer that."""
    page = "Our messages of 2023-05-08 said so. What did we discuss yesterday? " + "The ferry leaves at nine. " * 40
    assert parse_question(page, now=ms(WEDNESDAY)).range is None
    assert parse_question(page[:70], now=ms(WEDNESDAY)).range is not None


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
