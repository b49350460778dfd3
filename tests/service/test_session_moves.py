"""Moving a session to another user moves everything, leaves nothing, and an interrupted move can be completed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as evolve

import holdfast
from holdfast.agents import Agent, Roster
from holdfast.domain.media.parts import list_hashes
from holdfast.domain.memory import MemorySource, Owner
from holdfast.domain.messages import Message
from holdfast.domain.session import Claim, ModelCall, NewEntry, SessionRef
from holdfast.errors import (
    Conflict,
    SessionBusy,
    SessionNotFound,
    StoreUnavailable,
)
from holdfast.lifecycle.settings import LifeSettings
from holdfast.sessions.handle import SessionHandle
from holdfast.sessions.moves import CLAIM_MS
from holdfast.stores.log import Append
from holdfast.stores.sessions import SessionPatch
from tests.clocks import Clock
from tests.contract.kit import compaction
from tests.service.turns_kit import REF as STAGE_REF
from tests.service.turns_kit import open_stage
from tests.stores.servers import place

ADA, BOB = SessionRef("ada", "s"), SessionRef("bob", "s")
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 256
SAID = "where does the kelp grow when the tide is out"
STILL = LifeSettings(session_ttl=0, sweep=False)


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an empty database of each kind."""
    with place(request.param, tmp_path) as found:
        yield found


@pytest.fixture
async def hf(url: str, clock: Clock) -> AsyncIterator[holdfast.Holdfast]:
    roster = Roster(agents={"guide": Agent(name="guide")})
    async with holdfast.open(url, clock=clock, life=STILL, roster=roster) as hf:
        yield hf


async def create_full_session(hf: holdfast.Holdfast, clock: Clock) -> SessionHandle:
    """Create a session of Ada with one item of each kind."""
    await hf.create("s", user_id="ada", state={"k": 1, "user:theme": "dark"}, metadata={"m": [2]}, ttl=10**9)
    session = await hf.session("s", user_id="ada", system="Be brief.")
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"}}
    clock.now += 1000
    await session.append(
        [
            {"role": "user", "content": SAID, "pinned": True},
            {"role": "assistant", "content": "on the rocks"},
            {"role": "user", "content": [{"type": "text", "text": "and here?"}, picture]},
            {"role": "assistant", "content": "not here", "importance": 0.5},
        ]
    )
    call = ModelCall(model="m", timestamp=1, prompt_tokens=10, build=b"b", hash=b"h" * 16, through=2)
    laid = compaction(0, 1, "They spoke of kelp.", view="v")
    await hf.store.append(session.ref, Append(timestamp=clock.now, retire_from=3, calls=[call], compactions=[laid]))
    await session.append([{"role": "assistant", "content": "nowhere near"}])
    for text in ("one", "two", "three"):
        await session.artifacts.save("note.txt", text.encode(), author="ada", metadata={"text": text})
    await session.artifacts.delete("note.txt", 1)
    await session.artifacts.save("user:shared.txt", b"of the user")
    return session


async def read_everything(hf: holdfast.Holdfast, ref: SessionRef) -> dict[str, Any]:
    """Return everything stored for a session except its owner."""
    store = hf.store
    session = await store.get(ref)
    held = list(await hf.artifacts.list_all(ref))
    contents = [b"".join([chunk async for chunk in hf.artifacts.read(one)]) for one in held]
    export = await hf.export(ref, retired=True, calls=True, digests=True)
    return {
        **{name: value for name, value in export.items() if name not in ("user_id", "version", "artifacts")},
        "identity": session.identity,
        "accessed_at": session.accessed_at,
        "tail": session.tail,
        "compactions": [(one.text, one.view, one.first, one.last) for one in await store.compactions(ref, live=True)],
        "artifacts": [(one.name, one.version, one.created_at, one.author, one.metadata) for one in held],
        "contents": contents,
        "media": dict(
            await store.media(ref, list_hashes(one.message for one in await store.entries(ref, retired=True)))
        ),
    }


