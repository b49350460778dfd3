"""Search by meaning, with an embedder that a program gives, and reranking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.settings import GivenEmbedder, IndexSettings
from tests.behaviour.kit import World, assistant, calls, embedder, refused, reranker, result, through, user
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


async def test_questions_and_messages_are_embedded_with_their_prefixes(world: World) -> None:
    """A question with the words of a message is another text for such a model."""
    async with embedder(boat=0) as served:
        entry = f"{{provider: ollama, model: m, base_url: '{served.url}', query_prefix: 'q: ', passage_prefix: 'p: '}}"
        async with world.open(
            f"embedders: {{default: {entry}}}\nstorage: {{index: {{type: hybrid, embedder: default}}}}"
        ) as hf:
            await hf.given("s", user("My boat"), user="ada")
            await hf.settle()
            for _ in range(2):
                assert (await find(hf, "My boat", mode="vector"))[0] == "s#0"
            assert served.texts == ["p: My boat", "q: My boat"]


@pytest.mark.parametrize(
    ("model", "width", "asked", "found"),
    [
        ("m", 8, None, ["s#0"]),
        ("text-embedding-3-small", 8, 8, ["s#0"]),
        ("m", 9, None, []),
        ("text-embedding-3-small", 9, 8, []),
    ],
)
async def test_vectors_have_the_dimension_of_the_configuration(
    world: World, model: str, width: int, asked: int | None, found: list[str]
) -> None:
    async with embedder(boat=0, ship=0) as served:
        served.width = width
        entry = f"{{provider: openai, model: {model}, base_url: '{served.url}', api_key: k, dimension: 8}}"
        async with world.open(
            f"embedders: {{default: {entry}}}\nstorage: {{index: {{type: hybrid, embedder: default}}}}"
        ) as hf:
            await hf.given("s", user("My boat"), user="ada")
            await hf.settle()
            assert await find(hf, "ship") == found
            assert {body.get("dimensions") for body in served.bodies} == {asked}


@through("library")
async def test_a_search_says_what_has_no_vector_yet(world: World) -> None:
    def picky(texts: Sequence[str]) -> list[list[float]]:
        return broken(texts) if any("yacht" in text for text in texts) else embed(texts)

    async with world.open(**by_meaning(picky)) as hf:
        await hf.given("s", user("The harbour is calm."), user="bob")
        await hf.settle()
        await hf.given("s", user("The yacht is in the harbour."), user="ada")
        records = hf.native.records("r", user_id="ada")
        await records.put("k", 1, text="A yacht in the harbour")
        await hf.settle()
        for found, what in (
            (await hf.native.search("harbour", "ada"), "messages"),
            (await records.search("harbour"), "records"),
        ):
            note = f"some {what} have no vector yet: they are found by their words alone"
            assert (len(found.hits), found.mode, found.notes) == (1, "hybrid", (note,))
        assert (await hf.native.search("harbour", "bob")).notes == (), "nothing of bob waits for a vector"


@through("library")
async def test_a_search_says_how_it_differs_from_the_request(world: World) -> None:
    said = [user("When is kelp cut?"), calls(("c", "tide", {})), result("c", "kelp at 04:10"), assistant("Early.")]
    async with world.open(**by_meaning(broken)) as hf:
        await hf.given("s", *said, user="ada")
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "keyword only: the embedder failed"),
            ({"role": "tool"}, "keyword only: tool results have no vectors"),
            ({"mode": "keyword", "time": "filter"}, "not filtered by time: the query does not ask for messages from some time"),
        ]  # fmt: skip
        for options, note in cases:
            found = await hf.native.search("kelp", "ada", **options)
            assert (found.mode, found.notes, len(found.hits) > 0) == ("keyword", (note,), True)
        with refused("invalid_request", "no vectors", param="mode"):
            await find(hf, "kelp", role="tool", mode="vector")


@through("library")
async def test_objects_that_a_program_gives_are_closed_once(world: World) -> None:
    class Models:
        name, dimension, closed, min_similarity = "mine", 53, 0, 0.9

        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            return embed(texts)

        def embed_queries(self, texts: Sequence[str]) -> list[list[float]]:
            return embed([text.replace("yacht", "boat") for text in texts])

        def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
            return [float(len(text)) for text in texts]

        def close(self) -> None:
            self.closed += 1

    models = Models()
    async with world.open(index=IndexSettings(mode="hybrid", embedder=models, rerank=models)) as hf:
        await fill(hf)
        assert (await find(hf, "When does my yacht go?", mode="vector"))[0] == "a#0"
        assert await find(hf, "zebras", mode="vector") == [], "less similar than the floor"
        assert models.closed == 0
    assert models.closed == 2, "once as an embedder, and once as a reranker"


@through("library")
async def test_a_function_reranks_four_searches_at_once(world: World) -> None:
    begun, released = threading.Semaphore(0), threading.Event()

    def slow(query: str, texts: Sequence[str]) -> list[float]:
        begun.release()
        released.wait(60)
        return [float(len(text)) for text in texts]

    async with world.open(index=IndexSettings(rerank=slow)) as hf:
        await hf.given("s", user("kelp"), user("kelp soup with ginger"), user="ada")
        await hf.settle()
        searches = [asyncio.create_task(hf.native.search("kelp", "ada")) for _ in range(4)]
        for _ in searches:
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        fifth = await hf.native.search("kelp", "ada")
        assert ([hit.seq for hit in fifth.hits], fifth.notes) == ([0, 1], ("not reranked: the reranker failed",))
        released.set()
        for found in [*await asyncio.gather(*searches), await hf.native.search("kelp", "ada")]:
            assert ([hit.seq for hit in found.hits], found.notes) == ([1, 0], ())


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
            hits = await hf.search("kelp" + " ?" * 600, user="ada", limit=100)
            best = sorted(range(40), key=lambda at: -len(said[at]))
            assert [(hit["seq"], hit["parts"]["rerank"]) for hit in hits] == [(at, len(said[at]) / 100) for at in best]
            sizes = [len(body.get("texts") or body["documents"]) for body in endpoint.bodies]
            assert (sum(sizes), max(sizes), {len(body["query"]) for body in endpoint.bodies}) == (
                40, 32 if form == "tei" else 40, {1000},
            )  # fmt: skip
            extra = {"cohere": ("top_n", 40), "voyage": ("top_k", 40), "tei": ("truncate", True)}[form]
            assert all(extra in body.items() for body in endpoint.bodies)
            plain = await hf.search("kelp", user="ada", limit=100, rerank=False)
            assert [hit["seq"] for hit in plain] != best
            assert not any("rerank" in hit["parts"] for hit in plain)
            page, seqs, asked = hits[:7], list[int](), len(endpoint.bodies)
            while page:
                seqs += [hit["seq"] for hit in page]
                after = page[-1].get("cursor") or page[-1]["id"]
                page = await hf.search("kelp" + " ?" * 600, user="ada", limit=9, after=after)
            assert (seqs, len(endpoint.bodies)) == (best, asked)
    assert {*endpoint.texts} == {*said}
