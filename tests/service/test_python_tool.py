"""The tool `python` in turns: which agents are offered it, how its calls run, and what the model gets back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.errors import InvalidRequest
from holdfast.holdfast import Holdfast
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.tool import ToolLimits
from tests.service.fake_python import list_files
from tests.service.guard_kit import REDACTION, guard_from
from tests.service.python_tool_kit import code, open_python_bench, results
from tests.service.tools_kit import bench, content, make_reply, shout

# -- availability ---------------------------------------------------------------


async def test_tool_is_offered_to_agents_with_it_or_without_a_tool_list(tmp_path: Path) -> None:
    """In addition to the tools of the application."""
    agents = {
        "free": Agent(name="free"),
        "named": Agent(name="named", tools=("python",)),
        "other": Agent(name="other", tools=("shout",)),
        "none": Agent(name="none", tools=()),
    }
    async with open_python_bench(["x"] * 4, tmp_path, shout, agents=agents) as (desk, _):
        offered = {}
        for name in agents:
            await desk.ask("hi", agent=name)
            offered[name] = [tool["function"]["name"] for tool in desk.model.bodies[-1].get("tools", ())]
        assert offered == {"free": ["shout", "python"], "named": ["python"], "other": ["shout"], "none": []}


async def test_disabled_tool_is_left_out() -> None:
    """An agent may still name it, and has its other tools."""
    async with bench(["x"], shout, agents={"a": Agent(name="a", tools=("python", "shout"))}) as desk:
        assert content(await desk.ask("hi", agent="a")) == "x"
        assert [tool["function"]["name"] for tool in desk.model.bodies[0]["tools"]] == ["shout"]


def test_wrong_settings_and_a_second_tool_named_python_are_rejected() -> None:
    wrong: Any = {"timeout": 3}
    with pytest.raises(InvalidRequest, match="PythonSettings"):
        Holdfast(python=wrong)

    def python(code: str) -> str:
        return code

    with pytest.raises(InvalidRequest, match="two tools are named 'python'"):
        Holdfast(tools=[python], python=PythonSettings())


async def test_nothing_starts_before_the_first_call(tmp_path: Path) -> None:
    """And nothing is left afterwards."""
    async with open_python_bench(["hello"], tmp_path) as (desk, stage):
        await desk.ask("hi")
        assert stage.processes == []
        assert [path for root in list_files(tmp_path) if root.is_dir() for path in list_files(root)] == []
    assert list_files(tmp_path) == []


# -- calls ---------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"code": 1}, {"code": ""}, {"code": "x", "more": 1}, '{"code": ', "[]"])
async def test_wrong_arguments_are_reported_and_nothing_starts(tmp_path: Path, arguments: Any) -> None:
    async with open_python_bench([make_reply(None, ("a", "python", arguments)), make_reply("Sorry.")], tmp_path) as (
        desk,
        stage,
    ):
        assert content(await desk.ask("go")) == "Sorry."
        assert "wrong arguments" in (await results(desk))[0]["error"]
        assert stage.processes == []


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


async def test_long_result_is_cut_and_stays_valid_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool itself cuts it."""
    monkeypatch.setattr("holdfast.tools.python.tool.MAX_FILES", 1000)
    script = [code("files " + " ".join(f"no-{at}" for at in range(200))), make_reply("Done.")]
    async with open_python_bench(script, tmp_path, limits=ToolLimits(result=1024)) as (desk, _):
        await desk.ask("go")
        (found,) = await results(desk)
        assert len(found["not_kept"]) + found["more_not_kept"] == 200


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
