"""Tools that run in a turn: what models are offered, what they get, and what is kept; agents that are called like tools."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from holdfast import ToolContext, tool_from
from holdfast.errors import NotFound
from holdfast.settings import ToolLimits
from holdfast.testing import Reply
from tests.behaviour.kit import assistant, gateway, result, user
from tests.behaviour.kit.exchanges import Exchange, exchange

DOOR: Final = {
    "type": "function",
    "function": {"name": "open_door", "parameters": {"type": "object", "properties": {}}},
}
PNG: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAIAAAACUFjqAAAAEklEQVR42mPgzgrFgxhGpbEhAK2HTukF5GUzAAAAAElFTkSuQmCC"
)
STUB: Final = Path(__file__).parents[2] / "service" / "mcp_stub.py"
MCP: Final = f"mcp_servers: {json.dumps({'stub': {'command': sys.executable, 'args': [str(STUB), 'stdio'], 'tools': ['sh*', 'boom', 'long']}})}"


def work(
    ctx: ToolContext,
    how: Literal["count", "list", "unset", "raise", "known", "look", "long", "parts", "none"],
    size: Annotated[int, "how many bytes"] = 3,
    places: list[str] | None = None,
) -> Any:
    """Do some
    work.

    It has a second paragraph.

    Args:
        how: what to do,
            and how.
    """
    state = ctx.state
    match how:
        case "count":
            state.increment("count", size)
            state.increment("user:count")
            state.increment("temp:count")
        case "list":
            state.append("seen", *(places or ["a"]))
            state["app:last"] = {"size": size}
        case "unset":
            del state["count"]
            state["seen"] = None
        case "raise":
            state["lost"] = 1
            raise ValueError(f"no {size}")
        case "known":
            error = NotFound(f"no order {size}")
            error.public = "no order in the shop" if size > 8 else None
            raise error
        case "look":
            return {**state, "user": ctx.user_id, "agent": ctx.agent, "session": ctx.session_id}
        case "long":
            return "x" * size
        case "parts":
            return ["a", 1, None, 1.5, True]
    return None


async def whoami(ctx: ToolContext, *, deep: bool = False) -> str:
    """Say who."""
    return f"{ctx.agent} of {ctx.user_id} {deep}"


def made(*calls: Any, said: str | None = None) -> Reply:
    """Return a reply with calls of `work` or of other tools."""
    return Reply(text=said, tool_calls=[one if isinstance(one, tuple) else ("work", one) for one in calls])


def each(*calls: Any) -> list[Reply]:
    """Return a reply for each of these calls."""
    return [made(one) for one in calls]


def how(name: str, **more: Any) -> dict[str, Any]:
    return {"how": name, **more}


async def say(x: Exchange, text: str, model: str | None = None, session_id: str = "s", **fields: Any) -> Any:
    return await x.post("/v1/chat/completions", session_id=session_id, model=model, messages=[user(text)], **fields)


async def show(x: Exchange, session_id: str = "s") -> None:
    await x.rows(f"/v1/sessions/{session_id}/messages", "seq", "role", "content", "metadata", limit=100)
    await x.get(f"/v1/sessions/{session_id}/state")


@exchange(
    [
        made(how("count")), made(how("count", size=2), said="Twice:"), made(how("look")), made(how("known", size=9)), "One.",
        *each(how("list"), how("list", places=["b", "c"]), how("raise"), how("known", size=7)), "Two.",
        *each(how("unset"), how("look"), how("long", size=1024), how("long", size=1025)), "Three.",
        *each(how("parts"), how("none"), how("count", size="1"), how("count", more=1)), "Four.",
        *each(("work", "{"), ("work", ""), ("work", "null"), ("nothing", {})), "Five.",
        *each(*[how("count")] * 5), made(("open_door", {}), how("count")), "Seven.", "Eight.",
    ],
    "agents: {a: {instruction: Be brief., tools: [work]}, b: {tools: [whoami, work]}, c: {tools: []}, d: {tools: [gone]}}",
    tools=[work, tool_from(whoami, name="who", description="Who.", max_result=1024)],
    tool_limits=ToolLimits(rounds=4, result=1024),
)  # fmt: skip
async def test_tools_of_the_program(x: Exchange) -> None:
    for text in ("One", "Two", "Three", "Four", "Five"):
        await say(x, text, "a")
    await show(x)
    await say(x, "Six", "a", tool_choice={"type": "function", "function": {"name": "work"}})
    await say(x, "Seven", tools=[DOOR], stream=True, stream_options={"include_progress": True})
    await x.post("/v1/chat/completions", session_id="s", messages=[result("call_30_0", "open")], tools=[DOOR])
    await show(x)
    named = {"type": "function", "function": {"name": "work"}}
    for fields in ({"n": 2}, {"tools": [named]}, {"model": "b"}, {"model": "c", "n": 2}, {"model": "d"}):
        await say(x, "Eight", session_id="t", **fields)


PYTHON: Final = (
    "x = 1\nprint('a', end='')\nx + 1", "x += 1; _ = open('a.txt', 'w').write('one'); x", "import sys; print('e', file=sys.stderr); 1 / 0", "def (",
    "import os; os.makedirs('d'); open('d/b.csv', 'w').write('1,2'); os.makedirs('.cache'); open('.cache/c', 'w'); open('.h', 'w').write('x'); open(b'\\xfe.txt', 'w').write('x'); open('a.txt', 'w').write('two')", "print('x' * 200_000)",
    "for at in range(40):\n    _ = open(f'{at}.txt', 'w').write('x')", "_ = open('big', 'wb').write(b'x' * 20_000_000)", "os._exit(7)",
    "import os; [len(os.listdir('.')), open('a.txt').read(), 'x' in globals()]", "while True: pass", "x = os.remove('a.txt'); input()", "",
    "import resource; [resource.getrlimit(getattr(resource, 'RLIMIT_' + one))[1] for one in ('AS', 'FSIZE', 'CORE', 'NOFILE', 'STACK')]",
)  # fmt: skip
SANDBOX: Final = "python: {enabled: true, unsandboxed: true, timeout: 3s, memory: 768MiB}"


@exchange(
    [one for code in PYTHON for one in (made(("python", {"code": code})), "Done.")],
    SANDBOX,
    stores=["file"],
)
async def test_the_python_tool(x: Exchange) -> None:
    for at in range(len(PYTHON)):
        await x.served.http.post("/v1/chat/completions", json={"session_id": "s", "messages": [user(f"{at}?")]})
    requests = [one for _, one in x.take_requests()]
    x.note("offered", requests[0]["tools"])
    script = [made(("python", {"code": "import os; os.path.getsize('d/b.csv')"})), "Done."]
    async with gateway(script, SANDBOX, store=x.served.store) as other:  # it has a process of its own
        await other.http.post("/v1/chat/completions", json={"session_id": "s", "messages": [user("And now?")]})
        requests += [one.body for one in other.upstream.requests]
    for one in requests[-1]["messages"]:
        if one["role"] == "tool":
            answer = {"exception": "", "stdout": "", **json.loads(one["content"]), "seconds": None}
            printed, error = answer.pop("stdout"), answer.pop("exception").rpartition("\n")[2]
            x.note("answer", {**answer, "printed": [len(printed), printed[-80:]], "error": error})
    await x.rows("/v1/sessions/s/artifacts", "name", "version", "mime_type", "size", limit=3)


CHIEF: Final = """
agents:
  chief: {instruction: I am chief, agent_tools: [helper, panel], output_key: said, tools: [work]}
  helper: {instruction: "I am helper {mine?} {temp:count?} {user:count?}", description: Makes it short., greeting: Welcome!, output_key: helped, state: {mine: 1}, agent_tools: [deep], tools: [work]}
  deep: {instruction: I am deep, failure_message: Sorry., agent_tools: [], tools: []}
  panel: {sequence: [left, right]}
  left: {instruction: I am left, tools: []}
  right: {instruction: I am right, tools: []}
