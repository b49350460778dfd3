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


WINDOWS = {
    (4_096, 4_096): "deepseek-llm gpt-3.5-turbo-0301 gpt-3.5-turbo-0613 gpt-3.5-turbo-instruct llama2:7b",
    (8_192, 8_192): "gemma gemma2 gpt-4 gpt-4-0613 llama-3 llama3 llama3:8b meta-llama/Meta-Llama-3-8B-Instruct",
    (16_385, 4_096): "gpt-3.5-turbo gpt-35-turbo",
    (32_768, 8_192): "Qwen/Qwen2.5-7B-Instruct codestral-2405 gemma3:1b gpt-4-32k mistral mistral:7b qwen2.5:7b",
    (32_768, 32_768): "qwen3 qwen3-32b qwen3:8b",
    (128_000, 4_096): "gpt-4-0125 gpt-4-1106 gpt-4-turbo gpt-4-turbo-2024-04-09 gpt-4o-2024-05-13 offline",
    (128_000, 8_192): "codestral deepseek-chat deepseek-coder-v2 devstral-small ministral-8b mistral-large",
    (128_000, 16_384): "chatgpt-4o gpt-4.5 gpt-4o gpt-4o-mini-2024-07-18 gpt-5-chat gpt-5.1-chat gpt-9",
    (128_000, 32_768): "deepseek-r1 deepseek-reasoner deepseek/deepseek-r1:free o1-preview",
    (131_072, 8_192): "gemma-3 gemma3 qwen-plus qwen-turbo",
    (131_072, 131_072): "gpt-oss llama3.1:8b meta-llama/Llama-3.3-70B-Instruct meta.llama3-1-8b-instruct-v1:0",
    (200_000, 8_192): "claude-3-5 claude-3-5-sonnet-latest us.anthropic.claude-3-5-sonnet-20241022-v2:0",
    (200_000, 32_000): "claude-opus-4 claude-opus-4-20250514",
    (200_000, 64_000): "anthropic/claude-sonnet-4.5 claude-3-7 claude-haiku-4 claude-opus-4-5 claude-sonnet-4",
    (200_000, 100_000): "o1 o3 o3-mini o4",
    (262_144, 32_768): "qwen3-235b-a22b-instruct-2507 qwen3-235b-a22b-thinking-2507 qwen3-30b-a3b-instruct-2507",
    (400_000, 128_000, 272_000): "gpt-5 gpt-5-mini gpt-5.2 gpt-5.4-mini gpt-5.4-nano",
    (1_000_000, 8_192): "llama-4 llama4 qwen-long",
    (1_000_000, 128_000): "claude-fable-5 claude-opus-4-6 claude-opus-4-7 claude-opus-4-8 claude-opus-5",
    (1_047_576, 32_768): "gpt-4.1 gpt-4.1-nano",
    (1_048_576, 65_536): "gemini-2.5 gemini-3 gemini-3.1-pro models/gemini-2.5-flash",
    (1_050_000, 128_000, 922_000): "gpt-5.4",
    (10_000_000, 8_192): "llama-4-scout",
}


@pytest.mark.parametrize(("model", "window"), [(name, key) for key, names in WINDOWS.items() for name in names.split()])
def test_known_windows(model: str, window: tuple[int, ...]) -> None:
    known = window_of(model)
    assert known is not None
    assert (known.context_window, known.max_output, known.max_input)[: len(window)] == window


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
