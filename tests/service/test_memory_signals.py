"""SignalWriter of recalls: none is lost while memories cannot be written to, and those that wait too long make room, the oldest first."""

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
    """A store that fails as often as it is told to."""

    failures = 0

    async def change_memories(self, *asked: Any, **more: Any) -> Any:
        """See `MemoryStore.change_memories`."""
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        return await self.inner.change_memories(*asked, **more)


def named(number: int) -> str:
    return f"mem_{number:032x}"


async def remembering() -> tuple[Store, Failing]:
    """A store in which each owner has a memory."""
    store = await open_store("sqlite://:memory:", tenant="acme")
    for number, owner in enumerate(OWNERS):
        memory = Memory(id=named(number), owner=owner, content="tea", created_at=1, updated_at=1)
        await store.change_memories(owner, MemoryDelta(put=(memory,)), timestamp=1)
    return store, Failing(store)  # type: ignore[abstract]  # the rest is passed on


def recalled(at: int) -> list[tuple[Owner, Signal]]:
    """A recall of each owner's memory."""
    return [
        (owner, Signal(memory_id=named(number), at=at, query=b"q", score=1.0, session="s"))
        for number, owner in enumerate(OWNERS)
    ]


async def noted(store: Store) -> list[list[int]]:
    """When each owner's memory was recalled."""
    return [[signal.at for signal in await store.signals(owner)] for owner in OWNERS]


async def test_what_one_owner_fails_with_loses_nothing_of_the_others() -> None:
    store, failing = await remembering()
    signals = SignalWriter(failing, lambda: 5)
    failing.failures = 1
    signals.schedule(recalled(2))
    await signals.drain()
    signals.schedule(recalled(3))
    await signals.drain()
    assert await noted(store) == [[2, 3]] * 3
    await signals.close()
    await store.close()


async def test_the_oldest_make_room() -> None:
    store, failing = await remembering()
    signals = SignalWriter(failing, lambda: 5, most=6)
    failing.failures = 3
    for at in (2, 3, 4):
        signals.schedule(recalled(at))
        await signals.drain()
    assert await noted(store) == [[], [], []]
    await signals.close()
    assert await noted(store) == [[3, 4]] * 3
    await store.close()
