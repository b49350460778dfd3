"""Random trees of message threads: each prompt is exactly the path to its message, and each message is continued once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.testing import Reply
from tests.edges.server import gateway
from tests.edges.test_message_threads import code, list_received, send

Kind = Literal["continue", "fork", "fail", "other api", "change tools"]
Step = tuple[Kind, int]


@dataclass
class Node:
    """A message of a thread, as the test expects it."""

    answer: Any
    path: list[tuple[str, str]]
    """Role and text of the conversation up to the message, without the system prompt."""
    tools: list[str]
    is_continued: bool = False


def make_message(text: str, tool: str | None) -> list[dict[str, Any]]:
    """Return the messages of a request, with one more tool if it is named."""
    definition = {"name": tool, "input_schema": {"type": "object"}}
    block = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}
    added = [{"role": "system", "content": [block]}] if tool else []
    return [*added, {"role": "user", "content": text}]


async def play(steps: list[Step]) -> None:
    """Play steps on one server, and compare prompts and refusals with a model of the tree."""

    def answer(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        return Reply(status=500, error="down") if text.startswith("fail") else f"re: {text}"

    async with gateway(answer) as (served, upstream):
        first = await send(served, "begin", {"type": "create"}, system="Be brief.")
        nodes = [Node(first, [("user", "begin"), ("assistant", "re: begin")], [])]
        for at, (kind, index) in enumerate(steps):
            node, text = nodes[index % len(nodes)], f"{kind}.{at}"
            tool = f"tool_{at}" if kind == "change tools" else None
            thread = {"type": "continue", "previous_message_id": node.answer["id"], "fork": kind == "fork"}
            calls = len(upstream.requests)
            if kind == "other api":
                if not node.is_continued:
                    session_id = node.answer["session_id"]
                    assert (await served.chat(text, session_id=session_id, session_mode="delta"))["status"] == 200
                    node.is_continued = True
                continue
            reply = await send(served, "", thread, messages=make_message(text, tool))
            if node.is_continued and kind != "fork":
                assert code(reply) == (400, "thread_already_continued")
                assert len(upstream.requests) == calls
                continue
            path, tools = [*node.path, ("user", text)], [*node.tools, *([tool] if tool else [])]
            assert list_received(upstream) == [("system", "Be brief."), *path]
            body = upstream.requests[-1].body
            assert [one["function"]["name"] for one in body.get("tools") or ()] == tools
            if kind == "fail":
                assert reply["status"] >= 500
                continue
            assert reply["status"] == 200
            node.is_continued = node.is_continued or kind != "fork"
            nodes.append(Node(reply, [*path, ("assistant", f"re: {text}")], tools))


KINDS: tuple[Kind, ...] = ("continue", "fork", "fail", "other api", "change tools")


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9)), min_size=1, max_size=10))
@example([("fail", 0), ("fail", 0), ("continue", 0), ("fail", 0), ("fork", 0), ("change tools", 2), ("fork", 3)])
@example([("change tools", 0), ("fork", 1), ("change tools", 2), ("fail", 3), ("other api", 3), ("fork", 3)])
def test_prompts_follow_the_tree_of_messages(steps: list[Step]) -> None:
    """Continuations, forks, failures, changes of tools and other APIs, in any order."""
    asyncio.run(play(steps))
