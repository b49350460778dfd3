"""Cache marks for Anthropic: every call reads what the previous call wrote, according to the documentation."""

from __future__ import annotations

from typing import Any

from holdfast.domain.messages import Message
from holdfast.models.codecs.messages.requests import encode_request
from holdfast.wire.openai import parse_messages
from tests.behaviour.kit.anthropic import check_request

Json = dict[str, Any]
HOUR = {"type": "ephemeral", "ttl": "1h"}

# -- sessions that grow -----------------------------------------------------------------

"""Parallel calls, including more than the lookback of the cache."""


# -- positions of marks ---------------------------------------------------------------------


def list_marks(body: Json) -> list[tuple[str, Any]]:
    """Return the positions of all marks with the marks, in request order."""
    places: list[tuple[str, Json]] = [(f"tools.{at}", tool) for at, tool in enumerate(body.get("tools", ()))]
    places += [(f"system.{at}", block) for at, block in enumerate(body.get("system", ()))]
    for number, message in enumerate(body["messages"]):
        for at, block in enumerate(message["content"]):
            inner = block.get("content") or [] if block["type"] == "tool_result" else []
            places += [(f"{number}.{at}.{deep}", one) for deep, one in enumerate(inner)]
            places.append((f"{number}.{at}", block))
    return [(place, block["cache_control"]) for place, block in places if "cache_control" in block]


def conversation(*contents: Any) -> list[Message]:
    """Return alternating user and assistant messages after a system prompt."""
    told = [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(contents)]
    return parse_messages([{"role": "system", "content": "Sys."}, *told])


def test_the_request_sets_the_lifetime_of_marks() -> None:
    """Our marks copy Anthropic's top-level `cache_control`."""
    body = encode_request(conversation("task"), {"model": "m", "cache_control": HOUR})
    assert list_marks(body) == [("system.0", HOUR), ("0.0", HOUR)]


def test_marks_before_a_one_hour_mark_last_one_hour_too() -> None:
    """The API rejects a five-minute mark before a one-hour mark."""
    block = {"type": "text", "text": "e", "cache_control": HOUR}
    body = encode_request(conversation("task", "a", "b", "c", [block]), {"model": "m"})
    assert [mark for _, mark in list_marks(body)] == [HOUR] * 4
    assert check_request(body) == []


def test_reasoning_is_never_marked() -> None:
    thought = {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    told = conversation("task", "a", "b")
    told.insert(2, Message(role="assistant", content=None, extra=thought))
    body = encode_request(told, {"model": "m"})
    assert check_request(body) == []
