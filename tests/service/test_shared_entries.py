"""Messages shared by a session and its forks: found once, kept when the parent is deleted, erased everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast.domain.memory import MemorySource, Owner
from holdfast.domain.session import SessionRef
from holdfast.engine.erasure import erase_everywhere
from holdfast.errors import InvalidRequest, SessionNotFound, StaleSession
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchOptions
from holdfast.sessions.forks import copy_turns
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


# -- search results ------------------------------------------------------------------


async def test_message_in_the_prompt_is_not_recalled_from_a_fork() -> None:
    """The recalled block and the search tool exclude what the prompt has, whichever session it is found in."""
    async with open_talks() as at:
        await at.add_messages("one", "the gate code is kelp-4711", "Noted.")
        await make_fork(at, "one", "two")
        agent = await at.hf.session("two", user_id="ada", agent="finder")
        await agent.send("what is the gate code?")
        assert str(at.model.prompts[-1]).count("kelp-4711") == 1
        await at.add_messages("later", "tell me", "Yes?")
        later = await at.hf.session("later", user_id="ada", agent="finder")
        await later.send("what is the gate code?")
        assert str(at.model.prompts[-1]).count("kelp-4711") == 1


async def test_excluded_message_is_excluded_in_every_session_that_shares_it() -> None:
    """Copies of prompt text therefore do not displace other results."""
    async with open_talks() as at:
        await at.add_messages("one", "the gate code is kelp-4711", "Noted.")
        await make_fork(at, "one", "two")
        await at.add_messages("two", "the gate code of the shed is moss", "Noted.")
        found = partial(search_conversations, at.hf.engine, "ada", "gate code")
        assert [hit.id for hit in (await found(SearchOptions(not_session="two"))).hits] == []
        others = await found(SearchOptions(), leave_out=lambda session, seq: session == "two" and seq < 2)
        assert {hit.id for hit in others.hits} == {"two#2", "two#3"}


# -- erasure -----------------------------------------------------------------------


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
            await copy_turns(at.hf.engine, parent, 2, None, new_id="three")
        with pytest.raises(SessionNotFound):
            await at.hf.store.get(at.ref("three"))


async def test_fork_of_a_session_deleted_meanwhile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_talks() as at:
        await at.add_messages("one", "hello", "ok")
        fork = await at.hf.fork(at.ref("one"), id="two")
        await act_during_fork(monkeypatch, at, lambda: at.hf.delete(at.ref("two")))
        with pytest.raises(SessionNotFound):
            await at.hf.fork(fork.ref, id="three")
        assert {one.id for one in (await at.hf.sessions()).sessions} == {"one"}


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


async def test_session_without_shared_entries_exports_no_origins() -> None:
    """Import rejects invalid origins."""
    async with open_talks() as at:
        await at.add_messages("one", "hello", "ok")
        export = await at.hf.export(at.ref("one"))
        assert "origins" not in export
        for wrong in ("x", [[1, "p", 0]], [[0, "p"]], [[0, "p", 0], [0, "p", 1]], [[at_, "p", 0] for at_ in range(9)]):
            with pytest.raises(InvalidRequest) as refused:
                await at.hf.import_({**export, "origins": wrong}, session_id="new")
            assert refused.value.param == "origins"


async def test_moved_session_still_shares_entries() -> None:
    """Parent and fork, under their new ids."""
    async with open_talks() as at:
        await at.add_messages("one", SECRET, "ok")
        await make_fork(at, "one", "two")
        await at.hf.move(at.ref("one"), id="moved")
        await at.hf.move(at.ref("two"), id="fork")
        await at.settled()
        assert sorted(one[-2:] for one in await at.find("card kelp")) == ["#0", "#1"]
        await at.hf.erase(at.ref("fork"), 0)
        assert (await texts(await at.hf.session("moved", user_id="ada")))[0] == "[erased]"
