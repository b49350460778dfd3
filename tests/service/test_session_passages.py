"""Recall within the session: messages evicted from the prompt return if the current message asks about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.context.recalled import is_recalled
from holdfast.sessions.handle import SessionHandle
from holdfast.wire.openai import parse_message

FACT = "The boat is called Kittiwake, and her mooring costs 420 a month."
ASKED = "What does the mooring cost?"


async def fill(session: SessionHandle, *facts: str) -> None:
    """Store the facts and then enough text to evict them from a budget of 1,000 tokens."""
    await session.append({"role": "user", "content": "Keep a log of the weather for me, day by day."})
    for fact in facts:
        await session.append([{"role": "user", "content": fact}, {"role": "assistant", "content": "Noted, thanks."}])
    said = {"user": "Day {}, and what is it like?", "assistant": "Wind, rain and fog on day number {} of the log."}
    await session.append([{"role": who, "content": said[who].format(day)} for day in range(80) for who in said])


def blocks(messages: Any) -> list[str]:
    """Return the recalled blocks of a prompt."""
    return [one["content"] for one in messages if is_recalled(parse_message(one))]


async def ask(session: SessionHandle, text: str = ASKED, **given: Any) -> list[dict[str, Any]]:
    """Run a turn with this question and return its prompt."""
    async with session.turn(text, **{"strategy": "token_window", "budget": 1000, "recall": "on", **given}) as turn:
        turn.add("So it is.")
        return turn.messages


async def test_erased_message_is_not_recalled() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await fill(session, FACT, "The mooring has a shower.")
        assert "Kittiwake" in blocks(await ask(session))[0]
        await hf.engine.store.erase(session.ref, 1)  # as another process does: this one is not notified
        assert "Kittiwake" not in str(await ask(session))


async def test_restarted_process_recalls_the_same_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("recall.postings", "overlays.session_postings"):
        monkeypatch.setattr(f"holdfast.{module}.RECALL_TOKENS", 1_500)
    url = f"sqlite:///{tmp_path}/log.db"
    async with holdfast.open(url) as warm, holdfast.open(url) as cold:
        session = await warm.session("s")
        await fill(session, FACT)
        for day in (20, 70):
            assert blocks(await ask(session, f"What was said about day number {day} of the log?"))
        await session.append({"role": "user", "content": f"Which fog was on day number 60? {ASKED}"})
        sessions = [session, await cold.session("s")]
        shown = [await one.context("token_window", budget=1000, recall="on") for one in sessions]
        assert shown[0].messages == shown[1].messages
        assert "day number 60" in blocks(shown[0].messages)[0]
        assert "Kittiwake" not in str(shown[0].messages)  # older than what is ranked
