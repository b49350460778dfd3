"""Whole turns against a provider that counts otherwise than we do: what it refuses teaches, and nothing is lost by it."""

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


def noted(body: dict[str, Any]) -> Reply:
    return Reply(text="Noted.")


def talk(n: int) -> str:
    return f"Box B-{n} has {n * 3} letters of 18{n % 90 + 10}, the longest is from captain number {n}. " * 5


@contextlib.asynccontextmanager
async def opened(
    upstream: ScriptedUpstream, model: str, *, url: str = "sqlite://:memory:", counting: bool = False, **llm: Any
) -> AsyncIterator[Holdfast]:
    """A Holdfast whose prompts are nearly always as long as they may be."""
    client = OpenAIModel(upstream.url, "sk-test")
    count = ProviderCounter(find_count_endpoint(upstream.url, "sk-test", model)) if counting else None
    made = Llm(name="m", model=model, client=client, count=count, **{"context_window": WINDOW, **llm})
    async with Holdfast(
        url, roster=Roster({"m": made}, context=ContextSettings("token_window", {"budget": 10**6, "target": 0.9}))
    ) as hf:
        yield hf


async def session_of(hf: Holdfast, name: str, turns: int) -> Any:
    """A session with a task, a pin, and so many turns that nobody sent to the model."""
    session = await hf.session(name)
    await session.append([{"role": "user", "content": TASK}, {"role": "assistant", "content": "Aye."}])
    pinned = await session.append([{"role": "user", "content": PIN}, {"role": "assistant", "content": "Aye."}])
    await hf.store.annotate(session.ref, pinned.entries[0].seq, pinned=True)
    for n in range(turns):
        await session.append([{"role": "user", "content": talk(n)}, {"role": "assistant", "content": "Noted."}])
    return session


def refused(upstream: ScriptedUpstream) -> int:
    """Requests that were refused."""
    return sum(one.refused for one in upstream.requests)


def nothing_pinned_was_lost(upstream: ScriptedUpstream) -> None:
    for request in upstream.requests:
        texts = [message.get("content") or "" for message in request.body["messages"]]
        assert any(TASK in text for text in texts)
        assert PIN in texts


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("model", ["gpt-4o", "my-own-model"])
@pytest.mark.parametrize("imported", [0, 80])
async def test_a_tokenizer_that_is_wrong_overflows_once_at_most(ratio: float, model: str, imported: int) -> None:
    """Sessions that grow into the window, and sessions that begin full; none behind them overflows again."""
    async with ScriptedUpstream(noted, tokenizer=Tokenizer(window=WINDOW, ratio=ratio)) as upstream:
        async with opened(upstream, model) as hf:
            first = await session_of(hf, "first", imported)
            for n in range(60):
                await first.send(talk(n))
            assert refused(upstream) <= 1
            before = refused(upstream)
            second = await session_of(hf, "second", 80)
            for n in range(10):
                await second.send(talk(n))
            assert refused(upstream) == before
        nothing_pinned_was_lost(upstream)


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("name", REFUSALS)
async def test_every_known_wording_is_stepped_down_from(name: str, in_stream: bool) -> None:
    """Also as an error in a stream that has said nothing yet: the caller sees an answer and no more."""
    tokenizer = Tokenizer(window=WINDOW, ratio=1.3, refusal=name, in_stream=in_stream)
    async with ScriptedUpstream(noted, tokenizer=tokenizer) as upstream:
        async with opened(upstream, "gpt-4o", context_window=11_000) as hf:
            session = await session_of(hf, "s", 120)
            assert (await session.send("And now?"))["choices"][0]["message"]["content"] == "Noted."
            assert 1 <= refused(upstream) <= 3
            before = refused(upstream)
            for n in range(5):
                await session.send(talk(n))
            assert refused(upstream) == before
            assert (await session.info()).messages == 2 + 2 + 240 + 2 + 10
        nothing_pinned_was_lost(upstream)


async def test_a_window_that_nothing_fits_is_a_clear_error() -> None:
    """Three steps, then the numbers; the user's message is in the log."""
    async with (
        ScriptedUpstream(noted, tokenizer=Tokenizer(window=50, refusal="openai-silent")) as upstream,
        opened(upstream, "gpt-4o") as hf,
    ):
        session = await session_of(hf, "s", 80)
        with pytest.raises(ContextTooLong, match=r"tried [\d,]+, [\d,]+, [\d,]+, [\d,]+ tokens"):
            await session.send("And now?")
        assert (await session.messages())[-1]["content"] == "And now?"
    assert len(upstream.requests) == 4


async def test_what_was_learned_is_remembered_by_the_store(tmp_path: Any) -> None:
    """Another process on the same file does not run into the same wall."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with ScriptedUpstream(noted, tokenizer=Tokenizer(window=WINDOW, refusal="openai")) as upstream:
        async with opened(upstream, "my-own-model", url=url, context_window=None) as hf:
            await (await session_of(hf, "first", 120)).send("And now?")
        before = refused(upstream)
        assert before >= 1
        async with opened(upstream, "my-own-model", url=url, context_window=None) as hf:
            await (await session_of(hf, "second", 120)).send("And now?")
        assert refused(upstream) == before


async def test_the_providers_own_count_comes_before_the_call() -> None:
    """With `count: provider` not even the first full prompt overflows."""
    tokenizer = Tokenizer(window=WINDOW, ratio=1.3)
    async with (
        ScriptedUpstream(noted, tokenizer=tokenizer, counts=tokenizer.count_prompt_tokens) as upstream,
        opened(upstream, "gpt-4o", counting=True) as hf,
    ):
        session = await session_of(hf, "s", 120)
        await session.send("And now?")
        assert len(upstream.requests) == 1
        assert not refused(upstream)
        assert upstream.counted
        found = (await session.context()).counted
        assert found["how"] == "provider"


async def test_tool_headroom_is_kept_only_where_there_are_tools() -> None:
    async with ScriptedUpstream(noted) as upstream, opened(upstream, "gpt-4o") as hf:
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
