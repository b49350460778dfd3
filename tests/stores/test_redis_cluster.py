"""The Redis store on a cluster: one slot per user, a lossless outbox, and moving slots and nodes."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.domain.artifact import NewArtifact
from holdfast.domain.session import Ending, ModelCall, SessionRef
from holdfast.errors import StoreUnavailable
from holdfast.limits import ID_BYTES
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.redis.connection import OutcomeUnknown, compute_slot
from holdfast.stores.redis.keys import extract_hash_tag
from holdfast.stores.redis.outbox import News, Outbox
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.verify import verify
from tests.contract.kit import REF, assistant, compaction, live, session, user
from tests.contract.media import make_contents
from tests.stores.conftest import _place
from tests.stores.private import Missing, PrivateRedis
from tests.stores.private_cluster import Cluster, count_redirects, execute, low_port
from tests.stores.servers import RedisCluster, reach
from tests.waits import until

BOB = SessionRef("bob", "s1")


@pytest.fixture
def cluster_url(tmp_path: Path) -> Iterator[str]:
    """An empty place on the tests' cluster."""
    yield from _place("redis-cluster", tmp_path)


@pytest.fixture
async def stores(cluster_url: str) -> AsyncIterator[list[RedisStore]]:
    """Two openings of it."""
    async with AsyncExitStack() as stack:
        yield [await _open(stack, cluster_url) for _ in range(2)]


async def _open(stack: AsyncExitStack, url: str) -> RedisStore:
    store = await open_store(url, tenant="acme")
    assert isinstance(store, RedisStore)
    stack.push_async_callback(store.close)
    return store


def _says(text: str) -> Append:
    return Append(entries=[user(text)], timestamp=2)


async def _list_sessions(store: Store) -> list[tuple[SessionRef, int]]:
    return [(one.ref, one.updated_at) for one in (await store.list(limit=100)).sessions]


# -- slots -----------------------------------------------------------------------


async def _fill_session(store: Store, ref: SessionRef) -> None:
    """A session with one of everything."""
    await store.create(session(ref, state={"k": 1}, ttl=5))
    write = Append(
        entries=[user("a"), assistant("b", media=tuple(make_contents(0)))],
        media=make_contents(0),
        timestamp=2,
        idempotency_key="k",
        fingerprint=b"f",
        calls=[ModelCall(model="m", timestamp=2)],
        views={"w": SavedView(0, b"x")},
        compactions=[compaction(0, 1)],
    )
    await store.append(ref, write)
    await store.append(ref, Append(entries=[assistant("c")], retire_from=1, timestamp=3))
    await store.append(ref, Append(timestamp=3, views={"w": SavedView(0, b"x")}, compactions=[compaction(0, 0)]))
    new = NewArtifact(
        name="plan", blob=f"b{len(ref.id)}", mime_type="text/plain", size=1, sha256=bytes(32), created_at=1
    )
    await store.add_artifact(ref, new)


async def test_all_data_of_a_user_are_in_one_slot(cluster_url: str, stores: list[RedisStore]) -> None:
    """So a write is one script; the slot is the one that the server computes."""
    names = ("s1", "{}", "{a}b", "a\0", "é" * 200, "x" * ID_BYTES)
    server = reach("redis-cluster")
    assert isinstance(server, RedisCluster)
    for name in names:
        before = set(server.keys(cluster_url))
        await _fill_session(stores[0], SessionRef("ann", name))
        await stores[0].end(
            Ending(
                id=f"end {len(name)}",
                user_id="ann",
                session_id=name,
                withdrawn=True,
                reason="ttl",
                ended_at=1,
                due_at=1,
            )
        )
        await _fill_session(stores[0], SessionRef("ann", name))
        new = set(server.keys(cluster_url)) - before
        assert len(new) > 17
    slots: dict[int, set[str]] = {}
    for key in server.keys(cluster_url):
        kind = key.rpartition(b"}:")[2].partition(b":")[0].decode()
        slots.setdefault(server.slot(key), set()).add(kind)
        assert server.slot(key) == compute_slot(extract_hash_tag(key))
    of_user = [kinds for kinds in slots.values() if "session" in kinds]
    assert len(of_user) == 1
    kinds = {"session", "log", "x", "v", "i", "compactions", "w", "m", "f", "e", "a", "z", "r", "k", "n", "d"}
    assert kinds <= of_user[0]
    for ref, _ in await _list_sessions(stores[0]):
        assert await verify(stores[0], ref) == 3


