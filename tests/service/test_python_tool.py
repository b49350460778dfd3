"""The tool `python` in turns: which agents are offered it, how its calls run, and what the model gets back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.guard_kit import REDACTION, guard_from
from tests.service.python_tool_kit import bare, code, open_python_bench, results
from tests.service.tools_kit import content, make_reply

# -- availability ---------------------------------------------------------------


# -- calls ---------------------------------------------------------------------


async def test_state_is_kept_between_calls_and_turns(tmp_path: Path) -> None:
    """One process runs the calls of a message one after the other."""
    script = [code("x 0", "x 1", "x 2"), code("x 3"), make_reply("Done."), code("x 4"), make_reply("Done.")]
    async with open_python_bench(script, tmp_path) as (desk, stage):
        await desk.ask("go")
        await desk.ask("on")
        assert stage.ran == [f"x {number}" for number in range(5)]
        assert [bare(found) for found in await results(desk)] == [
            {"status": "success", "result": str(number)} for number in range(1, 6)
        ]
        assert len(stage.processes) == 1


async def test_busy_processes_give_a_result_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn continues, and the model may try again."""
    monkeypatch.setattr("holdfast.tools.python.kernels.MAX_PROCESSES", 1)
    async with open_python_bench([code("x"), make_reply("Later.")], tmp_path) as (desk, stage):
        kernels = desk.hf.tool_registry.kernels
        assert kernels is not None
        async with kernels.acquire(("default", "default", "other"), "1"):
            assert content(await desk.ask("go")) == "Later."
        (found,) = await results(desk)
        assert found["status"] == "not_run"
        assert "all 1 Python processes of this server are busy" in found["note"]
        assert stage.ran == []


async def test_secrets_are_redacted(tmp_path: Path) -> None:
    """Output passes through the guard like any other result."""
    key = "sk-proj-" + "a1B2c3D4e5F6g7H8i9J0" * 2
    script = [code(f"write {key}.txt x"), make_reply("Done.")]
    async with open_python_bench(script, tmp_path, guard=guard_from(REDACTION)) as (desk, _):
        await desk.ask("go")
        assert "[REDACTED:" in (await results(desk))[0]["files"][0]["name"]
        for entry in await desk.log():
            assert key not in entry.message.text
            assert all(key not in call.arguments for call in entry.message.tool_calls)
