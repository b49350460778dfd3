"""Stores on database servers beyond the contract: broken connections and waiting writers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.domain.state import Increment
from holdfast.errors import StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.log import Append
from tests.behaviour.kit.proxy import Proxy
from tests.contract.artifacts import artifact
from tests.contract.expiry import ending
from tests.contract.kit import REF, live, session, user


def _with(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


# -- connections that break --------------------------------------------------


@pytest.mark.parametrize("done", [False, True])
async def test_shared_state_changes_are_not_doubled_after_a_broken_connection(server_url: str, *, done: bool) -> None:
    """With entries it is applied once; alone its outcome is unknown, but it is never applied twice."""
    async with Proxy(server_url) as proxy:
        store = await open_store(proxy.url, tenant="acme")
        await store.create(session())
        delta = {"user:n": Increment(), "app:n": Increment(), "n": Increment()}
        proxy.arm(b"COMMIT", done=done)
        told = ""
        try:
            await store.append(REF, Append(entries=[user("a")], timestamp=2, state_delta=delta))
        except StoreUnavailable as exc:
            told = str(exc)
        assert not told or (done and "outcome is unknown" in told)
        assert ((await store.get(REF)).state, await live(store)) == ({"n": 1}, ["a"])
        assert [(await store.state(one)).values for one in ("ann", None)] == [{"n": 1}, {"n": 1}]
        proxy.arm(b"COMMIT", done=done)
        with pytest.raises(StoreUnavailable, match="outcome is unknown"):
            await store.change_state("ann", {"n": Increment()}, timestamp=2)
        assert (await store.state("ann")).values in ([{"n": 1}, {"n": 2}] if done else [{"n": 1}])
        assert proxy.broke == 2
        await store.close()


async def test_deletions_and_endings_whose_answer_is_lost(server_url: str) -> None:
    """Deleting the same again does not find it, and recording the same again finds it: neither is an error of the caller."""
    async with Proxy(server_url) as proxy:
        store = await open_store(proxy.url, tenant="acme")
        await store.create(session())
        await store.add_artifact(REF, artifact())
        proxy.arm(b"COMMIT", done=True)
        with pytest.raises(StoreUnavailable, match="outcome is unknown"):
            await store.drop_artifacts(REF, "a.txt")
        proxy.arm(b"COMMIT", done=True)
        await store.record_ending(ending())
        assert [one.id for one in await store.endings(due=2**60)] == [ending().id]
        assert proxy.broke == 2
        await store.close()


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
    for name in ("scope_get_lock", "scope_get"):
        await line.query(name, ("acme", "ann"))
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
