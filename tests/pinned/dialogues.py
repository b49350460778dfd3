"""The conversations whose prompts are pinned: dialogues of `benchmarks/`, and recorded sessions outside of the repository."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.pinned.shapes import make_shapes

ROOT: Final = Path(__file__).parents[2]
BENCHMARKS: Final = ROOT / "benchmarks"
DIALOGUES: Final = (
    *(f"statements/dev/{name}" for name in ("chinese", "coding", "life", "roleplay", "tutoring", "voice")),
    *(f"statements/held/{name}" for name in ("agent_loop", "bilingual", "coaching", "research")),
    "conversations/dev/dev-1",
    "recall/dev/shop-agent",
    *(f"recall/held/{name}" for name in ("german", "mixed", "ops")),
    "made-up/shapes",
)
"""About half of the dialogues of `benchmarks/`, so that a run takes half a minute: talk, tutoring, voice, logs, agents with tools; four
languages. And one that was made up for the shapes of its tool results."""
RECORDED: Final = (
    *(f"airline/airline-{number:02}-{number % 4}" for number in range(0, 24, 3)),
    *(f"retail/retail-{number}-{number}" for number in range(0, 49, 7)),
    *(f"assistant/{number}" for number in range(5)),
)
"""Twenty recorded sessions: every third task of the airline, every seventh of the shop, and the five people with an assistant."""
LONGEST: Final = 60
"""Number of messages of each dialogue of `benchmarks/recall`, and of each person's chats with an assistant, that are used."""


class Dialogue(NamedTuple):
    """A conversation, and the question with which it ends."""

    name: str
    messages: Sequence[Mapping[str, Any]]
    question: str | None


def read_dialogue(name: str) -> Dialogue:
    """Return a dialogue, with the first question about it that its beginning answers."""
    if name == "made-up/shapes":
        return Dialogue(name, make_shapes(), "What is the total of order KX-7732?")
    data = json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8"))
    kind = name.partition("/")[0]
    if kind == "statements":
        return Dialogue(name, [_clean(one) for one in data["messages"]], data["statements"][0]["question"])
    if kind == "conversations":
        return Dialogue(name, list(_read_talk(data["conversation"])), data["qa"][0]["question"])
    said = [one for session in data["sessions"] for one in session["messages"]][:LONGEST]
    known = {one["id"] for one in said[: LONGEST // 2]}
    questions = (one["question"] for one in data["questions"] if one["evidence"] and known.issuperset(one["evidence"]))
    return Dialogue(name, _add_calls([_clean(one) for one in said]), next(questions))


def read_recorded(folder: Path, name: str) -> Dialogue:
    """Return a recorded session from the folder of the recordings."""
    kind, _, wanted = name.partition("/")
    path = folder / kind / ("chats.jsonl" if kind == "assistant" else "sessions.jsonl")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            data = json.loads(line)
            if kind != "assistant" and data["id"] == wanted:
                return Dialogue(name, data["messages"], None)
            if kind == "assistant" and str(number) == wanted:
                said = [one for session in data["sessions"] for one in session["messages"]]
                return Dialogue(name, [_clean(one) for one in said[:LONGEST]], None)
    raise LookupError(f"{path} has no session {wanted}")


def _clean(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in ("id", "timestamp")}


def _add_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give each tool result a call, by the assistant message before it."""
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            call = {"id": f"call_{number}", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
            if found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": None})
            found[-1]["tool_calls"] = [call]
            found.append({**message, "tool_call_id": call["id"]})
        else:
            found.append(message)
    return found


def _read_talk(conversation: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the turns of two people. The one who speaks first is the user."""
    number = 1
    while turns := conversation.get(f"session_{number}"):
        for turn in turns:
            first = turn["speaker"] == conversation["session_1"][0]["speaker"]
            yield {"role": "user" if first else "assistant", "content": turn["text"]}
        number += 1
