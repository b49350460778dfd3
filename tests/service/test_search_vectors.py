"""Search by vectors: matches without common words, and the results if the embedder fails or is missing."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import EmbeddingFailed, MissingExtra, StoreUnavailable
from holdfast.indexes.settings import IndexSettings
from holdfast.recall.vectors import to_vector
from holdfast.search.ranked_search import WITHOUT_VECTORS
from tests.service.search_kit import open_talks


class Sea:
    """Makes vectors from how much a text is about the sea, independent of its words."""

    name = "test/sea"
    dimension = 2

    def __init__(self) -> None:
        self.failure: Exception | None = None

    async def embed(self, texts: list[str]) -> list[bytes]:
        if self.failure is not None:
            raise self.failure
        wet = {"kelp", "seaweed", "dulse"}
        return [to_vector([1.0, 0.1] if wet & set(text.casefold().split()) else [0.1, 1.0]) for text in texts]

    async def close(self) -> None:
        """See `Embedder.close`."""


async def test_search_notes_messages_without_a_vector() -> None:
    """In vector and hybrid mode, until all have one; messages of other users are not counted."""
    sea = Sea()
    async with open_talks(index=IndexSettings(embedder=sea, mode="hybrid")) as at:
        await at.add_messages("s", "I like seaweed")
        assert (await at.hf.search("kelp", "ada")).notes == ()
        sea.failure = EmbeddingFailed("away", again=True)
        await at.add_messages("t", "I like dulse")
        sea.failure = None
        for mode in ("vector", "hybrid"):
            assert (await at.hf.search("kelp", "ada", mode=mode)).notes == (WITHOUT_VECTORS,)
        assert (await at.hf.search("kelp", "bob")).notes == ()


async def test_missing_dependency_of_the_embedder_falls_back_to_words() -> None:
    """The local model without NumPy: messages and memories are found by words, with a note."""
    sea = Sea()
    async with open_talks(index=IndexSettings(embedder=sea, mode="hybrid")) as at:
        await at.add_messages("s", "kelp")
        await at.hf.memories.remember("Ada eats kelp", user_id="ada")
        sea.failure = MissingExtra("NumPy", "embeddings")
        results = await at.hf.search("any kelp?", "ada")
        assert (results.mode, [hit.id for hit in results.hits]) == ("keyword", ["s#0"])
        recalled = await at.hf.memories.recall("any kelp?", user_id="ada")
        assert ([one.memory.content for one in recalled.found], recalled.mode) == (["Ada eats kelp"], "keyword")
        with pytest.raises(MissingExtra):
            await at.hf.search("any kelp?", "ada", mode="vector")


async def test_configured_vector_mode_falls_back_if_its_embedder_fails() -> None:
    """To words, for messages and memories; an explicit vector search raises."""
    sea = Sea()
    async with open_talks(index=IndexSettings(embedder=sea, mode="vector")) as at:
        await at.add_messages("s", "kelp")
        await at.hf.memories.remember("Ada eats kelp", user_id="ada")
        sea.failure = EmbeddingFailed("away", again=True)
        results = await at.hf.search("any kelp?", "ada")
        assert (results.mode, [hit.id for hit in results.hits]) == ("keyword", ["s#0"])
        recalled = await at.hf.memories.recall("any kelp?", user_id="ada")
        assert ([one.memory.content for one in recalled.found], recalled.mode) == (["Ada eats kelp"], "keyword")
        assert recalled.note == "the embedder did not answer"
        with pytest.raises(EmbeddingFailed):
            await at.hf.memories.recall("any kelp?", user_id="ada", mode="vector")


async def test_failing_index_falls_back_to_words_for_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hybrid mode falls back with a note; vector mode raises."""
    async with open_talks(index=IndexSettings(embedder=Sea(), mode="hybrid")) as at:
        await at.hf.memories.remember("Ada eats kelp", user_id="ada")

        async def fails(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("the index is away")

        assert at.hf.engine.index is not None
        for name in ("lookup", "similar", "progress"):
            monkeypatch.setattr(at.hf.engine.index.index, name, fails)
        recalled = await at.hf.memories.recall("any kelp?", user_id="ada")
        assert [one.memory.content for one in recalled.found] == ["Ada eats kelp"]
        assert (recalled.mode, recalled.note) == ("keyword", "the index did not answer")
        with pytest.raises(StoreUnavailable):
            await at.hf.memories.recall("any kelp?", user_id="ada", mode="vector")
