"""Search by meaning, with an embedder that a program gives, and reranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.settings import GivenEmbedder, IndexSettings
from tests.behaviour.kit import World, assistant, refused, reranker, through, user
from tests.behaviour.kit.seams import early_sketches

pytestmark = through("library", "rest")
MEANINGS = {"boat": 0, "ship": 0, "vessel": 0, "dinner": 1, "meal": 1, "soup": 1, "weather": 2, "rain": 2}


def embed(given: Sequence[str]) -> list[list[float]]:
    """Return like vectors for texts with words of the same meaning, and unlike ones for all others."""
    made = []
    for text in given:
        vector = [0.0] * 3 + [0.01 * (at == sum(map(ord, text)) % 50) for at in range(50)]
        for word, at in MEANINGS.items():
            vector[at] += word in text.lower()
        made.append(vector)
    return made


def broken(given: Sequence[str]) -> list[list[float]]:
    raise RuntimeError("the password is hunter2")


def by_meaning(function: Any = embed, mode: Any = "hybrid") -> dict[str, Any]:
    return {"index": IndexSettings(mode=mode, embedder=GivenEmbedder(function, name="meanings", min_similarity=0.5))}


async def fill(hf: Any) -> None:
    await hf.given("a", user("The vessel leaves at nine."), assistant("Noted."), user="ada")
    await hf.given("b", user("The soup was cold."), assistant("Sorry."), user="ada")
    await hf.given("c", user("My code is KELP-77."), assistant("Fine."), user="ada")
    await hf.settle()


async def find(hf: Any, query: str, **options: Any) -> list[str]:
    return [f"{hit['session_id']}#{hit['seq']}" for hit in await hf.search(query, user="ada", **options)]


@pytest.mark.parametrize("store", ["memory", "pgvector"])
async def test_hybrid_finds_meanings_and_words(world: World, store: str) -> None:
    async with world.open(store=store, **by_meaning()) as hf:
        await fill(hf)
        assert (await find(hf, "When does my ship go?"))[0] == "a#0"
        assert (await find(hf, "KELP-77"))[0] == "c#0"
        assert "a#0" not in await find(hf, "When does my ship go?", mode="keyword")


async def test_vectors_find_nothing_below_the_floor(world: World) -> None:
    async with world.open(**by_meaning()) as hf:
        await fill(hf)
        assert (await find(hf, "meal", mode="vector"))[0] == "b#0"
        assert await find(hf, "zebras", mode="vector") == []


async def test_users_have_their_own_vectors(world: World) -> None:
    async with world.open(**by_meaning()) as hf:
        await fill(hf)
        assert await hf.search("When does my ship go?", user="bob") == []


async def test_sketches_of_very_many_vectors_find_the_same(world: World) -> None:
    """Also after more messages, and without those that were erased."""
    with early_sketches():
        async with world.open(store="file", **by_meaning()) as hf:
            session = await hf.given(
                "a", *(user(f"The {word} {at}.") for at in range(20) for word in ("soup", "rain")), user="ada"
            )
            ships = [await session.append(user(f"The ship {at}.")) for at in range(3)]
            for step in range(8):
                await hf.settle()
                wanted = {f"a#{row['seq']}" for (row,) in ships}
                assert set((await find(hf, "vessel", mode="vector"))[: len(ships)]) == wanted
                if step == 4:
                    await session.erase(ships.pop()[0]["seq"])
                if step == 6:
                    ships.append(await session.append(user("The ship again.")))


@pytest.mark.parametrize("store", ["memory", "pgvector"])
async def test_erased_text_has_no_vector(world: World, store: str) -> None:
    async with world.open(store=store, **by_meaning()) as hf:
        await fill(hf)
        await hf.session("a", "ada").erase(0)
        await hf.settle()
        assert "a#0" not in await find(hf, "ship", mode="vector")
        await hf.session("b", "ada").delete()
        assert all(not one.startswith("b#") for one in await find(hf, "meal", mode="hybrid"))


async def test_a_broken_embedder_leaves_words(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with world.open(**by_meaning(broken)) as hf:
        await hf.given("c", user("My code is KELP-77."), user="ada")
        assert await find(hf, "code KELP-77") == ["c#0"]
        with refused("embedding_failed"):
            await find(hf, "code", mode="vector")
        assert "hunter2" not in caplog.text


async def test_vector_search_without_an_embedder_is_refused(world: World) -> None:
    async with world.open() as hf:
        with refused("invalid_request", param="mode"):
            await find(hf, "kelp", mode="vector")
        await hf.given("c", user("kelp soup"), user="ada")
        assert await find(hf, "kelp", mode="hybrid") == ["c#0"]


async def test_what_is_recalled_may_have_no_word_in_common(world: World) -> None:
    config = "agents: {finder: {llm: default, search: {enabled: true}}}"
    async with world.open(config, script=["At nine."], **by_meaning()) as hf:
        await fill(hf)
        session = await hf.create("new", user="ada", agent="finder")
        await session.send(user("When does my ship go?"), **({"model": "finder"} if hf.name == "rest" else {}))
        assert "The vessel leaves at nine." in str(hf.upstream.requests[0].body["messages"])


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ("cohere", {}),
        ("voyage", {"name": "data"}),
        ("tei", {"name": "", "field": "score"}),
        ("cohere", {"name": "data", "field": "score"}),
    ],
)
async def test_scores_of_a_reranker_belong_to_the_texts_by_their_index(
    world: World, form: str, answer: dict[str, str]
) -> None:
    """It answers with the best text first. There are more texts than it takes in one request of the form `tei`."""
    said = [f"kelp {'x' * (at * 7 % 40 + 1)}" for at in range(40)]
    async with reranker(score=lambda _, text: len(text) / 100, **answer) as endpoint:
        given = f"{{base_url: '{endpoint.url}', model: m, form: {form}, timeout: 20s}}"
        async with world.open(f"storage: {{index: {{rerank: {given}}}}}") as hf:
            await hf.given("s", *map(user, said), user="ada")
            await hf.settle()
            hits = await hf.search("kelp", user="ada", limit=100)
            best = sorted(range(40), key=lambda at: -len(said[at]))
            assert [(hit["seq"], hit["parts"]["rerank"]) for hit in hits] == [(at, len(said[at]) / 100) for at in best]
            plain = await hf.search("kelp", user="ada", limit=100, rerank=False)
            assert [hit["seq"] for hit in plain] != best
            assert not any("rerank" in hit["parts"] for hit in plain)
    assert {*endpoint.texts} == {*said}
