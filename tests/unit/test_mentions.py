"""Times that messages name, as days."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.recall.details import LONGEST, MAX_MENTIONS, find_mentions

WEDNESDAY = int(datetime(2025, 3, 5, 12, tzinfo=UTC).timestamp() * 1000)


def days(text: str, at: int = WEDNESDAY) -> list[str]:
    """The days as dates; `+N` where a time has more than one."""
    found = find_mentions(text, at)
    return [f"{date(1970, 1, 1) + timedelta(start)}" + (f"+{stop - start}" if stop - start > 1 else "") for start, stop in found]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I saw her last Friday.", ["2025-02-28"]),
        ("Let's meet next Friday at noon.", ["2025-03-07"]),
        ("She comes on Monday.", ["2025-03-03", "2025-03-10"]),
        ("The deadline is on the 14th.", ["2025-03-14"]),
        ("Tomorrow we paint, and the day after tomorrow we move.", ["2025-03-06", "2025-03-07"]),
        ("In three weeks I move.", ["2025-03-24+5"]),
        ("We move in a couple of weeks.", ["2025-03-17+5"]),
        ("We move in a of weeks.", ["2025-03-10+5"]),  # a word is missing
        ("We fly on 20 April.", ["2025-04-20"]),
        ("Back in November it rained.", ["2024-11-01+30"]),
        ("Next week is full.", ["2025-03-10+7"]),
        ("2025-06-01 12:00 ERROR out of memory", ["2025-06-01"]),
        ("Wir treffen uns nächsten Dienstag.", ["2025-03-11"]),
        ("am 14. ist Abgabe", ["2025-03-14"]),
        ("übermorgen kommt er", ["2025-03-07"]),
        ("vor drei Wochen", ["2025-02-09+7"]),
        ("il vient lundi prochain", ["2025-03-10"]),
        ("nos vemos mañana", ["2025-03-06"]),
        ("明天去医院，下周三复诊。", ["2025-03-06", "2025-03-12"]),  # noqa: RUF001 - a comma
        ("上周五签的合同，15号付款", ["2025-02-28", "2025-03-15"]),  # noqa: RUF001 - a comma
        ("三周后搬家", ["2025-03-24+5"]),
        ("十二月去北京", ["2024-12-01+31"]),
        ("3 cups of flour, 2 eggs", []),
        ("The next step is simple, and I may go on within 30 minutes.", []),
        ("Version 1.2.3 of 2025", []),
    ],
)
def test_a_time_is_the_days_that_it_means(text: str, expected: list[str]) -> None:
    assert days(text) == expected


def test_a_date_without_a_year_is_the_nearest() -> None:
    december = int(datetime(2024, 12, 20, tzinfo=UTC).timestamp() * 1000)
    assert days("We move on 10 January.", december) == ["2025-01-10"]
    assert days("It was on 3 December.", december) == ["2024-12-03"]


@example("On Friday we met", 253_402_300_799_000)
@example("On Friday we met, tomorrow too", -62_135_596_800_000)
@given(st.text(max_size=300), st.integers(-(10**16), 10**16))
def test_no_text_and_no_time_break_it(text: str, at: int) -> None:
    found = find_mentions(text, at)
    assert len(found) <= MAX_MENTIONS
    assert all(0 < stop - start <= LONGEST for start, stop in found)
    assert list(found) == sorted(set(found))
