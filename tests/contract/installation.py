"""The contract, installing: sessions with their past, and what a removal says that it took away."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace as evolve

from holdfast.domain.artifact import NewArtifact
from holdfast.domain.history import OldEntry, Past, to_old_entry
from holdfast.domain.session import ModelCall, NewEntry, Receipt, SessionRef, Usage
from holdfast.errors import Conflict, InvalidMessage, InvalidRequest, SessionExists, SessionNotFound, StaleSession
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.verify import verify

from .expiry import ending
from .kit import REF, assistant, calls, compaction, live, result, session, texts, user
from .once import REFUSED, RULE, once

COPY = SessionRef("bob", "copy")
ARTIFACT: dict[str, Any] = {
    "blob": "b",
    "mime_type": "text/plain",
    "size": 5,
    "sha256": b"s" * 32,
    "created_at": 1,
}
CALL = ModelCall(model="m", timestamp=3, prompt_tokens=5, completion_tokens=2, turn_id=1, hash=b"h" * 16, build=b"b")


def old(entry: NewEntry, **fields: Any) -> OldEntry:
    """`entry` as one that stood in a log before."""
    given = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return OldEntry(**{**given, **fields})


async def _grow_log(store: Store, seed: int) -> None:
    """A log that was appended to, edited and erased from at random."""
    dice = random.Random(seed)
    await store.create(session())
    for at in range(30):
        size = (await store.get(REF)).tail.next_seq
        back = dice.randrange(size) if size and dice.random() < 0.3 else None
        units: list[list[NewEntry]] = [
            [user(f"u{at}", pinned=dice.random() < 0.2)],
            [assistant(f"a{at}", metadata={"source": "llm"}, agent="bo", importance=0.5)],
            [calls("x", "y"), result("y"), result("x"), assistant("done")],
            [calls("x")],
            [result("x")],
            [],
        ]
        await store.append(REF, Append(entries=dice.choice(units), retire_from=back, timestamp=at))
        size = (await store.get(REF)).tail.next_seq
        if size and dice.random() < 0.2:
            await store.erase(REF, dice.randrange(size), tokens=dice.choice([None, 2]))


@once(RULE)
@pytest.mark.parametrize("seed", range(4))
async def test_an_installed_log_equals_the_original(store: Store, seed: int) -> None:
    """Retired and erased entries included: the copy is equal, entry by entry, holds, and goes on as the original does."""
    await _grow_log(store, seed)
    log = await store.entries(REF, retired=True)
    done = await store.replace(session(COPY), [to_old_entry(entry) for entry in log])
    assert done.entries == log == await store.entries(COPY, retired=True)
    assert await store.entries(COPY) == await store.entries(REF)
    first, second = await store.get(REF), await store.get(COPY)
    assert done.session == second
    assert (second.tail, second.messages, second.bytes) == (first.tail, first.messages, first.bytes)
    assert await verify(store, COPY) == len(log)
    write = Append(entries=[result("x"), user("on")], retire_from=len(log) // 2, timestamp=99)
    assert (await store.append(COPY, write)).entries == (await store.append(REF, write)).entries
    assert await verify(store, COPY) == len(log) + 2


@once(RULE)
async def test_only_the_live_path_can_be_installed(store: Store) -> None:
    """Then its places are counted anew, and what was erased stays so."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a"), assistant("b"), user("c")], timestamp=1))
    await store.append(REF, Append(entries=[user("d")], retire_from=2, timestamp=1))
    await store.erase(REF, 1, tokens=3)
    path = await store.entries(REF)
    done = await store.replace(session(COPY), [to_old_entry(entry, retired=False) for entry in path])
    assert [(one.seq, one.message, one.digest, one.erased) for one in done.entries] == [
        (at, one.message, one.digest, one.erased) for at, one in enumerate(path)
    ]
    assert await verify(store, COPY) == 3


@once(RULE)
async def test_erased_entries_are_installed_without_content(store: Store) -> None:
    """Whatever stands there: an erased entry says nothing."""
    await store.replace(session(), [old(user("secret", metadata={"quoted": "secret"}), stands_for=b"d" * 16)])
    (entry,) = await store.entries(REF)
    assert (entry.message.text, entry.metadata, entry.erased, entry.digest) == ("[erased]", None, True, b"d" * 16)


