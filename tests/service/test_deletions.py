"""The journal of deletions: what it has of each kind, that it names no one, and that its failure undoes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.accounting import Owner, charge_to
from holdfast.domain.session import SessionRef
from holdfast.engine import deletion_journal
from holdfast.engine.deletion_journal import DeletionJournal
from holdfast.errors import InvalidRequest, SessionNotFound, StoreUnavailable
from holdfast.lifecycle.removal import Receipt
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


async def list_kinds(hf: holdfast.Holdfast, **options: Any) -> list[str]:
    return [one.kind for one in (await hf.deletions(**options)).deletions]


async def test_the_key_of_the_request_is_recorded(hf: holdfast.Holdfast, clock: Clock) -> None:
    for key_id in ("k1", ""):
        clock.now += 1
        await talk(hf, "ada", "s")
        with charge_to(Owner("default", f"{key_id}/", key_id)):
            await hf.remove(SessionRef("ada", "s"))
    assert [one.key_id for one in (await hf.deletions()).deletions] == [None, "k1"]


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


async def test_the_newest_deletions_of_each_kind_are_kept(
    hf: holdfast.Holdfast, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion_journal, "DELETIONS", 5)
    await talk(hf, "ada", "s")
    await hf.delete_user("ada")
    for _ in range(40):
        clock.now += 1
        await hf.engine.deletions.record("session", Receipt(sessions=1), user_id="ada", session_id="s")
    kinds = await list_kinds(hf, limit=100)
    assert (kinds.count("user"), 5 <= kinds.count("session") <= 5 + 16) == (1, True)


async def test_processes_of_one_database_share_the_key(hf: holdfast.Holdfast, tmp_path: Path, clock: Clock) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db", clock=clock) as other:
        journals = [DeletionJournal(one.store, clock) for one in (hf, other)]
        await asyncio.gather(*(one.record("user", Receipt(sessions=1), user_id="ada") for one in journals))
        assert [len(await one.list(user_id="ada")) for one in journals] == [2, 2]


async def test_a_cursor_must_be_an_id_of_a_deletion(hf: holdfast.Holdfast) -> None:
    for wrong in ("", "x", "del_", "del_zzzzzzzzzzzz"):
        with pytest.raises(InvalidRequest):
            await hf.deletions(after=wrong)
