"""Reads and writes of two processes on Redis, interleaved at a chosen command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.artifact import UserRef
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.store import RedisStore
from tests.contract.artifacts import artifact
from tests.contract.records import drop, keys_of, put
from tests.stores.conftest import _place
from tests.stores.redis_openings import Opening

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
