"""Vectors are computed in the background: each text is embedded once, also over restarts, and word search works without them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.errors import EmbeddingFailed
from holdfast.indexes import embeddings, throttle
from holdfast.indexes.throttle import Leases
from holdfast.recall.base import Lookup, Space
from holdfast.recall.vectors import to_vector
from holdfast.stores.log import Append
from tests.service.index_kit import bench, make_entry
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


async def test_messages_but_no_tool_results_are_embedded_and_equal_texts_once() -> None:
    embedder = LetterEmbedder()
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "tea", "yes", "tea", "coffee")
        await one.service.settled()
        assert (await one.index.status()).vectors == {embedder.name: 4}
        assert sorted(embedder.given) == ["coffee", "tea", "yes"]
        await one.say(ADA, "yes", "water")
        await one.here.append(ADA, Append(entries=[make_entry("tool", "17")], timestamp=one.time))
        await one.service.settled()
        assert sorted(embedder.given) == ["coffee", "tea", "water", "yes"]
        lookup = Lookup(space=SPACE, limit=1)
        (nearest, *_) = await one.index.similar(lookup, embedder.name, _make_vector("coffee"))
        assert nearest.candidate.seq in {2, 3, 4}


async def test_next_process_embeds_what_has_no_vector(tmp_path: Path) -> None:
    places = {"store": f"sqlite:///{tmp_path}/chat.db", "index": f"sqlite:///{tmp_path}/chat.index.db"}
    async with bench(**places) as one:
        await one.make(ADA, "tea", "yes")
        await one.service.settled()
    embedder = LetterEmbedder()
    async with bench(**places, embedder=embedder) as one:
        assert (await one.service.status()).pending == 2
        await one.service.walk()
        await one.service.settled()
        assert sorted(embedder.given) == ["tea", "yes"]


async def test_unavailable_endpoint_is_retried_while_word_search_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged in one line, without a traceback."""
    monkeypatch.setattr(throttle, "_FIRST_PAUSE", 0.005)
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


async def test_erased_text_is_removed_from_the_skipped_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a long-running process would reach the limit and stop embedding."""
    monkeypatch.setattr(embeddings, "EMBEDDING_FAILURES", 1)
    embedder = LetterEmbedder()
    embedder.refused = "poison"
    async with bench(embedder=embedder) as one:
        await one.make(ADA, "tea", "poison")
        await one.service.settled()
        assert (await one.service.status()).unembedded == 1
        assert await one.find("ada", "poison") == [("s", 1)]
        await one.here.erase(ADA, 1)
        await one.say(ADA, "water")
        await one.service.settled()
        status = await one.service.status()
        assert (status.vectors, status.unembedded) == ({embedder.name: 2}, 0)
        assert embedder.given.count("poison") == 1


async def test_vectors_of_another_model_are_replaced_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    first, second = LetterEmbedder("test/first"), LetterEmbedder("test/second")
    async with bench(embedder=first) as one:
        await one.make(ADA, "tea", "yes")
        await one.service.settled()
        one.settings["embedder"] = second
        other = one.another()
        await other.walk()
        await other.settled()
        assert (await one.index.status()).vectors == {"test/second": 2}
        assert sorted(second.given) == ["tea", "yes"]
        assert "vectors of test/first are replaced by vectors of test/second" in caplog.text
        await other.close()


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


async def test_process_ending_while_acquiring_the_lease_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a command: the next process embeds at once, not a minute later."""
    async with bench(embedder=LetterEmbedder()) as one:
        store, asked, lease = one.elsewhere, asyncio.Event(), one.elsewhere.lease

        async def acquire_slowly(*args: Any, **more: Any) -> bool:
            await lease(*args, **more)
            asked.set()
            return await asyncio.Future()

        ended = Leases(store, one.index, "ended", lambda: one.time)
        with monkeypatch.context() as patched:
            patched.setattr(store, "lease", acquire_slowly)
            task = asyncio.create_task(_can_hold(ended))
            await asked.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert await _can_hold(Leases(store, one.index, "next", lambda: one.time))


async def _can_hold(leases: Leases) -> bool:
    async with leases.hold("vectors") as kept:
        return kept is not None
