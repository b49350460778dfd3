"""The reference servers of the Model Context Protocol as programs of their own: in Python (stdio), and, where Node is installed, the one
that shows everything the protocol has (stdio and HTTP), behind a gateway that the official OpenAI client talks to.
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
    """The program of the reference server, installed once beside the virtual environment by its lock file."""
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


async def answered(desk: Bench) -> str:
    """What the model is told of the call it makes now."""
    await desk.ask("hi", agent="helper")
    return [entry.message.text for entry in await desk.log() if entry.message.role == "tool"][-1]


def call(tool: str, **arguments: Any) -> list[Any]:
    return [make_reply(None, ("c", tool, arguments)), "answered"]


async def test_time() -> None:
    """The reference server in Python: its tools, a call, and what it refuses."""
    script = [
        *call("clock_convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"),
        *call("clock_convert_time", source_timezone="Nowhere", time="12:00", target_timezone="UTC"),
    ]
    async with with_server(CLOCK, script) as desk:
        assert set(desk.hf.roster.tools.groups["clock"]) == {"clock_get_current_time", "clock_convert_time"}
        assert "21:00:00" in await answered(desk)
        assert "Nowhere" in msgspec.json.decode(await answered(desk))["error"]


@pytest.fixture
def at_an_address(everything: Path) -> Iterator[str]:
    """The server that shows everything over HTTP."""
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


async def _shown(settings: McpSettings) -> None:
    async with with_server(settings, _script()) as desk:
        assert "hello" in await answered(desk)
        assert "image/png" in await answered(desk)
        (picture,) = await desk.session.artifacts.list()
        assert picture.size > 100
        assert "temperature" in await answered(desk)
        assert "[resource " in await answered(desk)
        assert "expected number" in msgspec.json.decode(await answered(desk))["error"]


async def test_everything_over_stdio(everything: Path) -> None:
    await _shown(McpSettings(name="all", command="node", args=(str(everything), "stdio")))


async def test_everything_over_http(at_an_address: str) -> None:
    await _shown(McpSettings(name="all", url=at_an_address))
