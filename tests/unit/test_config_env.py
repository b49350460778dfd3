"""Configuration from the environment and `.env`: priorities, unknown keys, and all problems reported at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from holdfast.config import loader
from holdfast.config.dotenv import parse_dotenv
from holdfast.config.gateway import Gateway
from holdfast.config.loader import load_settings
from holdfast.config.model import Config
from holdfast.errors import ConfigError
from holdfast.limits import DOTENV_BYTES
from holdfast.sections import get_fields, unwrap_type


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str = "", **env: str) -> Config:
    return loader.load(text, env=env)


def problems(text: str = "", **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **env)
    return caught.value.problems


# -- HOLDFAST_… ------------------------------------------------------------------


@given(st.sampled_from(sorted(get_fields(Gateway))), st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_value_is_the_same_from_the_file_and_from_the_environment(key: str, value: str) -> None:
    """Both accept the value or both reject it."""
    if not isinstance(
        unwrap_type(get_fields(Gateway)[key].type)[0], inspect.StrType | inspect.IntType | inspect.FloatType
    ):
        return
    outcomes = []
    for text, env in (
        (f"gateway: {{{key}: '${{X}}'}}", {"X": value}),
        ("", {f"HOLDFAST_GATEWAY__{key.upper()}": value}),
    ):
        try:
            outcomes.append(getattr(load(text, **env).gateway, key))
        except ConfigError:
            outcomes.append(ConfigError)
    assert outcomes[0] == outcomes[1] or value == ""


# -- .env --------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["A={}'", 'A={}"x', "A=x{}#", "{}A", "A{}"])
def test_a_dotenv_line_is_parsed_in_linear_time(line: str) -> None:
    """Also with many spaces."""
    began = time.process_time()
    parse_dotenv(line.format(" " * (DOTENV_BYTES - 4)))
    assert time.process_time() - began < 5, "quadratic parsing took minutes"


@given(st.text(alphabet="AB=#'\" \n\\$x", max_size=40))
def test_every_dotenv_line_is_parsed_or_reported(text: str) -> None:
    """Reported line numbers exist in the file."""
    found, mistakes = parse_dotenv(text)
    lines = text.count("\n") + 1
    assert all(1 <= line <= lines for line, _ in [*found.values(), *mistakes])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"A=1\nB\n", ".env:2: expected NAME=value"),
        (b"A=\xff\n", ".env:1: not UTF-8"),
        (b"A='x\n", ".env:1: expected NAME=value"),
        (b"#" * (1 << 17), ".env: larger than 64 KiB"),
    ],
)
def test_invalid_dotenv_files_are_rejected(here: Path, data: bytes, message: str) -> None:
    (here / ".env").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load_settings({}, {})
    assert [problem for problem in caught.value.problems if message in problem]


def test_an_empty_variable_hides_that_of_the_file(here: Path) -> None:
    (here / ".env").write_text("PORT=9000\n")
    (here / "holdfast.yaml").write_text("gateway: {port: '${PORT:-8000}'}\n")
    assert load_settings({}, {}).gateway.port == 9000
    assert load_settings({}, {"PORT": ""}).gateway.port == 8000
