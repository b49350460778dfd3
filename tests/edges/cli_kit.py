"""Shared helpers for tests of the command line."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from holdfast.cli import commands

AGENT_CONFIG = """\
agents:
  planner:
    context: {strategy: digest, budget: 500}
"""
CONTROLS = "By the way, I get seasick \x1b[2J\u202e always."
"""A message with characters that control a terminal."""


def sessions(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["sessions", *args], prog_name="holdfast", **more)


def store(*given: dict[str, Any]) -> None:
    result = sessions("import", "-", input="\n".join(json.dumps(one) for one in given))
    assert result.exit_code == 0, result.stderr


def make_session(text: str, *, name: str = "s") -> dict[str, Any]:
    return {"id": name, "messages": [{"role": "user", "content": text}]}
