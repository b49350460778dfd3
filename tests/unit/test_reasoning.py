"""Reasoning stored with a message: which fields are read, and which provider signed it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.context.dialects import Thought, find_call_signature, find_signature
from holdfast.domain.messages import ToolCall

CLAUDE, GOOGLE = "anthropic-claude-v1", "google-gemini-v1"


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
