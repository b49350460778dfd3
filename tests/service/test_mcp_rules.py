"""MCP servers that break the protocol: their behaviour costs no other call, no memory and no log space. The server is
`mcp_raw.py`; servers with ordinary failures are in test_mcp.py.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.agents import Agent
from holdfast.limits import MCP_MESSAGE_BYTES
from holdfast.tools.mcp import connection as connection_module
from holdfast.tools.mcp import http
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
    for kind, fits in (
        ("application/json", False),
        ("application/json; charset=utf-8", False),
        ("text/event-stream", True),
        ("Text/Event-Stream;charset=utf-8", True),
        ("", False),
    ):
        response = httpx2.Response(200, headers={"content-type": kind}, stream=httpx2.ByteStream(b"x" * 11))
        await http._limit_body(response)
        if fits:
            assert len(await response.aread()) == 11
        else:
            with pytest.raises(httpx2.StreamError, match="at most 10 bytes"):
                await response.aread()
    assert MCP_MESSAGE_BYTES > 10


# -- what the server does -----------------------------------------------------------


async def test_child_processes_of_a_server_end_with_it(tmp_path: Path) -> None:
    """Even if the server itself ends at once."""
    place = tmp_path / "pid"
    command = f'sleep 600 & echo $! > "{place}"; exec "{sys.executable}" "{STUB}" stdio'
    async with serve([], stub(command="/bin/sh", args=("-c", command))) as desk:
        assert desk.hf.tool_registry.mcp.errors == {"stub": None}
        child = int(place.read_text())
        assert is_running(child)
    await until(lambda: not is_running(child))


def is_running(process: int) -> bool:
    """Return True if the process runs; an unreaped process stays for a while as a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
