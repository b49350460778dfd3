"""The index of a process: it is updated after writes with new entries only, removals take effect at once, and its failures never fail a turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, SessionRef
from holdfast.errors import StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.indexes.documents import extract_words
from holdfast.indexes.settings import IndexSettings, resolve_index_url
from holdfast.limits import INDEX_PAGE
from holdfast.recall.base import Batch, Index, Space
from tests.service.index_kit import MEMORY, Bench, bench

ADA = SessionRef("ada", "s")
SPACE = Space("talk", "ada")


class CountingIndex:
    """An index that counts its calls, and fails on request."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.put: list[int] = []
        self.dropped: list[int] = []
        self.asked: list[str] = []
        self.away = False

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **more: Any) -> Any:
            if self.away:
                raise StoreUnavailable("the index is away")
            self.asked.append(name)
            if name == "write":
                self._note(args[1])
            return await getattr(self._index, name)(*args, **more)

        return call

    def _note(self, batch: Batch) -> None:
        self.put += [one.seq for one in batch.put]
        self.dropped += batch.drop


def count_calls(one: Bench) -> CountingIndex:
    """Wrap the bench's index in a counting one, with a new service."""
    index = CountingIndex(one.index)
    one.index = index
    one.service = one.another()
    return index


# -- updates -------------------------------------------------------------------


async def test_edit_drops_retired_entries_and_indexes_only_new_ones() -> None:
    async with bench() as one:
        index = count_calls(one)
        await one.make(ADA, *(f"text {number}" for number in range(3 * INDEX_PAGE)))
        await one.service.settled()
        index.put.clear()
        last = 3 * INDEX_PAGE - 1
        await one.say(ADA, "another", retire_from=last)
        await one.service.settled()
        assert index.put == [last + 1]
        assert index.dropped == [last]
        await one.check([ADA])
        place = [(await one.index.at(SPACE, "s", [seq]))[0].place for seq in (last - 1, last + 1)]
        assert place == [last - 1, last]


async def test_edit_of_another_process_is_found_by_comparing_digests() -> None:
    async with bench() as one:
        index = count_calls(one)
        await one.make(ADA, *(f"text {number}" for number in range(3 * INDEX_PAGE)))
        await one.service.settled()
        index.put.clear()
        await one.say(ADA, "another", store=one.elsewhere, retire_from=INDEX_PAGE + 3)
        await one.say(ADA, "and more")
        await one.service.settled()
        assert len(index.put) < INDEX_PAGE
        await one.check([ADA])
        documents = await one.index.at(SPACE, "s", [INDEX_PAGE + 2, 3 * INDEX_PAGE, 3 * INDEX_PAGE + 1])
        assert [one.place for one in documents] == [INDEX_PAGE + 2, INDEX_PAGE + 3, INDEX_PAGE + 4]


async def test_new_session_with_a_reused_id_has_no_old_entries() -> None:
    async with bench() as one:
        await one.make(ADA, "tea", "yes")
        await one.service.settled()
        await one.here.remove(ADA)
        await one.make(ADA, "coffee")
        await one.service.settled()
        assert await one.find("ada", "tea coffee") == [("s", 0)]
        await one.check([ADA])


def _entry(message: Message, **more: Any) -> Entry:
    fields = {"turn_id": 0, "unit": 0, "timestamp": 1, "tokens": 1, "total": 1, "digest": b"", "seq": 0}
    return Entry(message=message, **{**fields, **more})


def test_erased_and_joined_entries_have_no_words() -> None:
    message = Message(role="assistant", content="tea")
    assert extract_words(_entry(message, erased=True)) == ""
    assert extract_words(_entry(message, metadata={"joined": True})) == ""


# -- unavailable index -----------------------------------------------------------


