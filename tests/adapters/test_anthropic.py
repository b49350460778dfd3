"""Anthropic's memory tool on Holdfast: its answers are those of the SDK's own tool, byte for byte."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("anthropic.lib.tools", reason="the SDK of Anthropic is not installed here")

import httpx2 as httpx
from anthropic import AsyncAnthropic
from anthropic.lib.tools import ToolError
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool

import holdfast
from holdfast.adapters.anthropic import HoldfastMemoryTool, HoldfastSyncMemoryTool
from holdfast.errors import WrongEventLoop
from tests.adapters.cases import KILLED, find_cause, run_in_thread

MEMORY = "sqlite://:memory:"
Command = dict[str, Any]


def answer(tool: Any, command: Command) -> tuple[str, str]:
    """Return a tool's answer, or its error, as the SDK's runner would send it."""
    try:
        return "ok", str(tool.call(command))
    except ToolError as exc:
        return "error", str(exc)


def make_commands() -> st.SearchStrategy[Command]:
    path = st.sampled_from(["a.md", "b.md", "notes/a.md", "notes/b.md", "notes/deep/c.md"]).map("/memories/{}".format)
    folder = st.sampled_from(["/memories", "/memories/notes", "/memories/none", "/memories/.."]) | path
    text = st.sampled_from(["one\ntwo\nthree\n", "one two two", "", "ä\n\nend", "x" * 1500])
    return st.one_of(
        st.fixed_dictionaries({"command": st.just("view"), "path": folder}),
        st.fixed_dictionaries(
            {"command": st.just("view"), "path": path, "view_range": st.sampled_from([[1, 2], [2, -1], [0, 9]])}
        ),
        st.fixed_dictionaries({"command": st.just("create"), "path": path, "file_text": text}),
        st.fixed_dictionaries(
            {
                "command": st.just("str_replace"),
                "path": path,
                "old_str": st.sampled_from(["one", "two", "none", "\n"]),
                "new_str": st.sampled_from(["ONE", "", "1\n2"]),
            }
        ),
        st.fixed_dictionaries(
            {
                "command": st.just("insert"),
                "path": path,
                "insert_line": st.integers(-1, 5),
                "insert_text": st.sampled_from(["new", "new\n", "a\nb"]),
            }
        ),
        st.fixed_dictionaries({"command": st.just("delete"), "path": path}),
        st.fixed_dictionaries({"command": st.just("rename"), "old_path": path, "new_path": path}),
    )


@given(st.lists(make_commands(), max_size=12))
def test_answers_are_those_of_the_sdks_own_tool(commands: list[Command]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, holdfast.Portal(MEMORY) as portal:
        theirs, ours = BetaLocalFilesystemMemoryTool(folder), HoldfastSyncMemoryTool(portal, user_id="ada")
        for command in commands:
            expected = answer(theirs, command)
            remove_empty_folders(Path(folder) / "memories")
            assert answer(ours, command) == expected, command


def remove_empty_folders(root: Path) -> None:
    """Remove folders without files: Holdfast has none."""
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


SPELLINGS = ["/memories/../x", "/memories/a/../../x", "/memoriesx", "memories/a", "/etc/passwd", "", "/memories/./../x"]


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_path_leaves_the_folder(path: str) -> None:
    with holdfast.Portal(MEMORY) as portal:
        tool = HoldfastSyncMemoryTool(portal)
        for command in ({"command": "create", "file_text": "x"}, {"command": "view"}, {"command": "delete"}):
            kind, text = answer(tool, {**command, "path": path})
            assert kind == "error"
            assert "/memories" in text
        assert portal.call(portal.hf.records("memory_files").list).records == ()


async def call(tool: HoldfastMemoryTool, **command: Any) -> str:
    return str(await tool.call(command))


async def test_users_and_agents_have_their_own_files() -> None:
    async with holdfast.open(MEMORY) as hf:
        ada, bob = HoldfastMemoryTool(hf, user_id="ada"), HoldfastMemoryTool(hf, user_id="bob")
        planner = HoldfastMemoryTool(hf, user_id="ada", agent="planner")
        await call(ada, command="create", path="/memories/a.md", file_text="window seats")
        for other in (bob, planner):
            with pytest.raises(ToolError, match="does not exist"):
                await call(other, command="view", path="/memories/a.md")
        await hf.delete_user("ada")
        with pytest.raises(ToolError, match="does not exist"):
            await call(ada, command="view", path="/memories/a.md")


async def test_concurrent_edits_are_all_kept() -> None:
    async with holdfast.open(MEMORY) as hf:
        tool = HoldfastMemoryTool(hf)
        await call(tool, command="create", path="/memories/a.md", file_text="")
        inserts = [
            call(tool, command="insert", path="/memories/a.md", insert_line=0, insert_text=f"line {number}")
            for number in range(10)
        ]
        await asyncio.gather(*inserts)
        shown = await call(tool, command="view", path="/memories/a.md")
        assert all(f"line {number}" in shown for number in range(10))


async def test_a_file_that_is_too_large_is_refused() -> None:
    async with holdfast.open(MEMORY) as hf:
        tool = HoldfastMemoryTool(hf)
        with pytest.raises(ToolError, match="split it"):
            await call(tool, command="create", path="/memories/a.md", file_text="x" * (102_400 + 1))


async def test_a_text_that_occurs_a_million_times_is_refused_at_once() -> None:
    """Overlapping occurrences in the largest file cost linear time, and the message stays short enough for a model."""
    async with holdfast.open(MEMORY) as hf:
        tool = HoldfastMemoryTool(hf, user_id="ada")
        await tool.call({"command": "create", "path": "/memories/a.md", "file_text": "a" * (102_400 - 2)})
        edit = {"command": "str_replace", "path": "/memories/a.md", "old_str": "aa", "new_str": "b"}
        with pytest.raises(ToolError, match="Multiple occurrences") as raised:
            await tool.call(edit)
        assert len(str(raised.value)) < 10_000


async def test_secrets_are_masked() -> None:
    guard = holdfast.Guard(redaction=holdfast.make_redactor())
    async with holdfast.open(MEMORY, guard=guard) as hf:
        tool = HoldfastMemoryTool(hf)
        await call(tool, command="create", path="/memories/a.md", file_text="key AKIAIOSFODNN7EXAMPLE here")
        assert "AKIAIOSFODNN7EXAMPLE" not in await call(tool, command="view", path="/memories/a.md")


async def test_another_event_loop_is_refused_and_does_not_hang() -> None:
    async with holdfast.open(MEMORY) as hf:
        tool = HoldfastMemoryTool(hf)
        await call(tool, command="create", path="/memories/a.md", file_text="one")
        again = {"command": "create", "path": "/memories/b.md", "file_text": "two"}
        raised = await asyncio.to_thread(run_in_thread, lambda: call(tool, **again))
        assert find_cause(raised, WrongEventLoop) is not None, repr(raised)
        await call(tool, **again)
        assert "b.md" in await call(tool, command="view", path="/memories")


async def test_a_cancelled_change_leaves_a_whole_file(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        tool = HoldfastMemoryTool(hf)
        for waits in range(40):
            path = f"/memories/{waits}.md"
            create = {"command": "create", "path": path, "file_text": "one\n" * 50}
            creating = asyncio.create_task(call(tool, **create))
            for _ in range(waits):
                await asyncio.sleep(0)
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)
            with suppress(ToolError):  # it may be there already
                await call(tool, **create)
            await call(tool, command="insert", path=path, insert_line=50, insert_text="two")
            shown = await call(tool, command="view", path=path)
            assert (shown.count("one"), shown.count("two")) == (50, 1)


class ScriptedApi:
    """Answers requests to Anthropic's API: for each question the model creates a file, reads the folder, and answers."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.requests.append(body["messages"])
        check_prompt(body["messages"])
        last = body["messages"][-1]["content"]
        results = [] if isinstance(last, str) else [block for block in last if block["type"] == "tool_result"]
        if not results:
            number = str(last).split()[-1]
            content = [self.call("create", number, path=f"/memories/{number}.md", file_text=f"Order {number}.")]
        elif results[0]["tool_use_id"].startswith("create"):
            content = [self.call("view", results[0]["tool_use_id"].split("_")[1], path="/memories")]
        else:
            content = [{"type": "text", "text": "Noted."}]
        reason = "tool_use" if content[0]["type"] == "tool_use" else "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        reply = {"id": "m", "type": "message", "role": "assistant", "model": "claude", "content": content}
        return httpx.Response(200, json={**reply, "stop_reason": reason, "stop_sequence": None, "usage": usage})

    def call(self, command: str, number: str, **fields: str) -> dict[str, Any]:
        given = {"command": command, **fields}
        return {"type": "tool_use", "id": f"{command}_{number}", "name": "memory", "input": given}


