"""How the command line shows summaries."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.agents import Roster
from holdfast.cli import commands
from holdfast.context.settings import ContextSettings
from holdfast.holdfast import Holdfast

TELLING = "The user asks about orders; ORD-3 is urgent."


async def create_summaries() -> None:
    """Create a session in `holdfast.db` with a superseded summary, a live one, and a failed one."""
    said = iter([TELLING, TELLING + " ORD-5 was sent.", ""])
    context = ContextSettings("summary_buffer", {"budget": 50_000, "summarizer_llm": "mine", "facts": False})

    def mine(messages: object, *, earlier: str | None, tokens: int) -> str:
        return next(said)

    async with Holdfast(roster=Roster(context=context), summarizers={"mine": mine}) as hf:
        session = await hf.session("s")
        for at in range(12):
            await session.append({"role": "user", "content": f"question about ORD-{at}: " + "why not " * 15})
            await session.append({"role": "assistant", "content": "so it is " * 15})
        for target in (0.8, 0.5, 0.3):
            await session.compact(target=target)


def test_show_lists_compactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the log: the text of the live one, and the reason for the failed one."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(create_summaries())
    result = CliRunner().invoke(commands, ["sessions", "show", "s"], prog_name="holdfast")
    assert result.exit_code == 0, result.stderr
    lines = [one.strip() for one in result.stdout.splitlines()]
    told = lines[lines.index("compactions") + 1 :]
    assert [one.split("  ")[:2] for one in told if one[:1].isdigit()] == [
        ["1", "superseded"],
        ["2", "live"],
        ["3", "failed"],
    ]
    assert "summary of messages 1 to " in told[0]
    assert " by mine, " in told[0]
    assert told[2] == TELLING + " ORD-5 was sent."
    assert told[4] == "the summary is empty"
    assert result.stdout.count(TELLING) == 1
