"""docs/team-example.md as a newcomer follows it: its file, server, programs and commands, in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.config.loader import load
from tests.edges.server import Process

PAGE = Path(__file__).parents[2] / "docs/team-example.md"
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


def blocks(language: str) -> list[str]:
    """Return the page's blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_example_works_as_documented(tmp_path: Path) -> None:
    """Each `assert` of the page holds, and each command succeeds."""
    (configuration,) = blocks("yaml")
    (tmp_path / "holdfast.yaml").write_text(configuration)
    check, *_ = blocks("bash")
    assert check.splitlines()[0] == "holdfast config check"
    run(tmp_path, "holdfast config check")
    store = f"sqlite:///{tmp_path / 'holdfast.db'}"  # its location when served from there
    with Process(store, config=tmp_path / "holdfast.yaml") as server:
        program = "\n".join(blocks("python")).replace("http://127.0.0.1:8377", server.url)
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "writer: " in done.stdout
        said = [run(tmp_path, command) for command in blocks("bash")[-1].splitlines()]
        assert "kelp" in said[0]
        assert "Hello!" in said[-1]
        assert "de" in run(tmp_path, "holdfast state get --user default user:language")


def run(place: Path, command: str) -> str:
    """Run a command of the page; return its output."""
    program, *rest = shlex.split(command)
    assert program == "holdfast"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANTHROPIC_"))}
    done = subprocess.run([HOLDFAST, *rest], cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_documented_line_switches_to_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all three agents."""
    (configuration,) = blocks("yaml")
    line = next(line for line in configuration.splitlines() if "a real one:" in line)
    real = line.partition("a real one: ")[2]
    changed = configuration.replace(line, f"  default: {real}")
    config = load(changed, env={"OPENAI_API_KEY": "sk-x"})
    assert config.llms["default"].model == "gpt-4o-mini"
    assert config.llms["default"].api_key == "sk-x"
