"""Tools of MCP servers in turns: who has them, what the model is told, and that no server's failure is a turn's.

The servers are programs of their own: a stub that misbehaves on request, over stdio and HTTP. Reference servers are in
tests/edges/test_mcp_reference.py.
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
from holdfast.tools.mcp.connection import McpConnection
from holdfast.tools.mcp.servers import make_tool_name
from holdfast.tools.mcp.settings import McpSettings
from tests.service.mcp_kit import STUB, stub
from tests.service.tools_kit import Bench, bench, content, make_reply, shout
from tests.waiting import until


def missing(**settings: Any) -> McpSettings:
    """A server whose program is not there."""
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
async def served(script: Sequence[Any], *servers: McpSettings, **given: Any) -> AsyncIterator[Bench]:
    async with bench(script, shout, agents=AGENTS, mcp_servers=servers or (stub(),), **given) as desk:
        yield desk


def offered(desk: Bench) -> list[str]:
    return [tool["function"]["name"] for tool in desk.model.bodies[-1].get("tools", ())]


async def result(desk: Bench) -> Any:
    """The last tool result; of one that failed, the object that tells."""
    text = [entry.message.text for entry in await desk.log() if entry.message.role == "tool"][-1]
    return msgspec.json.decode(text) if text.startswith("{") else text


def calls(tool: str, **arguments: Any) -> list[Any]:
    """A call, and an answer behind it."""
    return [make_reply(None, ("c", f"stub_{tool}", arguments)), "answered"]


# -- who has them --------------------------------------------------------------


async def test_agents_have_them_by_name() -> None:
    """The whole server, or one tool; nobody else is offered a tool of a server: neither plain clients nor agents without a list."""
    async with served(["x"] * 4) as desk:
        await desk.ask("hi", agent="helper")
        names = offered(desk)
        assert {"stub_shout", "stub_picture", "stub_slow"} <= set(names)
        assert "shout" not in names
        assert all(len(name) <= 64 and name.isascii() and "/" not in name and "." not in name for name in names)
        await desk.ask("hi", agent="narrow")
        assert offered(desk) == ["stub_shout"]
        for agent in ("free", None):
            await desk.ask("hi", agent=agent)
            assert offered(desk) == ["shout"]


async def test_names_of_a_server_that_are_written_the_same() -> None:
    """Both tools are offered, and each call comes to its own."""
    async with served(["x"]) as desk:
        await desk.ask("hi", agent="helper")
        names = [name for name in offered(desk) if name.startswith("stub_odd")]
        assert len(set(names)) == 2
    heard = []
    for name in names:
        async with served(calls(name.removeprefix("stub_"))) as desk:
            await desk.ask("hi", agent="helper")
            heard.append(await result(desk))
    assert sorted(heard) == ["odd", "odder"]


async def test_allow_lists() -> None:
    """`tools` says which are offered, `exclude_tools` which are not, `prefix` what stands before their names."""
    listed = stub(tools=("s*", "die"), exclude_tools=("die", "sl*"), prefix="my-")
    async with served(["x"], listed) as desk:
        await desk.ask("hi", agent="helper")
        assert offered(desk) == ["my-shout"]


async def test_a_misspelt_tool_is_told() -> None:
    async with served([]) as desk:
        with pytest.raises(InvalidRequest, match="stub_shuot"):
            await desk.ask("hi", agent="wrong")


def test_names_that_a_provider_takes() -> None:
    """The same each time, never one that is taken, and different names stay different."""
    assert make_tool_name("", "a b/c.d", ()) == "a_b_c_d"
    long = "x" * 100
    named = make_tool_name("server_", long, ())
    assert len(named) == 64
    assert named == make_tool_name("server_", long, ()) != make_tool_name("server_", long + "y", ())
    assert make_tool_name("", "a.b", {"a_b"}) != "a_b"


# -- what the model is told ----------------------------------------------------


async def test_a_call() -> None:
    async with served(calls("shout", text="quiet")) as desk:
        assert content(await desk.ask("hi", agent="helper")) == "answered"
        assert await result(desk) == "QUIET"


async def test_a_failure_is_a_result() -> None:
    """Of the tool, of its arguments, of a name that is not there."""
    async with served([*calls("boom"), *calls("shout", words="?"), *calls("nothing")]) as desk:
        for words in ("the boiler is cold", "text", "there is no tool"):
            assert content(await desk.ask("hi", agent="helper")) == "answered"
            assert words in (await result(desk))["error"]


async def test_limits_of_results() -> None:
    """A long one is cut, with a marker; media become artifacts, which are named."""
    async with served([*calls("long", size=100_000), *calls("picture")], stub(max_result=2000)) as desk:
        await desk.ask("hi", agent="helper")
        assert len(await result(desk)) <= 2000
        assert "cut" in await result(desk)
        await desk.ask("hi", agent="helper")
        (artifact,) = await desk.session.artifacts.list()
        assert artifact.mime_type == "image/png"
        assert artifact.name in await result(desk)


async def test_time_limit() -> None:
    """A call that takes too long is given up, and the server goes on serving."""
    async with served([*calls("slow", seconds=30), *calls("shout", text="a")], stub(timeout=0.3)) as desk:
        await desk.ask("hi", agent="helper")
        assert "timed out" in (await result(desk))["error"]
        await desk.ask("hi", agent="helper")
        assert await result(desk) == "A"


async def test_its_environment_is_its_own() -> None:
    """A server sees what it was given and a few harmless variables, not what this process holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-not-for-servers")
        async with served(calls("variables"), stub(env={"MINE": "1"})) as desk:
            await desk.ask("hi", agent="helper")
            told = await result(desk)
            assert "MINE" in told
            assert "OPENAI_API_KEY" not in told


