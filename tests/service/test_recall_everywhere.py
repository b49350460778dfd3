"""Recall on every store: what was said is found and what went is not, over a lost index, kill -9, and servers at once; users stay apart."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Llm, Roster
from holdfast.holdfast import Holdfast
from holdfast.indexes.settings import IndexSettings
from holdfast.limits import INDEX_MARGIN
from holdfast.memories import Owner
from holdfast.recall.base import Space
from holdfast.recall.vectors import vector_of
from holdfast.session import SessionRef
from holdfast.stores import open_store
from holdfast.stores.indexes import open_index
from tests.service.indexbench import TENANT, Bench
from tests.service.memorybench import Clock, lasting
from tests.service.test_turn import ToldModel
from tests.stores.servers import reached

PLACES = ("sqlite", "postgres", "mysql", "redis")
SHARED = ("postgres", "mysql")
"""Where all servers have one index."""
QUESTIONS = ("gate code", "soup with kelp", "when does the ferry leave", "order ORD-17", "会議", "code kelp ferry")
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


class Letters:
    """Makes vectors of how often letters stand in a text.

    Attributes:
        given: the texts that it was asked for.
    """

    def __init__(self) -> None:
        self.name = "test/letters"
        self.dimension: int | None = 26
        self.given: list[str] = []

    async def embed(self, texts: Any) -> list[bytes]:
        """See `Embedder.embed`."""
        self.given += texts
        return [vector_of([text.lower().count(chr(letter)) + 0.01 for letter in range(97, 123)]) for text in texts]

    async def close(self) -> None:
        """Nothing is open."""


class Place:
    """A database where nothing is yet.

    Attributes:
        url: of the store.
        index: of the index.
    """

    def __init__(self, url: str, index: str) -> None:
        self.url = url
        self.index = index
        self.clock = Clock()

    @asynccontextmanager
    async def server(self, **settings: Any) -> AsyncIterator[Holdfast]:
        """A server on it, that sweeps and walks when the test says so."""
        index = IndexSettings(**{"url": self.index, **settings.pop("index", {})})
        model = Llm(name="default", model="gpt-4o", client=ToldModel(lambda _: "Noted."))
        more = {"clock": self.clock, "life": lasting(), "roster": Roster({"default": model}), **settings}
        async with Holdfast(self.url, tenant=TENANT, index=index, **more) as hf:
            yield hf

    async def check(self) -> None:
        """The index holds what the logs say, and nothing else."""
        store = await open_store(self.url, tenant=TENANT)
        index = await open_index(self.index, tenant=TENANT)
        try:
            refs = [one.ref for one in (await store.list(limit=1000)).sessions]
            await Bench(store, index).check(refs)
            held = await index.sources(limit=1000)
            assert {one[1] for one in held if one[0].kind == "talk"} <= {ref.id for ref in refs}
        finally:
            await index.close()
            await store.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    name = request.param
    beside = f"sqlite:///{tmp_path}/chat.index.db"
    if name == "sqlite":
        yield Place(f"sqlite:///{tmp_path}/chat.db", beside)
        return
    server = reached(name)
    url = server.place()
    try:
        yield Place(url, url if name in SHARED else beside)
    finally:
        server.drop(url)


everywhere = pytest.mark.parametrize("place", PLACES, indirect=True)
shared = pytest.mark.parametrize("place", SHARED, indirect=True)


def service(hf: Holdfast) -> Any:
    """A server's index."""
    assert hf.engine.index is not None
    return hf.engine.index


async def talked(hf: Holdfast, user: str = "ada") -> None:
    """Conversations by turns and by appends, some of which is taken back, erased and deleted."""
    turns = await hf.session("a", user_id=user)
    for text in ("My gate code is 4711.", "Soup with kelp, please.", "Never mind the walrus."):
        await turns.send(text)
    await turns.rewind(1)
    await turns.send("The ferry leaves at nine.")
    plain = await hf.session("b", user_id=user)
    await plain.append(
        [{"role": "user", "content": "Where is order ORD-17?"}, {"role": "assistant", "content": "会議室"}]
    )
    await plain.append(
        [{"role": "user", "content": "my secret is swordfish"}, {"role": "assistant", "content": "kelp"}]
    )
    gone = await hf.session("c", user_id=user)
    await gone.append({"role": "user", "content": "The code of the garage is platypus"})
    await service(hf).settled()
    await hf.erase(plain.ref, 2)
    await gone.delete()
    await service(hf).settled()


async def answers(hf: Holdfast, user: str = "ada", **asked: Any) -> list[Any]:
    """All that searches find, with scores, in their order."""
    return [(await hf.search(question, user, **asked)).hits for question in QUESTIONS]


# -- what is found, and what is not --------------------------------------------------


@everywhere
async def test_what_was_said_is_found_and_what_was_taken_back_erased_or_deleted_is_not(place: Place) -> None:
    async with place.server() as hf:
        await talked(hf)
        assert (await hf.search("gate code", "ada")).hits[0].id == "a#0"
        assert (await hf.search("ferry", "ada")).hits[0].snippet == "The ferry leaves at nine."
        assert (await hf.search("order ORD-17", "ada")).hits[0].id == "b#0"
        assert (await hf.search("会議", "ada")).hits[0].id == "b#1"
        for gone in ("walrus", "swordfish", "platypus"):
            assert not (await hf.search(gone, "ada")).hits, gone
        await hf.delete_user("ada")
        assert not any(await answers(hf))
        assert (await service(hf).index.status()).documents == 0


