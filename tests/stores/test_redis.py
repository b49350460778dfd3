"""The Redis store on one server beyond the contract: connections, configuration, URLs and keys."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, StoreCorrupt, StoreUnavailable
from holdfast.stores import open_store, read_schema
from holdfast.stores.log import Append
from holdfast.stores.redis.connection import Endpoint
from holdfast.stores.redis.convert import NEWEST
from holdfast.stores.redis.keys import Keys, decode_names, decode_number, encode_name, encode_number, extract_hash_tag
from holdfast.stores.verify import verify
from tests.contract.kit import REF, assistant, live, session, texts, user
from tests.stores.private import Missing, PrivateRedis
from tests.stores.proxy import Proxy
from tests.stores.redis_openings import Opening
from tests.stores.servers import Redis, prefix_of, reach


def _private(*options: str) -> PrivateRedis:
    try:
        return PrivateRedis(*options)
    except Missing as exc:
        pytest.skip(str(exc))


def _says(text: str) -> Append:
    return Append(entries=[user(text)], timestamp=2)


# -- keys -------------------------------------------------------


_names = st.text(max_size=6) | st.sampled_from(["\0", "\0\1", "\0\xff", "{}", "}{", "a\0", "a"])


@given(st.lists(st.tuples(_names, _names), min_size=2, unique=True))
def test_different_names_have_different_keys(names: list[tuple[str, str]]) -> None:
    """For any bytes, and names never end up in the braces of a key."""
    keys = Keys("p")
    assert len({keys.session("t", *name, "").head for name in names}) == len(names)
    assert len({keys.user(*name).recent for name in names}) == len(names)
    assert len({extract_hash_tag(keys.user(*name).recent) for name in names}) == len(names)
    for name in names:
        of_session = keys.session("t", *name, "")
        assert {extract_hash_tag(key) for key in (of_session.head, *of_session.dependents)} == {
            extract_hash_tag(of_session.recent)
        }


@given(_names, _names, _names, _names)
def test_members_sort_like_their_names(one: str, two: str, three: str, four: str) -> None:
    """They sort by bytes and can be decoded to the names."""
    first, second = encode_name(one) + encode_name(two), encode_name(three) + encode_name(four)
    assert (first < second) == ((one.encode(), two.encode()) < (three.encode(), four.encode()))
    assert decode_names(first) == [one, two]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_encoded_numbers_keep_their_order(one: int, two: int) -> None:
    assert (encode_number(one) < encode_number(two)) == (one < two)
    assert decode_number(encode_number(one) + b"rest") == one


# -- connections that break --------------------------------------------------


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("done", [False, True])
async def test_a_commit_is_not_repeated_after_a_broken_connection(
    opening: Opening, redis_url: str, key: str | None, *, done: bool
) -> None:
    """The guard shows whether it was applied, so it is acknowledged and applied once."""
    async with Proxy(redis_url) as proxy:
        store = await opening(proxy.url)
        await store.create(session())
        write = Append(entries=[user("marked-7f3a")], timestamp=2, idempotency_key=key, fingerprint=b"f")
        proxy.arm(b"marked-7f3a", done=done)
        answer = await store.append(REF, write)
        assert (texts(answer.entries), answer.replayed, answer.version) == (["marked-7f3a"], False, 1)
        assert proxy.broke == 1
        assert await live(store) == ["marked-7f3a"]
        assert (await store.append(REF, Append(entries=[assistant("b")], timestamp=3))).version == 2
        assert await verify(store, REF) == 2


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("done", [False, True])
async def test_a_broken_commit_is_unknown_after_writes_of_others(
    opening: Opening, redis_url: str, key: str | None, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    """The guard has changed, so only an idempotency key can tell the outcome."""
    async with Proxy(redis_url) as proxy:
        store, other = [await opening(url) for url in (proxy.url, redis_url)]
        await store.create(session())
        nodes = store.database.nodes
        start = nodes._start_opening

        def meanwhile(place: Endpoint) -> object:
            async def append_between() -> object:
                await other.append(REF, _says("between"))
                return await start(place)

            monkeypatch.undo()
            return asyncio.get_running_loop().create_task(append_between())

        monkeypatch.setattr(nodes, "_start_opening", meanwhile)
        proxy.arm(b"marked-7f3a", done=done)
        write = Append(entries=[user("marked-7f3a")], timestamp=2, idempotency_key=key, fingerprint=b"f")
        if key is None:
            with pytest.raises(
                StoreUnavailable, match=r"^the connection to the database was lost .* outcome is unknown"
            ):
                await store.append(REF, write)
        else:
            answer = await store.append(REF, write)
            assert (texts(answer.entries), answer.replayed) == (["marked-7f3a"], done)
        expected = ["marked-7f3a", "between"] if done else ["between", *(["marked-7f3a"] if key else [])]
        assert await live(other) == expected


@pytest.mark.parametrize("done", [False, True])
async def test_broken_connections_while_creating_or_deleting_a_session(
    opening: Opening, redis_url: str, *, done: bool
) -> None:
    """The session is created once, and an unknown deletion is reported as unknown."""
    async with Proxy(redis_url) as proxy:
        store = await opening(proxy.url)
        proxy.arm(b"EVAL", done=done)
        assert (await store.create(session(metadata={"is": 1}))).version == 0
        proxy.arm(b"UNLINK", done=done)
        if done:
            with pytest.raises(StoreUnavailable, match="outcome is unknown"):
                await store.remove(REF)
        else:
            assert await store.remove(REF)
        assert (await store.list()).sessions == ()


async def test_scripts_are_reloaded_after_a_flush(opening: Opening, redis_url: str) -> None:
    store = await opening(redis_url)
    client = opening.client(store)
    await store.create(session())
    for number in range(3):
        await client.script_flush()
        await store.append(REF, _says(str(number)))
        await client.script_flush()
        assert (await store.window(REF, "v")).session.version == number + 1


async def test_many_openings_write_to_one_session(opening: Opening, redis_url: str) -> None:
    """No writer starves: one that lost often writes next."""
    stores = [await opening(redis_url) for _ in range(8)]
    await stores[0].create(session())

    async def write(number: int) -> None:
        for at in range(30):
            await stores[number].append(REF, _says(f"{number}.{at}"))

    await asyncio.gather(*(write(number) for number in range(len(stores))))
    log = await live(stores[0])
    assert Counter(text.partition(".")[0] for text in log) == {str(number): 30 for number in range(8)}
    assert await verify(stores[0], REF) == 240


# -- what others do to the data --------------------------------------------------


async def test_a_key_overwritten_by_another_program_is_corrupt(opening: Opening, redis_url: str) -> None:
    """The write raises `StoreCorrupt` with the session and changes nothing; other sessions work."""
    store = await opening(redis_url)
    client = opening.client(store)
    other = SessionRef("ann", "s2")
    for ref in (REF, other):
        await store.create(session(ref))
    fresh = await opening(redis_url)
    keys = Keys(prefix_of(redis_url)).session("acme", REF.user_id, REF.id, "")
    await client.set(keys.views, b"mine")
    views = {"v": holdfast.stores.log.SavedView(0, b"x")}
    with pytest.raises(StoreCorrupt, match="another program"):
        await fresh.append(REF, Append(entries=[user("a")], timestamp=2, views=views))
    with pytest.raises(StoreCorrupt, match="another program"):
        await store.window(REF, "v")
    await client.unlink(keys.views)
    assert await live(store) == []
    await fresh.append(other, _says("b"))
    await client.hset(keys.head, "r", b"\xc1")
    assert (await store.get(REF)).damaged
    assert not (await store.get(other)).damaged


async def test_a_newer_layout_is_rejected(opening: Opening, redis_url: str) -> None:
    """Like a newer schema; the data stay unchanged."""
    assert [step.applied for step in await read_schema(redis_url)] == [False] * NEWEST
    store = await opening(redis_url)
    assert [(step.number, step.applied) for step in await read_schema(redis_url)] == [
        (1 + at, True) for at in range(NEWEST)
    ]
    client = opening.client(store)
    await client.hset(f"{prefix_of(redis_url)}:layout", str(NEWEST + 1), "1")
    with pytest.raises(StoreUnavailable, match="made by a newer release"):
        await opening(redis_url)


async def test_prefixes_are_isolated(opening: Opening, redis_url: str) -> None:
    """Two stores with different prefixes share a server."""
    one, two = await opening(redis_url), await opening(f"{redis_url}2")
    await one.create(session())
    assert (await two.list()).sessions == ()
    assert list(await two.tenants()) == []
    await two.create(session())
    await two.remove(REF)
    assert (await one.get(REF)).version == 0
    server = reach("redis")
    assert isinstance(server, Redis)
    await anyio.to_thread.run_sync(server.drop, f"{redis_url}2")


# -- how the server is set up ----------------------------------------------------


async def test_a_server_that_evicts_data_is_rejected(opening: Opening) -> None:
    """Unless it is allowed; a policy that evicts only expiring keys is accepted."""
    with _private("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        with pytest.raises(StoreUnavailable, match=r"evicts data .* allkeys-lru.*allow_eviction=true"):
            await opening(server.url)
        store = await opening(f"{server.url}?allow_eviction=true")
        await store.create(session())
        client = opening.client(store)
        await client.config_set("maxmemory-policy", "volatile-ttl")
        await opening(server.url)


async def test_a_server_out_of_memory_rejects_writes(opening: Opening) -> None:
    """Reads and deletions still work, and so do writes when there is memory again."""
    with _private("--maxmemory-policy", "noeviction") as server:
        store = await opening(server.url)
        client = opening.client(store)
        for ref in (REF, SessionRef("ann", "s2")):
            await store.create(session(ref))
            await store.append(ref, _says("x" * 200_000))
        await client.config_set("maxmemory", 1_000_000)
        for refused in (
            store.append(REF, Append(entries=[user("y")], timestamp=2, state_delta={"k": 1}, idempotency_key="k")),
            store.create(session(SessionRef("bob", "s3"))),
            store.ping(),
        ):
            with pytest.raises(StoreUnavailable, match=r"memory is full .*nothing was stored"):
                await refused
        seen = await store.window(REF, None)
        assert (seen.session.version, seen.session.state, len(seen.entries)) == (1, {}, 1)
        assert len((await store.list()).sessions) == 2
        assert await store.remove(SessionRef("ann", "s2"))
        assert await verify(store, REF) == 1
        await client.config_set("maxmemory", 0)
        assert (await store.append(REF, _says("z"))).version == 2


async def test_writes_fail_while_the_server_is_a_replica(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads still work, and everything does when it is a master again."""
    monkeypatch.setattr("holdfast.stores.redis.nodes.RECONNECTING", 0.2)
    with _private() as server:
        store = await opening(server.url)
        client = opening.client(store)
        await store.create(session())
        await client.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]
        with pytest.raises(StoreUnavailable, match="read-only, perhaps a replica; nothing was stored"):
            await store.append(REF, _says("a"))
        assert await live(store) == []
        await client.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]
        assert (await store.append(REF, _says("b"))).version == 1


