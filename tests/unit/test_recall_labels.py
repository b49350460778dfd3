"""The labelled conversations of benchmarks/recall: their labels hold."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.evaluation import read

RECALL = Path(__file__).parents[2] / "benchmarks" / "recall"
FILES = sorted(RECALL.glob("*/*.json"))
TYPES = {"fact", "date", "count", "list", "multi-hop", "update", "assistant", "unanswerable"}


def fold(text: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).casefold()


def find_faults(sample: dict[str, Any]) -> list[str]:
    """Return what is wrong with messages and labels."""
    messages = [message for session in sample["sessions"] for message in session["messages"]]
    by_id = {message["id"]: message for message in messages}
    times = [message["timestamp"] for message in messages]
    faults = [f"{id_} twice" for id_, count in Counter(message["id"] for message in messages).items() if count > 1]
    faults += [f"role of {one['id']}" for one in messages if one["role"] not in {"user", "assistant", "tool"}]
    faults += [f"{one['id']} is empty" for one in messages if not one["content"].strip()]
    faults += [] if times == sorted(times) else ["times go back"]
    for at, question in enumerate(sample["questions"]):
        faults += [f"question {at}: {fault}" for fault in find_question_faults(question, by_id)]
    return faults


def find_question_faults(question: dict[str, Any], messages: dict[str, dict[str, Any]]) -> list[str]:
    """Return what is wrong with a question."""
    evidence, values = question["evidence"], question.get("values", [])
    if question["type"] == "unanswerable":
        return ["unanswerable with evidence"] if evidence or values else []
    faults = [f"unknown {id_}" for id_ in evidence if id_ not in messages]
    known = [messages[id_] for id_ in evidence if id_ in messages]
    said = fold(" \n ".join(message["content"] for message in known))
    faults += [f"value {value!r} is not in its evidence" for value in values if fold(value) not in said]
    faults += [] if known and values else ["no evidence or no values"]
    faults += [] if question["type"] in TYPES else [f"type {question['type']!r}"]
    faults += [f"asked before {one['id']} was said" for one in known if question["asked"] < one["timestamp"]]
    return faults


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_labels_hold(path: Path) -> None:
    sample = json.loads(path.read_text(encoding="utf-8"))
    assert find_faults(sample) == []
    assert set(sample) >= {"id", "kind"}


def test_there_are_enough_questions_of_every_type_and_none_is_left_out() -> None:
    dataset = read([RECALL / "dev", RECALL / "held"])
    unanswerable = sum(len(sample.unanswerable) for sample in dataset.samples)
    assert dataset.queries + unanswerable >= 600
    assert (dataset.without_evidence, dataset.unknown) == (0, 0)
    assert set(dataset.types) == TYPES - {"unanswerable"}
    assert unanswerable >= 40
    assert len({sample.id for sample in dataset.samples}) == len(dataset.samples) == 10


def test_faults_are_found() -> None:
    message = {"id": "a", "role": "user", "content": "Three hens", "timestamp": "2025-01-02"}
    messages = [message, {**message, "timestamp": "2025-01-01", "role": "robot", "content": " "}]
    question = {"type": "fact", "evidence": ["a", "b"], "values": ["four"], "asked": "2024-01-01"}
    sample = {"sessions": [{"messages": messages}], "questions": [question]}
    assert find_faults(sample) == [
        "a twice",
        "role of a",
        "a is empty",
        "times go back",
        "question 0: unknown b",
        "question 0: value 'four' is not in its evidence",
        "question 0: asked before a was said",
    ]
