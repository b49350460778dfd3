"""The token budget of a working set: the formula, known context windows, and reductions."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.domain.budget import UNKNOWN_WINDOW, Budget, ModelWindow, describe_unknown_window, window_of
from holdfast.errors import InvalidRequest


def test_the_budget_formula() -> None:
    budget = Budget(200_000, 4_096, 2_048, 8_192)
    assert budget.input == 185_664
    assert Budget(200_000) == budget
    assert hash(Budget(200_000)) == hash(budget)


@given(st.integers(1, 20_000_000))
def test_the_default_headrooms_leave_nine_sixteenths_of_any_window(window: int) -> None:
    budget = Budget(window)
    assert budget.input * 16 >= window * 9
    assert budget.max_reply_tokens <= 4_096
    assert budget.safety_headroom <= 2_048
    assert budget.tool_result_headroom <= 8_192


def test_a_budget_without_input_is_rejected_with_the_numbers() -> None:
    with pytest.raises(InvalidRequest, match=r"8192 - 8000 - 512 - 1024 = -1344") as caught:
        Budget(8_192, max_reply_tokens=8_000)
    assert caught.value.param == "context_window"


@pytest.mark.parametrize(
    ("model", "configured", "learned", "window"),
    [
        ("gpt-4o", None, 32_768, 32_768),
        ("gpt-4", None, 128_000, 128_000),
        ("who-knows", None, 8_192, 8_192),
        ("who-knows", 4_096, 8_192, 4_096),
        ("who-knows", 16_384, 8_192, 8_192),
        ("gpt-5", None, 272_000, 276_096),
        ("gpt-5", None, 200_000, 200_000),
    ],
)
def test_a_learned_window_overrides_the_table_but_not_the_configuration(
    model: str, configured: int | None, learned: int, window: int
) -> None:
    budget = Budget.for_model(model, context_window=configured, learned_window=learned)
    assert budget.context_window == window


@pytest.mark.parametrize(
    ("model", "window", "output"),
    [
        ("gpt-4o", 128_000, 16_384),
        ("gpt-4o-mini-2024-07-18", 128_000, 16_384),
        ("gpt-4o-2024-05-13", 128_000, 4_096),
        ("gpt-4", 8_192, 8_192),
        ("gpt-4-0613", 8_192, 8_192),
        ("gpt-4-turbo-2024-04-09", 128_000, 4_096),
        ("gpt-4.1-nano", 1_047_576, 32_768),
        ("gpt-3.5-turbo", 16_385, 4_096),
        ("gpt-35-turbo", 16_385, 4_096),
        ("gpt-5-mini", 400_000, 128_000),
        ("gpt-5.2", 400_000, 128_000),
        ("gpt-5-chat-latest", 128_000, 16_384),
        ("o1", 200_000, 100_000),
        ("o3-mini", 200_000, 100_000),
        ("claude-3-opus-20240229", 200_000, 4_096),
        ("claude-3-5-sonnet-latest", 200_000, 8_192),
        ("claude-opus-4-20250514", 200_000, 32_000),
        ("claude-sonnet-4-5-20250929", 200_000, 64_000),
        ("anthropic/claude-sonnet-4.5", 200_000, 64_000),
        ("us.anthropic.claude-3-5-sonnet-20241022-v2:0", 200_000, 8_192),
        ("claude-opus-4-7", 1_000_000, 128_000),
        ("gemini-1.5-pro", 2_097_152, 8_192),
        ("models/gemini-2.5-flash", 1_048_576, 65_536),
        ("mistral-large-latest", 128_000, 8_192),
        ("mistral:7b", 32_768, 8_192),
        ("open-mixtral-8x22b", 65_536, 8_192),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8_192, 8_192),
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072, 131_072),
        ("llama3:8b", 8_192, 8_192),
        ("llama3.1:8b", 131_072, 131_072),
        ("meta.llama3-1-8b-instruct-v1:0", 131_072, 131_072),
        ("Qwen/Qwen2.5-7B-Instruct", 32_768, 8_192),
        ("qwen3:8b", 32_768, 32_768),
        ("deepseek-chat", 128_000, 8_192),
        ("deepseek/deepseek-r1:free", 128_000, 32_768),
        ("offline", 128_000, 4_096),
    ],
)
def test_known_windows(model: str, window: int, output: int) -> None:
    known = window_of(model)
    assert known is not None
    assert (known.context_window, known.max_output) == (window, output)


@pytest.mark.parametrize("model", ["", "o100", "gpt", "my-gpt-4o", "llama", "fast", "mistralish", "offline2"])
def test_unknown_windows(model: str) -> None:
    assert window_of(model) is None
    assert f"{UNKNOWN_WINDOW:,}" in (describe_unknown_window(model) or "")
    assert Budget.for_model(model).context_window == UNKNOWN_WINDOW


@given(
    st.sampled_from(["gpt-4o-mini", "claude-3-haiku-20240307", "gemini-2.5-pro", "llama3.1:8b", "o4-mini"]),
    st.sampled_from(["", "openai/", "openrouter/openai/", "ft:", "OPENAI/"]),
    st.booleans(),
)
def test_providers_and_case_do_not_matter(model: str, prefix: str, upper: bool) -> None:
    spelled = prefix + (model.upper() if upper else model)
    assert window_of(spelled) == window_of(model) is not None
    assert describe_unknown_window(spelled) is None


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-opus-4-7[1m]", 1_000_000),
        ("claude-opus-4-7 [1M]", 1_000_000),
        ("anthropic/claude-sonnet-4-5[1m]", 1_000_000),
        ("claude-opus-4-7[200k]", 200_000),
        ("claude-opus-4-7(preview)", 1_000_000),
        ("claude-opus-4-7+beta", 1_000_000),
        ("gpt-4.1[latest]", 1_047_576),
        ("gpt-4o,2024-08-06", 128_000),
    ],
)
def test_a_suffix_changes_the_window_only_if_it_names_one(model: str, window: int) -> None:
    assert certain(window_of(model)).context_window == window


def certain(known: ModelWindow | None) -> ModelWindow:
    assert known is not None
    return known


@given(st.one_of(st.none(), st.integers(1, 128_000)))
def test_an_input_limit_holds_for_any_reply_size(max_tokens: int | None) -> None:
    budget = Budget.for_model("gpt-5", max_reply_tokens=max_tokens)
    assert budget.input <= 272_000
    assert budget.input + budget.safety_headroom + budget.tool_result_headroom <= 272_000


@given(st.text(max_size=30), st.integers(1, 10_000_000), st.integers(0, 200_000))
def test_budgets_for_any_model_fit_the_window(model: str, window: int, reply: int) -> None:
    assume(window > reply * 4)
    budget = Budget.for_model(model, context_window=window, max_reply_tokens=reply)
    assert 0 < budget.input < window or reply == 0
    assert budget.max_reply_tokens == reply
