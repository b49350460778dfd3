"""The command line as a whole: imports, exit codes, `serve` and `config check`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import errors
from holdfast.cli import commands
from holdfast.cli.terminal import format_line, format_time, json_line, sanitize

pytestmark = pytest.mark.usefixtures("in_empty_folder")

HEAVY = {"aiohttp", "anyio", "apsw", "msgspec", "prometheus_client", "rich", "starlette", "tiktoken", "uvicorn", "yaml"}


def invoke(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, args, prog_name="holdfast", **more)


def program(*args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *args], capture_output=True, text=True, timeout=120, check=False, **more
    )


def modules_after(code: str) -> set[str]:
    printed = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sorted(sys.modules), file=sys.stderr)"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(printed.stderr.split())


# -- start -------------------------------------------------------------------


def test_importing_holdfast_imports_nothing_else() -> None:
    loaded = modules_after("import holdfast")
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("holdfast.")} == {"holdfast._version"}


@pytest.mark.parametrize(
    "line",
    ["--help", "--version", "serve --help", "chat --help", "sessions import --help", "embeddings install --help"],
)
def test_help_imports_nothing_slow(line: str) -> None:
    code = f"from holdfast.cli import commands\ntry:\n    commands.main({line.split()!r})\nexcept SystemExit:\n    pass"
    assert not modules_after(code) & (HEAVY | {"asyncio", "numpy", "holdfast.recall"})


def test_runs_as_a_module_with_the_program_name_holdfast() -> None:
    done = program("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: holdfast ")
    assert all(name in done.stdout for name in ("serve", "replay", "chat", "sessions", "doctor", "config"))


def test_shell_completes_commands_and_strategies() -> None:
    env = {**os.environ, "_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast ses", "COMP_CWORD": "1"}
    assert program(env=env).stdout == "plain,sessions\n"
    env |= {"COMP_WORDS": "holdfast replay --strategy none,dig", "COMP_CWORD": "3"}
    assert program(env=env).stdout == "plain,none,digest\n"
    assert "_HOLDFAST_COMPLETE" in program(env={**os.environ, "_HOLDFAST_COMPLETE": "bash_source"}).stdout


# -- exit codes --------------------------------------------------------------


def run_with_error(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Result:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("holdfast.config.check.check_config", fail)
    return invoke("config", "check")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            errors.ConfigError(["a.yaml:3: x: wrong", "a.yaml:4: y: wrong"]),
            2,
            "a.yaml:3: x: wrong\na.yaml:4: y: wrong\n",
        ),
        (errors.InvalidRequest("limit must be at least 1", param="limit"), 2, "Error: limit must be at least 1\n"),
        (errors.InvalidMessage("f:3: invalid JSON"), 1, "Error: f:3: invalid JSON\n"),
        (errors.TooLarge("more than 32 MiB"), 1, "Error: more than 32 MiB\n"),
        (errors.SessionNotFound("s\x1b"), 1, "Error: no session 's\\x1b'\n"),
        (errors.StoreUnavailable("disk\x1b[2J full"), 1, "Error: disk\\x1b[2J full\n"),
        (PermissionError(13, "Permission denied", "chat.db"), 1, "Error: chat.db: Permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_with_error(error, monkeypatch)
    assert (result.exit_code, result.stderr, result.stdout) == (code, said, "")


def test_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(run_with_error(ZeroDivisionError(), monkeypatch).exception, ZeroDivisionError)


# -- terminal output -----------------------------------------------------------


def test_text_cannot_control_or_hide_in_the_terminal() -> None:
    assert sanitize("\x1b[31mred\x07 \x9b2J \u202eabc \r over") == r"\x1b[31mred\x07 \x9b2J \u202eabc \r over"
    assert sanitize("\U000e0041") == r"\U000e0041"
    assert sanitize("a\tb\r\nc") == "a\tb\nc"
    assert sanitize("किताब नमस्‍ते 👩‍👩‍👧 مرحبا é") == "किताब नमस्‍ते 👩‍👩‍👧 مرحبا é"
    assert format_line(" a\n\n b\t\x00c ", 40) == r"a b \x00c"
    assert format_line("abcdef", 4) == "abc…"


def test_json_is_safe_to_display_and_lossless() -> None:
    value = {"a": '\x1b\x9b\x7f\u202e"\\ \u2028é'}
    written = json_line(value)
    assert json.loads(written) == value
    assert not {"\x1b", "\x9b", "\x7f", "\u202e", "\u2028"} & set(written.decode())
    assert "é" in written.decode()


def test_any_number_is_formatted_as_a_time() -> None:
    assert len(format_time(1_700_000_000_000)) == len("2023-11-14 22:13:20")
    assert format_time(2**53 - 1) == f"{2**53 - 1} ms"


# -- config check --------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "show"])
def test_config_commands_accept_the_file_like_related_commands(command: str) -> None:
    Path("right.yaml").write_text("gateway:\n  port: 8000\n")
    named = invoke("config", command, "right.yaml")
    assert named.exit_code == 0
    assert "8000" in named.stdout
    assert invoke("config", command, "--config", "right.yaml").stdout == named.stdout
    two = invoke("config", command, "right.yaml", "--config", "other.yaml")
    assert two.exit_code == 2
    assert "two files" in two.stderr


# -- serve ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "text", "where"),
    [
        ({"OPENAI_BASE_URL": "http://127.0.0.1:8377/v1"}, "", "unset OPENAI_BASE_URL and ANTHROPIC_BASE_URL here"),
        ({"ANTHROPIC_BASE_URL": "http://localhost:8377", "ANTHROPIC_API_KEY": "x"}, "", "environment: base_url"),
        ({}, "llms: {a: {model: m}, b: {base_url: 'http://[::1]:8377/v1', api_key: x}}", "llms.b: base_url"),
    ],
)
def test_model_at_the_servers_own_address_is_refused(env: dict[str, str], text: str, where: str) -> None:
    """A shell that is set up for clients may start the server: each call would return to the server and wait for
    itself.
    """
    Path("holdfast.yaml").write_text(text)
    refused = invoke("serve", env=env)
    assert refused.exit_code != 0
    assert where in refused.stderr
    assert "is this server itself" in refused.stderr
    assert not Path("holdfast.db").exists()
