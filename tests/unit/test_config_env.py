"""Configuration from the environment and `.env`: priorities, unknown keys, and all problems reported at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from holdfast import config
from holdfast.config import Config
from holdfast.config.environment import parse_dotenv
from holdfast.config.gateway import Gateway
from holdfast.errors import ConfigError
from holdfast.limits import DOTENV_BYTES
from holdfast.sections import get_fields, unwrap_type

SECRET = "sk-not-to-be-seen"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str = "", **env: str) -> Config:
    return config.load(text, env=env)


def problems(text: str = "", **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **env)
    return caught.value.problems


# -- HOLDFAST_… ------------------------------------------------------------------


def test_variables_are_converted_to_the_type_of_their_key() -> None:
    found = load(
        "agents: {a: {tools: [x]}}\nllms: {Fast-1: {model: x, timeout: 60s, params: {seed: 1}}}",
        HOLDFAST_GATEWAY__PORT="9000",
        HOLDFAST_GATEWAY__MAX_BODY="1MiB",
        HOLDFAST_GATEWAY__QUEUE_TIMEOUT="1m30s",
        HOLDFAST_GATEWAY__MATCH="off",
        HOLDFAST_GATEWAY__ALLOWED_HOSTS="a.example, b.example",
        HOLDFAST_PYTHON__ENABLED="true",
        HOLDFAST_LLMS__FAST_1__MODEL="gpt-4o",
        HOLDFAST_LLMS__FAST_1__PARAMS__TEMPERATURE="0.5",
        HOLDFAST_LLMS__FAST_1__TIMEOUT="5s",
        HOLDFAST_LLMS__FAST_1__PARAMS__SEED="7",
        HOLDFAST_LLMS__FAST_1__HEADERS__X_TEAM="blue",
        HOLDFAST_LLMS__OTHER__PROVIDER="anthropic",
        HOLDFAST_AGENTS__A__TOOLS="y,z",
        HOLDFAST_AGENTS__A__CONTEXT__BUDGET="500",
        HOLDFAST_CONTEXT__STRATEGY="clear_tool_results",
        HOLDFAST_CONTEXT__EXCLUDE_TOOLS="x,y",
        HOLDFAST_HOOKS__WEBHOOKS__0__URL="https://x/",
        HOLDFAST_HOOKS__WEBHOOKS__0__SECRET=SECRET,
        HOLDFAST_STORAGE__SESSIONS__RETENTION="7d",
        HOLDFAST_GATEWAY__HOST="",
    )
    gateway, llm = found.gateway, found.llms["Fast-1"]
    assert (found.sessions.max_sessions, found.storage.sessions.retention) == (10_000, 7 * 86_400)
    assert (gateway.host, gateway.port, gateway.max_body, gateway.match) == ("127.0.0.1", 9000, 1 << 20, "off")
    assert (gateway.queue_timeout, gateway.allowed_hosts) == (90.0, ("a.example", "b.example"))
    assert found.python.enabled
    assert (llm.model, llm.params, llm.headers) == ("gpt-4o", {"seed": 7, "temperature": 0.5}, {"x_team": "blue"})
    assert llm.timeout == 5.0
    assert found.llms["other"].provider == "anthropic"
    assert found.agents["a"].tools == ("y", "z")
    assert config.resolve_context(found, "a").options == {"budget": 500, "exclude_tools": ["x", "y"]}
    assert found.hooks.webhooks[0].secret == SECRET


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HOLDFAST_GATEWAY__PROT", "1", "unknown key; did you mean HOLDFAST_GATEWAY__PORT?"),
        ("HOLDFAST_GATEWAY__ZZZZ", "1", "unknown key 'zzzz'; known: host"),
        ("HOLDFAST_GATWAY__PORT", "1", "unknown key; did you mean HOLDFAST_GATEWAY?"),
        ("HOLDFAST_GATEWAY_PORT", "1", "unknown; did you mean HOLDFAST_GATEWAY__PORT?"),
        ("HOLDFAST_GATEWAY", "1", "is a mapping: name a key in it, like HOLDFAST_GATEWAY__…"),
        ("HOLDFAST_SESSIONS_TTL", "1", "did you mean HOLDFAST_SESSIONS__TTL?"),
        ("HOLDFAST_GATEWAY__PORT", "many", "gateway.port: expected an integer from 0 to 65535, got 'many'"),
        ("HOLDFAST_GATEWAY__PORT__X", "1", "gateway.port has no keys below it"),
        ("HOLDFAST_LLMS__FSAT__MODEL", "x", "no entry 'fsat' in llms; did you mean 'fast' (HOLDFAST_LLMS__FAST…)?"),
        ("HOLDFAST_LLMS__FAST", "x", "is a mapping: name a key in it, like HOLDFAST_LLMS__FAST__PROVIDER"),
        ("HOLDFAST_LLMS", "x", "is a mapping"),
        ("HOLDFAST_LLMS____MODEL", "x", "expected the name of an entry after HOLDFAST_LLMS"),
        ("HOLDFAST_HOOKS__WEBHOOKS", "x", "name one of them, like HOLDFAST_HOOKS__WEBHOOKS__0__…"),
        (
            "HOLDFAST_HOOKS__WEBHOOKS__2__URL",
            "x",
            "expected a number from 0 to 0 after HOLDFAST_HOOKS__WEBHOOKS, got '2'",
        ),
        (
            "HOLDFAST_HOOKS__WEBHOOKS__²__URL",
            "x",
            "expected a number from 0 to 0 after HOLDFAST_HOOKS__WEBHOOKS, got '²'",
        ),
        ("HOLDFAST_LLMS__FAST__PARAMS" + "__A" * 3000, "x", "nested more than 32 deep"),
        ("HOLDFAST_HOOKS__WEBHOOKS__0__URL", "https://x", "hooks.webhooks[0].secret: missing"),
        ("HOLDFAST_CONTEXT__BUDGT", "5", "unknown key; did you mean HOLDFAST_CONTEXT__BUDGET?"),
        ("HOLDFAST_CONTEXT__BUDGET", "x", "context.budget: expected an integer, at least 1, got 'x'"),
        ("HOLDFAST_AUTH__RATE", "-1", "auth.rate: expected an integer from 0"),
    ],
)
def test_unknown_and_invalid_variables_are_rejected(name: str, value: str, message: str) -> None:
    """The message names the variable and the nearest match."""
    [problem] = problems("llms: {fast: {model: x}}", **{name: value})
    assert problem.startswith(f"{name}: ")
    assert message in problem


def test_two_variables_for_one_key_are_rejected() -> None:
    """Otherwise one of them would win unpredictably."""
    found = problems(HOLDFAST_LLMS__A__PROVIDER="openai", HOLDFAST_LLMS__A__provider="openai")
    assert found == ["HOLDFAST_LLMS__A__provider: the same as HOLDFAST_LLMS__A__PROVIDER; remove one of the two"]


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


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=1", "1"),
        ("export A = 1 # one", "1"),
        ("A=", ""),
        ("A= # nothing", ""),
        ("A=p#w", "p#w"),
        ("A='a # b'", "a # b"),
        ("A='$X \\n'  # note", "$X \\n"),
        ('A="a\\nb \\"c\\" $X"', 'a\nb "c" $X'),
        ('A="one\ntwo"', "one\ntwo"),
        ("A=a b  ", "a b"),
        ("A=1\r", "1"),
        ("A=1\nA=2", "2"),
    ],
)
def test_dotenv_lines_are_parsed(line: str, value: str) -> None:
    found, mistakes = parse_dotenv(f"# first\n\n{line}\nB=b\n".replace("\r\n", "\n"))
    assert ({name: text for name, (_, text) in found.items()}, mistakes) == ({"A": value, "B": "b"}, [])


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


@pytest.mark.skipif(os.name != "posix", reason="file modes are of POSIX")
@pytest.mark.parametrize(
    ("mode", "text", "warns"),
    [
        (0o644, f"PORT=1\nOPENAI_API_KEY={SECRET}\n", True),
        (0o604, f"STORE=postgresql://ada:{SECRET}@db/chat\n", True),
        (0o600, f"OPENAI_API_KEY={SECRET}\n", False),
        (0o640, f"OPENAI_API_KEY={SECRET}\n", False),
        (0o644, "PORT=8000\nOPENAI_API_KEY=\n", False),
    ],
)
def test_a_dotenv_file_with_secrets_that_others_can_read_is_a_warning(
    here: Path, mode: int, text: str, *, warns: bool
) -> None:
    """It is reported once, even if it is both next to the file and in the working directory."""
    (here / ".env").write_text(text)
    (here / ".env").chmod(mode)
    (here / "holdfast.yaml").write_text("")
    report = config.check_config(str(here / "holdfast.yaml"), {})
    warnings = [line for line in report.data["warnings"] if ".env: every user of this machine can read it" in line]
    assert len(warnings) == warns
    assert all(f"chmod 600 {here}/.env" in line for line in warnings)
    assert SECRET not in report.text
    assert report.exit_code == 0


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
        config.load_settings({}, {})
    assert [problem for problem in caught.value.problems if message in problem]


# -- everything at once --------------------------------------------------------------
