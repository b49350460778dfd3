"""Settings of strategies: valid ones are accepted, wrong ones are rejected with the allowed values."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.context import settings
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.errors import InvalidRequest


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_takes_its_own_defaults(strategy: str) -> None:
    keys = STRATEGIES[strategy].keys
    given_keys = {name: key.default for name, key in keys.items() if key.default is not None}
    found = settings.parse({"strategy": strategy, **given_keys})
    assert found == ContextSettings(strategy, given_keys)


@given(
    st.sampled_from(sorted(STRATEGIES)), st.dictionaries(st.text(max_size=12), st.none() | st.booleans() | st.floats())
)
def test_any_settings_are_accepted_or_rejected(strategy: str, options: dict[str, Any]) -> None:
    try:
        found = settings.parse({**options, "strategy": strategy})
    except InvalidRequest as error:
        at = error.param or "context"
    else:
        at = "context"
        assert set(found.options) <= set(STRATEGIES[strategy].keys)
    assert at.startswith("context")


def test_all_problems_of_a_request_are_reported_together() -> None:
    with pytest.raises(InvalidRequest) as caught:
        settings.parse({"strategy": "token_window", "budget": 0, "target": 1.0, "preserve_resent": 3}, where="")
    assert caught.value.param == "budget"
    for part in (
        "budget: expected an integer, at least 1, got 0",
        "target: expected",
        "did you mean 'preserve_recent'?",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("budget", "many", "expected an integer, at least 1, got"),
        ("budget", {"k": 1}, "expected an integer, at least 1, got a mapping"),
        ("target", 1, "expected a number above 0 and below 1, got 1"),
        ("summarizer_llm", "", "expected a string that is not empty, got"),
        ("clear_tool_results", 3, "expected a mapping with its keys, true or false, got 3"),
    ],
)
def test_problems_name_the_allowed_values(key: str, wrong: object, right: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{key}: {right}"):
        settings.parse({"strategy": "summary_buffer", key: wrong})


@pytest.mark.parametrize("value", [1.0, 1, 0, 1.5, -0.1, float("nan"), float("inf"), True, "0.5"])
@pytest.mark.parametrize("key", ["threshold", "target"])
def test_a_watermark_is_below_one(key: str, value: object) -> None:
    with pytest.raises(InvalidRequest):
        settings.parse({"strategy": "summary_buffer", key: value})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strategy": "summary_buffer", "prompt": ""}, "prompt: expected a string that is not empty, got ''"),
        (
            {"strategy": "summary_buffer", "threshold": 0.5},
            "target: must be less than threshold (0.5), and is 0.7 unless set",
        ),
        ({"strategy": "summary_buffer", "target": 0.9}, "target: must be less than threshold (0.85), got 0.9"),
        (
            {"strategy": "clear_tool_results", "exclude_tools": ["plan", 5]},
            "exclude_tools: expected a list of strings, got a list with 5 in it",
        ),
    ],
)
def test_the_message_of_a_problem_is_exact(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        settings.parse(given, where="")
    assert str(caught.value) == said


@pytest.mark.parametrize("given", [True, False, {}, {"keep": 0, "trigger": None}, {"exclude_tools": ["search"]}])
def test_results_are_cleared_before_any_other_strategy(given: object) -> None:
    found = settings.parse({"strategy": "token_window", "clear_tool_results": given})
    assert found.options == {"clear_tool_results": given}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kep": 3}, "context.clear_tool_results.kep: unknown key; did you mean 'keep'"),
        ({"keep": -1}, "context.clear_tool_results.keep: expected an integer, at least 0, got -1"),
        ("yes", "context.clear_tool_results: expected a mapping with its keys, true or false, got 'yes'"),
    ],
)
def test_a_problem_below_a_composition_names_its_path(given: object, said: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        settings.parse({"clear_tool_results": given})


def test_settings_do_not_change_with_the_mapping_they_came_from() -> None:
    options = {"budget": 5}
    found = ContextSettings("digest", options)
    options["budget"] = 6
    assert found.options == {"budget": 5}