# -- the outbox --------------------------------------------------------------------


async def _outboxes(url: str) -> int:
    """How much is left in outboxes."""
    server = reach("redis-cluster")
    assert isinstance(server, RedisCluster)
    return sum([await anyio.to_thread.run_sync(server.size, key) for key in server.keys(url) if key.endswith(b":o")])


async def test_a_write_is_in_the_lists_before_it_is_acknowledged(cluster_url: str, stores: list[RedisStore]) -> None:
    """Another client lists it at once, and the outbox is empty at the end."""
    one, two = stores
    for at in range(20):
        ref = SessionRef(f"u{at}", "s")
        await one.create(session(ref))
        await one.append(ref, Append(entries=[user("a")], timestamp=at))
        assert (await two.list(limit=1)).sessions[0].ref == (ref if at else SessionRef("u0", "s"))
        assert await two.active() == at + 1
    await one.close()
    assert await _outboxes(cluster_url) == 0


@pytest.mark.parametrize("what", ["append", "create", "delete", "end", "artifact"])
async def test_the_outbox_of_a_dead_process_is_delivered(
    what: str, cluster_url: str, stores: list[RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next client to open the store delivers it from any state, and nothing is delivered twice."""
    one, two = stores
    for ref in (REF, BOB):
        await one.create(session(ref))

    async def dies(*_: object) -> None:
        return None

    monkeypatch.setattr(one.database.outbox, "deliver", dies)
    ending = Ending(
        id="e", user_id="ann", session_id="s1", withdrawn=False, reason="close", ended_at=9, due_at=9, hooks=("one",)
    )
    new = NewArtifact(name="plan", blob="b", mime_type="text/plain", size=1, sha256=bytes(32), created_at=1)
    writes: dict[str, Any] = {
        "append": lambda: one.append(REF, Append(entries=[user("a")], timestamp=9)),
        "create": lambda: one.create(session(SessionRef("ann", "s2"), timestamp=9)),
        "delete": lambda: one.remove(REF),
        "end": lambda: one.end(ending),
        "artifact": lambda: one.add_artifact(REF, new),
    }
    before = await _read_indexes(two)
    await writes[what]()
    if what != "delete":  # one that is gone is in no list, whatever the index says
        assert await _read_indexes(two) == before
    assert await _outboxes(cluster_url) > 0
    async with AsyncExitStack() as stack:
        three = await _open(stack, cluster_url)
        after = await _read_indexes(three)
        assert after != before
        assert await _outboxes(cluster_url) == 0
        assert await _read_indexes(two) == after
        for ref, updated_at in await _list_sessions(three):
            assert (await three.get(ref)).updated_at == updated_at


async def _read_indexes(store: Store) -> list[object]:
    """What the tenant's indexes say."""
    listed = [ref for ref, _ in await _list_sessions(store)]
    return [listed, await store.active(), await store.endings(due=99), await store.blobs_in_use(["b"])]


_KILLED = """
import asyncio, os, sys
from holdfast.stores import open_store
from holdfast.stores.redis.outbox import Outbox
from tests.contract.kit import REF, session, user
from holdfast.stores.log import Append

async def main():
    store = await open_store(sys.argv[1], tenant="acme")
    await store.create(session(timestamp=5))
    async def dies(*_):
        os.kill(os.getpid(), 9)
    Outbox.deliver = dies
    await store.append(REF, Append(entries=[user("last")], timestamp=7))

asyncio.run(main())
"""


async def test_the_outbox_of_a_killed_process_is_delivered(cluster_url: str) -> None:
    """The same with a real kill at that point."""
    command = [sys.executable, "-c", _KILLED, cluster_url]
    done = await anyio.to_thread.run_sync(lambda: subprocess.run(command, capture_output=True, check=False))
    assert done.returncode == -9, done.stderr
    assert await _outboxes(cluster_url) == 1
    async with AsyncExitStack() as stack:
        store = await _open(stack, cluster_url)
        assert await live(store) == ["last"]
        assert await _list_sessions(store) == [(REF, 7)]
    assert await _outboxes(cluster_url) == 0


async def test_late_outbox_messages_change_nothing(stores: list[RedisStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated, reordered or after deletion of the session: the newest version wins."""
    (one, two), told = stores, []
    deliver = one.database.outbox.deliver

    async def record_news(scope: Any, number: bytes, news: list[News]) -> None:
        told.append((scope, number, news))
        await deliver(scope, number, news)

    monkeypatch.setattr(one.database.outbox, "deliver", record_news)
    await one.create(session(ttl=7))
    for at in range(3):
        await one.append(REF, Append(entries=[user("a")], timestamp=20 + at))
    await one.end(
        Ending(
            id="e", user_id="ann", session_id="s1", withdrawn=False, reason="ttl", ended_at=9, due_at=9, hooks=("x",)
        )
    )
    await one.settle("e", delivered="x")
    await one.forget_ending("e")
    seen = await _read_indexes(two)
    for again in (*told, *reversed(told)):
        await deliver(*again)
        assert await _read_indexes(two) == seen
    await one.remove(REF)
    for again in (*told, *reversed(told)):
        await deliver(*again)
        assert await _read_indexes(two) == [[], 0, (), frozenset()]
    await one.create(session(timestamp=3))
    assert await _list_sessions(two) == [(REF, 3)]


async def test_a_write_with_a_lost_answer_is_delivered_to_the_indexes(
    cluster_url: str, stores: list[RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard shows that it was applied, so the indexes must be updated."""
    one, two = stores
    nodes = one.database.nodes
    run = nodes.run

    async def lose_answer(script: Any, keys: Any, arguments: Any, *, once: bool) -> Any:
        answer = await run(script, keys, arguments, once=once)
        if once:
            monkeypatch.undo()
            raise OutcomeUnknown("the connection broke")
        return answer

    writes: list[Callable[[], Awaitable[object]]] = [
        lambda: one.create(session()),
        lambda: one.append(REF, _says("a")),
    ]
    for at, write in enumerate(writes):
        monkeypatch.setattr(nodes, "run", lose_answer)
        await write()
        assert await _list_sessions(two) == [(REF, at + 1)]
    assert await live(two) == ["a"]
    await one.close()
    assert await _outboxes(cluster_url) == 0


async def test_writes_are_delivered_when_the_tenants_node_is_back(
    stores: list[RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write is acknowledged while the node is down."""
    one, two = stores
    await one.create(session())
    apply, failures = Outbox._apply, 2

    async def fails(self: Outbox, *args: Any) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 1:
            raise StoreUnavailable("gone")
        await apply(self, *args)

    monkeypatch.setattr(Outbox, "_apply", fails)
    assert (await one.append(REF, Append(entries=[user("a")], timestamp=9))).version == 1
    await one.close()
    assert await _list_sessions(two) == [(REF, 9)]


async def test_users_with_an_empty_outbox_are_removed_from_the_list(
    cluster_url: str, stores: list[RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the list of pending outboxes does not grow forever."""
    (one, two), server = stores, reach("redis-cluster")
    assert isinstance(server, RedisCluster)
    for at in range(30):
        await one.create(session(SessionRef(f"u{at}", "s")))
    dirty = one.database.keys.tenant("acme").dirty
    assert await anyio.to_thread.run_sync(server.size, dirty) == 30
    await two.database.outbox._tidy("acme")
    assert await anyio.to_thread.run_sync(server.size, dirty) == 30
    monkeypatch.setattr("holdfast.stores.redis.outbox.MARK_SECONDS", -5)
    monkeypatch.setattr("holdfast.stores.redis.outbox.PAGE", 7)
    await one.close()
    await two.database.outbox._tidy("acme")
    assert await anyio.to_thread.run_sync(server.size, dirty) == 0


# -- slots and nodes that move --------------------------------------------------------


@pytest.fixture(scope="module")
def cluster_nodes() -> Iterator[list[PrivateRedis]]:
    """Three nodes that know each other."""
    options = ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-node-timeout", "1500"]
    with ExitStack() as stack:
        try:
            nodes = [PrivateRedis(*options) for _ in range(3)]
        except Missing as exc:
            pytest.skip(str(exc))
        for node in nodes:
            node.port = low_port()
            stack.enter_context(node)
        places = [f"127.0.0.1:{node.port}" for node in nodes]
        subprocess.run(["redis-cli", "--cluster", "create", *places, "--cluster-yes"], check=True, capture_output=True)
        yield nodes


@pytest.fixture
async def cluster(cluster_nodes: list[PrivateRedis]) -> AsyncIterator[Cluster]:
    """Them, with nothing on them."""
    found = Cluster(cluster_nodes)
    await found.whole()
    for client in found.clients:
        await client.flushall()
    yield found
    for client in found.clients:
        await client.aclose()


@pytest.mark.slow
async def test_writes_continue_while_a_slot_moves(cluster: Cluster) -> None:
    """The keys of a user move one by one; every write is applied once and in order."""
    async with AsyncExitStack() as stack:
        stores = [await _open(stack, cluster.url) for _ in range(2)]
        await stores[0].create(session())
        slot = compute_slot(extract_hash_tag(stores[0].database.keys.user("acme", "ann").recent))
        begun = asyncio.Event()
        stop = False

        async def write(number: int) -> int:
            at = 0
            while not stop:
                await stores[number].append(REF, _says(f"{number}.{at}"))
                at += 1
                begun.set()
            return at

        writers = [asyncio.create_task(write(number)) for number in range(2)]
        await begun.wait()
        for _ in range(3):
            await _move(cluster, slot)
        stop = True
        counts = await asyncio.gather(*writers)
        log = await live(stores[0])
        assert Counter(text.partition(".")[0] for text in log) == {str(n): count for n, count in enumerate(counts)}
        assert await verify(stores[1], REF) == len(log)
        assert [ref for ref, _ in await _list_sessions(stores[1])] == [REF]


async def _move(cluster: Cluster, slot: int) -> None:
    """Move a slot to the next node as an administrator would, a key at a time, the others when a writer was in its way."""
    source = await cluster.owner(slot)
    target = (source + 1) % 3
    ids = [(await execute(client, "CLUSTER MYID")).decode() for client in cluster.clients]
    old, new = cluster.clients[source], cluster.clients[target]
    await execute(new, "CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    before = await count_redirects(old)
    await execute(old, "CLUSTER SETSLOT", slot, "MIGRATING", ids[target])

    async def in_the_way() -> bool:
        return await count_redirects(old) > before

    while keys := await execute(old, "CLUSTER GETKEYSINSLOT", slot, 1):
        await execute(old, "MIGRATE", "127.0.0.1", cluster.nodes[target].port, keys[0], 0, 5000)
        await until(in_the_way)
    for client in (new, old, cluster.clients[3 - source - target]):
        await execute(client, "CLUSTER SETSLOT", slot, "NODE", ids[target])


_GONE = re.compile(
    r"the (connection to the database was lost during a commit: its outcome is unknown\. .*|database cannot be reached: \w+"
    r"|database: the cluster does not serve all of its slots \(Redis: CLUSTERDOWN\))"
)
"""What may be told of a node that is not there."""


@pytest.mark.slow
async def test_writes_survive_the_restart_of_a_node(cluster: Cluster) -> None:
    """Acknowledged writes are stored once; users on other nodes are served throughout."""
    async with AsyncExitStack() as stack:
        store = await _open(stack, cluster.url)
        refs = [SessionRef(f"u{number}", "s") for number in range(6)]
        for ref in refs:
            await store.create(session(ref))
        said: list[tuple[SessionRef, str]] = []
        told: list[str] = []
        stop = False

        async def write(ref: SessionRef) -> None:
            at = 0
            while not stop:
                try:
                    await store.append(ref, _says(f"{at}"))
                except StoreUnavailable as exc:
                    told.append(str(exc))
                else:
                    said.append((ref, f"{at}"))
                at += 1

        async def wait_for_more(count: int) -> None:
            enough = len(said) + count

            async def has_written() -> bool:
                return len(said) >= enough

            await until(has_written)

        writers = [asyncio.create_task(write(ref)) for ref in refs]
        await wait_for_more(60)
        await anyio.to_thread.run_sync(cluster.nodes[1].kill)
        await wait_for_more(10)
        await anyio.to_thread.run_sync(cluster.nodes[1].start)
        await cluster.whole()
        await wait_for_more(60)
        stop = True
        await asyncio.gather(*writers)
        assert [text for text in told if not _GONE.fullmatch(text)] == []
        for ref in refs:
            log = await live(store, ref)
            assert set(Counter(log).values()) == {1}
            assert {text for one, text in said if one == ref} <= set(log)
            assert await verify(store, ref) == len(log)


async def test_the_url_must_match_cluster_or_single_server(cluster: Cluster) -> None:
    """A cluster node is not a single server, and a single server is not a cluster."""
    with pytest.raises(StoreUnavailable, match=r"it belongs to a cluster: use redis\+cluster://"):
        await open_store(f"redis://127.0.0.1:{cluster.nodes[0].port}/0", tenant="acme")
    alone = reach("redis").base.partition("://")[2].partition("/")[0]
    with pytest.raises(StoreUnavailable, match="it is not a cluster"):
        await open_store(f"redis+cluster://{alone}", tenant="acme")
