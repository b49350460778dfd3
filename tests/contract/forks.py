"""The contract, forks: a session that begins with copies of another session's entries."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace as evolve

from holdfast.domain.fact_choices import with_choices
from holdfast.domain.history import to_old_entry
from holdfast.domain.messages import GENESIS
from holdfast.domain.origins import Origin
from holdfast.domain.session import NewEntry, Session, SessionRef
from holdfast.errors import SessionExists, SessionNotFound, StaleSession
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.verify import verify

from .kit import REF, assistant, calls, note, result, session, texts, user
from .media import make_contents, sha
from .once import RULE, once

FORK = SessionRef("ann", "fork")
COPY = SessionRef("ann", "copy")


async def _grow_session(store: Store, seed: int) -> Session:
    """Store a log without edits: turns with calls, open calls and orphan results, notes, erased and annotated entries."""
    dice = random.Random(seed)
    await store.create(session(identity="parent", state={"a": 1}))
    for at in range(24):
        units: list[list[NewEntry]] = [
            [user(f"u{at}", pinned=dice.random() < 0.2)],
            [user(f"v{at}"), note({"at": at}), assistant(f"a{at}", metadata={"source": "llm"}, agent="bo")],
            [calls("x", "y"), result("y"), result("x"), assistant("done")],
            [calls("x"), result("x"), result("z"), note({"at": at})],
            [calls("x")],
            [result("x")],
        ]
        await store.append(REF, Append(entries=dice.choice(units), timestamp=at))
        if dice.random() < 0.1:
            await store.erase(REF, dice.randrange((await store.get(REF)).tail.next_seq), tokens=dice.choice([None, 2]))
    return await store.get(REF)


async def _copy_entries(store: Store, parent: Session, stop: int) -> Session:
    """Return the session that `replace` makes of the entries before `stop`."""
    entries = await store.entries(parent.ref, stop=stop, notes=True)
    new = session(COPY, identity="child", state={"b": 2}, timestamp=50)
    return (await store.replace(new, [to_old_entry(entry, retired=False) for entry in entries])).session


@pytest.mark.parametrize("seed", range(2))
async def test_a_fork_equals_a_copy_that_was_read_and_written(store: Store, seed: int) -> None:
    """Compare their entries and totals, how they are found, and how they continue. The original does not change."""
    parent = await _grow_session(store, seed)
    log = await store.entries(REF, retired=True)
    for stop in {1, len(log) // 3, len(log) // 2, len(log) - 1, len(log), len(log) + 5}:
        new = session(FORK, identity="child", state={"b": 2}, timestamp=50)
        fork, copy = await store.fork(new, parent, stop), await _copy_entries(store, parent, stop)
        if fork is None:
            assert isinstance(await _find(store, FORK), SessionNotFound)
            continue
        assert fork == await store.get(FORK) == evolve(copy, id="fork")
        for flags in ({}, {"notes": True}, {"retired": True}):
            assert await store.entries(FORK, **flags) == await store.entries(COPY, **flags)
        assert await verify(store, FORK) == min(stop, len(log))
        if fork.tail.digest != GENESIS:
            found = await store.sightings("ann", [fork.tail.digest], ends=True)
            assert {"fork", "copy"} <= {one.ref.id for one in found}
            found = await store.sightings("ann", [fork.tail.digest], session=FORK)
            assert [(one.ref, one.live, one.last) for one in found] == [(FORK, True, True)]
        write = Append(entries=[result("x"), user("on")], timestamp=99)
        assert (await store.append(FORK, write)).entries == (await store.append(COPY, write)).entries
        assert await verify(store, FORK) == min(stop, len(log)) + 2
        for ref in (FORK, COPY):
            await store.remove(ref)
        assert await store.sightings("ann", [fork.tail.digest], session=FORK) == ()
    assert await store.get(REF) == parent
    assert await store.entries(REF, retired=True) == log


async def _find(store: Store, ref: SessionRef) -> Session | SessionNotFound:
    try:
        return await store.get(ref)
    except SessionNotFound as exc:
        return exc


@once(RULE)
async def test_a_fork_has_no_retired_entries(store: Store) -> None:
    """If the copied part has retired entries, the store makes no fork, or leaves them out. Later retired entries do not matter."""
    await store.create(session(identity="parent"))
    await store.append(REF, Append(entries=[user("a"), assistant("b"), user("c")], timestamp=2))
    await store.append(REF, Append(entries=[user("d")], retire_from=2, timestamp=3))
    parent = await store.get(REF)
    if await store.fork(session(FORK), parent, 2) is not None:
        assert texts(await store.entries(FORK, retired=True)) == ["a", "b"]
    other = SessionRef("ann", "other")
    if await store.fork(session(other), parent, 4) is None:
        assert isinstance(await _find(store, other), SessionNotFound)
    else:
        assert texts(await store.entries(other, retired=True)) == ["a", "b", "d"]


async def test_pins_are_copied(store: Store) -> None:
    """Those of messages, and those of facts."""
    await store.create(session(identity="parent"))
    metadata = with_choices({"by": "bo"}, {0: "pinned"})
    await store.append(REF, Append(entries=[user("a", pinned=True), user("b", metadata=metadata)], timestamp=2))
    if await store.fork(session(FORK), await store.get(REF), 2) is not None:
        assert await store.entries(FORK) == await store.entries(REF)
    assert [entry.pinned for entry in await store.entries(REF)] == [True, False]


async def test_a_fork_has_contents_of_its_own(store: Store) -> None:
    """A fork has the contents that its entries name. They outlive the original, and are deleted with the last entry that names them."""
    await store.create(session(identity="parent"))
    entries = [user("a", media=(sha(1),)), user("b", media=(sha(1), sha(2))), user("c", media=(sha(3),))]
    await store.append(REF, Append(entries=entries, media=make_contents(1, 2, 3), timestamp=2))
    if await store.fork(session(FORK), await store.get(REF), 2) is None:
        return
    await store.remove(REF)
    hashes = [sha(number) for number in (1, 2, 3)]
    assert await store.media(FORK, hashes) == make_contents(1, 2)
    await store.erase(FORK, 1)
    assert await store.media(FORK, hashes) == make_contents(1)


@once(RULE)
async def test_forks_keep_the_first_origin(store: Store) -> None:
    """A fork of a fork has the origins of the first session, and both sessions can be found by it."""
    await store.create(session(identity="parent"))
    await store.append(REF, Append(entries=[user("a"), user("b"), user("c")], timestamp=2))
    fork = await store.fork(session(FORK, identity="child"), await store.get(REF), 2)
    if fork is None:
        return
    await store.append(FORK, Append(entries=[user("d")], timestamp=3))
    other = SessionRef("ann", "other")
    await store.fork(session(other, identity="grandchild"), await store.get(FORK), 3)
    found = await store.origins("ann", ["s1", "fork", "other"])
    assert {id_: tuple(ranges) for id_, ranges in found.items()} == {
        "s1": (Origin(0, "parent", 0),),
        "fork": (Origin(0, "parent", 0), Origin(2, "child", 2)),
        "other": (Origin(0, "parent", 0), Origin(2, "child", 2), Origin(3, "grandchild", 3)),
    }
    assert (await store.sharing("ann", "parent")).keys() == {"s1", "fork", "other"}


@once(RULE)
async def test_invalid_forks_are_refused(store: Store) -> None:
    """The original was deleted, replaced or edited, or the name of the fork is taken. Nothing is written."""
    await store.create(session(identity="parent"))
    await store.append(REF, Append(entries=[user("a"), user("b")], timestamp=2))
    parent = await store.get(REF)
    if await store.fork(session(FORK), parent, 2) is None:
        return
    with pytest.raises(SessionExists):
        await store.fork(session(FORK), parent, 2)
    await store.append(REF, Append(entries=[user("c")], timestamp=3))
    assert await store.fork(session(COPY), parent, 2) is not None  # an append is no edit
    other = SessionRef("ann", "other")
    for change in (store.annotate(REF, 0, pinned=True), store.erase(REF, 1)):
        before = await store.get(REF)
        await change
        with pytest.raises(StaleSession):
            await store.fork(session(other), before, 2)
    current = await store.get(REF)
    with pytest.raises(SessionNotFound):
        await store.fork(session(other), evolve(current, identity="another"), 2)
    await store.remove(REF)
    with pytest.raises(SessionNotFound):
        await store.fork(session(other), current, 2)
    assert isinstance(await _find(store, other), SessionNotFound)
    assert isinstance(await _find(store, REF), SessionNotFound)
