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
from holdfast.errors import ContextTooLong
from holdfast.holdfast import Holdfast
from holdfast.models import OpenAIModel, ProviderCounter, find_count_endpoint
from holdfast.testing import Reply, ScriptedUpstream, Tokenizer
from holdfast.testing.refusals import REFUSALS

WINDOW = 8_000
TASK = "Move the harbour archive to the new shelves, and keep box KELP-77 shut."
PIN = "Never open box KELP-77."
RATIOS = [0.7, 0.85, 1.0, 1.15, 1.3]


def reply_noted(body: dict[str, Any]) -> Reply:
    return Reply(text="Noted.")


def talk(n: int) -> str:
    return f"Box B-{n} has {n * 3} letters of 18{n % 90 + 10}, the longest is from captain number {n}. " * 5


@contextlib.asynccontextmanager
async def open_overflowing(
    upstream: ScriptedUpstream, model: str, *, url: str = "sqlite://:memory:", counting: bool = False, **llm: Any
) -> AsyncIterator[Holdfast]:
    """Open a Holdfast whose prompts are nearly always as long as allowed."""
    client = OpenAIModel(upstream.url, "sk-test")
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


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("model", ["gpt-4o", "my-own-model"])
@pytest.mark.parametrize("imported", [0, 80])
async def test_wrong_tokenizer_overflows_at_most_once(ratio: float, model: str, imported: int) -> None:
    """Sessions that grow into the window, and sessions that start full; later sessions do not overflow again."""
    async with ScriptedUpstream(reply_noted, tokenizer=Tokenizer(window=WINDOW, ratio=ratio)) as upstream:
        async with open_overflowing(upstream, model) as hf:
            first = await create_session(hf, "first", imported)
            for n in range(60):
                await first.send(talk(n))
            assert count_refused(upstream) <= 1
            before = count_refused(upstream)
            second = await create_session(hf, "second", 80)
            for n in range(10):
                await second.send(talk(n))
            assert count_refused(upstream) == before
        check_pinned_messages(upstream)


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


async def test_too_small_window_is_a_clear_error() -> None:
    """After three attempts the error names the numbers; the user's message is in the log."""
    async with (
        ScriptedUpstream(reply_noted, tokenizer=Tokenizer(window=50, refusal="openai-silent")) as upstream,
        open_overflowing(upstream, "gpt-4o") as hf,
    ):
        session = await create_session(hf, "s", 80)
        with pytest.raises(ContextTooLong, match=r"tried [\d,]+, [\d,]+, [\d,]+, [\d,]+ tokens"):
            await session.send("And now?")
        assert (await session.messages())[-1]["content"] == "And now?"
    assert len(upstream.requests) == 4


async def test_learned_limit_is_stored(tmp_path: Any) -> None:
    """Another process on the same file does not overflow again."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with ScriptedUpstream(reply_noted, tokenizer=Tokenizer(window=WINDOW, refusal="openai")) as upstream:
        async with open_overflowing(upstream, "my-own-model", url=url, context_window=None) as hf:
            await (await create_session(hf, "first", 120)).send("And now?")
        before = count_refused(upstream)
        assert before >= 1
        async with open_overflowing(upstream, "my-own-model", url=url, context_window=None) as hf:
            await (await create_session(hf, "second", 120)).send("And now?")
        assert count_refused(upstream) == before


async def test_provider_count_is_used_before_the_call() -> None:
    """With `count: provider` even the first full prompt does not overflow."""
    tokenizer = Tokenizer(window=WINDOW, ratio=1.3)
    async with (
        ScriptedUpstream(reply_noted, tokenizer=tokenizer, counts=tokenizer.count_prompt_tokens) as upstream,
        open_overflowing(upstream, "gpt-4o", counting=True) as hf,
    ):
        session = await create_session(hf, "s", 120)
        await session.send("And now?")
        assert len(upstream.requests) == 1
        assert not count_refused(upstream)
        assert upstream.counted
        found = (await session.context()).provider_count
        assert found["how"] == "provider"


async def test_tool_headroom_is_reserved_only_with_tools() -> None:
    async with ScriptedUpstream(reply_noted) as upstream, open_overflowing(upstream, "gpt-4o") as hf:
        session = await hf.session("s")
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        async with session.turn("Hi") as turn:
            without = turn.explanation()["budget"]
            turn.add("Hello.")
        async with session.turn("Hi", tools=[tool], max_tokens=500) as turn:
            within = turn.explanation()["budget"]
    assert without["tool_result_headroom"] == 0
    assert within["tool_result_headroom"] == 1_000
    assert within["max_reply_tokens"] == 500
