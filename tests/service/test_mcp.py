"""Tools of MCP servers in turns: which agents have them, what the model receives, and that a server failure does not
fail a turn. The servers are separate programs: a stub that misbehaves on request, over stdio and HTTP. Reference
servers are in tests/edges/test_mcp_reference.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agents import Agent
from holdfast.tools.mcp.connection import McpConnection
from holdfast.tools.mcp.settings import McpSettings
from tests.service.mcp_kit import STUB, stub
from tests.service.tools_kit import Bench, bench, make_reply, shout
from tests.waits import until

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


async def last_result(desk: Bench) -> Any:
    """Return the last tool result; for a failed call, the parsed error object."""
    text = [entry.message.text for entry in await desk.log() if entry.message.role == "tool"][-1]
    return msgspec.json.decode(text) if text.startswith("{") else text


def call_script(tool: str, **arguments: Any) -> list[Any]:
    """Return a script with one call of the tool and then an answer."""
    return [make_reply(None, ("c", f"stub_{tool}", arguments)), "answered"]


# -- unavailable servers ------------------------------------------------------------


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


# -- settings ------------------------------------------------------------------


def test_secrets_in_settings_are_not_shown() -> None:
    settings = stub(env={"TOKEN": "hush"}, args=("--password=hush",))
    assert "hush" not in repr(settings)
    assert "hush" not in repr(McpConnection(settings, lambda: None))