def test_a_store_works_in_the_loop_of_the_server(redis_url: str) -> None:
    """`holdfast serve` runs on uvloop, whose transports are not asyncio classes."""

    async def work() -> list[str]:
        store = await open_store(redis_url, tenant="acme")
        try:
            await store.create(session())
            await store.append(REF, _says("a"))
            return await live(store)
        finally:
            await store.close()

    assert uvloop.run(work()) == ["a"]


async def test_a_wrong_password_is_reported_without_showing_it(opening: Opening) -> None:
    """A missing or wrong password raises `StoreUnavailable`."""
    with _private("--requirepass", "very secret") as server:
        for login, says in (("", "requires a password"), (":wrong%20secret@", "the login failed")):
            url = server.url.replace("127", f"{login}127", 1)
            with pytest.raises(StoreUnavailable, match=says) as caught:
                await opening(url)
            assert "secret" not in repr(caught.value) + repr(caught.value.__cause__)
        store = await opening(server.url.replace("127", ":very%20secret@127", 1))
        await store.create(session())
        assert "secret" not in repr(store.database.nodes._login)


async def test_a_user_with_minimal_rights_is_enough(opening: Opening) -> None:
    """Keys below the prefix, reading, writing and scripts suffice; INFO replaces CONFIG."""
    acl = ["+@read", "+@write", "+@scripting", "+@connection", "+info", "+time"]
    with _private("--user", "app", "on", ">pw", "~holdfast:*", *acl) as server:
        store = await opening(server.url.replace("127", "app:pw@127", 1))
        await store.create(session())
        await store.append(REF, _says("a"))
        assert await live(store) == ["a"]
        assert await store.remove(REF)
        with pytest.raises(StoreUnavailable, match="lacks a permission"):
            await opening(server.url.replace("127", "app:pw@127", 1) + "?prefix=other")


