"""Workspaces over the lifecycle of sessions: a commit at each end, the tools of agents that name them, configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Agent, Roster
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.tools.workspace import HISTORY, TOOLS
from holdfast.workspace import Workspace, WorkspaceSettings
from holdfast.workspace.files import make_user_file_name
from tests.clocks import Clock
from tests.service.tools_kit import bench, make_reply
from tests.service.workspace_kit import NEEDS_GIT

pytestmark = NEEDS_GIT

KEY = "AKIA" + "ABCDEFGHIJKLMNOP"
AGENTS = {"writer": Agent(name="writer", tools=TOOLS), "reader": Agent(name="reader")}


def open_with_workspace(tmp_path: Path, clock: Clock | None = None, **more: Any) -> Holdfast:
    kept = WorkspaceSettings(path=str(tmp_path / "ws"))
    return Holdfast("sqlite://:memory:", roster=Roster(None, AGENTS), clock=clock or Clock(), workspaces=kept, **more)


def workspace_of(hf: Holdfast, agent: str | None, tenant: str = "default") -> Workspace:
    assert hf.workspaces is not None
    return hf.workspaces.workspace(tenant, agent)


async def commit_messages(workspace: Workspace) -> list[tuple[str, str]]:
    """Return subjects and bodies of all commits except the first one."""
    return [(commit.subject, commit.body) for commit in (await workspace.history(100)).commits[:-1]]


# -- at the end of sessions ----------------------------------------------------------


async def test_tenants_have_separate_workspaces(tmp_path: Path) -> None:
    async with open_with_workspace(tmp_path) as hf, hf.serve_tenant("acme") as acme:
        await workspace_of(hf, "writer", "acme").write("a.md", "theirs")
        await workspace_of(hf, "writer").write("a.md", "ours")
        await (await acme.session("s", agent="writer")).close()
        await acme.sweep()
        await hf.sweep()
        assert len(await commit_messages(workspace_of(hf, "writer", "acme"))) == 1
        assert (await workspace_of(hf, "writer").history()).commits == []


async def test_secret_does_not_prevent_a_session_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the file and the line; the next end without the secret commits everything."""
    async with open_with_workspace(tmp_path) as hf:
        workspace = workspace_of(hf, "writer")
        await workspace.write("MEMORY.md", f"a\n{KEY}")
        session = await hf.session("s", agent="writer")
        await hf.delete(SessionRef("default", "s"))
        await hf.sweep()
        assert hf.engine.hook_dispatcher.outcomes["workspace_git", "told"] == 1
        assert "MEMORY.md, line 2 (rule aws_access_key)" in caplog.text
        assert KEY not in caplog.text
        assert await commit_messages(workspace) == []
        await workspace.write("MEMORY.md", "a\n")
        session = await hf.session("t", agent="writer")
        await session.close()
        await hf.sweep()
        assert [subject for subject, _ in await commit_messages(workspace)] == ["session-close: t"]


# -- tools ---------------------------------------------------------------------------


async def test_history_hides_the_sessions_of_other_users(tmp_path: Path) -> None:
    """The workspace belongs to the agent, but the session of a commit is only shown to its user."""
    kept = WorkspaceSettings(path=str(tmp_path / "ws"))
    script = [make_reply(None, ("c", HISTORY, {"include_diff": True})), make_reply("done")]
    async with bench(script, agents=AGENTS, workspaces=kept) as one:
        workspace = workspace_of(one.hf, "writer")
        await workspace.write("a.md", "1")
        await workspace.checkpoint("marie's plans", session_id="maries-session", user_id="marie")
        await workspace.write("a.md", "2")
        await workspace.commit(
            "session-close: maries-other", "session=maries-other\nagent=writer\nuser=marie\nreason=close"
        )
        await workspace.write("a.md", "3")
        await workspace.commit("dream: 1 promotion(s)", "- nobody's")
        await workspace.write(make_user_file_name("MEMORY.md", "marie"), "what marie is promised")
        await workspace.commit("dream: 2 promotion(s)", "user=marie\n- of marie's")
        await one.ask("Hi", agent="writer")
        [result] = [entry.message.text for entry in await one.log() if entry.message.role == "tool"]
        subjects = [commit["subject"] for commit in json.loads(result)["commits"]]
        assert subjects == ["dream", "dream: 1 promotion(s)", "session-close", "checkpoint", "workspace init"]
        assert "marie" not in result
