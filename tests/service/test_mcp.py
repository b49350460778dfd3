"""Tools of MCP servers in turns: which agents have them, what the model receives, and that a server failure does not
fail a turn. The servers are separate programs: a stub that misbehaves on request, over stdio and HTTP. Reference
servers are in tests/edges/test_mcp_reference.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agents import Agent
from holdfast.errors import InvalidRequest, MissingExtra
from holdfast.holdfast import Holdfast
from holdfast.tools.mcp import connection
from holdfast.tools.mcp.connection import McpConnection
from holdfast.tools.mcp.servers import make_tool_name
from holdfast.tools.mcp.settings import McpSettings
from tests.service.mcp_kit import STUB, stub
from tests.service.tools_kit import Bench, bench, content, make_reply, shout
from tests.waits import until


def missing(**settings: Any) -> McpSettings:
    """Return the settings of a server whose program does not exist."""
    return McpSettings(**{"name": "gone", "command": "/no/such/program", **settings})


AGENTS = {
    "helper": Agent(name="helper", tools=("stub",)),
    "narrow": Agent(name="narrow", tools=("stub_shout",)),
    "free": Agent(name="free"),
    "lost": Agent(name="lost", tools=("gone", "shout")),
    "hopeful": Agent(name="hopeful", tools=("gone_read",)),
    "wrong": Agent(name="wrong", tools=("stub_shuot",)),
}


@asynccontextmanager
async def serve(script: Sequence[Any], *servers: McpSettings, **given: Any) -> AsyncIterator[Bench]:
    async with bench(script, shout, agents=AGENTS, mcp_servers=servers or (stub(),), **given) as desk:
        yield desk


def list_offered_tools(desk: Bench) -> list[str]:
    return [tool["function"]["name"] for tool in desk.model.bodies[-1].get("tools", ())]


async def last_result(desk: Bench) -> Any:
    """Return the last tool result; for a failed call, the parsed error object."""
    text = [entry.message.text for entry in await desk.log() if entry.message.role == "tool"][-1]
    return msgspec.json.decode(text) if text.startswith("{") else text


def call_script(tool: str, **arguments: Any) -> list[Any]:
    """Return a script with one call of the tool and then an answer."""
    return [make_reply(None, ("c", f"stub_{tool}", arguments)), "answered"]


# -- which agents have the tools ----------------------------------------------------


async def test_misspelt_tool_is_reported() -> None:
    async with serve([]) as desk:
        with pytest.raises(InvalidRequest, match="stub_shuot"):
            await desk.ask("hi", agent="wrong")


def test_tool_names_are_accepted_by_providers() -> None:
    """Names are deterministic, never collide with a taken one, and different names stay different."""
    assert make_tool_name("", "a b/c.d", ()) == "a_b_c_d"
    long = "x" * 100
    named = make_tool_name("server_", long, ())
    assert len(named) == 64
    assert named == make_tool_name("server_", long, ()) != make_tool_name("server_", long + "y", ())
    assert make_tool_name("", "a.b", {"a_b"}) != "a_b"


# -- what the model receives --------------------------------------------------------


# -- unavailable servers ------------------------------------------------------------


async def test_stderr_of_a_server_that_fails_to_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent server is given up after a while."""
    monkeypatch.setattr(connection, "START_SECONDS", 0.5)
    talks = missing(command=sys.executable, args=("-c", "import sys; sys.exit('no licence found')"))
    silent = missing(command=sys.executable, args=("-c", "import time; time.sleep(60)"))
    for settings, words in ((talks, "no licence found"), (silent, "did not answer within 0.5 s")):
        async with Holdfast("sqlite://:memory:", mcp_servers=[settings]) as hf:
            assert words in str(hf.tool_registry.mcp.errors["gone"])


