"""Searches with a reranker: the order of hits and pages, what is sent where, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.indexes.settings import IndexSettings
from holdfast.rerankers import RerankSettings
from holdfast.search import ranked_search
from tests.service.rerank_stub import serving
from tests.service.search_kit import open_talks

LINES = [("user", f"kelp {'soup ' * (at % 3)}number {at}") for at in range(12)]


class Recorder:
    """A reranker that records its input."""

    name = "recorder"

    def __init__(self, score: Callable[[str], float] = len) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.score = score

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        self.calls.append((query, list(texts)))
        return [self.score(text) for text in texts]

    @property
    def texts(self) -> list[str]:
        return [text for _, texts in self.calls for text in texts]


def number(text: str) -> float:
    """Return the last number of a message as its score."""
    return float(text.rsplit(" ", 1)[-1])


def make_settings(reranker: Any) -> IndexSettings:
    return IndexSettings(rerank=RerankSettings(reranker=reranker))


@pytest.fixture
def rerank_few(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that lowers the number of hits that a reranker receives."""
    return lambda most: monkeypatch.setattr(ranked_search, "RERANK_TEXTS", most)


async def test_best_hits_are_in_the_order_of_the_reranker_and_the_others_follow(
    rerank_few: Callable[[int], None],
) -> None:
    rerank_few(5)
    recorder = Recorder(number)
    async with open_talks() as at:
        await at.add_messages("a", *LINES)
        plain = await at.find("kelp", limit=100)
    async with open_talks(index=make_settings(recorder)) as at:
        await at.add_messages("a", *LINES)
        results = await at.hf.search("kelp", "ada", limit=100)
        found = [hit.id for hit in results.hits]
        assert found[:5] == sorted(plain[:5], key=lambda id_: -int(id_.partition("#")[2]))
        assert found[5:] == plain[5:]
        assert found != plain
        assert [hit.position for hit in results.hits] == list(range(1, 13))
        assert [hit.parts.get("rerank") for hit in results.hits[:5]] == [float(hit.seq) for hit in results.hits[:5]]
        assert all("rerank" not in hit.parts for hit in results.hits[5:])
        assert results.notes == ()
        ((query, texts),) = recorder.calls
        assert (query, len(texts)) == ("kelp", 5)
        assert await at.find("kelp", limit=100, rerank=False) == plain
        assert len(recorder.calls) == 1


# -- input of the reranker ---------------------------------------------------------


async def test_text_of_other_users_and_erased_text_is_not_sent() -> None:
    async with serving() as stub:
        rerank = RerankSettings(base_url=stub.url, model="m")
        async with open_talks(index=IndexSettings(rerank=rerank)) as at:
            await at.add_messages("a", "kelp of ada", "kelp answered", "kelp that is erased", "kelp more")
            await at.add_messages("a", "kelp of bob", "kelp for bob", user="bob")
            await at.hf.erase(at.ref("a"), 2)
            assert len(await at.find("kelp")) == 3
            assert sorted(stub.texts) == ["kelp answered", "kelp more", "kelp of ada"]
            async with at.hf.serve_tenant("t2") as elsewhere:
                session = await elsewhere.session("a", user_id="ada")
                await session.append([{"role": "user", "content": text} for text in ("kelp in t2", "kelp two in t2")])
                stub.bodies.clear()
                await elsewhere.search("kelp", "ada")
                assert sorted(stub.texts) == ["kelp in t2", "kelp two in t2"]


async def test_message_erased_during_reranking_is_not_shown() -> None:
    arrived, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(query: str, texts: Sequence[str]) -> list[float]:
        arrived.set()
        await goes_on.wait()
        return [number(text) for text in texts]

    async with open_talks(index=make_settings(slow)) as at:
        await at.add_messages("a", *LINES[:4])
        search = asyncio.create_task(at.hf.search("kelp", "ada"))
        await arrived.wait()
        await at.hf.erase(at.ref("a"), 3)
        goes_on.set()
        assert [hit.seq for hit in (await search).hits] == [2, 1, 0]
