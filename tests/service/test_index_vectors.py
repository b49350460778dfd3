"""Vectors are computed in the background: each text is embedded once, also over restarts, and word search works without them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.domain.session import SessionRef
from holdfast.errors import EmbeddingFailed
from holdfast.indexes import embeddings
from holdfast.recall.base import Lookup, Space
from holdfast.recall.vectors import to_vector
from tests.service.index_kit import bench
from tests.waits import until

ADA = SessionRef("ada", "s")
SPACE = Space("talk", "ada")


class LetterEmbedder:
    """Makes vectors of letter frequencies, and records its texts.

    Attributes:
        failing: Error to raise instead.
        refused: A text that never gets a vector.
    """

    def __init__(self, name: str = "test/letters") -> None:
        self.name = name
        self.dimension: int | None = 26
        self.given: list[str] = []
        self.failing: Exception | None = None
        self.refused: str | None = None

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        if self.failing is not None:
            raise self.failing
        self.given += texts
        made = {at: _make_vector(text) for at, text in enumerate(texts) if text != self.refused}
        if len(made) < len(texts):
            refused = tuple(set(range(len(texts))) - made.keys())
            raise EmbeddingFailed("refused", refused=refused, vectors=made)
        return list(made.values())

    async def close(self) -> None:
        """Nothing is open."""


def _make_vector(text: str) -> bytes:
    return to_vector([text.lower().count(chr(letter)) + 0.01 for letter in range(97, 123)])


async def test_every_message_gets_a_vector_and_equal_texts_are_embedded_once() -> None:
    embedder = LetterEmbedder()
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "tea", "yes", "tea", "coffee")
        await one.service.settled()
        assert (await one.index.status()).vectors == {embedder.name: 4}
        assert sorted(embedder.given) == ["coffee", "tea", "yes"]
        await one.say(ADA, "yes", "water")
        await one.service.settled()
        assert sorted(embedder.given) == ["coffee", "tea", "water", "yes"]
        lookup = Lookup(space=SPACE, limit=1)
        (nearest, *_) = await one.index.similar(lookup, embedder.name, _make_vector("coffee"))
        assert nearest.candidate.seq in {2, 3, 4}


async def test_unavailable_endpoint_is_retried_while_word_search_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged in one line, without a traceback."""
    monkeypatch.setattr(embeddings, "_FIRST_PAUSE", 0.005)
    embedder = LetterEmbedder()
    embedder.failing = EmbeddingFailed("away", again=True)
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "tea")
        await one.service.settled()
        assert await one.find("ada", "tea") == [("s", 0)]
        status = await one.service.status()
        assert (status.pending, status.unembedded) == (1, 0)
        assert status.last_error is not None
        assert (status.last_error.doing, status.last_error.error) == ("embedding", "EmbeddingFailed")
        assert "embedding for the index failed (EmbeddingFailed: away)" in caplog.messages[0]
        assert caplog.records[0].exc_info is None
        embedder.failing = None

        async def is_done() -> bool:
            return (await one.service.status()).pending == 0

        await until(is_done)
        assert embedder.given == ["tea"]


async def test_erased_message_loses_its_vector_and_is_not_embedded() -> None:
    embedder = LetterEmbedder()
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "my pin is 4711", "fine")
        await one.service.settled()
        await one.here.erase(ADA, 0)
        assert (await one.index.status()).vectors == {embedder.name: 1}
        # Another process erases a message that waits for its vector here.
        embedder.failing = EmbeddingFailed("away", again=True)
        await one.say(ADA, "my other pin is 4712")
        await one.service.settled()
        await one.elsewhere.erase(ADA, 2)
        embedder.failing = None
        other = one.another()
        await other.walk(whole=True)
        await other.settled()
        assert not any("4712" in text for text in embedder.given)
        assert (await one.index.status()).vectors == {embedder.name: 1}
        await other.close()
