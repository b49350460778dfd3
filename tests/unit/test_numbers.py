"""Checking numbers: inclusive bounds, no booleans, and errors with the allowed range."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.numbers import MOST, check_number, check_whole, is_number, is_whole

NONE: list[Any] = [None, True, False, "7", "", [7], {}, math.nan, math.inf, -math.inf]


@given(st.integers(), st.integers(-100, 100), st.integers(0, 100))
def test_a_whole_number_is_within_its_bounds(value: int, low: int, span: int) -> None:
    assert is_whole(value, low, low + span) == (value in range(low, low + span + 1))
    assert is_number(value, low, low + span) == is_whole(value, low, low + span)
    assert is_whole(low, low, low + span)
    assert is_whole(low + span, low, low + span)


def test_default_bounds_are_those_of_json() -> None:
    assert is_whole(0)
    assert is_whole(MOST)
    assert not is_whole(-1)
    assert not is_whole(MOST + 1)
    assert is_number(-1e300)


@pytest.mark.parametrize("value", NONE)
def test_other_types_are_rejected(value: Any) -> None:
    assert not is_whole(value, -10, 10)
    assert not is_number(value)


def test_fractions_are_numbers_but_not_integers() -> None:
    assert is_number(0.5, 0, 1)
    assert not is_whole(0.5, 0, 1)
    assert not is_whole(1.0, 0, 1)


def test_the_error_names_the_field_the_value_and_the_range() -> None:
    check_whole(1, "limit", 1, 1000)
    check_number(0.5, "share", 0, 1)
    with pytest.raises(InvalidRequest) as caught:
        check_whole(0, "limit", 1, 1000)
    assert (str(caught.value), caught.value.param) == ("limit must be a whole number from 1 to 1,000, not 0", "limit")
    with pytest.raises(InvalidRequest) as caught:
        check_whole("x" * 200, "python.idle", 1, param="python", kind="whole number of seconds")
    assert str(caught.value).startswith("python.idle must be a whole number of seconds from 1, not 'xxx")
    assert (len(str(caught.value)) < 150, caught.value.param) == (True, "python")
    with pytest.raises(InvalidRequest, match=r"share must be a number from 0, not inf"):
        check_number(math.inf, "share", 0)
