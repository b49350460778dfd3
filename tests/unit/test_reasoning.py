"""Reasoning stored with a message: which fields are read, and which provider signed it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.context.dialects import Thought, find_call_signature, find_signature, parse_field_thoughts, parse_thoughts
from holdfast.domain.messages import Message, Part, ToolCall

CLAUDE, GOOGLE = "anthropic-claude-v1", "google-gemini-v1"


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ({}, []),
        ({"thinking_blocks": [{"type": "thinking", "thinking": "hm"}]}, [Thought("hm", "anthropic")]),
        (
            {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
            [Thought("hm", "anthropic", "s")],
        ),
        ({"thinking_blocks": [{"type": "thinking", "signature": "s"}]}, [Thought("", "anthropic", "s")]),
        (
            {"thinking_blocks": [{"type": "redacted_thinking", "data": "d", "thinking": "no", "signature": "no"}]},
            [Thought(vendor="anthropic", sealed="d")],
        ),
        (
            {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "summary": "h", "signature": "s"}]},
            [Thought("hm", "anthropic", "s")],
        ),
        (
            {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s", "format": CLAUDE}]},
            [Thought("hm", "anthropic", "s")],
        ),
        (
            {"reasoning_details": [{"type": "reasoning.summary", "summary": "in short", "format": GOOGLE}]},
            [Thought("in short", "gemini")],
        ),
        ({"reasoning_details": [{"type": "reasoning.text", "signature": "s"}]}, [Thought("", "anthropic", "s")]),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "hm", "format": "other"}]}, [Thought("hm")]),
        (
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "d", "id": "c", "format": GOOGLE}]},
            [Thought(vendor="gemini", sealed="d", call_id="c")],
        ),
        ({"reasoning_content": "hm", "reasoning": "other"}, [Thought("hm")]),
        ({"reasoning_content": " \n", "reasoning": "hm"}, [Thought("hm")]),
    ],
)
def test_each_reasoning_field_is_read(extra: dict[str, Any], found: list[Thought]) -> None:
    """A summary replaces missing text; an unknown `format` has no provider."""
    assert parse_thoughts(Message(role="assistant", content="ok", extra=extra)) == found


def test_the_first_field_with_reasoning_is_used() -> None:
    """Content parts, then blocks, details and plain text; the others repeat the same."""
    blocks = {"thinking_blocks": [{"type": "thinking", "thinking": "in blocks"}]}
    details = {"reasoning_details": [{"type": "reasoning.text", "text": "in details"}]}
    plain = {"reasoning_content": "in words"}
    everything = {**blocks, **details, **plain}
    content = (Part("thinking", extra={"thinking": "in parts", "signature": "s"}), Part("text", "ok"))
    said = Message(role="assistant", content=content, extra=everything)
    assert parse_thoughts(said) == [Thought("in parts", "anthropic", "s")]
    assert parse_field_thoughts(said) == []
    for extra, text in ((everything, "in blocks"), ({**details, **plain}, "in details"), (plain, "in words")):
        said = Message(role="assistant", content=(Part("text", "ok"),), extra=extra)
        assert [thought.text for thought in parse_thoughts(said)] == [text]
        assert parse_field_thoughts(said) == parse_thoughts(said)


@pytest.mark.parametrize("empty", [[], [{}], ["?", 5], "?", None, [{"type": "thinking", "thinking": ""}]])
def test_empty_fields_do_not_hide_others(empty: Any) -> None:
    """Also fields of an unexpected type."""
    said = {"thinking_blocks": empty, "reasoning_details": empty, "reasoning_content": 5, "reasoning": "hm"}
    assert parse_thoughts(Message(role="assistant", content="ok", extra=said)) == [Thought("hm")]
    sealed = {"thinking_blocks": [{"type": "redacted_thinking", "data": "d"}], "reasoning": "hm"}
    assert parse_thoughts(Message(role="assistant", extra=sealed)) == [Thought(vendor="anthropic", sealed="d")]


def test_reasoning_is_returned_to_the_provider_that_signed_it() -> None:
    """Signed or encrypted reasoning; unsigned reasoning is text for every provider."""
    for thought in (Thought("hm", "gemini", "s"), Thought(vendor="gemini", sealed="d")):
        assert thought.is_signed_by("gemini")
        assert not thought.is_signed_by("anthropic")
    assert not Thought("hm", "gemini").is_signed_by("gemini")
    assert not Thought("hm", None, "s").is_signed_by("gemini")


@pytest.mark.parametrize("name", ["thoughtSignature", "thought_signature"])
def test_google_signatures_are_found_in_every_location(name: str) -> None:
    """Top-level fields have precedence; a call may carry it itself or in its function."""
    for fields in ({name: "s"}, {"extra_content": {"google": {name: "s"}}}, {"provider_specific_fields": {name: "s"}}):
        assert find_signature(fields) == "s"
        assert find_call_signature(ToolCall("c", "look", "{}", extra=fields)) == "s"
        assert find_call_signature(ToolCall("c", "look", "{}", function_extra=fields)) == "s"
    nested = {"extra_content": {"google": {name: "second"}}, "provider_specific_fields": {name: "third"}}
    assert find_signature({name: "first", **nested}) == "first"
    assert find_signature({name: "", **nested}) == "second"
    empty: list[dict[str, Any]] = [
        {},
        {name: 5},
        {"extra_content": "?"},
        {"extra_content": {"google": "?"}},
        {"extra_content": {}},
    ]
    for wrong in empty:
        assert find_signature(wrong) is None