IMPOSSIBLE: dict[str, Sequence[NewEntry]] = {
    "by itself": [old(user("a"), retired_by=0)],
    "by the past": [user("a"), old(user("b"), retired_by=0)],
    "by the future": [old(user("a"), retired_by=2)],
    "alone, in the middle": [old(user("a"), retired_by=2), user("b"), user("c")],
    "after what it stands behind": [old(user("a"), retired_by=2), old(user("b"), retired_by=3), user("c"), user("d")],
}


@once(REFUSED)
async def test_impossible_retirements_are_refused(store: Store) -> None:
    """`InvalidMessage` says which entry, and nothing is changed."""
    await store.create(session(state={"k": 1}))
    for entries in IMPOSSIBLE.values():
        with pytest.raises(InvalidMessage) as error:
            await store.replace(session(), entries)
        assert str(error.value.param).endswith(".retired_by")
    assert (await store.get(REF)).state == {"k": 1}


@once(REFUSED)
async def test_turn_ids_that_go_back_are_refused(store: Store) -> None:
    """Of the path that it stands on: a branch may begin in an earlier turn than the one it replaces ended in."""
    path = [user("a", turn_id=4), old(user("b", turn_id=7), retired_by=2), user("c", turn_id=5)]
    assert (await store.replace(session(), path)).session.tail.turn_id == 5
    with pytest.raises(InvalidMessage) as error:
        await store.replace(session(), [user("a", turn_id=4), assistant("b", turn_id=3)])
    assert error.value.param == "messages[1].turn_id"


@once(RULE)
async def test_a_session_is_installed_with_times_and_usage(store: Store) -> None:
    """Times, end, usage and calls; it is used when it is installed."""
    usage = Usage(7, 70, 30, 5)
    past = Past(created_at=10, updated_at=20, ended_at=30, end_reason="ttl", usage=usage, calls=(CALL, CALL))
    done = await store.replace(session(timestamp=100, ttl=50, past=past), [user("a")])
    found = await store.get(REF)
    assert done.session == found
    assert (found.created_at, found.updated_at, found.accessed_at) == (10, 20, 100)
    assert (found.status, found.ended_at, found.end_reason, found.usage) == ("closed", 30, "ttl", usage)
    assert await store.calls(REF) == (CALL, CALL)
    opened = (await store.append(REF, Append(entries=[user("b")], timestamp=120))).session
    assert (opened.status, opened.ended_at, opened.end_reason, opened.usage) == ("active", None, None, usage)
    assert [one.id for one in await store.idle(now=170, ttl=None)] == [REF.id]


async def test_installing_a_fresh_session_replaces_no_other(store: Store) -> None:
    """`SessionExists`, and what is there stays as it is."""
    assert (await store.replace(session(), [user("a")], fresh=True)).session.version == 0
    before = await store.get(REF)
    with pytest.raises(SessionExists):
        await store.replace(session(state={"k": 1}), [user("b")], fresh=True)
    assert (await store.get(REF), await live(store)) == (before, ["a"])


@once(REFUSED)
async def test_create_refuses_a_past(store: Store) -> None:
    """Nothing of one is lost without a word."""
    with pytest.raises(InvalidRequest):
        await store.create(session(past=Past(created_at=1, updated_at=1)))
    await store.create(session())
    with pytest.raises(InvalidMessage):
        await store.append(REF, Append(entries=[old(user("a"))], timestamp=1))
    for digest in (b"", b"x" * 15):
        with pytest.raises(InvalidMessage):
            await store.replace(session(), [old(user("a"), stands_for=digest)])
    assert await live(store) == []


# -- what a removal took away ------------------------------------------------


async def test_a_removal_reports_what_it_deleted(store: Store) -> None:
    """Counted in its transaction; the second time there is nothing."""
    await store.create(session(state={"a": 1, "b": 2}))
    first = Append(entries=[user("a"), assistant("b"), user("c")], timestamp=1, idempotency_key="k", calls=[CALL, CALL])
    await store.append(REF, first)
    await store.append(REF, Append(entries=[user("d")], retire_from=2, timestamp=1, views={"v": SavedView(0, b"")}))
    await store.append(REF, Append(compactions=[compaction(0, 1, view="w")], timestamp=1))
    await store.append(REF, Append(views={"v": SavedView(0, b""), "w": SavedView(0, b"")}, timestamp=1))
    for at in range(2):
        new = NewArtifact(name="n", **{**ARTIFACT, "blob": f"b{at}"})
        await store.add_artifact(REF, new)
    await store.create(session(COPY, state={"kept": 1}))
    size = (await store.get(REF)).bytes
    assert await store.remove(REF) == Receipt(
        sessions=1,
        messages=3,
        retired=1,
        bytes=size,
        compactions=1,
        views=2,
        model_calls=2,
        idempotency_keys=1,
        state_keys=2,
        artifacts=2,
        artifact_bytes=10,
    )
    assert await store.remove(REF) is None
    assert await store.remove(REF) is None
    with pytest.raises(SessionNotFound):
        await store.get(REF)
    assert (await store.get(COPY)).state == {"kept": 1}