async def test_memory_from_before_a_move_is_deleted_with_its_message(hf: holdfast.Holdfast, clock: Clock) -> None:
    """Its source has the old name of the session, and the session's identity."""
    session = await create_full_session(hf, clock)
    identity = (await session.info()).identity
    own = MemorySource(session_id=ADA.id, user_id="ada", seqs=(0,), identity=identity)
    await hf.memories.remember("likes tea", user_id="ada", sources=[own])
    await hf.memories.remember("sells tea", agent="shop", sources=[own])
    await hf.memories.remember("has a cat", user_id="ada", sources=[evolve(own, identity="another")])
    moved = await hf.move(ADA, id="renamed")
    await hf.erase(moved.ref, 0)
    assert [one.content for one in (await hf.memories.page(Owner("user", "ada"))).memories] == ["has a cat"]
    assert (await hf.memories.page(Owner("agent", "shop"))).memories == ()


STEPS = ("replace", "append", "add_artifact", "remove")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("meanwhile", ["nothing", "old", "new"])
async def test_interrupted_move_is_completed_by_repeating_it(
    hf: holdfast.Holdfast, clock: Clock, step: str, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever step it had reached; writes to either session in between are not lost."""
    session = await create_full_session(hf, clock)
    before = await read_everything(hf, ADA)
    done = getattr(hf.engine.store, step)

    async def dies(*args: Any, **how: Any) -> Any:
        if step == "append" and not args[1].compactions:
            return await done(*args, **how)
        if step == "add_artifact" and args[1].metadata == {"text": "one"}:
            return await done(*args, **how)
        raise StoreUnavailable("gone")

    monkeypatch.setattr(hf.engine.store, step, dies)
    with pytest.raises(StoreUnavailable):
        await hf.move(ADA, user_id="bob")
    monkeypatch.undo()
    if meanwhile == "new" and step != "replace":
        await (await hf.session("s", user_id="bob")).append("to the copy")
        with pytest.raises(Conflict, match="written to since"):
            await hf.move(ADA, user_id="bob")
        assert (await read_everything(hf, ADA))["tail"] == before["tail"]
        return
    if meanwhile == "old":
        await session.append("to the old one")
        before = await read_everything(hf, ADA)
    await hf.move(ADA, user_id="bob")
    assert await read_everything(hf, BOB) == before
    with pytest.raises(SessionNotFound):
        await hf.store.get(ADA)


# -- turns ---------------------------------------------------------------------


async def test_turns_are_locked_out_during_a_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock holds on every server, so no turn is lost."""
    async with open_stage(f"sqlite:///{tmp_path}/chat.db", openings=2) as ((one, two), _):
        replace, busy = one.engine.store.replace, []

        async def meanwhile(*args: Any, **how: Any) -> Any:
            claim = (await two.store.get(STAGE_REF)).claim
            busy.append(claim)
            other = Append(timestamp=two.clock(), claim=Claim("turn", two.clock() + 1))
            with pytest.raises(SessionBusy):
                await two.store.append(STAGE_REF, other)
            return await replace(*args, **how)

        monkeypatch.setattr(one.engine.store, "replace", meanwhile)
        await one.move(STAGE_REF, user_id="bob")
        assert len(busy) == 1


async def test_append_during_the_copy_is_copied_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write needs no turn; the session is copied again."""
    async with open_stage(f"sqlite:///{tmp_path}/chat.db", openings=2) as ((one, two), _):
        replace = one.engine.store.replace

        async def meanwhile(*args: Any, **how: Any) -> Any:
            monkeypatch.undo()
            done = await replace(*args, **how)
            await two.handle(await two.store.get(STAGE_REF)).append("in between")
            return done

        monkeypatch.setattr(one.engine.store, "replace", meanwhile)
        moved = await one.move(STAGE_REF, user_id="bob")
        assert [message["content"] for message in await moved.messages()] == ["in between"]


@pytest.mark.parametrize("written", ["message", "artifact"])
async def test_write_just_before_the_old_session_is_removed_is_moved(url: str, clock: Clock, written: str) -> None:
    """Nothing that was accepted under the old id is lost."""
    async with (
        holdfast.open(url, clock=clock, life=STILL) as one,
        holdfast.open(url, clock=clock, life=STILL) as two,
    ):
        await (await one.session("s", user_id="ada")).append("before")
        theirs, remove, late = await two.session("s", user_id="ada"), one.engine.store.remove, ["late"]

        async def meanwhile(*args: Any, **how: Any) -> Any:
            for text in late[:]:
                late.clear()
                await (theirs.append(text) if written == "message" else theirs.artifacts.save("a.txt", text.encode()))
            return await remove(*args, **how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(one.engine.store, "remove", meanwhile)
            moved = await one.move(ADA, user_id="bob")
        said = [message["content"] for message in await moved.messages()]
        named = [artifact.name for artifact in await one.artifacts.list_all(BOB)]
        assert (said, named) == ((["before", "late"], []) if written == "message" else (["before"], ["a.txt"]))
        with pytest.raises(SessionNotFound):
            await one.store.get(ADA)


async def test_session_deleted_during_a_move_leaves_no_copy(url: str, clock: Clock) -> None:
    async with holdfast.open(url, clock=clock, life=STILL) as hf:
        session = await create_full_session(hf, clock)
        remove = hf.engine.store.remove

        async def meanwhile(ref: SessionRef, **how: Any) -> Any:
            await remove(ref)
            return await remove(ref, **how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hf.engine.store, "remove", meanwhile)
            with pytest.raises(SessionNotFound):
                await hf.move(session.ref, user_id="bob")
        for ref in (ADA, BOB):
            with pytest.raises(SessionNotFound):
                await hf.store.get(ref)


async def test_move_that_outlasts_its_claim_fails_if_a_turn_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that began on another server keeps its session."""
    clock = Clock()
    async with open_stage(f"sqlite:///{tmp_path}/chat.db", openings=2, clock=clock) as ((one, two), _):
        replace = one.engine.store.replace

        async def slowly(*args: Any, **how: Any) -> Any:
            done = await replace(*args, **how)
            clock.now += CLAIM_MS + 1
            claiming = Append(
                entries=[NewEntry(message=Message(role="user", content="hello"), tokens=1, timestamp=clock.now)],
                timestamp=clock.now,
                claim=Claim("turn", clock.now + 1000),
            )
            await two.store.append(STAGE_REF, claiming)
            return done

        monkeypatch.setattr(one.engine.store, "replace", slowly)
        with pytest.raises(SessionBusy):
            await one.move(STAGE_REF, user_id="bob")
        assert (await two.store.get(STAGE_REF)).messages == 1


@pytest.mark.parametrize("change", ["state", "erased"])
async def test_repeated_move_keeps_changes_made_in_the_copy(
    hf: holdfast.Holdfast, clock: Clock, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text erased in the copy does not return, and state set in it stays."""
    await create_full_session(hf, clock)

    async def dies(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(hf.engine.store, "remove", dies)
    with pytest.raises(StoreUnavailable):
        await hf.move(ADA, user_id="bob")
    monkeypatch.undo()
    clock.now += 1000
    if change == "state":
        await hf.store.update(BOB, SessionPatch(state={"k": 2}), timestamp=clock.now)
    else:
        await hf.store.erase(BOB, 0)
    with pytest.raises(Conflict, match="written to since"):
        await hf.move(ADA, user_id="bob")
    assert (await hf.store.get(BOB)).state["k"] == (2 if change == "state" else 1)
    assert (await hf.store.entries(BOB))[0].erased == (change == "erased")
