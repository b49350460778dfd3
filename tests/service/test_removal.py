"""Deleted data is gone from every file, and a receipt says how much it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.artifacts.blobs import DiskBlobs
from holdfast.domain.session import Receipt, SessionRef
from holdfast.errors import StoreUnavailable
from holdfast.hooks.registry import ENDS, EndedSession
from holdfast.lifecycle.settings import LifeSettings
from holdfast.stores.log import Append
from holdfast.stores.sessions import SessionPatch
from tests.clocks import Clock

CANARY = "canary-7f3a"
DAY = 86_400_000
STILL = LifeSettings(session_ttl=0, sweep=False)


@pytest.fixture
async def hf(clock: Clock, tmp_path: Path) -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db", clock=clock, life=STILL) as hf:
        yield hf


# -- every file ----------------------------------------------------------------


def files_with_canary(folder: Path) -> set[str]:
    """Return the files below `folder` that contain the canary, including free pages and logs."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)) for path in files if CANARY.encode() in path.read_bytes()}


async def fill_session(hf: holdfast.Holdfast, session_id: str, user_id: str = "ada") -> None:
    """Create a session with the canary in every field."""
    session = await hf.session(session_id, user_id=user_id, system=f"{CANARY} in the prompt")
    big = [{"role": "user", "content": f"{CANARY} {at} " + "x" * 5_000} for at in range(4)]
    await session.append(
        [*big, {"role": "assistant", "content": CANARY, "metadata": {"m": CANARY}, "extra": CANARY}],
        idempotency_key=CANARY,
    )
    await session.update(state={"k": CANARY, "user:k": CANARY, "user:m": [CANARY]}, metadata={"m": CANARY})
    await hf.store.append(session.ref, Append(retire_from=3, timestamp=hf.clock()))
    await session.artifacts.save("note.txt", f"{CANARY} in a file".encode() * 100)
    await session.artifacts.save("user:shared.txt", f"{CANARY} of the user".encode())


# -- receipts ------------------------------------------------------------------


class Down:
    """A hook that fails on demand and records its calls."""

    name = "down"
    reasons = ENDS

    def __init__(self) -> None:
        self.failing = True
        self.heard: list[tuple[str, str]] = []
        self.open = asyncio.Event()
        """Until then, it hears and does not answer."""
        self.open.set()

    async def __call__(self, ended: EndedSession) -> None:
        await self.open.wait()
        if self.failing:
            raise RuntimeError("down")
        self.heard.append((ended.id, ended.reason))


async def all_sessions(hf: holdfast.Holdfast, user_id: str) -> list[str]:
    """Return the session ids of the user's recorded ends."""
    return [one.session_id for one in await hf.engine.life.store.endings_of(user_id)]


@pytest.mark.parametrize("url", ["sqlite://:memory:", "sqlite:///{}/chat.db"])
async def test_deleting_a_user_deletes_sessions_with_pending_hooks(tmp_path: Path, clock: Clock, url: str) -> None:
    """Expired and deleted sessions are invisible already, and their content must not reappear."""
    url, hook = url.format(tmp_path), Down()
    settings = LifeSettings(session_ttl=1000, sweep=False)
    async with holdfast.open(url, clock=clock, life=settings, hooks=[hook]) as hf:
        await fill_session(hf, "expired")
        await fill_session(hf, "expired", user_id="bob")
        clock.now += 2000
        await hf.sweep()
        await fill_session(hf, "deleted")
        await hf.delete(SessionRef("ada", "deleted"))
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert sorted(await all_sessions(hf, "ada")) == ["deleted", "expired"]
        receipt = await hf.delete_user("ada")
        await hf.engine.hook_dispatcher.wait_until_idle()
        # On disk the expired session still existed under its id: its deletion is delivered instead.
        kept = [] if ":memory:" in url else ["expired"]
        assert (receipt.sessions, receipt.messages, receipt.pending_deliveries) == (2, 6, len(kept))
        assert await all_sessions(hf, "ada") == kept
        await hf.delete_user("ada")
        assert await all_sessions(hf, "ada") == []
        assert await all_sessions(hf, "bob") == ["expired"]
        hook.failing = False
        for _ in range(3):
            clock.now += DAY
            await hf.sweep()
        assert hook.heard == [("expired", "ttl")]
        assert [one.user_id for one in (await hf.engine.life.store.list()).sessions] == (["bob"] if kept else [])