async def test_a_removal_of_a_changed_session_is_refused(store: Store) -> None:
    """Whoever removes what it has copied elsewhere loses nothing that came in between."""
    await store.create(session())
    appended = await store.append(REF, Append(entries=[user("a")], timestamp=1))
    await store.add_artifact(REF, NewArtifact(name="n", **{**ARTIFACT, "blob": "b0"}))
    with pytest.raises(StaleSession):
        await store.remove(REF, expect=appended.version - 1, artifacts=1)
    with pytest.raises(Conflict):
        await store.remove(REF, expect=appended.version, artifacts=0)
    assert texts(await store.entries(REF)) == ["a"]
    assert (await store.artifact(REF, "n")).version == 0
    assert await store.remove(REF, expect=appended.version, artifacts=1) is not None
    assert await store.remove(REF, expect=appended.version) is None


@once(RULE)
async def test_an_empty_session_can_be_removed(store: Store) -> None:
    """An empty session has nothing to count."""
    await store.create(session())
    removed = await store.remove(REF)
    assert removed is not None
    assert removed == Receipt(sessions=1)
    assert texts((await store.replace(session(), [user("a")])).entries) == ["a"]
    assert evolve(removed, messages=1, bytes=(await store.get(REF)).bytes) == await store.remove(REF)


async def test_replacing_a_session_can_record_its_end(store: Store) -> None:
    """In one write: the old session is whole where its end says that it is, and neither sees the other."""
    await store.create(session(state={"k": 1}))
    await store.append(REF, Append(entries=[user("old")], timestamp=5))
    await store.add_artifact(REF, NewArtifact(name="a", **ARTIFACT))
    for number, text in enumerate(["new", "newer"]):
        gone = ending(number, withdrawn=True, identity=(await store.get(REF)).identity, ended_at=50 + number)
        before = await store.get(REF)
        done = await store.replace(session(timestamp=10), [user(text)], ending=gone)
        assert done.ended
        assert (await store.get(REF), await live(store)) == (done.session, [text])
        left = await store.get(gone.ref)
        assert (left.status, left.end_reason, left.version) == ("closed", "ttl", before.version + 1)
        assert (done.version, left.state, left.tail) == (before.version + 1, before.state, before.tail)
        assert [one.id for one in await store.endings(due=99)] == [f"end_{at}" for at in range(number + 1)]
    first = ending(0, withdrawn=True)
    assert await live(store, first.ref) == ["old"]
    assert [one.name for one in (await store.artifacts(first.ref)).artifacts] == ["a"]
    assert (await store.artifacts(REF)).artifacts == ()
    assert [one.ref for one in (await store.list()).sessions] == [REF]
    assert await store.active() == 1
    await store.append(REF, Append(entries=[user("more")], timestamp=60))
    assert await store.remove(first.ref)
    assert not await store.remove(first.ref)
    assert await live(store) == ["newer", "more"]
    assert await store.remove(REF)
    assert await live(store, ending(1, withdrawn=True).ref) == ["new"]


@once(RULE)
async def test_a_refused_installation_ends_nothing(store: Store) -> None:
    """The end is part of the installation."""
    await store.create(session(timestamp=1))
    with pytest.raises(InvalidMessage):
        await store.replace(session(), IMPOSSIBLE["by itself"], ending=ending(withdrawn=True))
    with pytest.raises(SessionExists):
        await store.replace(session(), [], fresh=True, ending=ending(withdrawn=True))
    assert (await store.get(REF)).status == "active"
    assert await store.endings(due=99) == ()


@once(RULE)
async def test_a_session_used_meanwhile_does_not_end(store: Store) -> None:
    """It is replaced, as without an end."""
    await store.create(session(timestamp=50))
    done = await store.replace(session(timestamp=60), [user("a")], ending=ending(withdrawn=True, ended_at=50))
    assert not done.ended
    assert await store.endings(due=99) == ()
    with pytest.raises(SessionNotFound):
        await store.get(ending(withdrawn=True).ref)
