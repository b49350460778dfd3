"""MCP servers that break the protocol: their behaviour costs no other call, no memory and no log space. The server is
`mcp_raw.py`; servers with ordinary failures are in test_mcp.py.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest

from holdfast.agents import Agent
from holdfast.limits import MCP_MESSAGE_BYTES
from holdfast.tools.mcp import connection, http
from holdfast.tools.mcp import connection as connection_module
from holdfast.tools.mcp.settings import McpSettings
from tests.service.mcp_kit import STUB, stub
from tests.service.tools_kit import Bench, bench, make_reply
from tests.waits import until

RAW = Path(__file__).with_name("mcp_raw.py")
AGENTS = {
    "helper": Agent(name="helper", tools=("raw",)),
    "chief": Agent(name="chief", tools=("raw",), sub_agents=("clerk",), agent_tools=("clerk",)),
    "clerk": Agent(name="clerk", description="Knows the files."),
}


def raw(file: Path, kind: str = "", **settings: Any) -> McpSettings:
    return McpSettings(**{"name": "raw", "command": sys.executable, "args": (str(RAW), str(file), kind), **settings})


@asynccontextmanager
async def serve(script: Sequence[Any], server: McpSettings) -> AsyncIterator[Bench]:
    async with bench(script, agents=AGENTS, mcp_servers=[server]) as desk:
        yield desk


async def results(desk: Bench) -> list[str]:
    return [entry.message.text for entry in await desk.log() if entry.message.role == "tool"]


def times(file: Path, what: str) -> list[float]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [float(line.split()[1]) for line in lines if line.startswith(what)]


# -- what the server sends ----------------------------------------------------------


@pytest.mark.parametrize("tool", ["wrong", "untrue"])
async def test_invalid_answer_fails_only_its_own_call(tool: str, tmp_path: Path) -> None:
    """A call that runs at the same time is answered by the same process."""
    script = [make_reply(None, ("a", "raw_slow", {}), ("b", f"raw_{tool}", {})), "answered"]
    async with serve(script, raw(tmp_path / "log")) as desk:
        await desk.ask("hi", agent="helper")
        wrong, slow = sorted(await results(desk), key=lambda text: "error" not in text)
        assert "gave an invalid answer" in wrong
        assert slow == "slow"
        assert len(times(tmp_path / "log", "started")) == 1


async def test_endless_message_ends_the_connection_and_restarts_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is closed before the message exhausts memory."""
    monkeypatch.setattr(connection_module, "MCP_MESSAGE_BYTES", 200_000)
    script = [make_reply(None, ("a", "raw_endless", {})), "x", make_reply(None, ("b", "raw_slow", {})), "y"]
    async with serve(script, raw(tmp_path / "log")) as desk:
        await desk.ask("hi", agent="helper")
        assert "was lost" in (await results(desk))[-1]
        await desk.ask("hi", agent="helper")
        assert (await results(desk))[-1] == "slow"


async def test_http_body_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an event stream the limit applies to each event instead."""
    monkeypatch.setattr(http, "MCP_MESSAGE_BYTES", 10)
    for kind, fits in (("application/json", False), ("text/event-stream", True)):
        response = httpx2.Response(200, headers={"content-type": kind}, stream=httpx2.ByteStream(b"x" * 11))
        await http._limit_body(response)
        if fits:
            assert len(await response.aread()) == 11
        else:
            with pytest.raises(httpx2.StreamError, match="at most 10 bytes"):
                await response.aread()
    assert MCP_MESSAGE_BYTES > 10


async def test_output_that_is_not_a_message_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One log line reports it, without the content."""
    script = [make_reply(None, ("a", "raw_slow", {})), "x"]
    with caplog.at_level(logging.DEBUG):
        async with serve(script, raw(tmp_path / "log", "chatters")) as desk:
            await desk.ask("hi", agent="helper")
            assert await results(desk) == ["slow"]
    assert len([one for one in caplog.records if "not a message" in one.getMessage()]) == 1
    assert "hunter2" not in caplog.text


async def test_schemas_that_providers_refuse_are_cleaned(tmp_path: Path) -> None:
    """The schema keeps `properties` and drops the keywords that would make a provider refuse the call."""
    async with serve(["x"], raw(tmp_path / "log")) as desk:
        await desk.ask("hi", agent="helper")
        told = {tool["function"]["name"]: tool["function"]["parameters"] for tool in desk.model.bodies[-1]["tools"]}
        assert told["raw_slow"] == {"type": "object", "properties": {}}
        assert told["raw_either"] == {"type": "object", "properties": {"a": {}}}


