"""Writes on database servers whose commit, or its answer, is lost: each is made once, and its caller gets the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from holdfast.domain.artifact import UserRef
from holdfast.domain.memory import MemoryDelta
from holdfast.domain.record import MISSING
from holdfast.domain.session import SessionRef
from holdfast.domain.state import Increment
from holdfast.errors import StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.deletions import Deletion
from holdfast.stores.keys import ApiKey
from holdfast.stores.log import Append, SavedView
from holdfast.stores.sessions import SessionPatch
from holdfast.stores.verify import verify
from tests.behaviour.kit.proxy import Loss, Proxy
from tests.contract.artifacts import artifact
from tests.contract.expiry import ending
from tests.contract.kit import REF, compaction, live, session, user
from tests.contract.memory_kit import ANN, memory
from tests.contract.records import drop, put
from tests.stores.servers import Server

USER = UserRef("ann")
TWIN = SessionRef("ann", "s2")
REMEMBERED = memory()
KEY = ApiKey(id="k", hash=b"x" * 32, name="n", tenant="acme", created_at=1)


def append(text: str, **fields: Any) -> Callable[[Store], Awaitable[Any]]:
    """An append of one message, or of none."""
    write = Append(entries=[user(text)] if text else (), timestamp=2, **fields)
    return lambda store: store.append(REF, write)


WRITES: list[Callable[[Store], Awaitable[Any]]] = [
    lambda store: store.create(session(identity="i1")),
    lambda store: store.create(session(TWIN, identity="i2", state={"user:n": Increment()})),
    append("marked 0"),
    append("marked 1", expect=1, views={"v": SavedView(0, b"s")}),
    append("marked 2", idempotency_key="k", fingerprint=b"f", state_delta={"n": Increment()}),
    append("", state_delta={"user:n": Increment(), "app:n": Increment()}),
    append("", compactions=[compaction(0, 1)]),
    append("", records=[put("a")]),
    append("3", retire_from=2),
    lambda store: store.change_state("ann", {"n": Increment()}, timestamp=2),
    lambda store: store.change_state("ann", {"m": 1}, values={"m": None}, timestamp=2),
    lambda store: store.drop_state(None),
    lambda store: store.change_records(USER, [put("k", expect=MISSING)], timestamp=2),
    lambda store: store.change_records(REF, [put("k", 2)], timestamp=2),
    lambda store: store.change_records(USER, [drop("k")], timestamp=2),
    lambda store: store.drop_records(REF),
    lambda store: store.change_memories(ANN, MemoryDelta(put=(REMEMBERED,)), timestamp=2),
    lambda store: store.drop_memories(ANN),
    *(lambda store, at=at: store.add_artifact(REF, artifact(f"{at}.txt", f"b{at}")) for at in range(3)),
    lambda store: store.drop_artifacts(REF, "0.txt"),
    lambda store: store.drop_artifacts(REF, "1.txt", 0),
    lambda store: store.drop_artifacts(REF),
    lambda store: store.put_blob("b", 0, b"data", timestamp=1),
    lambda store: store.delete_blobs(["b"]),
    lambda store: store.record_ending(ending()),
    lambda store: store.settle(ending().id, error="refused"),
    lambda store: store.settle(ending().id, delivered="one"),
    lambda store: store.annotate(REF, 0, pinned=True),
    lambda store: store.rate(REF, {0: 0.5}),
    lambda store: store.drop_compaction(REF, 1, timestamp=3),
    lambda store: store.erase(REF, 1),
    lambda store: store.update(REF, SessionPatch(metadata={"a": 1}), timestamp=3, expect=None),
    lambda store: store.touch(REF, timestamp=4),
    lambda store: store.end(ending(2, TWIN)),
    lambda store: store.add_key(KEY),
    lambda store: store.revoke_key(KEY.id, timestamp=5),
    lambda store: store.learn("m", b"1", timestamp=1, expect=None),
    lambda store: store.lease("l", "me", now=1, until=2),
    lambda store: store.release("l", "me"),
    lambda store: store.add_deletion(Deletion(id="d", deleted_at=1, kind="session")),
    lambda store: store.remove(TWIN),
]


async def read_all(store: Store) -> list[Any]:
    """Return what the writes leave."""
    states = [await store.state(user) for user in ("ann", None)]
    lists = [
        await store.endings(due=2**60),
        await store.keys(),
        await store.deletions(),
        await store.records(USER, [], now=9),
    ]
    return [await store.get(REF), await store.entries(REF, retired=True), states, *lists, await store.compactions(REF)]


@pytest.mark.parametrize("loss", ["request", "answer", "late"])
async def test_a_write_that_is_lost_once_is_made_once(server: Server, server_url: str, loss: Loss) -> None:
    """Results and contents are those of a store that loses nothing, whatever is lost of the commits of all kinds of writes."""
    sound = await open_store("sqlite://:memory:", tenant="acme")
    async with Proxy(server_url) as proxy:
        store = await open_store(proxy.url, tenant="acme")
        for at, write in enumerate(WRITES):
            # PostgreSQL commits with the statement that has the message; MySQL is told to, by a statement of its own.
            proxy.arm(b"marked" if server.name == "postgres" and 2 <= at <= 4 else b"COMMIT", loss)
            assert await write(store) == await write(sound), at
            assert proxy.broke == at + 1
        assert await read_all(store) == await read_all(sound)
        assert await verify(store, REF) == 4
        await store.close()
    await sound.close()


async def test_an_outcome_is_unknown_while_the_server_is_away(server_url: str) -> None:
    async with Proxy(server_url) as proxy:
        store = await open_store(proxy.url, tenant="acme")
        await store.create(session())
        proxy.arm(b"COMMIT", "answer", for_good=True)
        with pytest.raises(StoreUnavailable, match="outcome is unknown"):
            await store.append(REF, Append(entries=[user("a"), user("b")], retire_from=0, timestamp=2))
        await store.close()
    store = await open_store(server_url, tenant="acme")
    assert await live(store) == ["a", "b"]
    await store.close()


async def test_ids_of_writes_are_deleted_after_an_hour(
    server: Server, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(server_url, tenant="acme")
    await store.create(session())
    monkeypatch.setattr("holdfast.stores.sql.remote.time", lambda: 2.0**33)
    await store.touch(REF, timestamp=2)
    await store.close()
    (one, two) = await anyio.to_thread.run_sync(server.in_place, server_url, "SELECT id FROM writes")
    assert one[0][:6] == two[0][:6] == (2**33 * 1000).to_bytes(6, "big")  # those of the write and of the deletion
