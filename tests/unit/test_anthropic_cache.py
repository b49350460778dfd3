"""Cache marks for Anthropic. `tests/behaviour/exchanges/test_claude_prompts.py` pins where they are."""

from __future__ import annotations

from holdfast.domain.messages import Message
from holdfast.models.codecs.messages.requests import encode_request
from holdfast.wire.openai import parse_messages
from tests.behaviour.kit.anthropic import check_request


def test_reasoning_is_never_marked() -> None:
    thought = {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    told = parse_messages([{"role": "user", "content": "task"}, {"role": "user", "content": "b"}])
    told.insert(1, Message(role="assistant", content=None, extra=thought))
    assert check_request(encode_request(told, {"model": "m"})) == []
