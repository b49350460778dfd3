"""A scripted model, a tool and checks for the tests of the Strands adapter."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from strands import Agent, tool
from strands.models import Model

Json = dict[str, Any]


class ScriptedModel(Model):
    """Replies with given content blocks, or raises given errors. A dict is sent as a raw chunk of the stream."""

    def __init__(self, replies: Sequence[Any] = (), name: str = "gpt-4o") -> None:
        self.replies = list(replies)
        self.name = name
        self.calls: list[list[Json]] = []
        """The messages of each call."""

    def get_config(self) -> Json:
        return {"model_id": self.name}

    def update_config(self, **config: Any) -> None: ...

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.calls.append(copy.deepcopy(messages))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        yield {"messageStart": {"role": "assistant"}}
        for block in reply:
            if "chunk" in block:
                yield block["chunk"]
                continue
            yield {"contentBlockStart": {"start": _make_start(block)}}
            for delta in _make_deltas(block):
                yield {"contentBlockDelta": {"delta": delta}}
            yield {"contentBlockStop": {}}
        calls = any("toolUse" in block for block in reply)
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def _make_start(block: Json) -> Json:
    if "toolUse" not in block:
        return {}
    return {"toolUse": {name: block["toolUse"][name] for name in ("name", "toolUseId")}}


def _make_deltas(block: Json) -> list[Json]:
    if "toolUse" in block:
        return [{"toolUse": {"input": json.dumps(block["toolUse"]["input"])}}]
    if "reasoningContent" in block:
        reasoning = block["reasoningContent"]["reasoningText"]
        return [{"reasoningContent": {name: reasoning[name]}} for name in ("text", "signature")]
    return [block]


@tool
def find(order: int) -> str:
    """Find an order."""
    return f"Order {order} is on its way, parcel {order * 17}. " * 8


def call_find(order: int) -> Json:
    return {"toolUse": {"toolUseId": f"call_{order}", "name": "find", "input": {"order": order}}}


def think(text: str) -> Json:
    return {"reasoningContent": {"reasoningText": {"text": text, "signature": f"signature of {text}"}}}


def play_orders(count: int, start: int = 0) -> ScriptedModel:
    """Return a model that calls the tool for each order, after reasoning, and then answers."""
    replies: list[Any] = []
    for order in range(start, start + count):
        replies += [[think(f"I need order {order}."), {"text": "Wait."}, call_find(order)]]
        replies += [[{"text": f"Order {order} is on its way."}]]
    return ScriptedModel(replies)


def make_agent(model: ScriptedModel | None = None, **settings: Any) -> Agent:
    given = {"tools": [find], "system_prompt": "You help with orders.", "callback_handler": None, **settings}
    return Agent(model or ScriptedModel(), **given)


def check_prompt(messages: Sequence[Json]) -> None:
    """Check the rules that all providers accept: roles alternate, and results follow their calls."""
    open_calls: set[str] = set()
    for at, message in enumerate(messages):
        assert message["role"] == ("user", "assistant")[at % 2]
        assert message["content"]
        results = [block["toolResult"]["toolUseId"] for block in message["content"] if "toolResult" in block]
        assert all("toolResult" in block for block in message["content"][: len(results)])
        assert set(results) == open_calls
        assert len(results) == len(open_calls)
        open_calls = {block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block}
    assert not open_calls


def get_texts(messages: Sequence[Json]) -> str:
    """Return all texts of a prompt."""
    return json.dumps(list(messages), default=str, ensure_ascii=False)
