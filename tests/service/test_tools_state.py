"""What a tool is given of its session: state that is committed with its result, `temp:` keys, ids, artifacts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.agents import Agent
from holdfast.errors import InvalidRequest
from holdfast.tools.context import ToolContext
from tests.service.toolbench import bench, said, shout


async def test_state_is_committed_with_the_result() -> None:
    """Reads see the session's state and the turn's changes; both are in one write."""
    seen: list[Any] = []

    def keep(context: ToolContext, key: str, value: int) -> str:
        seen.append(dict(context.state))
        context.state[key] = {"n": [value]}
        context.state["temp:last"] = value
        return "kept"

    async def drop(context: ToolContext) -> int:
        seen.append(dict(context.state))
        del context.state["a"]
        context.state["b"]["n"].append(9)  # a copy
        return len(context.state)

    script = [
        said(None, ("1", "keep", {"key": "a", "value": 1})),
        said(None, ("2", "keep", {"key": "b", "value": 2})),
        said(None, ("3", "drop", {})),
        said("ok"),
        said(None, ("4", "keep", {"key": "c", "value": 3})),
        said("ok"),
    ]
    async with bench(script, keep, drop) as desk:
        await desk.session.update(state={"old": True})
        version = (await desk.session.info()).version
        await desk.ask("go")
        info = await desk.session.info()
        assert info.state == {"old": True, "b": {"n": [2]}}
        assert info.version == version + 8  # a message, three calls, three results, a reply: the state costs no write
        await desk.ask("more")
        assert seen == [
            {"old": True},
            {"old": True, "a": {"n": [1]}, "temp:last": 1},
            {"old": True, "a": {"n": [1]}, "b": {"n": [2]}, "temp:last": 2},
            {"old": True, "b": {"n": [2]}},
        ]
        assert "context" not in str(desk.model.bodies[0]["tools"])


async def test_a_tool_that_fails_changes_nothing() -> None:
    """Nor does one whose call has ended already, or whose state cannot be stored: that is told to the model."""
    kept: list[ToolContext] = []

    async def half(context: ToolContext) -> None:
        context.state["half"] = 1
        kept.append(context)
        raise ValueError("no")

    async def scoped(context: ToolContext) -> None:
        context.state["user:name"] = 1

    async def odd(context: ToolContext) -> None:
        context.state["odd"] = object()

    async def large(context: ToolContext) -> str:
        context.state["large"] = "x" * (2 << 20)
        return "fine"

    calls = [
        ("a", "half", {}),
        ("b", "scoped", {}),
        ("c", "odd", {}),
        ("d", "large", {}),
        ("e", "shout", {"text": "x"}),
    ]
    async with bench([said(None, *calls), said("ok")], half, scoped, odd, large, shout) as desk:
        await desk.ask("go")
        assert (await desk.session.info()).state == {}
        results = {entry.message.tool_call_id: entry.message.text for entry in await desk.log()}
        for call, words in (("a", "no"), ("b", "user: and app:"), ("c", "as JSON"), ("d", "could not be stored")):
            assert words in msgspec.json.decode(results[call])["error"]
        assert results["e"] == "X"
        with pytest.raises(InvalidRequest):
            kept[0].state["late"] = 1


async def test_the_session_is_given_to_a_tool() -> None:
    """Its ids, its agent and its artifacts."""

    async def write(context: ToolContext, text: str) -> str:
        saved = await context.artifacts.save("note.txt", text)
        return f"{context.session_id} {context.user_id} {context.agent} v{saved.version}"

    agents = {"clerk": Agent(name="clerk")}
    script = [said(None, ("a", "write", {"text": "remember"})), said("ok")]
    async with bench(script, write, agents=agents) as desk:
        await desk.ask("go", agent="clerk")
        assert (await desk.log())[2].message.text == "s default clerk v0"
        assert (await desk.session.artifacts.load("note.txt")).data == b"remember"
