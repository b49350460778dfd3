"""Turns for participants in another user's session: what their tools and the agents that they call reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.tools.context import ToolContext
from holdfast.tools.workspace import TOOLS
from holdfast.workspace import WorkspaceSettings
from tests.service.python_tool_kit import code, open_python_bench, results
from tests.service.tools_kit import Bench, bench, make_reply
from tests.service.workflow_kit import agents, open_workflow_bench
from tests.service.workspace_kit import NEEDS_GIT

BOB: dict[str, Any] = {"guest": True, "speaker": "bob"}
ARTIFACTS = ("save_artifact", "load_artifact", "list_artifacts")


async def last_result(desk: Bench) -> str:
    return [entry.message.text for entry in await desk.log() if entry.message.role == "tool"][-1]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("load_artifact", {"name": "plan.txt"}),
        ("load_artifact", {"name": "user:plan.txt"}),
        ("load_artifact", {"name": "missing.txt"}),
        ("list_artifacts", {}),
        ("save_artifact", {"name": "plan.txt", "content": "bob was here"}),
    ],
)
async def test_artifact_tools_refuse_participants(tool: str, arguments: dict[str, Any]) -> None:
    """The refusal is the same whether or not the artifact exists; the owner's next turn can use the tools."""
    script = [reply for _ in range(2) for reply in (make_reply(None, ("c", tool, arguments)), make_reply("done"))]
    async with bench(script, agents={"a": Agent(name="a", tools=ARTIFACTS)}) as desk:
        await desk.session.artifacts.save("plan.txt", "the secret plan")
        await desk.hf.user_artifacts("default").save("user:plan.txt", "the secret plan")
        await desk.ask("Hi", agent="a", **BOB)
        assert "belong to the owner" in await last_result(desk)
        assert "plan.txt" not in await last_result(desk)
        assert len(await desk.session.artifacts.versions("plan.txt")) == 1
        await desk.ask("Hi", agent="a")
        assert "belong to the owner" not in await last_result(desk)


async def test_participants_can_load_tool_results_of_the_conversation() -> None:
    """They are messages of the log, which participants read."""
    script = [
        make_reply(None, ("c1", "roll", {})),
        make_reply("done"),
        make_reply(None, ("c2", "load_artifact", {"name": "result-2"})),
        make_reply("done"),
    ]

    def roll() -> str:
        """Roll a die."""
        return "a six"

    async with bench(script, roll, agents={"a": Agent(name="a", tools=(*ARTIFACTS, "roll"))}) as desk:
        await desk.ask("Hi", agent="a")
        await desk.ask("Again?", agent="a", **BOB)
        assert await last_result(desk) == "a six"


async def test_tools_of_the_program_know_whom_the_turn_answers() -> None:
    seen: list[bool] = []

    def look(context: ToolContext) -> str:
        """Look."""
        seen.append(context.is_for_owner)
        return "ok"

    script = [reply for _ in range(2) for reply in (make_reply(None, ("c", "look", {})), make_reply("done"))]
    async with bench(script, look) as desk:
        await desk.ask("Hi", **BOB)
        await desk.ask("Hi")
        assert seen == [False, True]


async def test_python_for_participants_has_a_process_of_its_own(tmp_path: Path) -> None:
    """It has none of the owner's files, and saves none. Both processes end with the session."""
    script = [
        *(code("write plan.txt secret"), make_reply("Done.")),
        *(code("ls"), make_reply("Done.")),
        *(code("write mine.txt x"), make_reply("Done.")),
        *(code("ls"), make_reply("Done.")),
    ]
    async with open_python_bench(script, tmp_path) as (desk, _):
        await desk.ask("go")
        await desk.ask("go", **BOB)
        await desk.ask("go", **BOB)
        await desk.ask("go")
        owner, first, second, again = await results(desk)
        assert owner["files"][0]["name"] == "plan.txt"
        assert "plan.txt" not in json.dumps(first)
        assert (second.get("files"), second["not_kept"][0]["files"]) == (None, 1)
        assert "plan.txt" in json.dumps(again)
        assert [one.name for one in await desk.session.artifacts.list()] == ["plan.txt"]
        kernels = desk.hf.tool_registry.kernels
        assert kernels is not None
        assert len(kernels) == 2
        await desk.session.delete()
        assert len(kernels) == 0


@NEEDS_GIT
async def test_workspace_history_shows_participants_no_commits_of_the_owner(tmp_path: Path) -> None:
    script = [reply for _ in range(2) for reply in (make_reply(None, ("c", TOOLS[1], {})), make_reply("done"))]
    settings = WorkspaceSettings(path=str(tmp_path / "ws"))
    async with bench(script, agents={"a": Agent(name="a", tools=TOOLS)}, workspaces=settings) as desk:
        assert desk.hf.workspaces is not None
        workspace = desk.hf.workspaces.workspace("default", "a")
        await workspace.write("MEMORY.md", "x")
        await workspace.checkpoint("the secret plan", session_id="s", user_id="default")
        await desk.ask("Hi", agent="a", **BOB)
        assert "secret plan" not in await last_result(desk)
        await desk.ask("Hi", agent="a")
        assert "secret plan" in await last_result(desk)


async def test_agents_that_are_called_for_a_participant_get_nothing_of_the_owner(tmp_path: Path) -> None:
    """The called agent's session has a copy of the state, which its instruction names."""
    team = agents(
        Agent(name="chief", instruction="I am chief", agent_tools=("summarizer",), tools=()),
        Agent(
            name="summarizer",
            instruction="I am summarizer . Topic: {topic}. Profile: {user:profile}.",
            description="Makes it short.",
        ),
    )
    call = make_reply(None, ("c", "summarizer", {"request": "Shorten."}))
    lines = {"chief": [call, make_reply("done")] * 2, "summarizer": [make_reply("short")] * 2}
    async with open_workflow_bench(lines, team, url=f"sqlite:///{tmp_path}/s.db") as desk:
        await desk.session.state.update({"topic": "trains", "user:profile": "likes tea"})
        await desk.ask("Hi", agent="chief", **BOB)
        await desk.ask("Hi", agent="chief")
        prompts = [json.dumps(body["messages"]) for body in desk.model.bodies if "Topic:" in json.dumps(body)]
        assert ["trains" in prompt and "likes tea" in prompt for prompt in prompts] == [False, True]
        assert "Topic: . Profile: ." in prompts[0]