async def test_writes_succeed_without_the_index_and_are_indexed_later() -> None:
    async with bench() as one:
        index = count_calls(one)
        other = SessionRef("ada", "other")
        await one.make(ADA, "tea", "milk")
        await one.make(other, "water")
        await one.service.settled()
        index.away = True
        await one.say(ADA, "coffee")
        await one.here.erase(ADA, 0)
        await one.here.remove(other)
        await one.service.settled()
        assert one.service.last_error is not None
        assert "tea" not in repr(one.service.last_error)
        index.away = False
        await one.service.settled()
        await one.check([ADA, other])


async def test_next_walk_removes_a_session_deleted_without_the_index() -> None:
    async with bench() as one:
        index = count_calls(one)
        await one.make(ADA, "tea")
        await one.service.settled()
        index.away = True
        await one.here.remove(ADA)
        index.away = False
        assert await one.find("ada", "tea") == [("s", 0)]
        await one.service.walk()
        assert await one.find("ada", "tea") == []


# -- concurrent updates-------------------------------------------------------------


async def test_walk_during_updates_indexes_no_entry_twice() -> None:
    async with bench() as one:
        await one.make(ADA, *(f"text {number}" for number in range(1_000)))
        _, walked = await asyncio.gather(one.service.settled(), one.service.walk())
        assert one.service.indexed + walked.entries == 1_000
        assert one.service.failures == {}
        await one.check([ADA])


async def test_entry_erased_during_an_update_is_not_indexed() -> None:
    async with bench() as one:
        await one.make(ADA, "my pin is 4711", "fine")
        pages: list[Any] = []
        entries = one.elsewhere.entries

        async def erase_after_read(*args: Any, **more: Any) -> Any:
            page = await entries(*args, **more)
            if not pages:
                pages.append(page)
                await one.here.erase(ADA, 0)
            return page

        one.elsewhere.entries = erase_after_read  # type: ignore[method-assign]
        await one.service.settled()
        await one.service.settled()
        assert pages
        assert await one.find("ada", "4711") == []
        assert await one.find("ada", "fine") == [("s", 1)]


async def test_session_deleted_during_an_update_is_not_indexed() -> None:
    async with bench() as one:
        await one.make(ADA, "my pin is 4711", "fine")
        entries = one.elsewhere.entries

        async def delete_after_read(*args: Any, **more: Any) -> Any:
            page = await entries(*args, **more)
            await one.elsewhere.remove(ADA)
            await one.another().apply_removals()
            return page

        one.elsewhere.entries = delete_after_read  # type: ignore[method-assign]
        await one.service.settled()
        assert (await one.index.status()).sources == 0


# -- in a Holdfast -----------------------------------------------------------------


async def test_holdfast_without_writes_creates_no_index_file(tmp_path: Any) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        await hf.sessions()
    assert not (tmp_path / "chat.index.db").exists()


async def test_reopened_tenant_is_indexed_again() -> None:
    async with Holdfast(MEMORY) as hf:
        for number in range(2):
            async with hf.serve_tenant("other") as other:
                session = await other.session(f"s{number}", user_id="ada")
                await session.append([{"role": "user", "content": "tea"}])
                index = other.engine.index
                assert index is not None
                await index.settled()
                assert (await index.status()).documents == number + 1
            await hf._tenants._close("other", ends=False)  # type: ignore[union-attr]  # as when it is evicted for another tenant


@pytest.mark.parametrize(
    ("store", "index"),
    [
        ("sqlite:///chat.db", "sqlite:///chat.index.db"),
        ("sqlite:////var/lib/chat.sqlite", "sqlite:////var/lib/chat.index.sqlite"),
        ("sqlite:///chat", "sqlite:///chat.index.db"),
        ("sqlite://:memory:", "sqlite://:memory:"),
        ("postgresql://me:secret@host/db", "postgresql://me:secret@host/db?pool=4"),
        ("postgresql://host/db?schema=x&pool=30", "postgresql://host/db?schema=x&pool=4"),
    ],
)
def test_index_is_stored_next_to_its_store(store: str, index: str) -> None:
    assert resolve_index_url(IndexSettings(), store) == index