async def test_calls_to_a_server_that_cannot_restart_return_errors(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(STUB.read_text())
    async with serve(
        [*call_script("die"), *call_script("shout", text="a")], stub(args=(str(program), "stdio"))
    ) as desk:
        program.unlink()
        for words in ("was lost", "cannot be reached"):
            assert content(await desk.ask("hi", agent="helper")) == "answered"
            assert words in (await last_result(desk))["error"]


async def test_stderr_of_a_server_is_never_shown_to_the_model(tmp_path: Path) -> None:
    """It may contain secrets: the operator sees it, session logs do not."""
    program = tmp_path / "server.py"
    program.write_text(STUB.read_text())
    async with serve(
        [*call_script("die"), *call_script("shout", text="a")], stub(args=(str(program), "stdio"))
    ) as desk:
        program.write_text("import sys; sys.exit('the key sk-hush is wrong')")
        for _ in range(2):
            await desk.ask("hi", agent="helper")
        assert "cannot be reached" in (await last_result(desk))["error"]
        assert "sk-hush" in str(desk.hf.tool_registry.mcp.errors["stub"])
        assert not any("sk-hush" in entry.message.text for entry in await desk.log())


async def test_cancelled_turns_leave_the_server_usable() -> None:
    """Cancelling during a tool call stores a result that says so."""
    async with serve([make_reply(None, ("c", "stub_slow", {"seconds": 60})), *call_script("shout", text="b")]) as desk:
        turn = asyncio.ensure_future(desk.ask("hi", agent="helper"))

        async def has_calls() -> bool:
            return any(entry.message.tool_calls for entry in await desk.log())

        await until(has_calls)
        turn.cancel()
        await asyncio.wait({turn})
        await desk.ask("hi", agent="helper")
        first, last = [entry.message.text for entry in await desk.log() if entry.message.role == "tool"]
        assert "the caller cancelled the turn" in first
        assert last == "B"


async def test_closing_ends_the_server_process() -> None:
    async with Holdfast("sqlite://:memory:", mcp_servers=[stub()]) as hf:
        assert hf.roster.tools.groups["stub"]
        children = _children()
        assert len(children) == 1
    assert children.isdisjoint(_children())


def _children() -> set[str]:
    """Return the ids of this process's children that run the stub."""
    command = ["pgrep", "-P", str(os.getpid()), "-f", str(STUB)]
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())


# -- over HTTP -----------------------------------------------------------------


@contextmanager
def over_http(port: int = 0) -> Iterator[int]:
    """Run the stub at an address and yield its port."""
    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    with subprocess.Popen([sys.executable, str(STUB), "http", str(port)], stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
            yield port
        finally:
            process.kill()


async def test_server_over_http_is_reconnected_after_a_restart() -> None:
    with over_http() as port:
        settings = stub(command=None, args=(), url=f"http://127.0.0.1:{port}/mcp", headers={"x-key": "1"})
        opened = serve(
            [*call_script("shout", text="a"), *call_script("shout", text="b"), *call_script("shout", text="c")],
            settings,
        )
        desk = await opened.__aenter__()
        await desk.ask("hi", agent="helper")
        assert await last_result(desk) == "A"
    try:
        await desk.ask("hi", agent="helper")
        assert "error" in await last_result(desk)
        with over_http(port):
            await desk.ask("hi", agent="helper")
            assert await last_result(desk) == "C"
    finally:
        await opened.__aexit__(None, None, None)


# -- settings ------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"command": "x", "url": "http://x"},
        {"name": "a b", "command": "x"},
        {"command": "x", "timeout": 0},
    ],
)
def test_invalid_settings_are_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        McpSettings(**{"name": "s", **given})


async def test_two_servers_of_one_name_are_rejected() -> None:
    with pytest.raises(InvalidRequest, match="two MCP servers"):
        Holdfast("sqlite://:memory:", mcp_servers=[stub(), stub()])


async def test_missing_sdk_is_reported_at_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra; without servers the SDK is not required."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with Holdfast("sqlite://:memory:"):
        pass
    with pytest.raises(MissingExtra, match="mcp"):
        async with Holdfast("sqlite://:memory:", mcp_servers=[stub()]):
            pass


def test_secrets_in_settings_are_not_shown() -> None:
    settings = stub(env={"TOKEN": "hush"}, args=("--password=hush",))
    assert "hush" not in repr(settings)
    assert "hush" not in repr(McpConnection(settings, lambda: None))
