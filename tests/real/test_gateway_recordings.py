"""The recorded sessions, played through the gateway: the log is the recording, and every prompt is legal and fits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.testing import Reply
from holdfast.tokens import get_counter
from holdfast.wire.openai import parse_message, to_chat_message
from tests.amounts import sampling_step
from tests.edges.server import Served, gateway

Data = dict[str, Any]
MODEL = "gpt-4o"
AT_ONCE = 10
CONFIGS = {
    "the default": ("{}", None, 1),
    "a small digest": ("{strategy: digest, budget: 1024}", 1024, 4),
    "a token window": ("{strategy: token_window, budget: 1500}", 1500, 4),
}
"""An agent's context, the budget of the conversation that it means, and the step by which the sessions are sampled."""
STREAMED_STEP = 10
"""The step where replies are streamed: the way through is the same."""


def rounds(messages: list[Data]) -> Iterator[tuple[list[Data], Data]]:
    """What a client sends and what it is answered, up to the last assistant message; the system prompt aside."""
    sent: list[Data] = []
    for message in messages[1:]:
        if message["role"] == "assistant":
            yield sent, message
            sent = []
        else:
            sent.append(message)


class Recorded:
    """An upstream that answers as the recording did, and looks at every prompt it gets.

    Args:
        system: the system prompt of every session.
        budget: tokens the conversation may have, or None.
    """

    def __init__(self, system: Data, budget: int | None) -> None:
        self._system = system
        self._budget = budget
        self._count = get_counter(MODEL)
        self.answers: dict[str, Data] = {}
        """What is answered next, by recording."""
        self.prompts = 0
        self.cut = 0
        """Prompts that left something out."""

    def __call__(self, body: Data) -> Reply:
        self.prompts += 1
        recording = body["metadata"]
        self._check(body["messages"], recording["sent"])
        self.cut += len(body["messages"]) < recording["length"]
        message = dict(self.answers[recording["id"]])
        # Word by word only where the client is told word by word, too: a hundred sessions have 50,000 words.
        words = None if recording["stream"] else False
        return Reply(message=message, stream=words, finish_reason="tool_calls" if message.get("tool_calls") else "stop")

    def _check(self, prompt: list[Data], newest: list[Data]) -> None:
        """System prompt first and once, results behind their calls and complete, what is new last, within the budget."""
        assert prompt[0] == self._system
        assert [message["role"] for message in prompt].count("system") == 1
        assert prompt[1]["role"] == "user"
        open_calls: list[str] = []
        for message in prompt[1:]:
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
                continue
            assert not open_calls
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        assert not open_calls
        if self._budget is None:
            assert prompt[-len(newest) :] == newest
            return
        assert [message["role"] for message in prompt[-len(newest) :]] == [message["role"] for message in newest]
        assert sum(self._count.message(parse_message(message)) for message in prompt[1:]) <= self._budget


async def play(served: Served, upstream: Recorded, recording: Data, *, stream: bool) -> None:
    """One session, sending only what is new; each reply is the recorded one."""
    session_id, length = recording["id"], 1
    for sent, answer in rounds(recording["messages"]):
        length += len(sent)
        upstream.answers[session_id] = answer
        body = {
            "model": "support",
            "session_id": session_id,
            "messages": sent,
            "stream": stream,
            "metadata": {"id": session_id, "sent": sent, "length": length, "stream": stream},
        }
        response = await served.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        if not stream:
            assert answer.items() <= response.json()["choices"][0]["message"].items()
        length += 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("context", "budget", "step"), CONFIGS.values(), ids=CONFIGS.keys())
async def test_the_log_is_the_recording(
    recordings: list[Data], context: str, budget: int | None, step: int, stream: bool
) -> None:
    """Message by message, log and recording are equal up to the last assistant message; all 100 sessions by the default."""
    chosen = recordings[:: sampling_step(STREAMED_STEP if stream else step)]
    system = chosen[0]["messages"][0]
    assert all(recording["messages"][0] == system for recording in chosen)
    instruction = json.dumps(system["content"])
    agents = f"agents: {{support: {{llm: default, instruction: {instruction}, context: {context}}}}}"
    script = Recorded(system, budget)
    async with gateway(script, agents) as (served, upstream):
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(recording: Data) -> None:
            async with limit:
                await play(served, script, recording, stream=stream)

        await asyncio.gather(*(one(recording) for recording in chosen))
        for recording in chosen:
            entries = await served.hf.store.entries(SessionRef("default", recording["id"]))
            wanted = [message for sent, answer in rounds(recording["messages"]) for message in (*sent, answer)]
            assert [to_chat_message(entry.message) for entry in entries] == wanted
        assert script.prompts == len(upstream.requests) == sum(1 for r in chosen for _ in rounds(r["messages"]))
        assert (script.cut > 0) == (budget is not None)
