"""`holdfast backup` and `restore`: during writes, verified, and never over a database in use."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

import anyio
import apsw
import pytest

from holdfast.domain.session import SessionRef
from holdfast.stores import backup as copying
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.verify import verify
from tests.contract.kit import session, user
from tests.stores.test_migrations import LATER, know_later

pytestmark = pytest.mark.usefixtures("in_empty_folder")

URL = "sqlite:///holdfast.db"


def find_files_with(text: bytes) -> set[str]:
    """Return the files that contain `text` anywhere."""
    return {path.name for path in Path().iterdir() if text in path.read_bytes()}


# -- under write load ----------------------------------------------------------


class Writers:
    """Eight tasks that append, each to its own session, with a count of acknowledged messages."""

    def __init__(self, store: Store) -> None:
        self.acknowledged = [0] * 8
        self._store = store
        self._stopped = False
        self._wrote = asyncio.Event()

    async def __aenter__(self) -> Self:
        for at in range(8):
            await self._store.create(session(_ref(at)))
        self._tasks = [asyncio.ensure_future(self._write(at)) for at in range(8)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def write_more(self, count: int) -> None:
        """Return when `count` further messages have been acknowledged."""
        until = sum(self.acknowledged) + count
        while sum(self.acknowledged) < until:
            self._wrote.clear()
            await self._wrote.wait()

    async def _write(self, at: int) -> None:
        while not self._stopped:
            text = f"{self.acknowledged[at]} " + "x" * 500
            await self._store.append(_ref(at), Append(entries=[user(text)], timestamp=1))
            self.acknowledged[at] += 1
            self._wrote.set()


def _ref(at: int) -> SessionRef:
    return SessionRef("ann", f"s{at}")


async def count_verified_messages(url: str) -> list[int]:
    """Verify each writer's session; return its number of messages."""
    store = await open_store(url, tenant="acme")
    try:
        for at in range(8):
            await verify(store, _ref(at))
            said = [entry.message.text.partition(" ")[0] for entry in await store.entries(_ref(at))]
            assert said == [str(number) for number in range(len(said))]
        return [(await store.get(_ref(at))).messages for at in range(8)]
    finally:
        await store.close()


async def test_backup_during_writes_is_consistent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It contains everything acknowledged before it began, as one snapshot of every log, and the writers continue
    meanwhile.
    """
    monkeypatch.setattr(copying, "STEP", 8)
    store = await open_store(URL, tenant="acme")
    steps: list[int] = []
    async with Writers(store) as writers:
        await writers.write_more(800)
        before = list(writers.acknowledged)

        def move(done: int, total: int) -> None:
            steps.append(done)
            if len(steps) == 4:  # the writers must make progress while the backup runs
                anyio.from_thread.run(writers.write_more, 200)
            assert done <= total

        copied = await anyio.to_thread.run_sync(lambda: copying.backup(URL, "copy.db", progress=move))
    await store.close()
    assert len(steps) > 10
    assert steps == sorted(steps)
    assert copied.sessions == 8
    assert copied.messages >= sum(before)
    assert sum(writers.acknowledged) >= sum(before) + 200
    restored = await anyio.to_thread.run_sync(lambda: copying.restore("sqlite:///again.db", "copy.db"))
    held = await count_verified_messages("sqlite:///again.db")
    assert sum(held) == restored.messages == copied.messages
    assert all(have >= had for have, had in zip(held, before, strict=True))
    assert await count_verified_messages(URL) == writers.acknowledged


async def test_message_erased_during_a_backup_leaves_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot keeps it in the WAL until the copy ends; no writer waits for that."""
    store = await open_store(URL, tenant="acme")
    await store.create(session(_ref(0)))
    await store.append(_ref(0), Append(entries=[user("canary " * 50)], timestamp=1))
    steps: list[int] = []

    async def erase() -> None:
        await store.erase(_ref(0), 0)
        await store.append(_ref(0), Append(entries=[user("on")], timestamp=1))

    def move(done: int, total: int) -> None:
        if not steps:  # the copy pauses until both have returned, so it blocks neither
            anyio.from_thread.run(erase)
        steps.append(done)

    monkeypatch.setattr(copying, "STEP", 1)
    await anyio.to_thread.run_sync(lambda: copying.backup(URL, "copy.db", progress=move))
    found = find_files_with(b"canary")
    await store.close()
    assert found == {"copy.db"}
    assert len(steps) > 1


async def test_restored_older_schema_is_migrated_on_open(monkeypatch: pytest.MonkeyPatch) -> None:
    await (await open_store(URL, tenant="acme")).close()
    copying.backup(URL, "copy.db")
    know_later(monkeypatch)
    assert copying.restore(URL, "copy.db").schema == LATER.number - 1
    await (await open_store(URL, tenant="acme")).close()
    raw = apsw.Connection("holdfast.db")
    assert raw.execute("SELECT a FROM later").fetchall() == [(1,)]
    raw.close()
