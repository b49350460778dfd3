"""The index of a process: it is updated after writes with new entries only, removals take effect at once, and its failures never fail a turn."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.domain.session import SessionRef
from holdfast.errors import StoreUnavailable
from holdfast.recall.base import Batch, Index
from tests.service.index_kit import Bench, bench

ADA = SessionRef("ada", "s")


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


async def test_new_session_with_a_reused_id_has_no_old_entries() -> None:
    async with bench() as one:
        await one.make(ADA, "tea", "yes")
        await one.service.settled()
        await one.here.remove(ADA)
        await one.make(ADA, "coffee")
        await one.service.settled()
        assert await one.find("ada", "tea coffee") == [("s", 0)]
        await one.check([ADA])


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


# -- concurrent updates-------------------------------------------------------------


async def test_two_processes_indexing_one_session_lose_and_duplicate_nothing() -> None:
    async with bench() as one:
        other = one.another()
        await one.make(ADA)
        for number in range(20):
            await one.say(ADA, f"text {number}")
            other.schedule(ADA, await one.elsewhere.get(ADA))
            if number % 3 == 0:
                await asyncio.gather(one.service.settled(), other.settled())
        await asyncio.gather(one.service.settled(), other.settled())
        await one.check([ADA])
        await other.close()


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
            await one.another().drop_if_gone(ADA)
            return page

        one.elsewhere.entries = delete_after_read  # type: ignore[method-assign]
        await one.service.settled()
        assert (await one.index.status()).sources == 0


# -- in a Holdfast -----------------------------------------------------------------