async def test_running_delivery_of_a_deletion_is_not_cancelled(hf: holdfast.Holdfast) -> None:
    """The hook may have data to delete too, and a repeated request must not prevent that."""
    hook = Down()
    hook.failing = False
    hook.open.clear()
    hf.add_hook(hook)
    await fill_session(hf, "s")
    first = await hf.delete_user("ada")
    again = await hf.delete_user("ada")
    assert (first.sessions, first.pending_deliveries) == (1, 1)
    assert (again.sessions, again.pending_deliveries) == (0, 1)
    hook.open.set()
    await hf.engine.hook_dispatcher.wait_until_idle()
    assert hook.heard == [("s", "delete")]
    assert await hf.delete_user("ada") == Receipt()


# -- order of deletion -----------------------------------------------------------


@pytest.mark.parametrize("hooks", [False, True])
async def test_failed_deletion_keeps_the_artifacts(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch, hooks: bool
) -> None:
    """If the database fails or the process ends first, nothing is deleted."""
    if hooks:
        hf.add_hook(Down())
    await fill_session(hf, "s")

    async def failing(*_: object, **__: object) -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        for name in ("remove", "delete", "end"):
            patch.setattr(type(hf.engine.life.store), name, failing, raising=False)
        with pytest.raises(StoreUnavailable):
            await hf.remove(SessionRef("ada", "s"))
    session = await hf.session("s", user_id="ada")
    assert (await session.artifacts.load("note.txt")).data.startswith(CANARY.encode())
    receipt = await hf.remove(SessionRef("ada", "s"))
    assert receipt is not None
    assert (receipt.artifacts, receipt.artifact_bytes) == (1, 2100)


async def test_contents_that_could_not_be_deleted_are_swept_later(
    hf: holdfast.Holdfast, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is deleted already, so no one can see them."""
    clock.now = time.time_ns() // 1_000_000
    await fill_session(hf, "s")

    async def failing(*_: object) -> None:
        raise StoreUnavailable("no folder")

    with monkeypatch.context() as patch:
        patch.setattr(DiskBlobs, "delete", failing)
        receipt = await hf.remove(SessionRef("ada", "s"))
    assert receipt is not None
    assert receipt.artifacts == 1
    kept = [name for name in files_with_canary(tmp_path) if "artifacts" in name]
    assert len(kept) == 2  # the user's artifact is separate
    clock.now += DAY
    await hf.sweep()
    assert len([name for name in files_with_canary(tmp_path) if "artifacts" in name]) == 1


# -- retention -----------------------------------------------------------------


async def prune(hf: holdfast.Holdfast, older_than: int, **options: Any) -> list[str]:
    return [session.id async for session, _ in hf.prune(older_than, **options)]


async def test_pruning_is_correct_while_sessions_change(
    hf: holdfast.Holdfast, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small pages, and sessions deleted or used meanwhile."""
    monkeypatch.setattr("holdfast.stores.walk.PAGE", 3)
    for at in range(20):
        await hf.create(f"s{at:02}")
        clock.now += 1
    gone = []
    async for session, _ in hf.prune(0, status=None):
        gone.append(session.id)
        if session.id == "s04":  # others use the last session of the next page and delete the one after it
            clock.now += 10
            await hf.store.touch(SessionRef("default", "s05"), timestamp=clock.now)
            await hf.store.update(SessionRef("default", "s08"), SessionPatch(metadata={"m": 1}), timestamp=clock.now)
            await hf.delete(SessionRef("default", "s07"))
    assert gone == [f"s{at:02}" for at in range(20) if at not in (5, 7, 8)]
    assert {one.id for one in (await hf.sessions(limit=100)).sessions} == {"s05", "s08"}
