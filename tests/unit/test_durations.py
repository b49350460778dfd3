"""Times as text: RFC 3339, also for numbers that are no date."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.durations import LATEST_TIME, format_utc, to_utc


@given(st.integers())
def test_every_number_is_formatted_as_a_date(milliseconds: int) -> None:
    text = format_utc(milliseconds)
    read = datetime.fromisoformat(text)
    assert (len(text), read.tzinfo) == (20, UTC)


@given(st.integers(0, LATEST_TIME))
def test_dates_are_exact_to_the_millisecond(milliseconds: int) -> None:
    assert round(to_utc(milliseconds).timestamp() * 1000) == milliseconds


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (LATEST_TIME, "9999-12-31T23:59:59Z"),
        (LATEST_TIME + 1, "9999-12-31T23:59:59Z"),
        (2**53 - 1, "9999-12-31T23:59:59Z"),
        (2**80, "9999-12-31T23:59:59Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (-(2**80), "0001-01-01T00:00:00Z"),
    ],
)
def test_numbers_that_are_no_date_become_the_closest_one(milliseconds: int, text: str) -> None:
    assert format_utc(milliseconds) == text
