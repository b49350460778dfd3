"""Schema upgrades of every store: in place, once, atomic or resumable; newer schemas are rejected."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from holdfast.domain.messages import make_alias
from holdfast.domain.session import ModelCall, SessionRef
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores import STORES, SchemaStep, mysql, open_store, read_schema
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.matching import make_key
from holdfast.stores.sessions import SessionPatch
from holdfast.stores.sql import Migration, load_migrations, mark_backfill
from holdfast.stores.verify import verify
from tests.contract.kit import REF, assistant, calls, compaction, lay, result, session, user
from tests.contract.memory_kit import memory, put
from tests.contract.plugin import writer_of
from tests.stores.releases import know_only, make_by_the_first_release
from tests.stores.servers import Server, reach

SECOND = SessionRef("ann", "s2")


async def open_tenant(url: str) -> Store:
    """The store at `url`."""
    return await open_store(url, tenant="acme")


async def _close_after_opening(url: str) -> None:
    await (await open_tenant(url)).close()


def _dialect(url: str) -> str:
    return {"postgresql": "postgres"}.get(scheme := url.partition(":")[0], scheme)


async def test_a_schema_of_the_first_release_is_upgraded_in_place(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many open it at once: it is upgraded once, what it holds reads as it did, and what is new works on it.

    Keys that are of shared scopes now were a session's own like any others: they are none of its state, and hide nothing.
    """

    async def fill(store: Store) -> None:
        with monkeypatch.context() as then:
            then.setattr("holdfast.domain.state.get_scope", lambda _: "session")
            await store.create(session(state={"k": 1, "a:b": 2, "user:k": "old", "app:k": "old"}))
        await store.update(REF, SessionPatch(metadata={"m": 1}), timestamp=2)

    await make_by_the_first_release(shared_url, monkeypatch, fill)
    assert [step.applied for step in await read_schema(shared_url)] == [
        True,
        *[False] * (len(load_migrations("sqlite")) - 1),
    ]
    stores = await asyncio.gather(*(open_tenant(shared_url) for _ in range(6)))
    assert all(step.applied for step in await read_schema(shared_url))
    assert (await stores[0].get(REF)).state == {"k": 1, "a:b": 2}
    call = ModelCall(model="m", timestamp=7, view="v", hash=b"h" * 16, build=b"b")
    write = Append(
        entries=[user("a"), assistant("b")],
        timestamp=3,
        views={"v": SavedView(1, b"s", (0,))},
        calls=[call],
        state_delta={"user:k": [1], "app:k": 2},
    )
    await stores[0].append(REF, write)
    assert [(await stores[1].state(one)).values for one in ("ann", None)] == [{"k": [1]}, {"k": 2}]
    await asyncio.gather(*(lay(store, compaction(0, 1)) for store in stores))
    assert [one.id for one in await stores[0].compactions(REF)] == [1, 2, 3, 4, 5, 6]
    assert await stores[1].calls(REF) == (call,)
    assert await verify(stores[2], REF) == 2
    assert [one.number for store in stores for one in await put(store, memory())] == [1, 2, 3, 4, 5, 6]
    for store in stores:
        await store.close()


