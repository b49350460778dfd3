"""Reads and writes of two processes on Redis, interleaved at a chosen command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.artifact import UserRef
from holdfast.domain.record import PutRecord, RecordName
from holdfast.domain.session import SessionRef
from holdfast.stores.log import Append
from holdfast.stores.redis import sessions
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.owned_records import unlist_expiring
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.sessions import SessionPatch
from tests.contract.artifacts import artifact
from tests.contract.kit import session, user
from tests.contract.records import SPACE, drop, keys_of, put
from tests.stores.conftest import _place
from tests.stores.redis_openings import Opening, act_before_commit

USER = UserRef("ann")
Act = Callable[[], Awaitable[object]]


@pytest.fixture(params=["redis", "redis-cluster"])
def redis_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place, alone or in a cluster."""
    yield from _place(request.param, tmp_path)


@pytest.fixture
async def store(opening: Opening, redis_url: str) -> RedisStore:
    """A store in this process."""
    return await opening(redis_url)


@pytest.fixture
async def other(opening: Opening, redis_url: str) -> RedisStore:
    """The same store, in another process."""
    return await opening(redis_url)


def _after_read(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, is_next: Callable[[Command], bool], act: Act
) -> None:
    """Call `act` once, after the store has read a command for which `is_next` returns True."""
    database = store.database
    fetch = database.fetch

    async def later(commands: Sequence[Command]) -> list[Any]:
        answers = await fetch(commands)
        if any(map(is_next, commands)):
            monkeypatch.setattr(database, "fetch", fetch)
            await act()
        return answers

    monkeypatch.setattr(database, "fetch", later)


# -- reads ---------------------------------------------------------------------


async def test_artifacts_deleted_during_a_list_are_not_in_it(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are deleted after their names were read. The list is read again."""
    await store.add_artifact(USER, artifact("user:a"))
    _after_read(store, monkeypatch, lambda one: one[0] == b"ZRANGEBYLEX", lambda: other.drop_artifacts(USER))
    assert (await store.artifacts(USER)).artifacts == ()


async def test_a_record_deleted_during_a_list_is_not_in_it(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted before its value is read."""
    await store.change_records(USER, [put("a"), put("b")], timestamp=1)
    infos = store.database.keys.user("acme", "ann").record_infos
    _after_read(
        store,
        monkeypatch,
        lambda one: one[:2] == (b"HMGET", infos),
        lambda: other.change_records(USER, [drop("a")], timestamp=2),
    )
    assert await keys_of(store) == ["b"]


# -- lists of sessions -----------------------------------------------------------


async def _create_sessions(store: RedisStore, agents: str) -> list[SessionRef]:
    """Create a session for each letter, which is its agent. The first session is the oldest."""
    refs = [SessionRef("ann", f"s{at}") for at in range(len(agents))]
    for at, (ref, agent) in enumerate(zip(refs, agents, strict=True)):
        await store.create(session(ref, agent=agent, timestamp=at + 1))
    return refs


@pytest.mark.parametrize("filters", [{"status": "active"}, {"user_id": "ann"}], ids=["status", "user"])
async def test_a_list_skips_no_session_when_others_are_deleted(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any]
) -> None:
    """A page of the list has been read when its sessions are deleted, so the next sessions have other ranks."""
    monkeypatch.setattr(sessions, "PAGE", 2)
    *_, wanted, second, first = await _create_sessions(store, "nnnynn")

    async def remove() -> None:
        for ref in (first, second):
            await other.remove(ref)

    ranges = (b"ZREVRANGE", b"list_by_status")
    _after_read(store, monkeypatch, lambda one: one[0] in ranges, remove)
    found = await store.list(agent="y", limit=1, **filters)
    assert [one.ref for one in found.sessions] == [wanted]


@pytest.mark.parametrize("filters", [{"status": "active"}, {"user_id": "ann"}], ids=["status", "user"])
async def test_a_list_goes_on_after_a_session_that_has_moved(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any]
) -> None:
    """The last session of a page is written to, and is then at the end of the list."""
    monkeypatch.setattr(sessions, "PAGE", 2)
    _, last, wanted, *_ = await _create_sessions(store, "nnynn")
    ranges = (b"ZRANGE", b"list_by_status")
    _after_read(
        store, monkeypatch, lambda one: one[0] in ranges, lambda: other.update(last, SessionPatch(), timestamp=99)
    )
    found = await store.list(agent="y", limit=1, descending=False, **filters)
    assert [one.ref for one in found.sessions] == [wanted]


async def test_a_list_with_an_end_goes_on_after_a_session_that_was_written_to(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is now later than the end of the list, but the following ones are not."""
    first, second, third = await _create_sessions(store, "nnn")
    write = Append(entries=[user("a")], timestamp=99)
    _after_read(store, monkeypatch, lambda one: one[0] == b"ZRANGE", lambda: other.append(second, write))
    found = await store.list(until=50, descending=False)
    assert [one.ref for one in found.sessions] == [first, third]


# -- records that expire ----------------------------------------------------------


def _expiring(key: str, time: int) -> PutRecord:
    return PutRecord(name=RecordName(SPACE, key), value=1, expires_at=time)


@pytest.mark.parametrize(
    ("sweeps", "others"), [(False, ()), (True, ()), (True, (1000,))], ids=["unlist", "sweep", "postpone"]
)
async def test_an_expiring_record_is_swept_although_its_owner_had_none_before(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch, others: tuple[int, ...], *, sweeps: bool
) -> None:
    """The owner is listed before the record is stored. In between, another process finds no record that expires as early."""
    await store.change_records(USER, [_expiring("old", 5), *(_expiring(str(at), at) for at in others)], timestamp=1)
    await store.change_records(USER, [drop("old")], timestamp=1)

    async def sweep() -> None:
        await (other.sweep_records(now=10) if sweeps else unlist_expiring(other, USER))

    act_before_commit(store, monkeypatch, sweep)
    await store.change_records(USER, [_expiring("new", 20)], timestamp=2)
    assert await store.sweep_records(now=30) == 1
