"""The contract, openings: several of one place, at once and one after the other."""

from __future__ import annotations

import asyncio

import anyio

from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.verify import verify

from .kit import REF, live, session, user
from .plugin import OpenStore


async def test_a_store_can_be_opened_twice(shared_opener: OpenStore) -> None:
    """Each sees what the other acknowledged, and both append to one log."""
    one, two = [await shared_opener() for _ in range(2)]
    await one.create(session())
    for at in range(10):
        await (one, two)[at % 2].append(REF, Append(entries=[user(str(at))], timestamp=2))
        assert (await (two, one)[at % 2].get(REF)).messages == at + 1

    async def write(store: Store) -> None:
        for _ in range(25):
            await store.append(REF, Append(entries=[user("more")], timestamp=2))

    async with anyio.create_task_group() as group:
        for store in (one, two) * 4:
            group.start_soon(write, store)
    assert await verify(one, REF) == await verify(two, REF) == 210
    await one.close()
    assert (await two.get(REF)).messages == 210


async def test_writes_of_another_opening_are_seen(shared_opener: OpenStore) -> None:
    """What a store remembers of a session is never believed: two openings, every kind of write, turn by turn."""
    one, two = [await shared_opener() for _ in range(2)]
    await one.create(session())
    for at in range(12):
        mine, other = (one, two) if at % 2 else (two, one)
        await mine.append(REF, Append(entries=[user("a")], timestamp=at, state_delta={"at": at}))
        await mine.append(REF, Append(entries=[user("b")], timestamp=at))
        assert (await other.get(REF)).state == {"at": at}
        await other.append(REF, Append(entries=[user("c")], timestamp=at, expect=2 * at + at + 2))
    assert await verify(one, REF) == 36
    await two.replace(session(state={"new": 1}), [user("z")])
    done = await one.append(REF, Append(entries=[user("y")], timestamp=99))
    assert (done.session.state, await live(two)) == ({"new": 1}, ["z", "y"])


async def test_a_new_database_can_be_opened_many_times_at_once(shared_opener: OpenStore) -> None:
    """It is made once, and all can write."""
    stores = await asyncio.gather(*(shared_opener() for _ in range(8)))
    await stores[0].create(session())
    await asyncio.gather(*(store.append(REF, Append(entries=[user("a")], timestamp=2)) for store in stores))
    assert (await stores[0].get(REF)).messages == 8


async def test_a_reopened_database_is_unchanged(shared_opener: OpenStore) -> None:
    """Closing and opening again finds everything."""
    store = await shared_opener()
    await store.create(session(state={"k": 1}))
    await store.append(REF, Append(entries=[user("a")], timestamp=2, views={"v": SavedView(0, b"v")}))
    before = await store.window(REF, "v")
    await store.close()
    assert await (await shared_opener()).window(REF, "v") == before
