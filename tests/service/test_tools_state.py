"""The session as a tool sees it: state committed with the tool's result, `temp:` keys, ids, artifacts."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import InvalidRequest
from holdfast.limits import STATE_VALUE_BYTES
from holdfast.tools.context import ToolContext
from tests.service.tools_kit import bench, make_reply, shout


async def test_failed_tool_changes_no_state() -> None:
    """Neither does a call that has ended already, or one whose state cannot be stored: the model gets an error."""
    kept: list[ToolContext] = []

    async def half(context: ToolContext) -> None:
        context.state["half"] = 1
        kept.append(context)
        raise ValueError("no")

    async def nameless(context: ToolContext) -> None:
        context.state["user:"] = 1

    async def odd(context: ToolContext) -> None:
        context.state["odd"] = object()

    async def large(context: ToolContext) -> str:
        for number in range(5):
            context.state[f"large{number}"] = "x" * (STATE_VALUE_BYTES - 2)
        context.state["user:large"] = 1
        return "fine"

    calls = [
        ("a", "half", {}),
        ("b", "nameless", {}),
        ("c", "odd", {}),
        ("d", "large", {}),
        ("e", "shout", {"text": "x"}),
    ]
    async with bench([make_reply(None, *calls), make_reply("ok")], half, nameless, odd, large, shout) as desk:
        await desk.ask("go")
        assert await desk.session.state.all() == {}
        results = {entry.message.tool_call_id: entry.message.text for entry in await desk.log()}
        for call, words in (("a", "no"), ("b", "after its prefix"), ("c", "as JSON"), ("d", "could not be stored")):
            assert words in msgspec.json.decode(results[call])["error"]
        assert results["e"] == "X"
        with pytest.raises(InvalidRequest):
            kept[0].state["late"] = 1


async def test_state_errors_contain_no_values() -> None:
    """Errors are stored as results, and the values may be secrets or `temp:` values, which are never stored. A value
    without a JSON form deletes nothing.
    """

    def start(context: ToolContext) -> None:
        context.state["temp:draft"] = "hunter2"

    def add(context: ToolContext, key: str) -> None:
        context.state.increment(key)

    def lose(context: ToolContext) -> None:
        context.state["temp:draft"] = float("nan")

    def look(context: ToolContext) -> int:
        return len(context.state["temp:draft"])

    added = [make_reply(None, (key, "add", {"key": key})) for key in ("temp:draft", "user:token", "token")]
    script = [
        make_reply(None, ("a", "start", {})),
        *added,
        make_reply(None, ("b", "lose", {})),
        make_reply(None, ("c", "look", {})),
        make_reply("ok"),
    ]
    async with bench(script, start, add, lose, look) as desk:
        await desk.session.state.update({"user:token": "hunter2", "token": "hunter2"})
        await desk.ask("go")
        results = {entry.message.tool_call_id: entry.message.text for entry in await desk.log()}
        assert all("must be a number" in results[key] for key in ("temp:draft", "user:token", "token"))
        assert "hunter2" not in str(results)
        assert "no JSON form" in results["b"]
        assert results["c"] == "7"
