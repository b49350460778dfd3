"""Replies without content: kept in the log, left out of prompts, and explained."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.context.strategies import NO_CONTENT

MUTE: dict[str, dict[str, Any]] = {
    "null": {"content": None},
    "missing": {},
    "empty": {"content": ""},
    "white space": {"content": " \n"},
    "no parts": {"content": []},
    "an empty part": {"content": [{"type": "text", "text": ""}]},
    "only a refusal": {"content": None, "refusal": "I cannot help with that."},
    "only reasoning": {"content": None, "reasoning_content": "The user asks for …"},
}


@pytest.mark.parametrize("mute", MUTE.values(), ids=MUTE)
async def test_reply_without_content_is_in_the_log_and_in_no_prompt(mute: dict[str, Any]) -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        reply = {"role": "assistant", **mute}
        await session.append([{"role": "user", "content": "one"}, reply, {"role": "user", "content": "two"}])
        assert (await session.messages())[1] == reply
        context = await session.context()
        assert [message["content"] for message in context.messages] == ["one", "two"]
        runs = [(run.first, run.last, run.decision, run.reason) for run in context.decisions]
        assert runs[1] == (1, 1, "evicted", NO_CONTENT)
        anthropic = await session.context(dialect="anthropic")
        assert [turn["role"] for turn in anthropic.messages] == ["user"]
        gemini = await session.context(dialect="gemini")
        assert [turn["role"] for turn in gemini.messages] == ["user"]


async def test_reply_without_content_is_explained_after_its_neighbours_left() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append({"role": "user", "content": "Plan the trip."})
        await session.append({"role": "assistant", "content": None})
        for number in range(60):
            await session.append({"role": "user", "content": f"Question {number} about the harbour and the kelp?"})
            await session.append({"role": "assistant", "content": f"Answer {number}: the harbour is open at {number}."})
        context = await session.context("digest", budget=400)
        assert {(run.first, run.reason) for run in context.decisions if run.first <= 2} == {
            (0, "the task"),
            (1, NO_CONTENT),
            (2, "condensed"),
        }
