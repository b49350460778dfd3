"""Turns against a provider that counts tokens differently: a refused request teaches the real limit, and no message
is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.agents import Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.holdfast import Holdfast
from holdfast.models import OpenAIModel, ProviderCounter, find_count_endpoint
from holdfast.testing import Reply, ScriptedUpstream, Tokenizer
from holdfast.testing.refusals import REFUSALS

WINDOW = 8_000
TASK = "Move the harbour archive to the new shelves, and keep box KELP-77 shut."
PIN = "Never open box KELP-77."


def reply_noted(body: dict[str, Any]) -> Reply:
    return Reply(text="Noted.")


def talk(n: int) -> str:
    return f"Box B-{n} has {n * 3} letters of 18{n % 90 + 10}, the longest is from captain number {n}. " * 5


@contextlib.asynccontextmanager
async def open_overflowing(
    upstream: ScriptedUpstream, model: str, *, url: str = "sqlite://:memory:", counting: bool = False, **llm: Any
) -> AsyncIterator[Holdfast]:
    """Open a Holdfast whose prompts are nearly always as long as allowed."""
    client = OpenAIModel(upstream.url, "sk-test", profile="openai")
    count = ProviderCounter(find_count_endpoint(upstream.url, "sk-test", model)) if counting else None
    made = Llm(name="m", model=model, client=client, count=count, **{"context_window": WINDOW, **llm})
    async with Holdfast(
        url, roster=Roster({"m": made}, context=ContextSettings("token_window", {"budget": 10**6, "target": 0.9}))
    ) as hf:
        yield hf


async def create_session(hf: Holdfast, name: str, turns: int) -> Any:
    """Create a session with a task, a pin, and a number of imported turns."""
    session = await hf.session(name)
    await session.append([{"role": "user", "content": TASK}, {"role": "assistant", "content": "Aye."}])
    pinned = await session.append([{"role": "user", "content": PIN}, {"role": "assistant", "content": "Aye."}])
    await hf.store.annotate(session.ref, pinned.entries[0].seq, pinned=True)
    for n in range(turns):
        await session.append([{"role": "user", "content": talk(n)}, {"role": "assistant", "content": "Noted."}])
    return session


def count_refused(upstream: ScriptedUpstream) -> int:
    """Return the number of refused requests."""
    return sum(one.refused for one in upstream.requests)


def check_pinned_messages(upstream: ScriptedUpstream) -> None:
    for request in upstream.requests:
        texts = [message.get("content") or "" for message in request.body["messages"]]
        assert any(TASK in text for text in texts)
        assert PIN in texts


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("name", REFUSALS)
async def test_every_known_error_wording_reduces_the_budget(name: str, in_stream: bool) -> None:
    """Also if it is an error in a stream without text so far: the caller sees only an answer."""
    tokenizer = Tokenizer(window=WINDOW, ratio=1.3, refusal=name, in_stream=in_stream)
    async with ScriptedUpstream(reply_noted, tokenizer=tokenizer) as upstream:
        async with open_overflowing(upstream, "gpt-4o", context_window=11_000) as hf:
            session = await create_session(hf, "s", 120)
            assert (await session.send("And now?"))["choices"][0]["message"]["content"] == "Noted."
            assert 1 <= count_refused(upstream) <= 3
            before = count_refused(upstream)
            for n in range(5):
                await session.send(talk(n))
            assert count_refused(upstream) == before
            assert (await session.info()).messages == 2 + 2 + 240 + 2 + 10
        check_pinned_messages(upstream)
