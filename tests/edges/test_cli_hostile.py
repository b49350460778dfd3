"""Stored text never controls the terminal: each command with escape sequences, direction marks and long lines in each field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import cli
from holdfast.cli.terminal import sanitize
from tests.edges.cli_kit import store

pytestmark = pytest.mark.usefixtures("in_empty_folder")

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\u202eevil\u2066\u200b\r\x08"
LONG = EVIL + " never eat nuts " + "x" * 1_000_000
CALL = {"id": f"c{EVIL}", "type": "function", "function": {"name": "find", "arguments": json.dumps({EVIL: LONG})}}
SESSION: dict[str, Any] = {
    "id": f"s{EVIL}",
    "user_id": f"u{EVIL}",
    "system_messages": [{"role": "system", "content": LONG}],
    "state": {f"k{EVIL}": LONG},
    "metadata": {EVIL: EVIL},
    "messages": [
        {"role": "user", "content": LONG, "name": f"n{EVIL}", "metadata": {EVIL: EVIL}, "agent": f"a{EVIL}"},
        {"role": "assistant", "content": LONG, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": f"c{EVIL}", "content": LONG},
        {
            "role": "user",
            "content": [{"type": "text", "text": EVIL}, {"type": "image_url", "image_url": {"url": EVIL}}],
        },
    ],
}


def run(*args: str) -> str:
    """Run a command and return everything that it printed. It may fail: errors quote stored text too."""
    result = CliRunner().invoke(cli.commands, args, prog_name="holdfast")
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


READING = """\
sessions list
sessions show ID
sessions show ID --last 2
sessions show OTHER
sessions verify ID
explain OTHER
sessions export no-such-ID
sessions prune --older-than 0s --status any --dry-run
explain ID
explain ID --text nuts
explain no-such-ID
facts ID
state get --session ID
search --user USER nuts
"""
CHANGING = """\
sessions fork ID --at-turn 0
sessions annotate ID 0 --pin
sessions annotate ID 9 --lift all
sessions close ID
sessions rewind ID --at-turn 0
sessions delete --yes no-such-ID
sessions delete --yes --user USER
"""


@pytest.mark.parametrize("commands", [READING, CHANGING])
@pytest.mark.parametrize("drawn", [False, True])
def test_stored_text_is_printed_as_text(commands: str, drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store(SESSION, {**SESSION, "id": f"other{EVIL}", "agent": f"a{EVIL}"})
    if drawn:
        for module in ("sessions", "explain"):
            monkeypatch.setattr(f"holdfast.cli.{module}.is_output_terminal", lambda: True)
    names = {
        "ID": SESSION["id"],
        "USER": SESSION["user_id"],
        "no-such-ID": f"no-such-{SESSION['id']}",
        "OTHER": f"other{EVIL}",
    }
    for command in commands.splitlines():
        output = run(*[names.get(word, word) for word in command.split()])
        assert output, command
        assert sanitize(output) == output, command
        assert len(output) < (1_500_000 if command.startswith("state") else 12_000), command


def test_errors_about_imports_are_printed_as_text() -> None:
    store(SESSION)
    Path("x.jsonl").write_text(json.dumps({**SESSION, "messages": []}) + "\n", encoding="utf-8")
    Path("y.jsonl").write_text(
        json.dumps({**SESSION, "messages": [{"role": EVIL, "content": LONG}]}) + "\n", encoding="utf-8"
    )
    for name in ("x.jsonl", "y.jsonl"):
        output = run("sessions", "import", name)
        assert output
        assert sanitize(output) == output
        assert len(output) < 12_000


def test_memories_are_printed_as_text() -> None:
    Path("holdfast.yaml").write_text("memory: {enabled: true}\n", encoding="utf-8")
    outputs = [run("memories", "remember", EVIL, "nuts", "--tag", "food", "--user", f"u{EVIL}")]
    outputs += [run("memories", "list", "--user", f"u{EVIL}"), run("memories", "recall", "nuts", "--user", f"u{EVIL}")]
    assert "nuts" in outputs[1]
    assert all(sanitize(output) == output for output in outputs)
