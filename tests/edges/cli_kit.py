"""Shared helpers for tests of the command line."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from holdfast.cli import commands


def sessions(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["sessions", *args], prog_name="holdfast", **more)


def store(*given: dict[str, Any]) -> None:
    result = sessions("import", "-", input="\n".join(json.dumps(one) for one in given))
    assert result.exit_code == 0, result.stderr


def make_session(text: str, *, name: str = "s") -> dict[str, Any]:
    return {"id": name, "messages": [{"role": "user", "content": text}]}