# -- URLs and drivers ----------------------------------------------------------


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("ada:secret@", "host or port"),
        ("ada:secret@host:port/0", "host or port"),
        ("ada:secret@host:70000/0", "host or port"),
        ("ada:secret@host/db", "names no database"),
        ("ada:secret@host/0/1", "names no database"),
        ("ada:secret@host/0?speed=11", "unknown option speed"),
        ("ada:secret@host/0?pool=0", "pool must be a number"),
        ("ada:secret@host/0?prefix=a{b}", "prefix must be"),
        ("ada:secret@host/0?prefix=", "prefix must be"),
        ("ada:secret@host/0?allow_eviction=perhaps", "allow_eviction must be"),
    ],
)
async def test_invalid_urls_are_rejected(scheme: str, rest: str, says: str) -> None:
    """`InvalidRequest` is raised before connecting and does not contain the password."""
    with pytest.raises(InvalidRequest, match=says) as caught:
        await open_store(f"{scheme}://{rest}", tenant="acme")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://a,b", "several hosts"),
        ("redis+cluster://a,b/1", "only has database 0"),
        ("redis://a/0?sslmode=require", "the scheme rediss://"),
    ],
)
async def test_urls_of_the_other_kind_of_server_are_rejected(url: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await open_store(url, tenant="acme")
