"""Recall on every store: stored text is found and removed text is not, after index loss and with concurrent servers;
users are isolated.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.recall.base import Space
from holdfast.stores.sql import pgvector
from tests.contract.index_kit import clear
from tests.service.recall_kit import (
    PLACES,
    LetterEmbedder,
    Place,
    add_conversations,
    add_memories,
    assert_same,
    everywhere,
    recall_all,
    search_all,
    service,
)

shared = pytest.mark.parametrize("place", ["postgres", "mysql"], indirect=True)
"""Where all servers have one index."""


# -- index loss --------------------------------------------------------------------


@pytest.mark.parametrize("place", [*PLACES, "pgvector"], indirect=True)
@pytest.mark.parametrize("mode", ["keyword", "hybrid"])
async def test_rebuilt_index_gives_the_same_results(place: Place, mode: Any) -> None:
    """Same ids, order and scores, for conversations and memories."""
    async with place.server(index={"embedder": LetterEmbedder() if mode == "hybrid" else None, "mode": mode}) as hf:
        await add_conversations(hf)
        await add_memories(hf)
        await service(hf).settled()
        before = [*await search_all(hf, neighbours=2), *await recall_all(hf)]
        assert all(before)
        await clear(service(hf).index)
        held = await service(hf).index.status()
        assert (held.sources, held.documents, held.vectors) == (0, 0, {})
        assert not any(await search_all(hf))
        await service(hf).rebuild()
        await service(hf).settled()
        assert_same([*await search_all(hf, neighbours=2), *await recall_all(hf)], before)
    await place.check()


@everywhere
async def test_rebuild_does_not_embed_anything_twice(place: Place) -> None:
    embedder = LetterEmbedder()
    async with place.server(index={"embedder": embedder, "mode": "hybrid"}) as hf:
        await add_conversations(hf)
        before = await search_all(hf)
        given = len(embedder.given)
        await service(hf).rebuild()
        await service(hf).settled()
        assert len(embedder.given) == given
        assert_same(await search_all(hf), before)


# -- concurrent servers ----------------------------------------------------------------


@shared
async def test_two_servers_feeding_the_same_sessions_write_each_document_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with place.server() as one, place.server() as two:
        both = (one, two)

        async def write(hf: Holdfast, number: int) -> None:
            for at in range(8):
                session = await hf.session(f"s{at % 3}", user_id="ada")
                await session.append({"role": "user", "content": f"gate code {number} {at}"})
                await service(hf).settled()

        await asyncio.gather(*(write(hf, number) for number, hf in enumerate(both)))
        await asyncio.gather(one.erase(SessionRef("ada", "s0"), 0), two.erase(SessionRef("ada", "s1"), 0))
        await asyncio.gather(*(service(hf).settled() for hf in both), *(service(hf).walk() for hf in both))
        assert await search_all(one) == await search_all(two)
        held = await service(one).index.list_digests(Space("talk", "ada"), "s2")
        assert len(held) == len({seq for seq, _ in held}) == 4
        assert [service(hf).last_error for hf in both] == [None, None]
    await place.check()
    assert not caplog.records


# -- memories ------------------------------------------------------------------------


ANAGRAMS = {
    "A teacher listens to the silent": "cheater enlist tinsel sa ott eh",
    "Astronomers study the night": "moon starers dusty thing eth",
    "Her dormitory is by the sea": "dirty room her si yb ease hte",
}
"""Memories, and what has the letters of each, so its vector, and no word of it."""


@pytest.mark.parametrize("place", [*PLACES, "pgvector"], indirect=True)
@pytest.mark.parametrize("mode", ["vector", "hybrid"])
async def test_memories_are_recalled_by_vectors_alone(place: Place, mode: Any) -> None:
    """Equal vectors come first; only the owner's; nothing changed, forgotten or rejected; the same after a rebuild."""
    async with place.server(index={"embedder": LetterEmbedder(), "mode": mode}) as hf:
        engine = (await service(hf).index.status()).vector_engine
        assert (engine == pgvector.ENGINE) == place.compares_vectors()
        made = [(await hf.memories.remember(text, user_id="ada")).memory.id for text in ANAGRAMS]
        for text in ANAGRAMS:
            await hf.memories.remember(text, user_id="bob")
        await service(hf).settled()

        async def recall(**asked: Any) -> list[list[str]]:
            hits = await recall_all(hf, questions=ANAGRAMS.values(), **asked)
            assert all(hit.parts["vector"] > 0 and not hit.parts.get("keyword") for some in hits for hit in some)
            return [[hit.memory.id for hit in some] for some in hits]

        first = await recall()
        assert [some[0] for some in first] == made
        assert {one for some in first for one in some} == set(made)
        assert not any(await recall(user="nobody"))
        await clear(service(hf).index)
        assert (await service(hf).index.status()).vectors == {}
        await service(hf).rebuild()
        await service(hf).settled()
        assert await recall() == first
        newer = (await hf.memories.update(made[0], content="A potter")).memory.id
        await hf.memories.forget(made[1])
        held = (await hf.memories.remember("dusty thing on the stairs", user_id="ada", origin="web")).memory.id
        await hf.memories.review(held, "reject")
        await service(hf).settled()
        assert {one for some in await recall() for one in some} == {newer, made[2]}