async def test_processes_open_a_file_of_the_first_release_at_once(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process upgrades it, all append, and no data are lost."""

    async def fill(store: Store) -> None:
        await store.create(session())
        await store.append(REF, Append(entries=[user("old")], timestamp=2))

    await make_by_the_first_release(shared_url, monkeypatch, fill)
    writer = writer_of("holdfast.stores:open_store", shared_url)
    for process in [writer(name, 20) for name in ("one", "two", "three")]:
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
    store = await open_tenant(shared_url)
    assert (await store.entries(REF))[0].message.text == "old"
    assert await verify(store, REF) == 61
    assert [one.id for one in await store.compactions(REF)][-1] == 60
    await store.close()


async def test_inspecting_a_schema_changes_nothing(shared_url: str) -> None:
    """An empty database needs all migrations, before and after inspection; an upgraded one needs none."""
    known = load_migrations(_dialect(shared_url))
    for _ in range(2):
        assert await read_schema(shared_url) == tuple(SchemaStep(one.number, one.name, applied=False) for one in known)
    await _close_after_opening(shared_url)
    assert await read_schema(shared_url) == tuple(SchemaStep(one.number, one.name, applied=True) for one in known)


async def _check_refused(server: Server, url: str, spoil: str, says: str) -> None:
    await anyio.to_thread.run_sync(server.in_place, url, spoil)
    for act in (_close_after_opening, read_schema):
        with pytest.raises(StoreUnavailable, match=says):
            await act(url)


async def test_newer_and_edited_schemas_are_rejected(server: Server, server_url: str) -> None:
    """On opening and on inspection; nothing is changed."""
    await _close_after_opening(server_url)
    steps = ", -1" if server.name == "mysql" else ""
    newer = f"INSERT INTO holdfast_migrations VALUES (9999, 'future', ''{steps});"
    await _check_refused(server, server_url, newer, "made by a newer release")
    back = "DELETE FROM holdfast_migrations WHERE number = 9999;"
    await _check_refused(
        server,
        server_url,
        f"{back} UPDATE holdfast_migrations SET checksum = 'x' WHERE number = 1;",
        "migration 1 that differs",
    )


async def test_an_old_release_rejects_a_newer_schema(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is clear, and a running server keeps working."""
    store = await open_tenant(server_url)
    with monkeypatch.context() as then:
        know_only(then, 1)
        with pytest.raises(
            StoreUnavailable, match=f"has schema {len(load_migrations('sqlite'))}, made by a newer release"
        ):
            await _close_after_opening(server_url)
    await store.create(session())
    await store.close()


async def test_tables_of_another_program_are_left_alone(server: Server, server_url: str) -> None:
    """`StoreUnavailable`, since its tables may have the same names."""
    if server.name == "postgres":
        schema = server_url.rpartition("schema=")[2]
        await anyio.to_thread.run_sync(server.ask, f'CREATE SCHEMA "{schema}"')
    await anyio.to_thread.run_sync(server.in_place, server_url, "CREATE TABLE sessions (invoice int);")
    with pytest.raises(StoreUnavailable, match="belongs to another program"):
        await _close_after_opening(server_url)
    assert await anyio.to_thread.run_sync(server.in_place, server_url, "SELECT invoice FROM sessions") == []


# -- what is worked out for what was there -------------------------------------


async def _write_logs(store: Store) -> None:
    """Logs with all kinds of entries: live, retired and erased, of two users."""
    for ref in (REF, SECOND, SessionRef("bob", "s1")):
        await store.create(session(ref))
        log = [user("a"), assistant("b"), calls("c"), result("c"), assistant("d")]
        await store.append(ref, Append(entries=log, timestamp=2))
        await store.append(ref, Append(entries=[user("e"), assistant("f")], retire_from=4, timestamp=3))
    await store.erase(REF, 1)
    await store.erase(REF, 4)


async def _find_entries(store: Store) -> list[tuple[SessionRef, int]]:
    """Every visible entry, as its digest finds it: nobody else's has one, so there is no other in its session."""
    places = []
    for ref in (REF, SECOND, SessionRef("bob", "s1")):
        for entry in await store.entries(ref, retired=True):
            found = await store.sightings(ref.user_id, [entry.digest], session=ref)
            assert [(one.ref, one.seq) for one in found] == ([(ref, entry.seq)] if entry.message.visible else [])
            places += [(one.ref, one.seq) for one in found]
    return places


async def test_digests_of_the_first_release_are_found(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including retired and erased entries, in batches; such entries have no aliases."""
    await make_by_the_first_release(shared_url, monkeypatch, _write_logs)
    monkeypatch.setattr(mark_backfill, "BATCH", 3)
    store = await open_tenant(shared_url)
    assert len(await _find_entries(store)) == 15
    reply = make_alias(b"", assistant("f").message) or b""
    assert await store.sightings("ann", [reply], alias=True) == ()
    await store.append(SECOND, Append(entries=[assistant("f")], timestamp=4))
    assert [one.seq for one in await store.sightings("ann", [reply], alias=True)] == [7]
    await store.close()


async def test_an_interrupted_digest_upgrade_is_completed(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues or starts again."""
    await make_by_the_first_release(shared_url, monkeypatch, _write_logs)
    done = 0

    def failing(scope: bytes, mark: bytes) -> int:
        nonlocal done
        done += 1
        if done > 7:
            raise StoreUnavailable("the power is gone")
        return make_key(scope, mark)

    with monkeypatch.context() as then:
        then.setattr(mark_backfill, "BATCH", 2)
        then.setattr(mark_backfill, "make_key", failing)
        with pytest.raises(StoreUnavailable, match="the power is gone"):
            await _close_after_opening(shared_url)
    assert {step.number: step.applied for step in await read_schema(shared_url)}[5] is False
    store = await open_tenant(shared_url)
    assert len(await _find_entries(store)) == 15
    await store.close()


# -- interrupted ---------------------------------------------------------------


def _broken(at: int) -> tuple[Migration, ...]:
    """The migrations, the second of which fails behind its statement number `at`."""
    first, second, *rest = load_migrations("postgres")
    text = ";".join(second.sql.split(";")[:at])
    return first, Migration(second.number, second.name, f"{text}; SELECT 1 FROM nowhere", second.checksum), *rest


@pytest.mark.parametrize("at", [1, 4])
async def test_an_interrupted_postgres_upgrade_is_rolled_back(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """It is one transaction, so the next upgrade starts from the beginning."""
    with monkeypatch.context() as then:
        then.setattr("holdfast.stores.postgres.load_migrations", lambda dialect: _broken(at))
        with pytest.raises(StoreError):
            await _close_after_opening(postgres_url)
    assert not any(step.applied for step in await read_schema(postgres_url))
    await _usable(postgres_url)


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("at", [(0, 0), (0, 4), (1, 1), (1, 3)])
async def test_an_interrupted_mysql_upgrade_is_resumed(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch, at: tuple[int, int], *, noted: bool
) -> None:
    """Even if a step was done but not recorded."""
    number, step = at
    with monkeypatch.context() as then:
        begin = load_migrations("mysql")[number].sql[:80]
        real = mysql.split_statements
        then.setattr(
            "holdfast.stores.mysql.split_statements",
            lambda sql: [*real(sql)[:step], "SELECT 1 FROM nowhere"] if sql.startswith(begin) else real(sql),
        )
        with pytest.raises(StoreError):
            await _close_after_opening(mysql_url)
    assert [found.applied for found in await read_schema(mysql_url)][number] is False
    if not noted and step:
        forget = f"UPDATE holdfast_migrations SET steps = steps - 1 WHERE number = {number + 1};"
        await anyio.to_thread.run_sync(reach("mysql").in_place, mysql_url, forget)
    await _usable(mysql_url)


async def _usable(url: str) -> None:
    store = await open_tenant(url)
    await store.create(session())
    await store.append(REF, Append(entries=[user("a")], timestamp=2))
    assert [one.status for one in await lay(store, compaction(0, 0))] == ["live"]
    assert await verify(store, REF) == 1
    await store.close()


def test_every_scheme_has_a_dialect() -> None:
    """Servers of a newer scheme use the same folder."""
    assert {_dialect(f"{scheme}://") for scheme in STORES} >= {"sqlite", "postgres", "mysql"}
