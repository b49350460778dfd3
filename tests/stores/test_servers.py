"""Stores on database servers beyond the contract: waiting writers."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.domain.session import SessionRef
from holdfast.domain.state import Increment
from holdfast.stores import open_store
from holdfast.stores.log import Append
from tests.contract.kit import session, user


def _with(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


# -- pools and cancellation ----------------------------------------------------


async def test_writers_waiting_for_shared_state_do_not_block_others(server_url: str) -> None:
    """Only one connection waits for a locked user state, for any number of writers."""
    holder = await open_store(server_url, tenant="acme")
    store = await open_store(_with(server_url, "pool=2"), tenant="acme")
    refs = [SessionRef("ann", f"s{at}") for at in range(10)]
    for ref in refs:
        await store.create(session(ref, state={"user:n": Increment()}))
    database: Any = holder.database
    line = await database._pool.acquire()
    await line.begin(writing=True)
    await line.query("owner_get_locked", ("acme", "state", "ann", 0))
    write = Append(entries=[user("a")], timestamp=2, state_delta={"user:n": Increment()})
    waiting = [asyncio.create_task(store.append(ref, write)) for ref in refs]
    async with asyncio.timeout(5):
        for _ in range(20):
            assert (await store.get(refs[-1])).version == 0
        await store.change_state("bob", {"n": 1}, timestamp=2)
    assert not any(task.done() for task in waiting)
    await line.rollback()
    database._pool.release(line)
    await asyncio.gather(*waiting)
    assert (await store.state("ann")).values == {"n": 20}
    for one in (store, holder):
        await one.close()
