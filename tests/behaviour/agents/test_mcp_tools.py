"""Tools of MCP servers, which run in programs of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import Served, answer_of, gateway

STUB = Path(__file__).parents[2] / "service" / "mcp_stub.py"
"""A server that misbehaves on request."""


def stub(**more: Any) -> str:
    """Return a configuration with this server and an agent that has its tools."""
    server = {"command": sys.executable, "args": [str(STUB), "stdio"], **more}
    return f"mcp_servers: {json.dumps({'stub': server})}\nagents: {{a: {{tools: [stub]}}, b: {{tools: [stub_shout]}}, c: {{}}}}"


def names(served: Served) -> set[str]:
    return {tool["function"]["name"] for tool in served.sent.get("tools") or ()}


async def results(served: Served) -> list[Any]:
    return [row["content"] for row in await served.entries() if row["role"] == "tool"]


def calling(*rounds: list[tuple[str, Any]]) -> list[Any]:
    return [*(Reply(tool_calls=[(f"stub_{name}", given) for name, given in made]) for made in rounds), "Done."]


async def test_an_agent_has_the_tools_that_its_list_names() -> None:
    """Names are those that providers accept, and stay distinct."""
    async with gateway(lambda _: "ok", stub()) as served:
        await served.chat("Go", None, model="a")
        offered = names(served)
        assert {"stub_shout", "stub_long", "stub_odd_name_with_dots"} <= offered
        assert sum(name.startswith("stub_odd") for name in offered) == 2
        await served.chat("Go", None, model="b")
        assert names(served) == {"stub_shout"}
        for fields in ({"model": "c"}, {}):
            await served.chat("Go", None, **fields)
            assert not any(name.startswith("stub") for name in names(served))


async def test_the_list_and_the_prefix_of_a_server_apply() -> None:
    async with gateway(
        lambda _: "ok", stub(tools=["sh*", "boom"], prefix="x_").replace("stub_shout", "x_shout")
    ) as served:
        await served.chat("Go", None, model="a")
        assert names(served) == {"x_shout", "x_boom"}


async def test_results_and_failures_go_to_the_model() -> None:
    """The environment of the program has nothing of the server's own."""
    rounds = [("shout", {"text": "kelp"}), ("boom", {}), ("shout", {"wrong": 1}), ("variables", {})]
    async with gateway(calling(*([one] for one in rounds)), stub(env={"MINE": "1"})) as served:
        assert answer_of(await served.chat("Go", model="a")) == "Done."
        first, second, third, fourth = await results(served)
        assert first == "KELP"
        assert "the boiler is cold" in second
        assert "text" in third
        assert "MINE" in fourth
        assert "PATH" in fourth
        assert "HOLDFAST" not in fourth


async def test_long_results_are_cut_and_pictures_become_artifacts() -> None:
    async with gateway(
        calling([("long", {"size": 9000})], [("picture", {})], [("picture", {"count": 21})]),
        stub(),
        "gateway: {max_tool_result: 4KiB}",
    ) as served:
        await served.chat("Go", model="a")
        long, picture, many = await results(served)
        assert (many.count("saved as artifact"), many.count("not saved, at most 20 media")) == (20, 1)
        assert len(long) <= 4096
        assert "of 9,000 bytes" in long
        assert ".png" in str(picture)
        kept = await served.rest.session().ask("GET", "artifacts")
        assert [one["mime_type"] for one in kept["data"]] == ["image/png"] * 20


@pytest.mark.parametrize(
    ("call", "limit", "words"),
    [(("slow", {"seconds": 600}), "1s", "timed out"), (("die", {}), "60s", "may or may not have done its work")],
)
async def test_a_server_that_is_slow_or_dies_is_used_again(call: tuple[str, Any], limit: str, words: str) -> None:
    async with gateway(calling([call], [("shout", {"text": "still here"})]), stub(timeout=limit)) as served:
        assert answer_of(await served.chat("Go", model="a")) == "Done."
        first, second = await results(served)
        assert words in first
        assert second == "STILL HERE"


async def test_a_server_that_does_not_start_leaves_other_tools() -> None:
    def here() -> str:
        """Here."""
        return "here"

    config = 'mcp_servers: {stub: {command: "no-such-program"}}\nagents: {a: {tools: [stub, here]}}'
    async with gateway([Reply(tool_calls=[("here", {})]), "Done."], config, tools=[here]) as served:
        assert answer_of(await served.chat("Go", model="a")) == "Done."
        assert names(served) == {"here"}


async def test_a_tool_that_appears_later_is_offered() -> None:
    """The server tells it in its own time."""
    wanted = {"Go": "stub_learn", "And?": "stub_late"}

    def answer(body: dict[str, Any]) -> Any:
        name = wanted.get(body["messages"][-1]["content"]) if body["messages"][-1]["role"] == "user" else None
        return Reply(tool_calls=[(name, {})]) if name else "Done."

    async with gateway(answer, stub()) as served:
        await served.chat("Go", model="a")
        for _ in range(200):
            await served.chat("Is it there?", None, model="a")
            if "stub_late" in names(served):
                break
        await served.chat("And?", model="a")
        assert await results(served) == ["learnt", "late"]
        assert "stub_late" in names(served)


PAGED = """
import anyio, mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

async def list_tools(_, params):
    at = int((params and params.cursor) or 0)
    tool = types.Tool(name=f"tool{at}", input_schema={"type": "object"})
    return types.ListToolsResult(tools=[tool], next_cursor=str(at + 1) if at < 4 else None)

async def main():
    server = Server("paged", on_list_tools=list_tools)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


async def test_a_list_of_tools_is_read_to_its_last_page() -> None:
    async with gateway(lambda _: "ok", stub(args=["-c", PAGED])) as served:
        await served.chat("Go", None, model="a")
        assert names(served) == {f"stub_tool{at}" for at in range(5)}


OLDER = """
import json, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

names = ["first"]
for line in sys.stdin:
    asked = json.loads(line)
    method = asked.get("method")
    if method == "initialize":
        told = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "o", "version": "1"}}
        send(id=asked["id"], result=told)
    elif method == "tools/list":
        send(id=asked["id"], result={"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
        if names == ["first"]:
            names.append("second")
            send(method="notifications/progress", params={"progressToken": 7, "progress": 1})
            send(method="notifications/unheard_of", params={})
            send(method="notifications/tools/list_changed")
    elif "id" in asked:
        send(id=asked["id"], error={"code": -32601, "message": "unknown"})
"""


async def test_a_server_of_an_older_version_says_that_its_tools_changed() -> None:
    """It also sends what nobody asked for."""
    async with gateway(lambda _: "ok", stub(args=["-c", OLDER])) as served:
        for _ in range(200):
            await served.chat("Go", None, model="a")
            if len(names(served)) == 2:
                break
        assert names(served) == {"stub_first", "stub_second"}
