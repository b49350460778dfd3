"""Data of Holdfast 0.1 in Redis: rejected until converted, then unchanged and never lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import redis
from click.testing import CliRunner

from holdfast.cli import commands
from holdfast.errors import StoreUnavailable
from holdfast.stores import open_store, read_schema
from holdfast.stores.log import Append, SavedView
from holdfast.stores.redis.convert import Conversion, convert
from holdfast.stores.redis.store import LAYOUTS
from holdfast.stores.sessions import NewSession
from holdfast.stores.sql.upgrade import list_pending
from holdfast.stores.verify import verify
from tests.contract.kit import user
from tests.stores.conftest import _place
from tests.stores.redis_release import REFS, fill, read_all, restore
from tests.stores.servers import prefix_of

STRUCTS = SimpleNamespace(Append=Append, NewSession=NewSession, SavedView=SavedView)


@pytest.fixture(params=["redis", "redis-cluster"])
def redis_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place, alone or in a cluster."""
    yield from _place(request.param, tmp_path)


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    """A client of the place's server."""
    host, _, port = redis_url.partition("://")[2].partition("/")[0].partition("?")[0].partition(",")[0].partition(":")
    kind = redis.RedisCluster if "cluster" in redis_url.partition("://")[0] else redis.Redis
    with kind(host=host, port=int(port or 6379)) as found:
        yield found


@pytest.fixture
def old_url(redis_url: str, client: Any) -> str:
    """A place as 0.1 left it."""
    restore(client, prefix_of(redis_url))
    return redis_url


def _keys(client: Any, url: str, pattern: str = "*") -> set[bytes]:
    return set(client.scan_iter(match=f"{prefix_of(url)}:{pattern}", count=1000))


async def _check_refused(url: str, says: str) -> None:
    with pytest.raises(StoreUnavailable, match=says):
        await open_store(url, tenant="acme")


async def _read_all(url: str) -> list[object]:
    store = await open_store(url, tenant="acme")
    try:
        return await read_all(store)
    finally:
        await store.close()


async def _read_expected(name: str, tmp_path: Path) -> list[object]:
    """What this release shows of the same writes."""
    places = _place(name, tmp_path)
    url = next(places)
    store = await open_store(url, tenant="acme")
    try:
        await fill(store, STRUCTS)
        return await read_all(store)
    finally:
        await store.close()
        for _ in places:
            pass


async def test_converted_data_are_unchanged(old_url: str, client: Any, tmp_path: Path) -> None:
    name = "redis-cluster" if "cluster" in old_url.partition("://")[0] else "redis"
    await _check_refused(old_url, r"data of Holdfast 0\.1 \(layout 4\).*holdfast migrate")
    before = _keys(client, old_url)
    counted = await convert(old_url, dry_run=True)
    assert (counted.sessions, counted.compactions, counted.removed) == (5, 4, 0)
    assert _keys(client, old_url) == before
    done = await convert(old_url)
    assert (done.sessions, done.entries, done.compactions) == (counted.sessions, counted.entries, counted.compactions)
    assert (done.damaged, done.kept, done.removed) == (0, 0, 12)
    assert await _read_all(old_url) == await _read_expected(name, tmp_path)
    assert [step.applied for step in await read_schema(old_url)] == [True] * len(LAYOUTS)
    assert _keys(client, old_url, "{*}:[slcb]:*") == set()
    assert await convert(old_url) == Conversion()


async def test_converted_sessions_can_be_continued(old_url: str) -> None:
    await convert(old_url)
    store = await open_store(old_url, tenant="acme")
    for ref in REFS:
        before = await store.get(ref)
        replay = Append(entries=[], timestamp=40, idempotency_key="k", fingerprint=b"f")
        assert (await store.append(ref, replay)).replayed
        (entry,) = (await store.append(ref, Append(entries=[user("more")], timestamp=41))).entries
        assert entry.seq == before.tail.next_seq
        assert (await store.sightings(ref.user_id, [entry.digest]))[0].ref == ref
        await store.append(ref, Append(entries=[user("other")], retire_from=entry.seq, timestamp=42))
        assert await verify(store, ref)
        assert await store.remove(ref)
    assert [one.ref for one in (await store.list()).sessions] == []
    await store.close()