async def test_new_tools_are_offered() -> None:
    """A server that tells of new tools is asked for them anew."""
    async with served([*calls("learn"), "x"]) as desk:
        await desk.ask("hi", agent="helper")

        async def learnt() -> bool:
            return "stub_late" in desk.hf.roster.tools.tools

        await until(learnt)
        await desk.ask("hi", agent="helper")
        assert "stub_late" in offered(desk)


# -- servers that are away -----------------------------------------------------


async def test_a_server_that_dies_in_a_call() -> None:
    """The call is told to have had an unknown end; the next one starts the server again."""
    async with served([*calls("die"), *calls("shout", text="again")]) as desk:
        await desk.ask("hi", agent="helper")
        assert "may or may not have done its work" in (await result(desk))["error"]
        await desk.ask("hi", agent="helper")
        assert await result(desk) == "AGAIN"


async def test_a_server_that_never_starts() -> None:
    """It opens all the same; agents go on with their other tools, one that names a tool of it is served without, and why is known."""
    async with served(["x", "y"], missing()) as desk:
        assert content(await desk.ask("hi", agent="lost")) == "x"
        assert offered(desk) == ["shout"]
        assert content(await desk.ask("hi", agent="hopeful")) == "y"
        assert "No such file" in str(desk.hf.tool_registry.mcp.errors["gone"])


async def test_the_log_says_what_kind_of_failure_keeps_a_server_away(caplog: pytest.LogCaptureFixture) -> None:
    """And nothing of what it said: that may be a secret."""
    talks = missing(name="talks", command=sys.executable, args=("-c", "import sys; sys.exit('s3cr3t')"))
    silent = missing(
        name="silent", command=sys.executable, args=("-c", "import time; time.sleep(60)"), start_timeout=0.5
    )
    async with Holdfast("sqlite://:memory:", mcp_servers=[missing(), talks, silent]):
        fields = {one.fields["server"]: one.fields["error"] for one in caplog.records if hasattr(one, "fields")}
    assert (fields["gone"], fields["silent"]) == ("FileNotFoundError", "TimeoutError")
    assert fields["talks"] != "ConnectionError"
    assert "s3cr3t" not in str(fields)


async def test_what_a_server_says_at_its_end_is_told() -> None:
    """Its standard error, where it cannot be started; and one that says nothing is not waited for for ever."""
    talks = missing(command=sys.executable, args=("-c", "import sys; sys.exit('no licence found')"))
    silent = missing(command=sys.executable, args=("-c", "import time; time.sleep(60)"), start_timeout=0.5)
    for settings, words in ((talks, "no licence found"), (silent, "did not answer within 0.5 s")):
        async with Holdfast("sqlite://:memory:", mcp_servers=[settings]) as hf:
            assert words in str(hf.tool_registry.mcp.errors["gone"])


