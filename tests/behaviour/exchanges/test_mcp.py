"""Holdfast's MCP server: what its tools and resources return to each caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.shared.exceptions import MCPError

from tests.behaviour.kit import assistant, bearer, calls, result, user
from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.mcp_client import connect, get_refusal


async def use(client: Any, x: Exchange, name: str, **given: Any) -> Any:
    """Call a tool; pin its text, or its structured result, and return that."""
    x.served.clock.now += 1000
    found = await client.call_tool(name, given)
    shown = {"error": found.content[0].text} if found.is_error else found.structured_content
    x.note(f"{name} {given}", shown)
    if not found.is_error:
        x.write("    text", found.content[0].text)
    await x.settle()
    return found.structured_content


async def read(client: Any, x: Exchange, uri: str) -> None:
    try:
        found = (await client.read_resource(uri)).contents[0]
        x.note(f"resource {uri}", [found.mime_type, found.text])
    except MCPError as error:
        x.note(f"resource {uri}", str(error))


async def fill(x: Exchange) -> None:
    for given in ({"agent": "clerk"}, {"scope": "app"}, {"user_id": "bob"}):
        await x.served.http.post("/v1/memories", json={"content": "Deploys need two reviews.", **given})
    for id, owner in (("s", "ada"), ("s/2 ü", "ada"), ("s", "bob"), ("empty", "ada")):  # noqa: A001
        await x.served.http.post("/v1/sessions", json={"id": id, "user_id": owner})
    said = [user("Our cache is Redis."), calls(("c1", "find", {"port": 1}), text="Wait."), result("c1", '{"port": 7001}'), assistant("Port 7001."), user("Thanks. " + "More words. " * 200), assistant("Fine.")]  # fmt: skip
    for place, owner in (("s", "ada"), ("s%2F2%20%C3%BC", "ada"), ("s", "bob")):
        x.served.clock.now += 60_000
        await x.served.http.post(f"/v1/sessions/{place}/messages?user_id={owner}", json={"messages": said[: 6 if place == "s" else 1]})  # fmt: skip
    await x.settle()


async def work(x: Exchange, headers: Mapping[str, str] | None, query: str = "") -> None:
    """Use each tool in the name of a caller."""
    owners: tuple[dict[str, str], ...] = ({"scope": "agent", "agent": "clerk"}, {"scope": "app"}, {"user_id": "bob"})
    known = [(await x.served.http.get("/v1/memories", params=owner)).json() for owner in owners]
    memories = [f"holdfast://memories/{one['data'][0]['id']}" for one in known]
    async with connect(x.served.url, headers, query) as client:
        tools = (await client.list_tools()).tools
        x.note(
            f"tools for {query or 'a key'}",
            [
                [
                    one.name,
                    *(getattr(one.annotations, f"{hint}_hint") for hint in ("read_only", "destructive", "idempotent")),
                ]
                for one in tools
            ],
        )
        first = await use(
            client, x, "remember", content="Deploys on Fridays.", tags=["d"], type="procedural", importance=0.8
        )
        await use(client, x, "remember", content="Deploys on Fridays.")
        await use(client, x, "remember", content=" ")
        await use(client, x, "remember", content="x", importance=2)
        await use(client, x, "recall", query="when are deploys?", limit=1)
        await use(client, x, "recall", query="kelp")
        await use(client, x, "recall", query="when are deploys?", type="procedural")
        page = await use(client, x, "search", query="redis cache", limit=1)
        await use(client, x, "search", query="redis cache", limit=1, after=(page or {}).get("after"))
        given: dict[str, Any]
        for given in (
            {"since": "2023-11-14T22:15:00Z"},
            {"until": "2023-11-14"},
            {"since": "soon"},
            {"until": "9"},
            {"after": "x"},
        ):
            await use(client, x, "search", query="redis cache", **given)
        await use(client, x, "search", query="port", session_id="s", role="tool")
        page = await use(client, x, "list_sessions", limit=1)
        await use(client, x, "list_sessions", limit=1, after=(page or {}).get("after"))
        await use(client, x, "list_sessions", status="closed")
        await use(client, x, "list_sessions", agent="clerk")
        for given in ({"session_id": "s"}, {"session_id": "s", "seq": 2}, {"session_id": "s", "seq": 0}, {"session_id": "s", "before": 3, "max_tokens": 200}, {"session_id": "s", "after": 3, "max_tokens": 200}, {"session_id": "empty"}, {"session_id": "gone"}, {"session_id": "s", "seq": 99}, {"session_id": "s", "seq": 1, "after": 1}):  # fmt: skip
            await use(client, x, "read_session", **given)
        await use(client, x, "explain", session_id="s", seq=1)
        await use(client, x, "explain", session_id="s", text="PORT", before=3, limit=1)
        await use(client, x, "explain", session_id="s")
        await use(client, x, "append_note", session_id="s", text="Escalated.")
        await use(client, x, "append_note", session_id="gone", text="x")
        await use(client, x, "read_session", session_id="s", after=5)
        listed = await client.list_resources()
        x.note("resources", [[str(one.uri), one.name, one.description] for one in listed.resources])
        for uri in [*(str(one.uri) for one in listed.resources[:4]), "holdfast://sessions/gone", "holdfast://nothing/x", "http://x", "holdfast://sessions/%FF", *memories]:  # fmt: skip
            await read(client, x, uri)
        await use(client, x, "forget", id=(first or {}).get("id", "mem_x"))
        await use(client, x, "forget", id=(first or {}).get("id", "mem_x"))


@exchange(())
async def test_tools_and_resources(x: Exchange) -> None:
    await fill(x)
    await work(x, None, "?user_id=ada")


@exchange((), "auth: {required: true}", "mcp: {remember: held}")
async def test_callers_with_keys(x: Exchange) -> None:
    keys = {name: bearer(await x.served.create_key(role=role, user_id=owner)) for name, role, owner in (("admin", "admin", None), ("write", "write", "ada"), ("read", "read", "ada"), ("bob", "write", "bob"))}  # fmt: skip
    x.served.http.headers.update(keys["admin"])
    await fill(x)
    await work(x, keys["write"])
    await work(x, keys["read"])
    async with connect(x.served.url, keys["bob"]) as client:
        await use(client, x, "list_sessions")
        await use(client, x, "recall", query="when are deploys?")
        await use(client, x, "read_session", session_id="s/2 ü")
    for query in ("?user_id=bob", "?user_id=ada", "?nothing=1", "?user_id="):
        try:
            async with connect(x.served.url, keys["write"], query) as client:
                x.note(query, len((await client.list_tools()).tools))
        except BaseExceptionGroup:
            x.note(query, await get_refusal(x.served.url, keys["write"], query))
    x.note("no key", await get_refusal(x.served.url))
    x.note("a wrong key", await get_refusal(x.served.url, bearer("hf_wrong")))
