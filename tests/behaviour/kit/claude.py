"""Exchanges with Anthropic's Messages API on either side, and its blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.behaviour.kit.exchanges import Exchange, Scenario, exchange
from tests.behaviour.kit.messages import user

Row = dict[str, Any]
SCHEMA: Final[Row] = {"type": "object", "properties": {"at": {"type": "integer"}}}
LOOK: Final[Row] = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
MARK: Final[Row] = {"cache_control": {"type": "ephemeral"}}
PIXEL: Final = "iVBORw0KGgo="
THOUGHT: Final[Row] = {"type": "thinking", "thinking": "let me see", "signature": "signed"}
PICTURE: Final[Row] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


def claude(*config: str, script: Any = lambda _: "Yes.", **llm: Any) -> Callable[[Scenario], Callable[..., Any]]:
    """An exchange in front of a model with Anthropic's API."""
    llm = {"provider": "anthropic", "model": "claude-sonnet-4-5", **llm}
    return exchange((), *config, upstream=partial(AnthropicUpstream, script), llm=llm)


async def ask(x: Exchange, said: Any = "Hi.", **fields: Any) -> Any:
    """Send a request of the Messages API."""
    messages = [user(said)] if isinstance(said, str) else said
    return await x.post("/v1/messages", **{"max_tokens": 100, "messages": messages, **fields})


async def chat(x: Exchange, said: Any = "Hi.", **fields: Any) -> Any:
    """Send a request of Chat Completions."""
    messages = [user(said)] if isinstance(said, str) else said
    return await x.post("/v1/chat/completions", **{"messages": messages, **fields})


def text(said: str, **more: Any) -> Row:
    return {"type": "text", "text": said, **more}


def use(call_id: str, name: str = "look", given: Any = None, **more: Any) -> Row:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if given is None else given, **more}


def found(call_id: str, content: Any = None, **more: Any) -> Row:
    return {"type": "tool_result", "tool_use_id": call_id, **({} if content is None else {"content": content}), **more}
