"""Recall signals are not lost while memories cannot be written; those that wait too long are evicted, oldest first."""

from __future__ import annotations

from typing import Any

from holdfast.domain.memory import Memory, MemoryDelta, Owner, Signal
from holdfast.errors import StoreUnavailable
from holdfast.memory.reader import SignalWriter
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.wrapper import StoreWrapper

OWNERS = (Owner("user", "ada"), Owner("agent", "guide"), Owner("app"))


class Failing(StoreWrapper):
    """A store that fails a set number of times."""

    failures = 0

    async def change_memories(self, *asked: Any, **more: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        return await self.inner.change_memories(*asked, **more)


def make_id(number: int) -> str:
    return f"mem_{number:032x}"


async def open_failing_store() -> tuple[Store, Failing]:
    """Open a store in which each owner has a memory."""
    store = await open_store("sqlite://:memory:", tenant="acme")
    for number, owner in enumerate(OWNERS):
        memory = Memory(id=make_id(number), owner=owner, content="tea", created_at=1, updated_at=1)
        await store.change_memories(owner, MemoryDelta(put=(memory,)), timestamp=1)
    return store, Failing(store)  # type: ignore[abstract]  # the rest is passed on


def make_recalls(at: int) -> list[tuple[Owner, Signal]]:
    """Return a recall of each owner's memory."""
    return [
        (owner, Signal(memory_id=make_id(number), at=at, query=b"q", score=1.0, session="s"))
        for number, owner in enumerate(OWNERS)
    ]


async def signal_times(store: Store) -> list[list[int]]:
    """Return the times at which each owner's memory was recalled."""
    return [[signal.at for signal in await store.signals(owner)] for owner in OWNERS]


async def test_failure_for_one_owner_loses_no_signals_of_the_others() -> None:
    store, failing = await open_failing_store()
    signals = SignalWriter(failing, lambda: 5)
    failing.failures = 1
    signals.schedule(make_recalls(2))
    await signals.drain()
    signals.schedule(make_recalls(3))
    await signals.drain()
    assert await signal_times(store) == [[2, 3]] * 3
    await signals.close()
    await store.close()