def check_prompt(messages: list[Any]) -> None:
    """Check that each call is followed by its result."""
    waiting: list[str] = []
    for message in messages:
        blocks = [] if isinstance(message["content"], str) else message["content"]
        assert [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"] == waiting, messages
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert not waiting, messages


async def run_agent(hf: holdfast.Holdfast, numbers: range) -> ScriptedApi:
    """Ask one question after the other, each in a conversation of its own, and return the scripted API."""
    api = ScriptedApi()
    async with AsyncAnthropic(
        api_key="none", http_client=httpx.AsyncClient(transport=httpx.MockTransport(api))
    ) as client:
        for number in numbers:
            if str(number) == os.environ.get(KILLED):
                os.kill(os.getpid(), signal.SIGKILL)
            runner = client.beta.messages.tool_runner(
                model="claude",
                max_tokens=100,
                messages=[{"role": "user", "content": f"Remember order {number}"}],
                tools=[HoldfastMemoryTool(hf)],
                thread=False,
            )
            async for _ in runner:
                pass
    return api


async def test_forty_turns_of_an_agent_go_on_after_the_process_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    program = (
        "import asyncio, sys, holdfast\nfrom tests.adapters.test_anthropic import run_agent\n"
        "async def main():\n    async with holdfast.open(sys.argv[1]) as hf:\n        await run_agent(hf, range(40))\n"
        "asyncio.run(main())"
    )
    command = [sys.executable, "-c", program, url]
    ended = await asyncio.to_thread(subprocess.run, command, env={**os.environ, KILLED: "25"}, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    async with holdfast.open(url) as hf:
        tool = HoldfastMemoryTool(hf)
        assert (await call(tool, command="view", path="/memories")).count(".md") == 25
        api = await run_agent(hf, range(25, 40))
        listed = str(api.requests[-1][-1]["content"])
        assert [number for number in range(40) if f"/memories/{number}.md" not in listed] == []
        assert "Order 7." in await call(tool, command="view", path="/memories/7.md")


def test_it_is_the_memory_tool_for_the_api() -> None:
    make: Callable[[], Any] = lambda: HoldfastMemoryTool(holdfast.open(MEMORY)).to_dict()  # noqa: E731
    assert make() == {"type": "memory_20250818", "name": "memory"}
