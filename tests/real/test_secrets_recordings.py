"""Secrets are looked for in recorded sessions of agents, which have none: ordinary conversation stays as it is."""

from __future__ import annotations

from typing import Any

from holdfast.secrets.guard import Guard
from holdfast.secrets.redactor import make_redactor
from holdfast.wire.openai import parse_messages


def test_no_rule_hits_ordinary_conversation(recordings: list[dict[str, Any]]) -> None:
    redactor = make_redactor()
    guard = Guard(redactor)
    for recording in recordings:
        messages = parse_messages(recording["messages"])
        told = guard.mask_messages(messages)
        assert all(new is old for new, old in zip(told, messages, strict=True)), recording["id"]
    assert redactor.hits == {}
