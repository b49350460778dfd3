"""Helpers for tests with LangChain's messages."""

from __future__ import annotations

import base64
import json
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from tests.adapters.cases import Sent, answer, parse_number

ROLES = {"human": "user", "ai": "assistant"}


def describe(message: BaseMessage) -> Sent:
    """Return what the cases need of a message."""
    parts: Any = message.content if isinstance(message.content, list) else [{"text": message.content}]
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    urls = [part["image_url"]["url"] for part in parts if "image_url" in part]
    return Sent(
        ROLES.get(message.type, message.type),
        "".join(part.get("text", "") for part in parts),
        tuple(str(call["id"]) for call in calls),
        "".join(json.dumps(call["args"], separators=(",", ":")) for call in calls),
        (message.tool_call_id,) if isinstance(message, ToolMessage) else (),
        tuple(part["signature"] for part in parts if "signature" in part),
        tuple(base64.b64decode(url.partition(",")[2]) for url in urls),
    )


def make_question(text: str, image: bytes | None) -> HumanMessage:
    """Return a question, with an image if there is one."""
    if image is None:
        return HumanMessage(text)
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    return HumanMessage([{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}])


def reply(last: BaseMessage) -> AIMessage:
    """Return the scripted model's reply to the newest message: a call of the tool, or an answer."""
    if isinstance(last, ToolMessage):
        return AIMessage(answer(last.tool_call_id))
    number = parse_number(describe(last).text)
    if number is None:
        return AIMessage("I see.")
    thinking: Any = [{"type": "thinking", "thinking": "Hm.", "signature": f"sig{number}"}]
    call = {"name": "find", "args": {"order": number}, "id": f"call_{number}"}
    return AIMessage(thinking, tool_calls=[call])
