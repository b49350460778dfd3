"""`holdfast doctor`: each thing that can be wrong has a line, and a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.kit.seams import run_command

LLM = "llms: {default: {model: m, base_url: 'http://127.0.0.1:%d/v1', api_key: sk-very-secret}}"


async def diagnose(**env: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code, and the findings by check: the worst of each."""
    printed = await run_command(["doctor", "--json"], env={"HOLDFAST_STORE": "sqlite:///chat.db", **env})
    assert "sk-very-secret" not in printed.out + printed.err
    order = ("ok", "warn", "fail")
    found: dict[str, Any] = {}
    for row in json.loads(printed.out)["findings"]:
        if row["check"] not in found or order.index(row["level"]) > order.index(found[row["check"]]["level"]):
            found[row["check"]] = row
    return printed.code, found


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_on_a_new_machine_only_the_model_is_missing_and_nothing_is_created(here: Path) -> None:
    code, found = await diagnose()
    assert code == 0
    assert {check for check, row in found.items() if row["level"] == "fail"} == set()
    assert found["upstream"]["level"] == "warn"
    assert "set OPENAI_API_KEY" in found["upstream"]["remedy"]
    assert names_in(here) == []


@pytest.mark.parametrize(
    ("files", "env", "check", "words"),
    [
        ({"holdfast.yaml": "gatway: {}"}, {}, "config", "did you mean 'gateway'?"),
        ({}, {"HOLDFAST_CONFIG": "gone.yaml"}, "config", "gone.yaml"),
        ({"chat.db": "no database, but long enough to be read as one. " * 50}, {}, "store", "not a database"),
        ({}, {"HOLDFAST_STORE": "postgresql://nobody@127.0.0.1:1/x"}, "store", "127.0.0.1"),
        ({}, {"HOLDFAST_STORE": "oracle://x"}, "store", "scheme"),
        ({"holdfast.yaml": LLM % 1}, {}, "upstream", "127.0.0.1:1"),
    ],
)
async def test_what_is_wrong_fails_with_a_remedy(
    here: Path, files: dict[str, str], env: dict[str, str], check: str, words: str
) -> None:
    for name, text in files.items():
        (here / name).write_text(text)
    code, found = await diagnose(**env)
    assert code == 1
    assert found[check]["level"] == "fail", found
    assert words in found[check]["message"]
    assert found[check]["remedy"]
