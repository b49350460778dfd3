"""Conversations as short words, as in the reference tables: `u1 tc1 t1 a1 u2'`.

`u` is a user message, `a` an assistant message, `tc` one with a tool call, `t` a tool result, `sys` a system prompt. A mark after the number
(`u2'`) means another text at the same place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from holdfast.wire.openai import to_chat_message

Data = dict[str, Any]
_WORD = re.compile(r"(tc|t|u|a|r|sys)(.*)")


def message(word: str) -> Data:
    """Return the message for a word."""
    kind, number = _WORD.fullmatch(word).groups()  # type: ignore[union-attr]  # a word that is none fails the test
    if kind == "tc":
        function = {"name": "find", "arguments": json.dumps({"number": number, "deep": {"b": 1, "a": [2]}})}
        return {"role": "assistant", "content": None, "tool_calls": [call(number, function)]}
    if kind == "t":
        return {"role": "tool", "tool_call_id": f"call_{number}", "content": f"result {number}"}
    role = {"u": "user", "a": "assistant", "r": "assistant", "sys": "system"}[kind]
    return {"role": role, "content": word}


def call(number: str, function: Data) -> Data:
    """A tool call."""
    return {"id": f"call_{number}", "type": "function", "function": function}


def messages(words: str) -> list[Data]:
    """The messages of a conversation."""
    return [message(word) for word in words.split()]


def words(entries: Iterable[Any]) -> str:
    """Return a conversation as words: entries of a log, or messages as dicts."""
    return " ".join(map(_word, entries))


def _word(one: Any) -> str:
    data = one if isinstance(one, dict) else to_chat_message(one.message)
    if data.get("tool_calls"):
        return "tc" + "+".join(json.loads(call["function"]["arguments"])["number"] for call in data["tool_calls"])
    if data["role"] == "tool":
        return "t" + str(data["content"]).removeprefix("result ")
    content: Any = data["content"]
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)
