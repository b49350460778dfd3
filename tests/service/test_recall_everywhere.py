"""Recall on every store: stored text is found and removed text is not, after index loss and with concurrent servers;
users are isolated.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.memory import Owner
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.limits import INDEX_MARGIN
from holdfast.recall.base import Space
from holdfast.stores.sql import pgvector
from tests.service.index_kit import TENANT
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
from tests.service.search_kit import lasting

shared = pytest.mark.parametrize("place", ["postgres", "mysql"], indirect=True)
"""Where all servers have one index."""
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"session_id": "a"},
    {"session_id": "nowhere"},
    {"role": "user"},
    {"role": "tool"},
    {"agent": "default"},
    {"since": 0},
    {"until": 1},
    {"session_level": True},
    {"mode": "vector"},
    {"mode": "hybrid"},
)


# -- what is found -----------------------------------------------------------------


@everywhere
async def test_stored_text_is_found_and_retired_erased_or_deleted_text_is_not(place: Place) -> None:
    async with place.server() as hf:
        await add_conversations(hf)
        assert (await hf.search("gate code", "ada")).hits[0].id == "a#0"
        assert (await hf.search("ferry", "ada")).hits[0].snippet == "The ferry leaves at nine."
        assert (await hf.search("order ORD-17", "ada")).hits[0].id == "b#0"
        assert (await hf.search("会議", "ada")).hits[0].id == "b#1"
        for gone in ("walrus", "swordfish", "platypus"):
            assert not (await hf.search(gone, "ada")).hits, gone
        await hf.delete_user("ada")
        assert not any(await search_all(hf))
        assert (await service(hf).index.status()).documents == 0


@everywhere
async def test_users_with_the_same_words_never_see_each_others_text(place: Place) -> None:
    async with place.server(index={"embedder": LetterEmbedder(), "mode": "hybrid"}) as hf:
        await add_conversations(hf, "ada")
        only = await hf.session("z", user_id="bob")
        await only.append({"role": "user", "content": "gate code soup kelp ferry order ORD-17 会議"})
        await service(hf).settled()
        for asked in FILTERS:
            for found in await search_all(hf, "bob", **asked):
                assert {hit.session_id for hit in found} <= {"z"}, asked
            for found in await search_all(hf, "ada", **asked):
                assert {hit.session_id for hit in found} <= {"a", "b"}, asked
            for nobody in (" ", "Ada", "ada ", "ad", "ada%", "*", "ada\x00"):
                assert not any(await search_all(hf, nobody, **asked)), nobody
        async with hf.serve_tenant("other") as other:
            assert not any(await search_all(other, "ada"))


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
        await service(hf).index.clear()
        held = await service(hf).index.status()
        assert (held.sources, held.documents, held.vectors) == (0, 0, {})
        assert not any(await search_all(hf))
        await service(hf).rebuild()
        await service(hf).settled()
        assert_same([*await search_all(hf, neighbours=2), *await recall_all(hf)], before)
    await place.check()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_index_with_a_deleted_file_gives_the_same_results_after_a_backfill(place: Place) -> None:
    async with place.server() as hf:
        await add_conversations(hf)
        before = await search_all(hf)
    for file in Path(place.index.removeprefix("sqlite:///")).parent.glob("chat.index.db*"):
        file.unlink()
    async with place.server() as hf:
        assert (await service(hf).status()).documents == 0
        assert (await service(hf).walk()).whole
        assert_same(await search_all(hf), before)
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


@shared
async def test_backfill_indexes_what_a_server_without_an_index_wrote(place: Place) -> None:
    async with place.server() as hf:
        await service(hf).walk()
        place.clock.now += 2 * INDEX_MARGIN
        async with Holdfast(place.url, tenant=TENANT, index=None, clock=place.clock, life=lasting()) as bare:
            await (await bare.session("s", user_id="ada")).append({"role": "user", "content": "the gate code"})
        assert not (await hf.search("gate", "ada")).hits
        assert (await service(hf).walk()).sessions == 1
        assert [hit.id for hit in (await hf.search("gate", "ada")).hits] == ["s#0"]


# -- memories ------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("mode", ["keyword", "hybrid"])
async def test_memories_are_recalled_from_the_index_and_forgotten_in_it(place: Place, mode: Any) -> None:
    settings = {"mode": mode, "embedder": LetterEmbedder() if mode == "hybrid" else None}
    async with place.server(index=settings) as hf:
        made = [
            (await hf.memories.remember(text, user_id=user)).memory
            for user in ("ada", "bob")
            for text in ("She is allergic to peanuts", "She lives in Lisbon", "Order ORD-17 was paid")
        ]
        await service(hf).index_memories(Owner("user", "ada"))
        await service(hf).index_memories(Owner("user", "bob"))
        await service(hf).settled()
        for user, first in (("ada", made[0]), ("bob", made[3])):
            found = (await hf.memories.recall("any allergies to peanuts?", user_id=user)).found
            assert found[0].memory.id == first.id
            assert {one.memory.owner.id for one in found} == {user}
        await hf.memories.forget(made[0].id)
        await service(hf).index_memories(Owner("user", "ada"))
        found = (await hf.memories.recall("any allergies to peanuts?", user_id="ada")).found
        assert made[0].id not in {one.memory.id for one in found}
        held = [seq for seq, _ in await service(hf).index.list_digests(Space("user", "ada"), "")]
        assert held == [made[1].number, made[2].number]


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
        await service(hf).index.clear()
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
