"""The conversation store for Pydantic AI, compared with its own in-memory store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed here: make adapters")

from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent, BinaryContent, ModelRequest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationStore, InMemoryConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import UserPromptPart
from pydantic_ai.models.test import TestModel

import holdfast
from holdfast.adapters.pydantic_ai_store import HoldfastConversationStore
from holdfast.errors import InvalidRequest

MEMORY = "sqlite://:memory:"


def say(*texts: str) -> list[Any]:
    return [ModelRequest([UserPromptPart(text)]) for text in texts]


def read_texts(conversation: Conversation | None) -> list[str] | None:
    return None if conversation is None else [str(message.parts[0].content) for message in conversation.messages]  # type: ignore[union-attr]


async def test_a_run_is_saved_and_continued() -> None:
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastConversationStore(hf, user_id="ada")
        agent = Agent(TestModel())
        for number in range(3):
            conversation = await store.load("t") or Conversation(conversation_id="t")
            result = await agent.run(f"Question {number}", conversation=conversation)
            await store.save(result)
        loaded = await store.load("t")
        assert loaded is not None
        assert loaded.messages == result.all_messages()
        assert loaded.usage.requests == 3


async def test_long_histories_are_read_in_full_and_from_the_end() -> None:
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastConversationStore(hf)
        texts = [str(number) for number in range(350)]
        await store.save(Conversation(messages=say(*texts), conversation_id="t"))
        assert read_texts(await store.load("t")) == texts
        assert read_texts(await store.load("t", limit=40)) == texts[-40:]


async def test_a_stale_save_is_refused() -> None:
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastConversationStore(hf)
        await store.save(Conversation(messages=say("a"), conversation_id="t"))
        first, second = await store.load("t"), await store.load("t")
        assert first is not None
        assert second is not None
        first.messages += say("b")
        second.messages += say("c")
        await store.save(first)
        with pytest.raises(ConversationConflict):
            await store.save(second)
        assert read_texts(await store.load("t")) == ["a", "b"]


async def test_concurrent_saves_have_one_winner() -> None:
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastConversationStore(hf)
        saves = [store.save(Conversation(messages=say(str(number)), conversation_id="t")) for number in range(8)]
        results = await asyncio.gather(*saves, return_exceptions=True)
        assert sum(isinstance(one, ConversationConflict) for one in results) == 7


async def test_users_do_not_share_conversations() -> None:
    async with holdfast.open(MEMORY) as hf:
        await HoldfastConversationStore(hf, user_id="ada").save(
            Conversation(messages=say("secret"), conversation_id="t")
        )
        other = HoldfastConversationStore(hf, user_id="bob")
        assert await other.load("t") is None
        assert await other.list_conversations() == []


async def test_deleting_keeps_what_a_fork_shares() -> None:
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastConversationStore(hf, user_id="ada")
        await store.save(Conversation(messages=say("a", "b", "c"), conversation_id="t"))
        fork = await store.fork("t", at=2)
        await store.delete("t")
        assert read_texts(await store.load(fork.conversation_id)) == ["a", "b"]
        left = hf.records(("pydantic_ai", "entries"), user_id="ada")
        assert len([one async for one in left.iterate()]) == 2


async def test_half_a_surrogate_pair_is_refused_and_nothing_is_written() -> None:
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastConversationStore(hf)
        half = [ModelRequest([UserPromptPart(text)]) for text in ("Where?", "a\ud83d")]
        with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
            await store.save(Conversation(messages=half, conversation_id="t"))
        assert await store.load("t") is None
        await store.save(Conversation(messages=half[:1], conversation_id="t"))
        assert await store.load("t") is not None


async def test_images_are_stored() -> None:
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastConversationStore(hf)
        image = BinaryContent(b"x" * 2_000_000, media_type="image/png")
        await store.save(Conversation(messages=[ModelRequest([UserPromptPart([image])])], conversation_id="t"))
        loaded = await store.load("t")
        assert loaded is not None
        assert loaded.messages[0].parts[0].content[0].data == image.data  # type: ignore[union-attr, index]


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "rewrite", "branch", "fork", "delete"]), st.integers(0, 3)), max_size=8
)


@given(STEPS)
def test_it_behaves_like_the_store_in_memory(steps: list[tuple[str, int]]) -> None:
    async def play(store: ConversationStore) -> list[Any]:
        seen: list[Any] = []
        for at, (step, count) in enumerate(steps):
            conversation = await store.load("t") or Conversation(conversation_id="t")
            try:
                if step == "add":
                    conversation.messages += say(*(f"{at}.{number}" for number in range(count)))
                    await store.save(conversation)
                elif step == "rewrite":
                    rewritten = Conversation(
                        messages=say(f"new {at}"), conversation_id="t", revision=conversation.revision
                    )
                    await store.save(rewritten)
                elif step == "branch":
                    await store.branch("t", at=count, expected_revision=conversation.revision)
                elif step == "fork":
                    await store.fork("t", at=count, new_conversation_id=f"fork {at}")
                else:
                    await store.delete("t")
            except UserError as exc:
                seen.append(type(exc).__name__)
            listed = await store.list_conversations()
            seen.append([(one.conversation_id, read_texts(await store.load(one.conversation_id))) for one in listed])
            seen.append([len(one.branches) for one in listed])
        return seen

    async def compare() -> None:
        async with holdfast.open(MEMORY) as hf:
            assert await play(HoldfastConversationStore(hf)) == await play(InMemoryConversationStore())

    asyncio.run(compare())