"""


@exchange(
    {
        "chief": [
            made(how("count")), made(("helper", {"request": "Shorten kelp."}), said="Ask."), "C1",
            *each(("deep", {"request": "x"}), ("helper", {"request": " "}), ("helper", {"request": 7})), "C2",
            *each(("panel", {"request": "Both."}), how("look")), "C3", made(("helper", {"request": "Again."})), "C4",
        ],
        "helper": [made(how("list")), made(("deep", {"request": "Dig."}), said="Deep:"), "H1", "H2"],
        "deep": [Reply(status=503, error="down"), "D2"],
        "left": ["L"],
        "right": ["R"],
    },
    CHIEF,
    tools=[work],
    stores=["file"],
)  # fmt: skip
async def test_agents_as_tools(x: Exchange) -> None:
    await x.send("PATCH", "/v1/state", {"user:count": 4}, {"user_id": "ada"})
    await x.post("/v1/sessions", id="s", user_id="ada", agent="chief", state={"given": True, "count": 1})
    for text in ("One", "Two", "Three", "Four"):
        await say(x, text, user_id="ada")
    await show(x)
    rows = await x.rows(
        "/v1/sessions",
        "id",
        "user_id",
        "agent",
        "status",
        "metadata",
        "turns",
        "usage",
        "state",
        user_id="ada",
        order="asc",
    )
    for row in rows:
        await x.rows(f"/v1/sessions/{row['id']}/messages", "seq", "agent", "role", "content", user_id="ada", limit=100)
    await x.get("/v1/sessions/s/state", user_id="ada")
    await x.get("/v1/state", user_id="ada")
    await x.delete("/v1/sessions/s", user_id="ada")
    await x.rows("/v1/sessions", "id", user_id="ada")


@exchange(
    [
        *each(("stub_shout", {"text": "kelp"}), ("stub_boom", {}), ("stub_slow", {})), "One.",
        made(("stub_long", {"size": 2000})), "Two.", "Three.", "Four.",
    ],
    MCP,
    "agents: {a: {tools: [stub]}, b: {tools: [stub_shout]}, c: {}}",
    "gateway: {max_tool_result: 1KiB}",
)  # fmt: skip
async def test_tools_of_mcp_servers(x: Exchange) -> None:
    for text, model in (("One", "a"), ("Two", "a"), ("Three", "b"), ("Four", "c")):
        await say(x, text, model)
    await show(x)


def art(name: str, /, **given: Any) -> tuple[str, Any]:
    return (f"{name}_artifact", given)


@exchange(
    [
        *each(art("save", name="a.md", content="# One\nTwo"), art("save", name="b.csv", content="B"), ("list_artifacts", {})), "1.",
        *each(art("save", name="a.md", content="Neu"), art("load", name="a.md"), art("load", name="a.md", version=0), art("load", name="a.md", version=9)), "2.",
        *each(art("load", name="zzz"), art("save", name="", content="x"), art("save", name="user:u.md", content="U"), art("load", name="user:u.md", offset=1)), "3.",
        *each(("list_artifacts", {"prefix": "user:"}), art("load", name="pic.png"), ("list_artifacts", {}), ("list_artifacts", {"prefix": "z"})), "4.",
    ],
    "agents: {a: {tools: [save_artifact, load_artifact, list_artifacts]}}",
)  # fmt: skip
async def test_artifact_tools(x: Exchange) -> None:
    await say(x, "One", "a")
    await x.served.http.put("/v1/sessions/s/artifacts/pic.png", content=PNG, headers={"content-type": "image/png"})
    for text in ("Two", "Three", "Four"):
        await say(x, text, "a")
    await show(x)
    await x.get("/v1/sessions/s/artifacts")


def note(action: str, **given: Any) -> tuple[str, Any]:
    return ("memory", {"action": action, **given})


def find(query: str, **given: Any) -> tuple[str, Any]:
    return ("search_conversations", {"query": query, **given})


def mem(command: str, **given: Any) -> tuple[str, Any]:
    return ("memory", {"command": command, **given})


def edit(command: str, path: str = "a.md", **given: Any) -> tuple[str, Any]:
    return ("text_editor", {"command": command, "path": path, **given})


@exchange(
    [
        *each(note("remember", content="Ada likes tea", tags=["a"], importance=0.9), note("recall", query="Who likes tea?", limit=1), note("recall", content="x"), note("forget", id="mem_x")), "1.",
        *each(note("remember", content="Ada likes tea"), note("remember", content="Ada does not like tea"), note("recall", query="kelp"), note("remember", content="x", limit=1)), "2.",
        *each(find("ferry"), find("ferry", max_results=1), find("ferry", since="2023-11-15"), find("ferry", until="2023-11-15", session_id="old"), ("search_conversations", {})), "3.",
        *each(edit("create", file_text="One\nTwo\nTwo"), edit("view"), edit("str_replace", old_str="Two", new_str="2"), edit("insert", insert_line=1, insert_text="half")), "4.",
        *each(edit("view", view_range=[2, 3]), edit("view", path="b.md"), edit("str_replace", old_str="One", new_str="1"), edit("undo_edit"), edit("fly"), edit("view")), "5.",
        *each(mem("create", path="/memories/a.md", file_text="Tea\nCake"), mem("view", path="/memories"), mem("view", path="/memories/a.md"), mem("str_replace", path="/memories/a.md", old_str="Tea", new_str="Rum")),
        *each(mem("rename", old_path="/memories/a.md", new_path="/memories/b/c.md"), mem("delete", path="/memories/x"), mem("view", path="/etc"), mem("insert", path="/memories/b/c.md", insert_line=0, insert_text="Top")), "6.",
        *each(mem("create", path="/memories/b/d.md", file_text="D"), mem("view", path="/memories/b/c.md")), "7.",
    ],
    "agents:",
    "  a: {memory: {enabled: true, budget: 0}, search: {enabled: true, budget: 0}, tools: []}",
    "  e: {tools: [text_editor]}",
    "  f: {memory: {files: server, review: false}, tools: []}",
    "  g: {memory: server, tools: []}",
)  # fmt: skip
async def test_tools_for_memory_search_and_texts(x: Exchange) -> None:
    for one, text in (("old", "When does the ferry leave?"), ("older", "The ferry to Bergen leaves at noon.")):
        await x.post("/v1/sessions", id=one)
        await x.post(f"/v1/sessions/{one}/messages", messages=[user(text), assistant("Ok.")])
    for text, model in (
        ("One", "a"),
        ("Two", "a"),
        ("Three", "a"),
        ("Four", "e"),
        ("Five", "e"),
        ("Six", "f"),
        ("Seven", "g"),
    ):
        await say(x, text, model, "s" if model == "a" else model)
    for session_id in "sefg":
        await show(x, session_id)
    await x.rows("/v1/memories", "content", "origin", "status", "sources", user_id="default")
    for agent in "fg":
        await x.get("/v1/users/default/memory_files", agent=agent)
        await x.get("/v1/users/default/memory_files?path=/memories/b/c.md", agent=agent)
