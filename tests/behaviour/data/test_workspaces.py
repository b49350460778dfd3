"""Workspaces: a folder with a git repository for each agent."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.testing import Reply
from tests.behaviour.kit import Refused, World, refused, through, user
from tests.behaviour.kit.rest import ask

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
AGENTS = "agents: {writer: {instruction: You write., tools: [checkpoint, memory_history]}, other: {}}"
KEY = "sk-ant-api03-" + "x7Kq" * 12


def config(world: World) -> str:
    return f"hooks: {{workspace_git: {{path: {json.dumps(str(world.folder / 'w'))}}}}}\n{AGENTS}"


def home(world: World) -> Path:
    """Return the folder of the writer, which exists."""
    folder = world.folder / "w/writer"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def git(folder: Path, *command: str) -> str:
    return subprocess.check_output(["git", *command], cwd=folder, text=True)


def committed(folder: Path) -> list[str]:
    return git(folder, "ls-tree", "-r", "--name-only", "HEAD").splitlines()


async def checkpoint(hf: Any, note: str | None = None, agent: str = "writer") -> Any:
    body = {} if note is None else {"note": note}
    if hf.name == "rest":
        return await ask(hf.http, "POST", f"/v1/workspaces/{agent}/checkpoint", body)
    return await hf.ask("workspace", "checkpoint", agent, **body)


async def history(hf: Any, agent: str = "writer") -> list[str]:
    """Return the subjects of the commits, the newest first."""
    if hf.name == "rest":
        found = await ask(hf.http, "GET", f"/v1/workspaces/{agent}/history", limit=50)
    else:
        found = await hf.ask("workspace", "history", agent, limit=50)
    return [one["subject"] for one in found["commits"]]


@through("rest", "cli")
async def test_a_checkpoint_commits_what_has_changed(world: World) -> None:
    async with world.open(config(world), store="file") as hf:
        (home(world) / "notes.md").write_text("Lisbon\r\n")
        for name in ("large.bin", *(f"m{at}" for at in range(21))):
            (home(world) / name).write_bytes(bytes((1 << 20) + 1))
        (home(world) / "draft.tmp").write_text("x")
        made = await checkpoint(hf, "before the move")
        assert (made["subject"], made["skipped"]) == ("checkpoint: before the move", False)
        assert json.dumps(made).count("large.bin") == 1
        assert "and 2 more" in git(home(world), "log", "-1", "--format=%b")
        assert committed(home(world)) == [".gitattributes", ".gitignore", "notes.md"]
        assert git(home(world), "show", "HEAD:notes.md") == "Lisbon\n"
        assert (await checkpoint(hf))["skipped"] is True
        (home(world) / "notes.md").unlink()
        await checkpoint(hf)
        assert await history(hf) == ["checkpoint: manual", "checkpoint: before the move", "workspace init"]
        assert committed(home(world)) == [".gitattributes", ".gitignore"]
        assert (home(world).stat().st_mode & 0o777) in {0o700, 0o755}


@through("library", "rest")
@pytest.mark.parametrize("reason", ["close", "delete"])
async def test_the_end_of_a_session_commits_the_workspace_of_its_agent(world: World, reason: str) -> None:
    async with world.open(config(world), store="file") as hf:
        (home(world) / "notes.md").write_text("Lisbon\n")
        other = await hf.create("o", user="ada", agent="other")
        await other.close()
        session = await hf.create("trip-1", user="ada", agent="writer")
        await session.append(user("One."))
        await (session.close() if reason == "close" else session.delete())
        await world.native.sweep()
        message = git(home(world), "log", "-1", "--format=%B").splitlines()
        assert message[0] == "session-close: trip-1"
        assert {"session=trip-1", "agent=writer", "user=ada", f"reason={reason}"} <= set(message)
        again = await hf.create("trip-2", user="ada", agent="writer")
        await again.close()
        await world.native.sweep()
        assert git(home(world), "log", "--format=%s").splitlines()[0] == "session-close: trip-1", "nothing has changed"


@through("rest", "cli")
async def test_a_secret_is_not_committed_and_not_repeated(world: World) -> None:
    async with world.open(config(world), store="file") as hf:
        (home(world) / "notes.md").write_text(f"one\nkey {KEY}\n")
        with refused("secret_blocked", "secret") as refusal:
            await checkpoint(hf)
        assert KEY not in str(refusal.value)
        assert KEY not in git(home(world), "log", "--all", "-p") if (home(world) / ".git").exists() else True


@through("library", "rest")
async def test_a_model_makes_checkpoints_and_reads_the_history(world: World) -> None:
    script = [
        Reply(tool_calls=[("checkpoint", {"note": "first"})]),
        Reply(tool_calls=[("checkpoint", {})]),
        Reply(tool_calls=[("memory_history", {"limit": 5, "include_diff": True})]),
        "Done.",
    ]
    async with world.open(config(world), store="file", script=script) as hf:
        (home(world) / "notes.md").write_text("Lisbon\n")
        session = await hf.create("s", user="ada", agent="writer")
        await session.send(user("Go."))
        rows = [row["content"] for row in hf.upstream.requests[-1].body["messages"] if row["role"] == "tool"]
        first, again, log = map(json.loads, rows)
        assert (first["ok"], first["skipped"], first["subject"]) == (True, False, "checkpoint: first")
        assert (again["ok"], again["skipped"]) == (True, True)
        assert [one["subject"] for one in log["commits"]] == ["checkpoint: first", "workspace init"]
        body = git(home(world), "log", "-1", "--format=%b").splitlines()
        assert body[1:4] == ["session=s", "agent=writer", "user=ada"]
        assert "+Lisbon" in log["diff"]


@through("library", "rest")
async def test_a_model_does_not_see_what_another_user_noted(world: World) -> None:
    script = [
        Reply(tool_calls=[("checkpoint", {"note": "meet Mallory"})]),
        "Ok.",
        Reply(tool_calls=[("memory_history", {})]),
        "Done.",
    ]
    async with world.open(config(world), store="file", script=script) as hf:
        (home(world) / "notes.md").write_text("Lisbon\n")
        for owner in ("bob", "ada"):
            await (await hf.create(owner, user=owner, agent="writer")).send(user("Go."))
        (log,) = [row["content"] for row in hf.upstream.requests[-1].body["messages"] if row["role"] == "tool"]
        assert [one["subject"] for one in json.loads(log)["commits"]] == ["checkpoint", "workspace init"]
        assert "Mallory" not in log


@through("library")
async def test_a_program_writes_and_commits(world: World) -> None:
    async with world.open(config(world), store="file") as hf:
        workspace = hf.native.workspaces.workspace("default", "writer")
        assert (await workspace.history(limit=5)).commits == []
        assert not (world.folder / "w").exists()
        await workspace.write("MEMORY.md", "- Ada prefers trains.\n")
        made = await workspace.commit("learned: trains", "from Monday")
        assert made is not None
        assert await workspace.commit("again") is None
        found = await workspace.history(limit=10, include_diff=True)
        assert [one.subject for one in found.commits] == ["learned: trains", "workspace init"]
        assert found.commits[0].body == "from Monday"
        assert "+- Ada prefers trains." in found.diff
        await workspace.write("long.txt", "high tide\n" * 40_000)
        await workspace.commit("tides")
        more = await workspace.history(limit=2, include_diff=True)
        assert len(more.diff.encode()) < 257 * 1024
        assert re.search(r"\+high tide\n\[[\d,]+ more bytes of this diff are left out\]\n\Z", more.diff)
        (world.folder / "secret").write_text("of another")
        (home(world) / "link.md").symlink_to(world.folder / "secret")
        assert (await workspace.read("MEMORY.md"), await workspace.read("link.md")) == ("- Ada prefers trains.\n", None)
        with pytest.raises(InvalidRequest):
            await workspace.commit("")
        strange = hf.native.workspaces.workspace("acme", "../Writer")
        await strange.write("x.md", "x")
        await strange.commit("x")
        assert all((world.folder / "w") in path.parents for path in world.folder.rglob(".git"))


@through("cli")
async def test_a_purge_leaves_one_commit(world: World) -> None:
    async with world.open(config(world), store="file") as hf:
        for text in ("Lisbon", "Porto"):
            (home(world) / "notes.md").write_text(f"{text}\n")
            await checkpoint(hf, text)
        (home(world) / ".git/info").mkdir(exist_ok=True)
        (home(world) / ".git/info/exclude").write_text("private.md\n")
        (home(world) / "private.md").write_text("x")
        assert (await hf.run("workspace", "purge", "writer", input="n\n")).code != 0
        await hf.call("workspace", "purge", "writer", "--yes")
        assert await history(hf) == ["workspace purge"]
        assert "Lisbon" not in git(home(world), "log", "--all", "-p")
        (home(world) / "notes.md").write_text("Faro\n")
        await checkpoint(hf)
        assert committed(home(world)) == [".gitattributes", ".gitignore", "notes.md"]


@through("rest")
async def test_unknown_agents_and_switched_off_workspaces_are_reported(world: World) -> None:
    async with world.open(config(world), store="file") as hf:
        for agent in ("nobody", "..%2Fx"):
            with pytest.raises(Refused) as refusal:
                await history(hf, agent)
            assert refusal.value.status == 404
    async with world.open(AGENTS.replace(", tools: [checkpoint, memory_history]", "")) as hf:
        with refused("workspace_not_found"):
            await history(hf)