async def test_a_call_of_a_server_that_went_away_and_cannot_come_back(tmp_path: Path) -> None:
    """Says so, as a result."""
    program = tmp_path / "server.py"
    program.write_text(STUB.read_text())
    async with served([*calls("die"), *calls("shout", text="a")], stub(args=(str(program), "stdio"))) as desk:
        program.unlink()
        for words in ("was lost", "cannot be reached"):
            assert content(await desk.ask("hi", agent="helper")) == "answered"
            assert words in (await result(desk))["error"]


async def test_what_a_program_says_at_its_end_is_not_the_models(tmp_path: Path) -> None:
    """It may hold secrets: whoever runs the server is told, and no log of a session."""
    program = tmp_path / "server.py"
    program.write_text(STUB.read_text())
    async with served([*calls("die"), *calls("shout", text="a")], stub(args=(str(program), "stdio"))) as desk:
        program.write_text("import sys; sys.exit('the key sk-hush is wrong')")
        for _ in range(2):
            await desk.ask("hi", agent="helper")
        assert "cannot be reached" in (await result(desk))["error"]
        assert "sk-hush" in str(desk.hf.tool_registry.mcp.errors["stub"])
        assert not any("sk-hush" in entry.message.text for entry in await desk.log())


async def test_cancelled_turns_leave_it_usable() -> None:
    """Whoever goes while a tool is at work leaves a result that says so, and a server that serves."""
    async with served([make_reply(None, ("c", "stub_slow", {"seconds": 60})), *calls("shout", text="b")]) as desk:
        turn = asyncio.ensure_future(desk.ask("hi", agent="helper"))

        async def called() -> bool:
            return any(entry.message.tool_calls for entry in await desk.log())

        await until(called)
        turn.cancel()
        await asyncio.wait({turn})
        await desk.ask("hi", agent="helper")
        first, last = [entry.message.text for entry in await desk.log() if entry.message.role == "tool"]
        assert "the caller cancelled the turn" in first
        assert last == "B"


async def test_nothing_is_left_behind() -> None:
    """Closing ends the program."""
    async with Holdfast("sqlite://:memory:", mcp_servers=[stub()]) as hf:
        assert hf.roster.tools.groups["stub"]
        children = _children()
        assert len(children) == 1
    assert children.isdisjoint(_children())


def _children() -> set[str]:
    """Programs of this process's that are the stub."""
    command = ["pgrep", "-P", str(os.getpid()), "-f", str(STUB)]
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())


# -- over HTTP -----------------------------------------------------------------


@contextmanager
def over_http(port: int = 0) -> Iterator[int]:
    """The stub at an address; its port."""
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


async def test_over_http_and_through_a_restart() -> None:
    """The same at an address; a server that was started anew is connected to anew."""
    with over_http() as port:
        settings = stub(command=None, args=(), url=f"http://127.0.0.1:{port}/mcp", headers={"x-key": "1"})
        opened = served([*calls("shout", text="a"), *calls("shout", text="b"), *calls("shout", text="c")], settings)
        desk = await opened.__aenter__()
        await desk.ask("hi", agent="helper")
        assert await result(desk) == "A"
    try:
        await desk.ask("hi", agent="helper")
        assert "error" in await result(desk)
        with over_http(port):
            await desk.ask("hi", agent="helper")
            assert await result(desk) == "C"
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
        {"command": "x", "max_result": True},
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        McpSettings(**{"name": "s", **given})


async def test_two_of_one_name() -> None:
    with pytest.raises(InvalidRequest, match="two MCP servers"):
        Holdfast("sqlite://:memory:", mcp_servers=[stub(), stub()])


async def test_without_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named, at the opening; without servers nobody asks for it."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with Holdfast("sqlite://:memory:"):
        pass
    with pytest.raises(MissingExtra, match="mcp"):
        async with Holdfast("sqlite://:memory:", mcp_servers=[stub()]):
            pass


def test_nothing_secret_is_shown() -> None:
    settings = stub(env={"TOKEN": "hush"}, args=("--password=hush",))
    assert "hush" not in repr(settings)
    assert "hush" not in repr(McpConnection(settings, lambda: None))
