"""Stores on database servers beyond the contract: broken connections, pools, and URLs."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from holdfast.domain.session import SessionRef
from holdfast.domain.state import Increment
from holdfast.errors import InvalidRequest, StoreError, StoreUnavailable, TooLarge
from holdfast.stores import open_store
from holdfast.stores.log import Append
from holdfast.stores.sessions import SessionPatch
from holdfast.stores.verify import verify
from tests.contract.artifacts import artifact
from tests.contract.expiry import ending
from tests.contract.kit import REF, assistant, live, session, texts, user
from tests.stores.proxy import Proxy
from tests.stores.servers import Server


def _with(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


# -- connections that break --------------------------------------------------


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("done", [False, True])
async def test_a_commit_is_applied_once_after_a_broken_connection(
    server_url: str, key: str | None, *, done: bool
) -> None:
    """It is retried if it was not applied; otherwise the outcome is unknown unless a key tells it."""
    async with Proxy(server_url) as proxy:
        store = await open_store(proxy.url, tenant="acme")
        await store.create(session())
        write = Append(
            entries=[user("marked-7f3a")], timestamp=2, state_delta={"k": 1}, idempotency_key=key, fingerprint=b"f"
        )
        # PostgreSQL commits with the statement that has the message; MySQL is told to, by a statement of its own.
        proxy.arm(b"COMMIT" if server_url.startswith("mysql") else b"marked-7f3a", done=done)
        if done and key is None:
            with pytest.raises(
                StoreUnavailable, match=r"^the connection to the database was lost .* outcome is unknown"
            ):
                await store.append(REF, write)
        else:
            answer = await store.append(REF, write)
            assert (texts(answer.entries), answer.replayed, answer.version) == (["marked-7f3a"], done, 1)
        assert proxy.broke == 1
        assert await live(store) == ["marked-7f3a"]
        assert (await store.append(REF, Append(entries=[assistant("b")], timestamp=3))).version == 2
        assert await verify(store, REF) == 2
        await store.close()


@pytest.mark.parametrize("done", [False, True])
async def test_an_edit_is_applied_once_after_a_broken_connection(server_url: str, *, done: bool) -> None:
    """The same for a transaction that locks the session."""
    async with Proxy(server_url) as proxy:
        store = await open_store(proxy.url, tenant="acme")
        await store.create(session())
        await store.append(REF, Append(entries=[user("a"), assistant("b")], timestamp=2))
        proxy.arm(b"COMMIT", done=done)
        write = Append(entries=[assistant("c")], retire_from=1, timestamp=2)
        if done:
            with pytest.raises(StoreUnavailable, match="outcome is unknown"):
                await store.append(REF, write)
        else:
            assert (await store.append(REF, write)).version == 2
        assert await live(store) == ["a", "c"]
        assert await verify(store, REF) == 3
        await store.close()


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


async def test_closed_idle_connections_are_replaced(server: Server, server_url: str) -> None:
    """Reads and writes work after a restart of the server."""
    store = await open_store(server_url, tenant="acme")
    await store.create(session())
    await asyncio.gather(*(store.get(REF) for _ in range(8)))
    for _ in range(3):
        assert await anyio.to_thread.run_sync(server.end, server_url) > 0
        assert (await store.window(REF, "v")).session.version == 0
        assert await anyio.to_thread.run_sync(server.end, server_url) > 0
        await store.update(REF, SessionPatch(), timestamp=2, expect=None)
        await store.remove(REF)
        await store.create(session())
    await store.close()


# -- pools and cancellation ----------------------------------------------------


async def test_many_callers_share_few_connections(server: Server, server_url: str) -> None:
    """Two connections serve a hundred concurrent callers, and no more are opened."""
    store = await open_store(_with(server_url, "pool=2"), tenant="acme")
    refs = [SessionRef("u", f"s{at}") for at in range(100)]
    await asyncio.gather(*(store.create(session(ref)) for ref in refs))
    await asyncio.gather(*(store.append(ref, Append(entries=[user(ref.id)], timestamp=2)) for ref in refs))
    assert len(await anyio.to_thread.run_sync(server.connections, server_url)) == 2
    assert [await live(store, ref) for ref in refs] == [[ref.id] for ref in refs]
    await store.close()


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


# -- sizes ---------------------------------------------------------------------


async def test_messages_up_to_the_size_limit_are_stored(server: Server, server_url: str) -> None:
    """If the server's packet limit is smaller, the error names that setting."""
    store = await open_store(server_url, tenant="acme")
    await store.create(session())
    text = "x" * (20 << 20)
    if server.name == "mysql" and server.ask("SELECT @@max_allowed_packet")[0][0] < 21 << 20:
        with pytest.raises(TooLarge, match="max_allowed_packet"):
            await store.append(REF, Append(entries=[user(text)], timestamp=2))
        text = "x" * (8 << 20)
    await store.append(REF, Append(entries=[user(text)], timestamp=2))
    assert await live(store) == [text]
    await store.close()


# -- URLs and drivers ----------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "mysql", "mariadb"])
@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("ada:secret@host", "names no database"),
        ("ada:secret@host/", "names no database"),
        ("ada:secret@host/a/b", "names no database"),
        ("ada:secret@host:port/db", "port"),
        ("ada:secret@host/db?sslmode=perhaps", "sslmode must be"),
    ],
)
async def test_invalid_server_urls_are_rejected(scheme: str, rest: str, says: str) -> None:
    """`InvalidRequest` is raised before connecting and does not contain the password."""
    with pytest.raises(InvalidRequest, match=says) as caught:
        await open_store(f"{scheme}://{rest}", tenant="acme")
    assert "secret" not in str(caught.value)


async def test_a_missing_database_is_reported(server: Server) -> None:
    """`StoreUnavailable` says how to create it."""
    url = server.base.partition("?")[0].rpartition("/")[0] + "/holdfast_test_no_such_place"
    with pytest.raises(StoreUnavailable, match="the database does not exist"):
        await open_store(url, tenant="acme")


async def test_damaged_rows_are_reported(server: Server, server_url: str) -> None:
    """Invalid JSON raises `StoreCorrupt`; other sessions work."""
    store = await open_store(server_url, tenant="acme")
    await store.create(session())
    await store.append(REF, Append(entries=[user("a")], timestamp=2))
    await anyio.to_thread.run_sync(server.in_place, server_url, "UPDATE entries SET payload = 'no JSON';")
    with pytest.raises(StoreError, match="damaged"):
        await store.entries(REF)
    await store.append(REF, Append(entries=[user("b")], timestamp=2))
    await store.close()