@everywhere
async def test_two_users_with_the_same_words_never_see_each_others(place: Place) -> None:
    async with place.server(index={"embedder": Letters(), "mode": "hybrid"}) as hf:
        await talked(hf, "ada")
        only = await hf.session("z", user_id="bob")
        await only.append({"role": "user", "content": "gate code soup kelp ferry order ORD-17 会議"})
        await service(hf).settled()
        for asked in FILTERS:
            for found in await answers(hf, "bob", **asked):
                assert {hit.session_id for hit in found} <= {"z"}, asked
            for found in await answers(hf, "ada", **asked):
                assert {hit.session_id for hit in found} <= {"a", "b"}, asked
            for nobody in (" ", "Ada", "ada ", "ad", "ada%", "*", "ada\x00"):
                assert not any(await answers(hf, nobody, **asked)), nobody
        async with hf.serving("other") as other:
            assert not any(await answers(other, "ada"))


# -- the index is lost ---------------------------------------------------------------


@everywhere
async def test_an_index_that_was_cleared_gives_the_same_answers_when_it_is_made_anew(place: Place) -> None:
    async with place.server() as hf:
        await talked(hf)
        before = await answers(hf, neighbours=2)
        assert all(before)
        await service(hf).index.clear()
        assert not any(await answers(hf))
        await service(hf).rebuild()
        assert await answers(hf, neighbours=2) == before
    await place.check()


@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
async def test_an_index_whose_file_is_gone_gives_the_same_answers_after_a_walk(place: Place) -> None:
    async with place.server() as hf:
        await talked(hf)
        before = await answers(hf)
    for file in Path(place.index.removeprefix("sqlite:///")).parent.glob("chat.index.db*"):
        file.unlink()
    async with place.server() as hf:
        assert not any(await answers(hf))
        assert (await service(hf).walk()).whole
        assert await answers(hf) == before
    await place.check()


@everywhere
async def test_vectors_are_found_again_by_a_rebuild_without_embedding_anything_twice(place: Place) -> None:
    embedder = Letters()
    async with place.server(index={"embedder": embedder, "mode": "hybrid"}) as hf:
        await talked(hf)
        before = await answers(hf)
        given = len(embedder.given)
        await service(hf).rebuild()
        await service(hf).settled()
        again = embedder.given[given:]
        assert set(again) <= set(QUESTIONS)
        assert [[hit.id for hit in found] for found in await answers(hf)] == [
            [hit.id for hit in found] for found in before
        ]


# -- kill -9 -------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("what", ["feed", "rebuild"])
async def test_a_new_process_catches_up_with_one_that_was_killed(place: Place, what: str) -> None:
    script = Path(__file__).with_name("indexing_process.py")
    for number in range(2):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(script), what, place.url, str(number), place.index), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(2 + 5 * number):
            assert await process.stdout.readline(), "it ended by itself"
        process.kill()
        await process.communicate()
    place.clock.now = 2_000_000_000_000  # behind the leases of the dead
    async with place.server() as hf:
        await service(hf).walk()
        await service(hf).settled()
        assert (await service(hf).status()).rebuilding is None
        assert (await hf.search("tea", "ada")).hits
        report = await service(hf).status()
        assert (report.behind, report.incomplete, report.last_error) == (0, 0, None)
    await place.check()


# -- servers at once -----------------------------------------------------------------


@shared
async def test_two_servers_that_feed_the_same_sessions_write_each_document_once(
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
        assert await answers(one) == await answers(two)
        held = await service(one).index.held(Space("talk", "ada"), "s2")
        assert len(held) == len({seq for seq, _ in held}) == 4
        assert [service(hf).last_error for hf in both] == [None, None]
    await place.check()
    assert not caplog.records


@shared
async def test_a_walk_takes_in_what_a_server_without_an_index_wrote(place: Place) -> None:
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
async def test_memories_are_recalled_by_the_index_and_forgotten_in_it(place: Place, mode: Any) -> None:
    settings = {"mode": mode, "embedder": Letters() if mode == "hybrid" else None}
    async with place.server(index=settings) as hf:
        made = [
            (await hf.memories.remember(text, user_id=user)).memory
            for user in ("ada", "bob")
            for text in ("She is allergic to peanuts", "She lives in Lisbon", "Order ORD-17 was paid")
        ]
        await service(hf).take_memories(Owner("user", "ada"))
        await service(hf).take_memories(Owner("user", "bob"))
        await service(hf).settled()
        for user, first in (("ada", made[0]), ("bob", made[3])):
            found = (await hf.memories.recall("any allergies to peanuts?", user_id=user)).found
            assert found[0].memory.id == first.id
            assert {one.memory.owner.id for one in found} == {user}
        await hf.memories.forget(made[0].id)
        await service(hf).take_memories(Owner("user", "ada"))
        found = (await hf.memories.recall("any allergies to peanuts?", user_id="ada")).found
        assert made[0].id not in {one.memory.id for one in found}
        held = [seq for seq, _ in await service(hf).index.held(Space("user", "ada"), "")]
        assert held == [made[1].number, made[2].number]
