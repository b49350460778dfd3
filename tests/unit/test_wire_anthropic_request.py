"""Converting fields of a Chat Completions request to Anthropic's Messages API."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.testing.anthropic_rules import check_request
from holdfast.wire.anthropic_requests import build_body, check, list_betas

Json = dict[str, Any]
HI: list[Json] = [{"role": "user", "content": "hi"}]
OLD, NEW = "claude-sonnet-4-5", "claude-opus-4-8"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False}
CALL = {"id": "a", "type": "function", "function": {"name": "find", "arguments": "{}"}}
ROUND: list[Json] = [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "a", "content": "found"}


def tool(name: str) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def parse_body(model: str = OLD, **fields: Any) -> Json:
    """The request for a body; what it is made of is left alone, and Anthropic would take it."""
    body = {"model": model, "messages": HI, **fields}
    before = copy.deepcopy(body)
    request = build_body(body, max_tokens=1_000)
    assert body == before
    assert check_request({**request, "stream": True}) == []
    return request


def parse_refused(param: str, **fields: Any) -> str:
    """The error for a body, which is the same before anything is written."""
    with pytest.raises(InvalidRequest) as caught:
        build_body({"model": OLD, "messages": HI, **fields})
    assert caught.value.param == param
    with pytest.raises(InvalidRequest):
        check(fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 50}, {"max_tokens": 50}),
        ({"max_completion_tokens": 60, "max_tokens": 50}, {"max_tokens": 60}),
        ({}, {"max_tokens": 1_000}),
        ({"stop": "END"}, {"stop_sequences": ["END"]}),
        ({"stop": ["a", " ", "b"]}, {"stop_sequences": ["a", "b"]}),
        ({"stop": [" \n"]}, {"stop_sequences": None}),
        ({"stop_sequences": ["x"], "stop": "y"}, {"stop_sequences": ["x"]}),
        ({"temperature": 1.7}, {"temperature": 1.0}),
        ({"temperature": 0.3, "top_k": 5}, {"temperature": 0.3, "top_k": 5}),
        ({"metadata": {"user_id": "u-1", "team": "a"}}, {"metadata": {"user_id": "u-1"}}),
        ({"metadata": {"team": "a"}}, {"metadata": None}),
        ({"service_tier": "default"}, {"service_tier": "standard_only"}),
        ({"service_tier": "flex"}, {"service_tier": None}),
        ({"container": "c-1", "speed": "fast"}, {"container": "c-1", "speed": "fast"}),
        ({"seed": 1, "logprobs": True, "prompt_cache_key": "k", "store": True, "n": 1}, {"seed": None, "n": None}),
        ({"response_format": {"type": "text"}}, {"output_config": None}),
        ({"stop": None, "temperature": None, "tools": None}, {"stop_sequences": None, "temperature": None}),
        ({"tool_choice": "auto"}, {"tool_choice": None}),
    ],
)
def test_fields_are_translated_passed_on_or_dropped(fields: Json, expected: Json) -> None:
    request = parse_body(**fields)
    assert {name: request.get(name) for name in expected} == expected
    assert not {"stop", "n", "seed", "logprobs", "prompt_cache_key", "store", "user"} & request.keys()


def test_user_names_are_hashed() -> None:
    """Anthropic asks for an opaque id that is stable per user."""
    (one,), (two,), (other,) = (
        parse_body(user=user)["metadata"].values() for user in ("ada@example.com", "ada@example.com", "b")
    )
    assert one == two != other
    assert "ada" not in one


def test_json_schemas_are_passed_as_output_format() -> None:
    """The only `response_format` that Anthropic supports."""
    wanted = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}}
    assert parse_body(response_format=wanted)["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("n", {"n": 2}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        ("response_format", {"response_format": "json"}),
        ("stop", {"stop": 1}),
        ("stop", {"stop": ["a", 5]}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("function_call", {"function_call": "auto"}),
        ("tool_choice", {"tools": [tool("find")], "tool_choice": "sometimes"}),
        ("tool_choice", {"tools": [tool("find")], "tool_choice": {"type": "function"}}),
        ("tool_choice", {"tools": [tool("find")], "tool_choice": {"type": "allowed_tools", "allowed_tools": 5}}),
        ("tools[0].function.name", {"tools": [tool("a b")]}),
    ],
)
def test_unsupported_fields_that_change_the_answer_are_rejected(param: str, fields: Json) -> None:
    """The error names the field and the allowed values."""
    assert param.partition("[")[0] in parse_refused(param, **fields)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ({"type": "function", "function": {"name": "find"}}, {"type": "tool", "name": "find"}),
        ({"type": "tool", "name": "find"}, {"type": "tool", "name": "find"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"type": "any", "disable_parallel_tool_use": True}),
    ],
)
def test_tool_choices(choice: Any, expected: Json) -> None:
    assert parse_body(tools=[tool("find")], tool_choice=choice)["tool_choice"] == expected


def test_allowed_tools_filters_the_tools() -> None:
    """Anthropic has no such option, so other tools are not sent."""
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "b"}}]}
    request = parse_body(tools=[tool("a"), tool("b")], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert [one["name"] for one in request["tools"]] == ["b"]
    assert request["tool_choice"] == {"type": "any"}


def test_one_call_at_a_time() -> None:
    assert parse_body(tools=[tool("a")], parallel_tool_calls=False)["tool_choice"] == {
        "type": "auto",
        "disable_parallel_tool_use": True,
    }
    assert parse_body(tools=[tool("a")], parallel_tool_calls=False, tool_choice="none")["tool_choice"] == {
        "type": "none"
    }


def test_prompts_with_calls_but_without_tools_get_placeholder_tools() -> None:
    """Anthropic rejects the calls otherwise; the placeholders cannot be called."""
    request = parse_body(messages=[*ROUND, RESULT])
    assert [one["name"] for one in request["tools"]] == ["find"]
    assert request["tool_choice"] == {"type": "none"}


# -- reasoning -------------------------------------------------------------------------


def test_effort_for_models_with_adaptive_thinking() -> None:
    request = parse_body(NEW, reasoning_effort="minimal", temperature=0.2, top_p=0.5)
    assert request["thinking"] == {"type": "adaptive"}
    assert request["output_config"] == {"effort": "low"}
    assert not {"temperature", "top_p"} & request.keys()


def test_effort_for_models_with_a_thinking_budget() -> None:
    """The reply has as much as ever beside it; a reply that is given its length shares that."""
    request = parse_body(OLD, reasoning_effort="medium", temperature=0.2)
    assert (request["thinking"]["budget_tokens"], request["max_tokens"]) == (8_192, 9_192)
    request = parse_body(OLD, reasoning_effort="high", max_tokens=2_000)
    assert (request["thinking"]["budget_tokens"], request["max_tokens"]) == (1_999, 2_000)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (OLD, {"reasoning_effort": "none"}),
        (OLD, {"reasoning_effort": "low", "max_tokens": 900}),
        ("claude-3-5-haiku-latest", {"reasoning_effort": "high"}),
        (NEW, {"reasoning_effort": "high", "tools": [tool("find")], "tool_choice": "required"}),
        (OLD, {"reasoning_effort": "high", "messages": [*ROUND, RESULT]}),
        (OLD, {"thinking": {"type": "enabled", "budget_tokens": 2_000}, "messages": [*ROUND, RESULT]}),
    ],
)
def test_reasoning_is_omitted_where_it_would_be_rejected(model: str, fields: Json) -> None:
    """By a model that has none, with a choice that forces a call, within a tool round that began without any."""
    assert "thinking" not in parse_body(model, **fields)


def test_reasoning_continues_within_a_tool_round() -> None:
    thought = {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    request = parse_body(OLD, reasoning_effort="low", messages=[HI[0], {**ROUND[1], **thought}, RESULT])
    assert request["thinking"]["budget_tokens"] == 2_048


def test_the_native_thinking_field_is_unchanged() -> None:
    """`thinking` stays as it is; the reply gets room beside it where its length is not said."""
    thinking = {"type": "enabled", "budget_tokens": 5_000}
    request = parse_body(OLD, thinking=thinking, reasoning_effort="low")
    assert (request["thinking"], request["max_tokens"]) == (thinking, 6_000)


def test_betas_go_into_a_header() -> None:
    assert list_betas({"betas": ["a-1", "b-2"]}) == ["a-1", "b-2"]
    assert list_betas({"betas": "a-1"}) == list_betas({}) == []
    assert "betas" not in parse_body(betas=["a-1"])


# -- anything ----------------------------------------------------------------------------

json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=3) | st.sampled_from(["auto", "function"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "name", "function", "tools", "allowed_tools", "json_schema"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
FIELDS = ["tool_choice", "response_format", "stop", "metadata", "thinking", "reasoning_effort", "n", "service_tier"]
FIELDS += ["output_config", "temperature", "cache_control", "user", "betas", "stop_sequences", "functions"]


@given(st.dictionaries(st.sampled_from(FIELDS), json), st.sampled_from([OLD, NEW]))
def test_any_json_gives_a_request_or_an_error(fields: Json, model: str) -> None:
    assert "messages" in parse_or_keep({"model": model, "messages": HI, "tools": [tool("find")], **fields})


def parse_or_keep(body: Json) -> Json:
    """The request for a body; for one that is refused, the body."""
    try:
        return build_body(body)
    except InvalidRequest:
        return body