async def test_built_in_tool_wins_over_a_server_tool_of_the_same_name(tmp_path: Path) -> None:
    async with serve(["x"], raw(tmp_path / "log", prefix="")) as desk:
        await desk.ask("hi", agent="chief")
        told = {tool["function"]["name"]: tool["function"] for tool in desk.model.bodies[-1]["tools"]}
        assert "clerk" in str(told["transfer_to_agent"]["parameters"])
        assert told["clerk"]["description"] == "Knows the files."


async def test_concurrent_calls_name_their_own_pictures() -> None:
    agents = {"helper": Agent(name="helper", tools=("stub",))}
    script = [make_reply(None, ("a", "stub_picture", {}), ("b", "stub_picture", {})), "x"]
    async with bench(script, agents=agents, mcp_servers=[stub()]) as desk:
        await desk.ask("hi", agent="helper")
        told = await results(desk)
        assert len(set(told)) == 2
        assert all("version" in one for one in told)


# -- what the server does -----------------------------------------------------------


async def test_server_that_keeps_dying_is_restarted_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pauses grow even if each start succeeds, and the error is recorded."""
    monkeypatch.setattr(connection, "_FIRST_PAUSE", 0.3)
    async with serve([], raw(tmp_path / "log", "dies")) as desk:
        await until(lambda: len(times(tmp_path / "log", "started")) >= 3)
        first, second, third = times(tmp_path / "log", "started")[:3]
        assert second - first >= 0.3
        assert third - second >= 0.6
        await until(lambda: desk.hf.tool_registry.mcp.errors["raw"] == "the connection was lost")


async def test_server_that_keeps_changing_its_tools_is_listed_only_occasionally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_RELIST_PAUSE", 1000)
    script = [make_reply(None, *((str(at), "raw_slow", {}) for at in range(3)), ("c", "raw_slow", {})), "x"]
    async with serve(
        [*script, make_reply(None, ("d", "raw_asked", {})), "y"], raw(tmp_path / "log", "changes")
    ) as desk:
        await desk.ask("hi", agent="helper")
        await desk.ask("hi", agent="helper")
        assert (await results(desk))[-1] == "2"


async def test_child_processes_of_a_server_end_with_it(tmp_path: Path) -> None:
    """Even if the server itself ends at once."""
    place = tmp_path / "pid"
    command = f'sleep 600 & echo $! > "{place}"; exec "{sys.executable}" "{STUB}" stdio'
    async with serve([], stub(command="/bin/sh", args=("-c", command))) as desk:
        assert desk.hf.tool_registry.mcp.errors == {"stub": None}
        child = int(place.read_text())
        assert is_running(child)
    await until(lambda: not is_running(child))


async def test_stubborn_server_is_killed_before_cancellation_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the waiting task is cancelled again meanwhile, as happens when a server shuts down."""
    monkeypatch.setattr(connection_module, "_GRACE", 0.3)
    ready, told = tmp_path / "ready", tmp_path / "told"
    stubborn = f'trap \'echo > "{told}"\' TERM; echo > "{ready}"; while :; do sleep 0.01; done'
    settings = raw(tmp_path / "log", command="/bin/sh", args=("-c", stubborn))
    processes: list[anyio.abc.Process] = []
    start, started = anyio.open_process, asyncio.Event()

    async def keep_process(*args: Any, **more: Any) -> anyio.abc.Process:
        processes.append(await start(*args, **more))
        return processes[-1]

    monkeypatch.setattr(anyio, "open_process", keep_process)

    async def talk() -> None:
        async with connection_module.open_stdio(settings, None):
            started.set()
            await asyncio.Event().wait()

    talking = asyncio.create_task(talk())
    await started.wait()
    await until(ready.exists)
    talking.cancel()
    await until(told.exists)
    talking.cancel()
    await asyncio.wait([talking])
    assert talking.cancelled()
    assert [process.returncode for process in processes] == [-signal.SIGKILL]


def is_running(process: int) -> bool:
    """Return True if the process runs; an unreaped process stays for a while as a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
