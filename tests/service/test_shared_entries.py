"""Messages shared by a session and its forks: found once, kept when the parent is deleted, erased everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.domain.memory import MemorySource, Owner
from holdfast.domain.session import NewCompaction, SessionRef
from holdfast.errors import SessionNotFound, StaleSession
from holdfast.sessions.erasure import erase_everywhere
from holdfast.sessions.forks import fork_for_request
from holdfast.sessions.handle import SessionHandle
from holdfast.stores.log import Append
from tests.service.search_kit import Talks, open_talks

SECRET = "my card is kelp-4711"


async def texts(handle: SessionHandle) -> list[str]:
    return [entry.message.text for entry in await handle.entries()]


async def make_fork(at: Talks, name: str, new: str, at_turn: int | None = None) -> SessionHandle:
    fork = await at.hf.fork(at.ref(name), at_turn=at_turn, id=new)
    await at.settled()
    return fork


# -- origins of entries -------------------------------------------------------------


# -- search results ------------------------------------------------------------------


# -- erasure -----------------------------------------------------------------------


def make_summary(text: str, now: int) -> NewCompaction:
    """Return a new summary of the first two entries."""
    return NewCompaction(
        view="v",
        first=0,
        last=1,
        kind="summary",
        text=text,
        tokens=3,
        source_tokens=9,
        total=9,
        created_at=now,
        through=1,
    )


async def test_memories_from_a_copy_alone_are_deleted_too() -> None:
    async with open_talks() as at:
        await at.add_messages("one", SECRET, "ok")
        await make_fork(at, "one", "two")
        source = MemorySource(session_id="two", user_id="ada", seqs=(0,))
        await at.hf.memories.remember("The card is kelp-4711.", user_id="ada", sources=[source])
        await at.hf.erase(at.ref("one"), 0)
        assert (await at.hf.memories.page(Owner("user", "ada"))).memories == ()


# -- races ------------------------------------------------------------------------


async def act_during_fork(monkeypatch: pytest.MonkeyPatch, at: Talks, act: Callable[[], Awaitable[Any]]) -> None:
    """Run `act` once, after a fork has read the session and before it copies the messages."""
    fork, acts = at.hf.engine.store.fork, [act]

    async def write(*args: Any, **more: Any) -> Any:
        if acts:
            await acts.pop()()
        return await fork(*args, **more)

    monkeypatch.setattr(at.hf.engine.store, "fork", write, raising=False)


async def test_fork_does_not_restore_a_message_erased_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit fork is made again; one for a request is rejected and leaves nothing."""
    async with open_talks() as at:
        await at.add_messages("one", SECRET, "ok", "more", "ok")
        parent = await at.hf.store.get(at.ref("one"))
        await act_during_fork(monkeypatch, at, lambda: at.hf.erase(at.ref("one"), 0))
        fork = await at.hf.fork(at.ref("one"), id="two")
        assert await texts(fork) == ["[erased]", "ok", "more", "ok"]
        monkeypatch.undo()
        with pytest.raises(StaleSession):
            await fork_for_request(at.hf.engine, parent, 2, new_id="three")
        with pytest.raises(SessionNotFound):
            await at.hf.store.get(at.ref("three"))


async def test_copy_of_a_session_erased_and_deleted_meanwhile_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After replaced messages, a fork reads the messages and writes them again. The original can be erased and deleted in between."""
    async with open_talks() as at:
        await at.add_messages("one", "wrong", "ok")
        await at.hf.store.append(at.ref("one"), Append(retire_from=0, timestamp=at.hf.clock()))
        await at.add_messages("one", SECRET, "ok")
        store, replace = at.hf.engine.store, at.hf.engine.store.replace

        async def late(*args: Any, **more: Any) -> Any:
            await at.hf.erase(at.ref("one"), 2)
            await at.hf.delete(at.ref("one"))
            return await replace(*args, **more)

        monkeypatch.setattr(store, "replace", late, raising=False)
        with pytest.raises(SessionNotFound):
            await at.hf.fork(at.ref("one"), id="two")
        assert (await at.hf.sessions()).sessions == ()


async def test_copies_made_during_an_erasure_are_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many forks and an erasure at once leave no copy of the text."""
    async with open_talks() as at:
        await at.add_messages("one", SECRET, "ok")
        forks = [at.hf.fork(at.ref("one"), id=f"fork{number}") for number in range(20)]
        await asyncio.gather(*forks[:10], at.hf.erase(at.ref("one"), 0), *forks[10:])
        for session in (await at.hf.sessions(limit=100)).sessions:
            assert SECRET not in str(await at.hf.export(session.ref, retired=True))


async def test_copy_made_just_before_an_erasure_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are searched again after the named message is erased."""
    async with open_talks() as at:
        await at.add_messages("one", SECRET, "ok")
        store, erase = at.hf.engine.store, at.hf.engine.store.erase

        async def late(ref: SessionRef, seq: int, **more: Any) -> Any:
            if ref.id == "one":
                await at.hf.fork(at.ref("one"), id="two")
            return await erase(ref, seq, **more)

        monkeypatch.setattr(store, "erase", late, raising=False)
        done = await erase_everywhere(at.hf.engine, at.ref("one"), 0)
        assert done.copies == (("two", 0),)
        assert SECRET not in str(await at.hf.export(at.ref("two"), retired=True))


# -- import, export and move -----------------------------------------------------------


@pytest.mark.parametrize("retired", [True, False])
async def test_exports_and_imports_keep_shared_entries(retired: bool) -> None:
    """Forks that are imported elsewhere share the same entries there."""
    async with open_talks() as at, holdfast.open("sqlite://:memory:") as other:
        await at.add_messages("one", "wrong", "ok")
        await at.hf.store.append(at.ref("one"), Append(retire_from=0, timestamp=at.hf.clock()))
        await at.add_messages("one", SECRET, "ok")
        await make_fork(at, "one", "two")
        await at.hf.store.append(at.ref("two"), Append(retire_from=1, timestamp=at.hf.clock()))
        await at.add_messages("two", ("assistant", "another reply"))
        await make_fork(at, "two", "three")
        assert "origins" not in await at.hf.export(at.ref("one"), retired=retired)
        for name in ("two", "three"):
            export = await at.hf.export(at.ref(name), retired=retired)
            assert export["origins"]
            assert (await other.import_(export)).changed
            assert not (await other.import_(export)).changed
        for text in (SECRET, "another reply"):
            (place,) = [one.seq for one in await other.store.entries(at.ref("two")) if one.message.text == text]
            done = await erase_everywhere(other.engine, at.ref("two"), place)
            assert [name for name, _ in done.copies] == ["three"]
            assert text not in str(await other.export(at.ref("three"), retired=True))
