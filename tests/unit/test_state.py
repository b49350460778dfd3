"""Session state: key prefixes, limits on values, and applying changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.state import (
    Extend,
    Increment,
    apply_change,
    check_delta,
    compute_weight,
    encode_value,
    is_same_json,
)
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.limits import STATE_DEPTH

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
numbers = st.integers(-(2**40), 2**40) | st.integers(-(2**20), 2**20).map(lambda number: number / 8)
leaves = st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)


# -- changes -------------------------------------------------------------------


@pytest.mark.parametrize("value", [object(), {1, object()}, "\ud800", {"k": "\udfff"}, [object()], {(1, 2): 3}])
def test_values_that_are_not_json_are_rejected(value: Any) -> None:
    for change in (value, Extend((value,))):
        with pytest.raises(InvalidRequest) as refused:
            check_delta({"fine": 1, "user:k": change})
        assert "user:k" in str(refused.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_rejected_instead_of_deleting(value: float) -> None:
    with pytest.raises(InvalidRequest, match="no JSON form"):
        check_delta({"k": value})


@pytest.mark.parametrize("old", ["hunter2", ["hunter2"], {"hunter2": 1}, 2**60])
def test_errors_do_not_quote_stored_values(old: Any) -> None:
    """Errors appear in tool results and logs."""
    with pytest.raises(InvalidRequest, match="'temp:n'") as refused:
        apply_change("temp:n", old, Increment())
    assert not any(said in str(refused.value) for said in ("hunter2", str(2**60)))


def test_deeply_nested_values_are_rejected_without_a_crash() -> None:
    """Both when a value is checked and when two are compared."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest):
        check_delta({"k": deep})
    with pytest.raises(InvalidRequest):
        encode_value("k", deep)
    less: Any = [1]
    for _ in range(STATE_DEPTH - 1):
        less = [less]
    check_delta({"k": less, "l": [less[0], {"b]]": '["'}, *[[]] * STATE_DEPTH]})
    for deeper in ([less], {"k": less}, {'"]': ["\\", less]}, Extend((less,))):
        with pytest.raises(TooLarge, match=f"more than {STATE_DEPTH}"):
            check_delta({"k": deeper})
    for _ in range(600):
        less = [less]
    assert is_same_json(less, less)
    assert not is_same_json(less, [less])


# -- a whole state ---------------------------------------------------------------


@given(st.dictionaries(texts, values.filter(lambda value: value is not None), max_size=6))
def test_weights_add_up_to_the_size_of_the_whole_json(state: dict[str, Any]) -> None:
    whole = len(encode_value("all", state))
    assert (
        sum(compute_weight(key, encode_value(key, value)) for key, value in state.items()) + (1 if state else 2)
        == whole
    )