async def test_an_interrupted_conversion_is_resumed(old_url: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.redis.convert.PAGE", 1)

    def interrupt(done: Conversion) -> None:
        if done.sessions == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        await convert(old_url, progress=interrupt)
    assert len(_keys(client, old_url, "{*}:s:*")) == 5
    await _check_refused(old_url, "not finished.*holdfast migrate")
    done = await convert(old_url)
    assert (done.sessions, done.kept) == (5, 3)
    assert len(await _read_all(old_url)) == 63


async def test_old_keys_are_kept_on_request(old_url: str, client: Any) -> None:
    old = _keys(client, old_url, "{*}:[slcb]:*")
    assert (await convert(old_url, keep_old=True)).removed == 0
    assert _keys(client, old_url, "{*}:[slcb]:*") == old
    before = await _read_all(old_url)
    assert (await convert(old_url)).removed == len(old)
    assert await _read_all(old_url) == before


async def test_a_damaged_session_stays_damaged(old_url: str, client: Any) -> None:
    """The others are converted; the damaged one is listed and can be deleted."""
    (head, *_) = sorted(_keys(client, old_url, "{*}:s:*"))
    client.hset(head, "r", b"\xc1")
    assert (await convert(old_url)).damaged == 1
    store = await open_store(old_url, tenant="acme")
    listed = [*(await store.list()).sessions, await store.get(REFS[0])]
    damaged = {one.ref for one in listed if one.damaged}
    for ref in damaged:
        assert await store.remove(ref)
    await store.close()


async def test_servers_of_two_releases_cannot_run_together(old_url: str, redis_url: str, client: Any) -> None:
    """Nothing is converted or opened while 0.1 is connected; afterwards 0.1 rejects the layout."""
    name = f"holdfast:{prefix_of(old_url)}"
    nodes = client.get_primaries() if isinstance(client, redis.RedisCluster) else []  # type: ignore[no-untyped-call]
    one = nodes[0].redis_connection if nodes else client
    with redis.Redis(connection_pool=redis.ConnectionPool(client_name=name, **_address(one))) as legacy:
        legacy.ping()
        with pytest.raises(StoreUnavailable, match=r"server of Holdfast 0\.1 is connected"):
            await convert(old_url)
        legacy.connection_pool.disconnect()
    await convert(old_url)
    with redis.Redis(connection_pool=redis.ConnectionPool(client_name=name, **_address(one))) as legacy:
        legacy.ping()
        await _check_refused(old_url, r"server of Holdfast 0\.1 is connected")
        legacy.connection_pool.disconnect()
    applied = {step.number: "1" for step in await read_schema(old_url)}
    with pytest.raises(StoreUnavailable, match="made by a newer release"):
        list_pending("the database", LAYOUTS[:4], applied)
    assert {client.type(key) for key in _keys(client, old_url, "{*}:gone")} == {b"string"}


def _address(client: Any) -> dict[str, Any]:
    known = client.connection_pool.connection_kwargs
    return {"host": known["host"], "port": known["port"]}


def test_the_migrate_command_converts_the_data(old_url: str) -> None:
    """`holdfast migrate`: with `--show` it only counts."""
    for options, says in (
        (["--show"], "to convert: 5 sessions"),
        (["--keep-old"], "converted: 5 sessions"),
        ([], "12 old keys deleted"),
    ):
        done = CliRunner().invoke(commands, ["migrate", "--store", old_url, *options])
        assert done.exit_code == 0, done.output
        assert says in done.output
    assert len(anyio.run(_read_all, old_url)) == 63
