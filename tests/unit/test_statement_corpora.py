"""The conversations in benchmarks/statements are labelled as their README says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.tokens import get_counter

FILES = sorted((Path(__file__).parents[2] / "benchmarks" / "statements").glob("*/*.json"))
OF_THE_USER = {"instruction", "prohibition", "preference", "name", "date", "number", "decision", "correction"}
OF_THE_ASSISTANT = {"promise", "conclusion"}
UNLABELLED_TOKENS = 1_500
"""At the end of a conversation."""


def test_there_are_conversations_to_tune_on_and_others_to_check_on() -> None:
    assert Counter(path.parent.name for path in FILES) == {"dev": 6, "held": 6}


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_labels_match_the_messages(path: Path) -> None:
    conversation: dict[str, Any] = json.loads(path.read_text("utf-8"))
    messages, statements = conversation["messages"], conversation["statements"]
    by_id = {message["id"]: message for message in messages}
    count = get_counter("gpt-4o").text
    starts, tokens = {}, 0
    for message in messages:
        starts[message["id"]] = tokens
        tokens += count((message.get("content") or "") + json.dumps(message.get("tool_calls") or ""))
    assert len(by_id) == len(messages)
    assert tokens > 10_000
    assert len(statements) >= 34
    seen: set[str] = set()
    for statement in statements:
        message = by_id[statement["message"]]
        assert statement["text"] in message["content"]
        assert statement["kind"] in (OF_THE_USER if message["role"] == "user" else OF_THE_ASSISTANT)
        assert all(value.lower() in statement["text"].lower() for value in statement["value"])
        assert any(topic.lower() in message["content"].lower() for topic in statement["topic"])
        assert statement["question"]
        assert starts[statement["message"]] <= tokens - UNLABELLED_TOKENS
        assert statement["kind"] != "correction" or statement["supersedes"] in seen
        seen.add(statement["id"])
    cues = Counter(statement["cue"] for statement in statements if statement["kind"] in OF_THE_USER)
    assert 0.4 <= cues[False] / cues.total() <= 0.62
