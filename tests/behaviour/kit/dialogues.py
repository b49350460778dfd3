"""Conversations for tests of prompts, and what every prompt must be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.behaviour.kit.messages import assistant, calls, result, user

TASK: Final = "Refund order K-113 of Ada, and never by card."
STRATEGIES: Final = (
    "buffer_window",
    "head_tail",
    "token_window",
    "digest",
    "salience",
    "summary_buffer",
    "clear_tool_results",
)
"""The strategies that leave something out."""


def talk(turns: int, *, task: str = TASK, words: int = 12) -> list[dict[str, Any]]:
    """Return a task with its reply, then questions and answers. All messages differ."""
    made = [user(task), assistant("I will look.")]
    for number in range(1, turns):
        made.append(user(f"Question {number}: what happened to parcel P-{number}?"))
        made.append(assistant(f"Answer {number}: " + " ".join(f"word{number}x{at}" for at in range(words)) + "."))
    return made


def work(
    steps: int, *, task: str = TASK, tool: str = "find", words: int = 30, parallel: int = 1
) -> list[dict[str, Any]]:
    """Return a task, then steps: a message with tool calls, their results, and a word of the assistant."""
    made = [user(task)]
    for number in range(steps):
        ids = [f"c{number}_{at}" for at in range(parallel)]
        made.append(calls(*((one, tool, {"step": one}) for one in ids)))
        made += [result(one, f"Result {one}: " + " ".join(f"row{number}x{at}" for at in range(words))) for one in ids]
        made.append(assistant(f"Step {number} is done."))
    return made


def find_orphans(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return ids of calls without result, and of results without call, in messages of Chat Completions."""
    open_calls: list[Any] = []
    wrong: list[Any] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] in open_calls:
                open_calls.remove(message["tool_call_id"])
            else:
                wrong.append(message["tool_call_id"])
            continue
        wrong += open_calls
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    return wrong + open_calls


def decided(context: Mapping[str, Any]) -> dict[int, str]:
    """Return the decision of each message of a prompt, by `seq`."""
    return {seq: run["decision"] for run in context["decisions"] for seq in range(run["from"], run["to"] + 1)}
