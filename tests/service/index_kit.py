"""A store with an index that follows it, and checks of the index's contents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.indexes.documents import make_entry_texts
from holdfast.indexes.indexed_store import IndexedStore
from holdfast.indexes.service import IndexService
from holdfast.recall.base import Index, Lookup, Space
from holdfast.recall.terms import extract_terms
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.indexes import open_index
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession

TENANT = "acme"
MEMORY = "sqlite://:memory:"


def make_entry(role: str, text: str, at: int = 1, **more: Any) -> NewEntry:
    """Create an entry that is not stored yet."""
    return NewEntry(
        message=Message(role=role, content=text, tool_call_id="c" if role == "tool" else None),
        tokens=1,
        timestamp=at,
        **more,
    )


class Bench:
    """A store, the same store with an index that follows it, and the index's service.

    Attributes:
        elsewhere: The store as a process without an index sees it.
        here: The store that updates the index.
        time: Milliseconds since the epoch; tests move it.
    """

    def __init__(self, store: Store, index: Index, **settings: Any) -> None:
        self.time = 1_000_000
        self.elsewhere = store
        self.index = index
        self.settings = settings
        self.service = self.another()
        self.here = IndexedStore(store, lambda _: self.service)

    def another(self) -> IndexService:
        """Create the service of another process on the same store and index."""
        number = self.settings.pop("number", 0) + 1
        self.settings["number"] = number
        more = {key: value for key, value in self.settings.items() if key != "number"}
        return IndexService(self.elsewhere, self.index, lambda: self.time, f"holder-{number}", **more)

    async def make(self, ref: SessionRef, *texts: str, store: Store | None = None) -> None:
        """Create a session with alternating messages of user and assistant."""
        store = store or self.here
        self.time += 1
        await store.create(NewSession(id=ref.id, user_id=ref.user_id, timestamp=self.time))
        if texts:
            await self.say(ref, *texts, store=store)

    async def say(self, ref: SessionRef, *texts: str, store: Store | None = None, **more: Any) -> None:
        """Append more messages."""
        self.time += 1
        entries = [
            make_entry("assistant" if number % 2 else "user", text, self.time) for number, text in enumerate(texts)
        ]
        await (store or self.here).append(ref, Append(entries=entries, timestamp=self.time, **more))

    async def find(self, user: str, words: str, **more: Any) -> list[tuple[str, int]]:
        """Return sessions and seqs of entries with any of these words."""
        lookup = Lookup(space=Space("talk", user), terms=tuple(extract_terms(words).counts), **more)
        return [(one.session, one.seq) for one in (await self.index.lookup(lookup)).found]

    async def read_wanted(self, ref: SessionRef) -> dict[int, bytes] | None:
        """Return what the index must contain of a session, or None if it has no entries to index."""
        try:
            await self.elsewhere.get(ref)
        except SessionNotFound:
            return None
        texts, _, _ = make_entry_texts(await self.elsewhere.entries(ref))
        return {one.document.seq: one.document.digest for one in texts}

    async def check(self, refs: Sequence[SessionRef]) -> None:
        """Check that the index contains what the logs say, each entry at its place."""
        for ref in refs:
            wanted, space = await self.read_wanted(ref), Space("talk", ref.user_id)
            held = dict(await self.index.list_digests(space, ref.id, limit=10_000))
            assert held == (wanted or {}), ref
            known = await self.index.progress(space, ref.id)
            if wanted is None:
                assert known is None, ref
                continue
            session = await self.elsewhere.get(ref)
            assert known is not None, ref
            assert known.complete, ref
            assert known.identity == session.identity
            assert known.version <= session.version
            await self._check_places(ref)

    async def _check_places(self, ref: SessionRef) -> None:
        """Check that neighbours in the log have neighbouring places, except for gaps, which only grow."""
        said_there = [one.document for one in make_entry_texts(await self.elsewhere.entries(ref))[0]]
        documents = await self.index.at(Space("talk", ref.user_id), ref.id, [one.seq for one in said_there])
        place = {one.seq: one.place for one in documents}
        for channel in ("talk", "tool"):
            places = [place[one.seq] for one in said_there if one.channel == channel]
            assert places == sorted(set(places)), ref
        frequencies = await self.index.lookup(Lookup(space=Space("talk", ref.user_id)))
        assert frequencies.documents >= 0


@asynccontextmanager
async def bench(store: str = MEMORY, index: str = MEMORY, **settings: Any) -> AsyncIterator[Bench]:
    """Open a bench and close its service afterwards."""
    opened = await open_store(store, tenant=TENANT)
    try:
        there = await open_index(index, tenant=TENANT)
        try:
            made = Bench(opened, there, **settings)
            await made.service.register(there)
            yield made
            await made.service.close()
        finally:
            await there.close()
    finally:
        await opened.close()
