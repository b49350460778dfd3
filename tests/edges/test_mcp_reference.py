"""The reference servers of the Model Context Protocol as separate programs: in Python (stdio), and, if Node is
installed, the one that shows the whole protocol (stdio and HTTP), behind a gateway that the official OpenAI client
calls.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agents import Agent
from holdfast.tools.mcp.settings import McpSettings
from tests.service.tools_kit import Bench, bench, make_reply

LOCK = Path(__file__).with_name("mcp_reference")
CLOCK = McpSettings(
    name="clock", command=str(Path(sys.executable).with_name("mcp-server-time")), args=("--local-timezone=UTC",)
)


@pytest.fixture(scope="session")
def everything() -> Path:
    """Return the program of the reference server, installed once in the virtual environment from its lock file."""
    place = Path(sys.prefix) / "mcp-reference"
    program = place / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    lock = LOCK / "package-lock.json"
    if program.exists() and (place / lock.name).read_bytes() == lock.read_bytes():
        return program
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node and npm are not installed: the MCP server that shows everything was not run")
    place.mkdir(exist_ok=True)
    for name in ("package.json", lock.name):
        shutil.copy(LOCK / name, place)
    done = subprocess.run(
        [npm, "ci", "--silent", "--no-audit", "--no-fund"], cwd=place, capture_output=True, check=False
    )
    if done.returncode:
        (place / lock.name).unlink()
        pytest.skip(f"the MCP server that shows everything cannot be installed: {done.stderr.decode()[-300:]}")
    return program


@asynccontextmanager
async def with_server(settings: McpSettings, script: list[Any]) -> AsyncIterator[Bench]:
    agents = {"helper": Agent(name="helper", tools=(settings.name,))}
    async with bench(script, agents=agents, mcp_servers=[settings]) as desk:
        assert desk.hf.tool_registry.mcp.errors == {settings.name: None}
        yield desk


async def read_tool_result(desk: Bench) -> str:
    """Run the next call; return the result that the model receives."""
    await desk.ask("hi", agent="helper")
    return [entry.message.text for entry in await desk.log() if entry.message.role == "tool"][-1]


def call(tool: str, **arguments: Any) -> list[Any]:
    return [make_reply(None, ("c", tool, arguments)), "answered"]


async def test_python_reference_server() -> None:
    """Its tools, a call, and an invalid call."""
    script = [
        *call("clock_convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"),
        *call("clock_convert_time", source_timezone="Nowhere", time="12:00", target_timezone="UTC"),
    ]
    async with with_server(CLOCK, script) as desk:
        assert set(desk.hf.roster.tools.groups["clock"]) == {"clock_get_current_time", "clock_convert_time"}
        assert "21:00:00" in await read_tool_result(desk)
        assert "Nowhere" in msgspec.json.decode(await read_tool_result(desk))["error"]


@pytest.fixture
def http_server(everything: Path) -> Iterator[str]:
    """Run the full reference server over HTTP; yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PORT": str(port)}
    command = ["node", str(everything), "streamableHttp"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


def _script() -> list[Any]:
    return [
        *call("all_echo", message="hello"),
        *call("all_get-tiny-image"),
        *call("all_get-structured-content", location="Chicago"),
        *call("all_get-resource-links", count=2),
        *call("all_get-sum", a="one"),
    ]


async def _check_all_features(settings: McpSettings) -> None:
    async with with_server(settings, _script()) as desk:
        assert "hello" in await read_tool_result(desk)
        assert "image/png" in await read_tool_result(desk)
        (picture,) = await desk.session.artifacts.list()
        assert picture.size > 100
        assert "temperature" in await read_tool_result(desk)
        assert "[resource " in await read_tool_result(desk)
        assert "expected number" in msgspec.json.decode(await read_tool_result(desk))["error"]


async def test_full_reference_server_over_stdio(everything: Path) -> None:
    await _check_all_features(McpSettings(name="all", command="node", args=(str(everything), "stdio")))


async def test_full_reference_server_over_http(http_server: str) -> None:
    await _check_all_features(McpSettings(name="all", url=http_server))
