"""Loading a configuration: durations, sizes, variables, and every problem once with its line and path."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.config import loader
from holdfast.config.gateway import Gateway
from holdfast.config.loader import load_settings
from holdfast.config.model import Config
from holdfast.durations import parse_duration
from holdfast.errors import ConfigError
from holdfast.limits import CONFIG_BYTES
from holdfast.sections import get_fields, parse_size

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "sk-not-to-be-seen"


def load(text: str, **env: str) -> Config:
    return loader.load(text, env=env)


def problems(text: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **env)
    return caught.value.problems


# -- durations and sizes ---------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86_400),
        ("30m", 1_800),
        ("90s", 90),
        ("1h30m", 5_400),
        ("250ms", 0.25),
        ("7d", 604_800),
        ("1d2h3m4s5ms", 93_784.005),
        ("90", 90),
        ("1.5", 1.5),
        ("1.5h", 5_400),
        ("0", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "1w", "30m1h", "1h1h", "-1s", "1 h", "1:30", "inf", "nan", "1e3", "٣s", "5M"]
)
def test_invalid_durations(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("32MiB", 32 << 20), ("32 mib", 32 << 20), ("1GB", 10**9), ("2kB", 2_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1M", "-1", "1.5MiB", "1TB", "1  MiB"])
def test_invalid_sizes(text: str) -> None:
    assert parse_size(text) is None


# -- problems with their place -------------------------------------------------


@given(st.sampled_from(sorted(get_fields(Gateway))), st.data())
def test_a_typing_error_suggests_the_nearest_key(key: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(key) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase))
    slip = data.draw(
        st.sampled_from([key[:place] + key[place + 1 :], key[:place] + letter + key[place:], key.replace("_", "-")])
    )
    assume(slip not in get_fields(Gateway))
    assume(len(key) > 4)  # of four letters, one wrong one may be nearer to something else
    assert problems(f"gateway: {{{slip}: 1}}") == [
        f"holdfast.yaml:1: gateway.{slip}: unknown key; did you mean {key!r}?"
    ]


@given(st.text(max_size=200))
def test_any_text_loads_or_raises_a_config_error(text: str) -> None:
    try:
        load(text)
    except ConfigError as error:
        found = error.problems
    else:
        found = ["none"]
    assert found


# -- bounds ------------------------------------------------------------------------


def test_exponential_aliases_are_rejected() -> None:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)]
    assert "more than 50,000 values" in problems("\n".join(lines))[0]


@pytest.mark.parametrize("text", ["a: " + "[" * 100_000, "a: &a [*a]", "a: &a {b: *a}"])
def test_deep_nesting_is_rejected(text: str) -> None:
    assert "nested more than 32 deep" in problems(text)[0]


def test_files_that_are_too_large_are_rejected(tmp_path: Path) -> None:
    text = "# " + "x" * CONFIG_BYTES
    assert problems(text) == ["holdfast.yaml: larger than 1 MiB"]
    file = tmp_path / "big.yaml"
    file.write_text("# " + "é" * CONFIG_BYTES)
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load_settings({"config": str(file)}, {})


def test_files_must_be_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_bytes(b"\xef\xbb\xbfagents:\n  a: {instruction: \xc3\xa9}\n")
    assert load_settings({"config": str(file)}, {}).agents["a"].instruction == "é"
    file.write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(ConfigError, match=re.escape(f"{file}:2: not UTF-8")):
        load_settings({"config": str(file)}, {})
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_settings({"config": str(tmp_path / "none.yaml")}, {})


# -- variables -----------------------------------------------------------------------


@pytest.mark.parametrize("written", ["${", "${}", "${1A}", "${A B}", "${A:-${B}}", "${A:+no}", "cost: ${price + 1}"])
def test_invalid_variables_are_rejected(written: str) -> None:
    text = yaml.safe_dump({"agents": {"a": {"instruction": written}}})
    [problem] = problems(text, A="a", B="b")
    assert "agents.a.instruction" in problem
    assert "$${" in problem


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_values_of_variables_are_not_parsed_as_yaml(value: str) -> None:
    found = load("agents:\n  a: {instruction: '<${V}>'}\n", V=value)
    assert found.agents["a"].instruction == f"<{value}>"
    assert set(found.agents) == {"a"}


def test_a_value_that_is_one_variable_is_converted_to_the_type() -> None:
    text = """
gateway: {port: "${PORT}", shutdown_grace: "${GRACE:-1m}"}
agents: {a: {search: {enabled: "${ON}"}, instruction: "${PORT}"}}
context: {strategy: summary_buffer, budget: "${BUDGET}", threshold: "${SHARE}", target: 0.2, summarizer_llm: "${BUDGET}"}
databases: {d: {driver: postgres, host: h, database: d, password: "${PORT}"}}
llms: {x: {base_url: "${NONE:-}", params: {seed: "${PORT}"}}}
"""
    found = load(text, PORT="9000", ON="true", BUDGET="4000", SHARE="0.5")
    assert (found.gateway.port, found.gateway.shutdown_grace) == (9000, 60)
    assert found.agents["a"].search is not None
    assert found.agents["a"].search.enabled is True
    assert found.agents["a"].instruction == "9000"
    assert found.context.options == {"budget": 4000, "threshold": 0.5, "target": 0.2, "summarizer_llm": "4000"}
    assert found.databases["d"].password == "9000"
    assert found.llms["x"].base_url is None
    assert found.llms["x"].params == {"seed": 9000}


def test_messages_never_show_values_of_variables() -> None:
    text = (
        "gateway: {port: '${S}'}\nllms: {a: {base_url: '${S}', api_key: ['${S}'], timeout: '${S}', provider: '${S}'}}"
    )
    assert SECRET not in "\n".join(problems(text, S=SECRET))
    assert SECRET not in "\n".join(problems(f"llms: {{a: {{api_key: [{SECRET}], headers: {SECRET}x: }}}}"))


@pytest.mark.parametrize(
    "keys",
    [
        "strategy: '${S}'",
        "strategy: token_window, budget: '${S}', target: 'a ${S}'",
        "strategy: clear_tool_results, exclude_tools: '${S}', keep: 'a ${S}'",
        "strategy: none, clear_tool_results: {keep: '${S}'}",
    ],
)
def test_messages_about_strategies_never_show_values_of_variables(keys: str) -> None:
    found = problems(f"context: {{{keys}}}", S=SECRET)
    assert found
    assert "${S}" in "\n".join(found)
    assert SECRET not in "\n".join(found)
