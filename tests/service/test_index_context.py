"""Turns embedded with the turn before them: which text is embedded, and that no vector outlives one of its texts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from holdfast.domain.memory import Memory, MemoryDelta, Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import EmbeddingFailed
from holdfast.indexes.documents import compute_digest, select_findable
from holdfast.indexes.embeddings import BEFORE_CHARS, Turn, add_context
from holdfast.recall.base import CONTEXT, Space
from holdfast.recall.vectors import to_vector
from holdfast.stores.log import Append
from tests.amounts import examples
from tests.service.embeddings_stub import numbers
from tests.service.index_kit import Bench, bench, make_entry

ADA = SessionRef("ada", "s")
SPACE = Space("talk", "ada")


class TracingEmbedder:
    """Makes a distinct vector for each text, and knows its text.

    Attributes:
        failing: Error to raise instead.
        given: Texts that it was asked for.
    """

    def __init__(self, name: str = f"test/turns{CONTEXT}") -> None:
        self.name = name
        self.dimension: int | None = 8
        self.given: list[str] = []
        self.failing: Exception | None = None
        self._texts: dict[bytes, str] = {}

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        if self.failing is not None:
            raise self.failing
        self.given += texts
        made = [to_vector(numbers(text)) for text in texts]
        self._texts |= zip(made, texts, strict=True)
        return made

    async def close(self) -> None:
        """Nothing is open."""

    async def read_sources(self, one: Bench, *texts: str) -> dict[str, str]:
        """Return the texts from which the vectors of these messages were computed."""
        digests = {compute_digest(text): text for text in texts}
        found = await one.index.vectors(self.name, list(digests), space=SPACE)
        return {digests[digest]: self._texts[bytes(vector)] for digest, vector in found.items()}


def test_context_text_has_both_speakers_and_the_end_of_the_previous_turn() -> None:
    long = "x" * BEFORE_CHARS + "the end"
    assert add_context(Turn("user", "And the cat?"), None) == "user: And the cat?"
    assert add_context(Turn("user", "Yes."), Turn("Ann", long)) == f"Ann: {long[-BEFORE_CHARS:]}\nuser: Yes."


async def test_turns_are_embedded_with_speaker_and_previous_turn() -> None:
    """Tool results are not turns, and other sessions are separate conversations."""
    embedder = TracingEmbedder()
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "tea?", "yes")
        entries = [make_entry("tool", "17"), make_entry("user", "and milk")]
        await one.here.append(ADA, Append(entries=entries, timestamp=1))
        await one.make(SessionRef("ada", "t"), "coffee")
        await one.service.settled()
        assert sorted(embedder.given) == [
            "assistant: yes\nuser: and milk",
            "user: coffee",
            "user: tea?",
            "user: tea?\nassistant: yes",
        ]


async def test_memories_are_embedded_without_context() -> None:
    embedder, owner = TracingEmbedder(), Owner("user", "ada")
    async with bench(embedder=embedder) as one:
        fields = {"owner": owner, "created_at": 1, "updated_at": 1}
        made = tuple(Memory(id=f"mem_{at:032x}", content=text, **fields) for at, text in enumerate(["a", "b"]))  # type: ignore[arg-type]  # as they are
        await one.elsewhere.change_memories(owner, MemoryDelta(put=made), timestamp=1)
        await one.service.index_memories(owner)
        await one.service.settled()
        assert sorted(embedder.given) == ["a", "b"]


async def test_model_without_context_gets_only_the_text() -> None:
    embedder = TracingEmbedder("test/plain")
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "tea?", "yes")
        await one.service.settled()
        assert sorted(embedder.given) == ["tea?", "yes"]


async def test_equal_texts_after_different_turns_have_different_vectors() -> None:
    embedder = TracingEmbedder()
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "tea?", "yes", "coffee?", "yes")
        await one.service.settled()
        assert {text for text in embedder.given if text.endswith("yes")} == {
            "user: tea?\nassistant: yes",
            "user: coffee?\nassistant: yes",
        }


async def test_erasing_a_message_removes_the_vector_of_the_next_one() -> None:
    """At once, even while the embedder is unavailable."""
    embedder = TracingEmbedder()
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "hello", "my pin is 4711", "thank you", "bye")
        await one.service.settled()
        words = ("hello", "my pin is 4711", "thank you", "bye")
        assert len(await embedder.read_sources(one, *words)) == 4
        embedder.failing = EmbeddingFailed("away", again=True)
        await one.here.erase(ADA, 1)
        assert not [text for text in (await embedder.read_sources(one, *words)).values() if "4711" in text]
        assert set(await embedder.read_sources(one, *words)) == {"hello", "bye"}
        embedder.failing = None
        again = one.another()
        await again.walk(whole=True)
        await again.settled()
        assert (await embedder.read_sources(one, *words))["thank you"] == "user: thank you"
        await again.close()


async def test_message_erased_while_the_next_one_is_embedded_leaves_no_vector() -> None:
    embedder = TracingEmbedder()
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "my pin is 4711")
        await one.service.settled()
        embed = embedder.embed
        erased: list[object] = []

        async def slow(texts: Sequence[str]) -> list[bytes]:
            made = await embed(texts)
            if not erased:
                erased.append(await one.here.erase(ADA, 0))
            return made

        embedder.embed = slow  # type: ignore[method-assign]  # for this test
        await one.say(ADA, "thank you")
        await one.service.settled()
        assert embedder.given[1:] == ["user: my pin is 4711\nuser: thank you", "user: thank you"]
        assert await embedder.read_sources(one, "thank you") == {"thank you": "user: thank you"}


async def test_message_erased_by_another_process_is_not_used_as_context() -> None:
    """The index does not know about it yet: the text is not read, and the source is checked again."""
    embedder = TracingEmbedder()
    embedder.failing = EmbeddingFailed("away", again=True)
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "my pin is 4711", "thank you")
        await one.service.settled()
        await one.elsewhere.erase(ADA, 0)
        embedder.failing = None
        other = one.another()
        await other.walk(whole=True)
        await other.settled()
        assert embedder.given == ["assistant: thank you"]
        await other.close()


async def test_edit_removes_vectors_of_retired_context() -> None:
    embedder = TracingEmbedder()
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "hello", "my pin is 4711", "thank you")
        await one.service.settled()
        await one.say(ADA, "something else", "thank you", retire_from=1)
        await one.service.settled()
        words = ("hello", "my pin is 4711", "something else", "thank you")
        assert await embedder.read_sources(one, *words) == {
            "hello": "user: hello",
            "something else": "user: hello\nuser: something else",
            "thank you": "user: something else\nassistant: thank you",
        }


@pytest.mark.parametrize("seed", range(examples(4)))
async def test_vectors_always_match_the_current_log(seed: int) -> None:
    """Before all vectors are rebuilt, none contains deleted text."""
    chance, embedder, number = random.Random(seed), TracingEmbedder(), 0
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "text 0")
        for _ in range(25):
            there = [entry for entry in await one.elsewhere.entries(ADA) if not entry.erased]
            store, texts = chance.choice([one.here, one.elsewhere]), []
            for _ in range(chance.randint(1, 3)):
                number += 1
                texts.append(f"text {number}")
            kind = chance.choice(["say", "say", "erase", "edit"])
            if kind == "erase" and there:
                await store.erase(ADA, chance.choice(there).seq)
            elif kind == "edit" and there:
                await one.say(ADA, *texts, store=store, retire_from=chance.choice(there).seq)
            else:
                await one.say(ADA, *texts, store=store)
            if chance.random() < 0.4:
                await one.service.walk(whole=True)
            if store is one.here and chance.random() < 0.5:
                await one.service.settled()
        await one.service.walk(whole=True)
        await one.service.settled()
        await one.check([ADA])
        turns = list(select_findable(await one.elsewhere.entries(ADA)))
        expected, before = {}, None
        for turn in turns:
            now = Turn(turn.entry.message.role, turn.words) if turn.words else None
            if now is not None:
                expected[turn.words] = add_context(now, before)
            before = now
        assert await embedder.read_sources(one, *expected) == expected
