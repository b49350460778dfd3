"""Short ways to write messages, and to read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def user(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "system", "content": text, **more}


def calls(*made: tuple[str, str, Any], text: str | None = None) -> dict[str, Any]:
    """Return a reply that calls tools: `calls(("c1", "find", {"q": "x"}))`."""
    functions = [{"name": name, "arguments": json.dumps(given)} for _, name, given in made]
    tool_calls = [
        {"id": call_id, "type": "function", "function": function}
        for (call_id, _, _), function in zip(made, functions, strict=True)
    ]
    return {"role": "assistant", "content": text, "tool_calls": tool_calls}


def result(call_id: str, text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text, **more}


def texts(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the contents of messages. A list of text parts becomes one text."""
    return [_join(message.get("content")) for message in messages]


def answer_of(reply: Mapping[str, Any]) -> Any:
    """Return what the assistant says in an answer of Chat Completions."""
    return reply["choices"][0]["message"]["content"]


def _join(content: Any) -> Any:
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return "".join(part["text"] for part in content)
    return content
