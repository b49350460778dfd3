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
