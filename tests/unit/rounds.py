"""Short user, assistant and tool messages: rounds of an invented session."""

from __future__ import annotations

import json
from typing import Any

from holdfast.domain.messages import Message, ToolCall


def user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def reply(text: str) -> list[Message]:
    return [Message(role="assistant", content=text)]


def call(name: str, arguments: Any, result: Any) -> list[Message]:
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    tool = ToolCall("c", name, json.dumps(arguments, ensure_ascii=False))
    return [Message(role="assistant", tool_calls=(tool,)), Message(role="tool", content=text, tool_call_id="c")]
