"""Databases of each kind with conversations and memories: for tests of recall that run on all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from holdfast.agents import Llm, Roster
from holdfast.domain.memory import Memory
from holdfast.holdfast import Holdfast
from holdfast.indexes.settings import IndexSettings
from holdfast.recall.vectors import to_vector
from holdfast.stores import open_store
from holdfast.stores.indexes import open_index
from tests.clocks import Clock
from tests.service.index_kit import TENANT, Bench
from tests.service.scripted_model import ScriptedModel
from tests.service.search_kit import lasting
from tests.stores.servers import Postgres, Server, reach

PLACES = ("sqlite", "postgres", "mysql")
SHARED = ("postgres", "pgvector", "mysql")
"""Databases in which all servers share one index, stored with the sessions."""
QUESTIONS = ("gate code", "soup with kelp", "when does the ferry leave", "order ORD-17", "会議", "code kelp ferry")
REMEMBERED = ("any allergies to peanuts?", "where does she live, in Porto?", "gate code", "when does the ferry leave")


class LetterEmbedder:
    """Makes vectors of letter frequencies.

    Attributes:
        given: Texts that it was asked for.

    Args:
        told: Called with each text.
    """

    def __init__(self, told: Callable[[str], object] = lambda _: None) -> None:
        self.name = "test/letters"
        self.dimension: int | None = 26
        self.given: list[str] = []
        self._told = told

    async def embed(self, texts: Any) -> list[bytes]:
        self.given += texts
        for text in texts:
            self._told(text)
        return [to_vector([text.lower().count(chr(letter)) + 0.01 for letter in range(97, 123)]) for text in texts]

    async def close(self) -> None:
        """Nothing is open."""


class Place:
    """An empty database.

    Attributes:
        url: URL of the store.
        index: URL of the index.
        clock: The clock of its servers in this process; tests move it.
    """

    def __init__(self, url: str, index: str, database: Server | None = None) -> None:
        self.url = url
        self.index = index
        self.clock = Clock()
        self._database = database

    @asynccontextmanager
    async def server(self, **settings: Any) -> AsyncIterator[Holdfast]:
        """Open a server on it that sweeps and walks only when the test says so."""
        index = IndexSettings(**{"url": self.index, **settings.pop("index", {})})
        model = Llm(name="default", model="gpt-4o", client=ScriptedModel(lambda _: "Noted."))
        more = {"clock": self.clock, "life": lasting(), "roster": Roster({"default": model}), **settings}
        async with Holdfast(self.url, tenant=TENANT, index=index, **more) as hf:
            yield hf

    def compares_vectors(self) -> bool:
        """Whether the database compares vectors itself: PostgreSQL with the extension."""
        asked = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
        return isinstance(self._database, Postgres) and bool(self._database.ask(asked))

    async def behind(self) -> None:
        """Wait until no client is connected: the database may still finish what a dead process began."""
        if self._database is not None:
            assert await anyio.to_thread.run_sync(partial(self._database.count_connections, self.url, patience=60)) == 0

    async def check(self) -> None:
        """Check that the index contains exactly what the logs say."""
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


def open_place(name: str, folder: Path) -> Iterator[Place]:
    """Open an empty database of that kind, one of `PLACES` or `pgvector`; for a fixture."""
    beside = f"sqlite:///{folder}/chat.index.db"
    if name == "sqlite":
        yield Place(f"sqlite:///{folder}/chat.db", beside)
        return
    database = reach(name)
    with database.lend() as url:
        yield Place(url, url if name in SHARED else beside, database)


everywhere = pytest.mark.parametrize("place", PLACES, indirect=True)


def service(hf: Holdfast) -> Any:
    """Return a server's index."""
    assert hf.engine.index is not None
    return hf.engine.index


async def add_conversations(hf: Holdfast, user: str = "ada") -> None:
    """Add conversations by turns and appends, some of which are retired, erased and deleted."""
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


async def search_all(hf: Holdfast, user: str = "ada", **asked: Any) -> list[Any]:
    """Return all search results with scores, in order."""
    return [(await hf.search(question, user, **asked)).hits for question in QUESTIONS]


async def add_memories(hf: Holdfast, user: str = "ada") -> list[Memory]:
    """Add memories, the last of which supersedes another."""
    texts = ("She is allergic to peanuts", "She lives in Lisbon", "Her gate code is 4711", "The ferry leaves at nine")
    made = [(await hf.memories.remember(text, user_id=user)).memory for text in texts]
    newer = await hf.memories.update(made[1].id, content="She lives in Porto")
    return [made[0], *made[2:], newer.memory]


async def recall_all(hf: Holdfast, questions: Iterable[str] = REMEMBERED, user: str = "ada", **asked: Any) -> list[Any]:
    """Return all recalled memories with scores, in order."""
    return [(await hf.memories.recall(one, user_id=user, signal=False, **asked)).found for one in questions]


def assert_same(after: Sequence[Any], before: Sequence[Any]) -> None:
    """Require the same hits in the same order; what they were ranked by may differ by rounding.

    The similarity of two vectors depends in its last digits on which other vectors are compared in the same product,
    so on the order in which a database returns rows.
    """
    assert [[_bare(hit) for hit in found] for found in after] == [[_bare(hit) for hit in found] for found in before]
    for now, then in zip(chain(*after), chain(*before), strict=True):
        assert {**now.parts, "score": now.score} == pytest.approx({**then.parts, "score": then.score}, abs=1e-5)


def _bare(hit: Any) -> Any:
    return msgspec.structs.replace(hit, parts={}, score=0.0)
