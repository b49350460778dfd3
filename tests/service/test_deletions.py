"""The journal of deletions: what it has of each kind, that it names no one, and that its failure undoes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.session import SessionRef
from holdfast.errors import SessionNotFound, StoreUnavailable
from holdfast.lifecycle.settings import LifeSettings
from tests.clocks import Clock
from tests.waits import until

DAY = 86_400_000


@pytest.fixture
async def hf(clock: Clock, tmp_path: Path) -> AsyncIterator[holdfast.Holdfast]:
    settings = LifeSettings(session_ttl=0, retention=DAY, sweep=False)
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db", clock=clock, life=settings) as hf:
        yield hf


async def talk(hf: holdfast.Holdfast, user_id: str, session_id: str) -> None:
    """Create a session with one message."""
    session = await hf.session(session_id, user_id=user_id)
    await session.append([{"role": "user", "content": "hi"}])


async def test_a_failing_journal_undoes_no_deletion(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The receipt is returned and logged, without ids."""

    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("full")

    await talk(hf, "ada", "secret-name")
    monkeypatch.setattr(hf.store.inner, "add_deletion", fail, raising=False)  # type: ignore[attr-defined]
    with caplog.at_level(logging.ERROR, "holdfast.deletions"):
        receipt = await hf.remove(SessionRef("ada", "secret-name"))
    assert receipt is not None
    with pytest.raises(SessionNotFound):
        await hf.store.get(SessionRef("ada", "secret-name"))
    assert "cannot record a deletion" in caplog.text
    assert "secret-name" not in caplog.text


async def test_a_cancelled_caller_does_not_stop_the_journal(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk(hf, "ada", "s")
    store, began = hf.store.inner, asyncio.Event()  # type: ignore[attr-defined]
    add = store.add_deletion

    async def wait(*args: Any, **kwargs: Any) -> None:
        began.set()
        await asyncio.sleep(0)
        await add(*args, **kwargs)

    monkeypatch.setattr(store, "add_deletion", wait, raising=False)
    task = asyncio.create_task(hf.remove(SessionRef("ada", "s")))
    await began.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: has_entries(hf))


async def has_entries(hf: holdfast.Holdfast) -> bool:
    return bool((await hf.deletions()).deletions)
