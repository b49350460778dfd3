"""The contract, the life of sessions: use, ends, withdrawal, what is idle, and ends that hooks are to be told of."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.domain.memory import Owner
from holdfast.domain.session import Ending, SessionRef
from holdfast.errors import EndingNotFound, SessionExists, SessionExpired, SessionNotFound, StaleSession
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.sessions import SessionPatch

from .kit import REF, live, session, texts, user
from .memory_kit import ANN, memory, put
from .once import RULE, once

DAY = 86_400_000


def ending(number: int = 1, ref: SessionRef = REF, **fields: Any) -> Ending:
    """An end about to be made."""
    given: dict[str, Any] = {"withdrawn": False, "reason": "ttl", "ended_at": 50, "due_at": 50, "hooks": ("one", "two")}
    return Ending(id=f"end_{number}", user_id=ref.user_id, session_id=ref.id, **{**given, **fields})


async def append_user(store: Store, text: str, *, at: int, ref: SessionRef = REF) -> None:
    """A user message, written at that time."""
    await store.append(ref, Append(entries=[user(text, timestamp=at)], timestamp=at))


# -- use -----------------------------------------------------------------------


@once(RULE)
async def test_writes_count_as_use(store: Store) -> None:
    """An append and a change of the session's fields count; a saved annotation does not."""
    made = await store.create(session(timestamp=3))
    assert made.accessed_at == 3
    await append_user(store, "hello", at=7)
    assert (await store.get(REF)).accessed_at == 7
    await store.update(REF, SessionPatch(metadata={"a": 1}), timestamp=9)
    assert (await store.get(REF)).accessed_at == 9
    await store.annotate(REF, 0, pinned=True)
    assert (await store.get(REF)).accessed_at == 9


async def test_a_touch_counts_as_use_and_changes_nothing_else(store: Store) -> None:
    """It changes neither the version nor `updated_at`, so whoever expects a version is not refused."""
    await store.create(session(timestamp=3))
    before = await store.get(REF)
    await store.touch(REF, timestamp=8)
    after = await store.get(REF)
    assert (after.accessed_at, after.version, after.updated_at) == (8, before.version, before.updated_at)
    await store.append(REF, Append(entries=[user("hello")], timestamp=9, expect=before.version))


# -- ends ----------------------------------------------------------------------


async def test_one_of_several_ends_a_session(store: Store) -> None:
    """However many try at once."""
    await store.create(session())
    ended = await asyncio.gather(*(store.end(ending(number)) for number in range(8)))
    assert sum(ended) == 1
    assert len(await store.endings(due=DAY)) == 1


@once(RULE)
async def test_a_change_of_fields_leaves_a_session_closed(store: Store) -> None:
    """Only a message opens it."""
    await store.create(session())
    await store.end(ending())
    changed = await store.update(REF, SessionPatch(metadata={"a": 1}), timestamp=60)
    assert changed.status == (await store.get(REF)).status == "closed"
    await store.touch(REF, timestamp=70)
    assert (await store.get(REF)).status == "closed"


@once(RULE)
async def test_a_session_that_was_used_is_not_ended_as_idle(store: Store) -> None:
    """It woke between the look and the end."""
    await store.create(session(timestamp=1))
    await store.touch(REF, timestamp=11)
    assert not await store.end(ending(), idle_since=10)
    assert (await store.get(REF)).status == "active"
    assert await store.end(ending(), idle_since=11)


@once(RULE)
async def test_a_write_to_an_expired_session_is_refused_when_asked_for(store: Store) -> None:
    """To the millisecond, by its own ttl before the one that is given; nothing is written, and others may write."""
    own, usual = SessionRef("ann", "own"), SessionRef("ann", "usual")
    await store.create(session(own, timestamp=10, ttl=20))
    await store.create(session(usual, timestamp=10))
    for ref, ttl, at in ((own, 1000, 30), (own, 0, 30), (usual, 20, 30)):
        for write in (
            Append(entries=[user("late")], timestamp=at, ttl=ttl),
            Append(state_delta={"a": 1}, timestamp=at, ttl=ttl),
        ):
            with pytest.raises(SessionExpired) as refused:
                await store.append(ref, write)
            assert refused.value.session == await store.get(ref)
        assert (await store.get(ref)).version == 0
    await store.append(usual, Append(entries=[user("early")], timestamp=29, ttl=20))
    await store.append(own, Append(entries=[user("not asked")], timestamp=30))
    await store.append(usual, Append(entries=[user("never")], timestamp=DAY, ttl=0))


@once(RULE)
async def test_writes_that_do_not_count_as_use_are_not_refused_as_late(store: Store) -> None:
    """A saved view; nor is a retry, which writes nothing; and a wrong version is told before."""
    await store.create(session(timestamp=10))
    await store.append(REF, Append(entries=[user("a")], timestamp=10, idempotency_key="k"))
    await store.append(REF, Append(views={"v": SavedView(0, b"")}, timestamp=DAY, ttl=5))
    assert (await store.append(REF, Append(entries=[user("a")], timestamp=DAY, idempotency_key="k", ttl=5))).replayed
    with pytest.raises(StaleSession):
        await store.append(REF, Append(entries=[user("b")], timestamp=DAY, expect=7, ttl=5))


@once(RULE)
async def test_an_append_reports_whether_it_reopened_the_session(store: Store) -> None:
    """The first one behind an end does."""
    await store.create(session())
    await store.end(ending(hooks=()))
    opened = await store.append(REF, Append(entries=[user("a")], timestamp=60, ttl=5))
    more = await store.append(REF, Append(entries=[user("b")], timestamp=61, ttl=5))
    assert (opened.reopened, more.reopened) == (True, False)


@once(RULE)
async def test_an_end_can_be_recorded_without_closing_the_session(store: Store) -> None:
    """For hooks that are to be told of it all the same."""
    await store.create(session())
    before = await store.get(REF)
    told = ending(reason="shutdown")
    await store.record_ending(told)
    assert await store.get(REF) == before
    assert await store.endings(due=50) == (msgspec.structs.replace(told, identity=before.identity),)
    with pytest.raises(SessionNotFound):
        await store.record_ending(ending(2, SessionRef("ann", "nobody's")))


async def test_a_store_reports_whether_it_is_durable(store: Store) -> None:
    """As do all handles of it."""
    assert isinstance(store.durable, bool)
    assert store.for_tenant("other").durable == store.durable


# -- withdrawal ----------------------------------------------------------------


async def test_a_withdrawn_session_is_found_only_by_its_ref(store: Store) -> None:
    """Who is to be told of it finds all of it, nobody else any."""
    await store.create(session(metadata={"a": 1}))
    await append_user(store, "hello", at=7)
    gone = ending(withdrawn=True, reason="delete")
    assert await store.end(gone)
    with pytest.raises(SessionNotFound):
        await store.get(REF)
    with pytest.raises(SessionNotFound):
        await store.find(REF.id)
    assert (await store.list()).sessions == (await store.list(user_id=REF.user_id)).sessions == ()
    assert await store.active() == 0
    found = await store.get(gone.ref)
    assert (found.ref, found.metadata, found.end_reason) == (gone.ref, {"a": 1}, "delete")
    assert texts(await store.entries(gone.ref)) == ["hello"]


async def test_the_name_of_a_withdrawn_session_is_free(store: Store) -> None:
    """The new session and the old one do not see each other, and the new one may be withdrawn as well."""
    for number in (1, 2):
        await store.create(session())
        await append_user(store, f"life {number}", at=7)
        assert await store.end(ending(number, withdrawn=True))
    await store.create(session())
    with pytest.raises(SessionExists):
        await store.create(session())
    assert await live(store) == []
    for number in (1, 2):
        assert await live(store, ending(number, withdrawn=True).ref) == [f"life {number}"]


# -- identity ------------------------------------------------------------------


@once(RULE)
async def test_writes_do_not_reach_a_new_session_of_the_same_name(store: Store) -> None:
    """Deleted, installed in its place or withdrawn: the next one of the name is another one, at whatever version."""
    seen = [await store.create(session())]
    await store.remove(REF)
    seen.append(await store.create(session()))
    seen.append((await store.replace(session(), [user("hello")])).session)
    await store.end(ending(withdrawn=True))
    seen.append(await store.create(session()))
    assert len({one.identity for one in seen}) == 4
    for one in seen[:-1]:
        with pytest.raises(SessionNotFound):
            await store.append(REF, Append(entries=[user("late")], timestamp=9, identity=one.identity))
    assert await live(store) == []
    await store.append(REF, Append(entries=[user("in time")], timestamp=9, identity=seen[-1].identity))
    assert await live(store) == ["in time"]


@once(RULE)
async def test_a_session_keeps_its_identity(store: Store) -> None:
    """Over writes, an end, and the message that opens it again."""
    made = await store.create(session())
    await append_user(store, "one", at=2)
    await store.end(ending())
    await append_user(store, "two", at=60)
    assert (await store.get(REF)).identity == made.identity


# -- what is idle --------------------------------------------------------------


async def _some(store: Store) -> None:
    for name, at, ttl in (("a", 10, None), ("b", 30, None), ("c", 20, 5), ("d", 20, 100), ("e", 1, 0)):
        await store.create(session(SessionRef("ann", name), timestamp=at, ttl=ttl))


async def test_idle_sessions_are_past_their_ttl(store: Store) -> None:
    """To the millisecond; a ttl of 0 of its own means never."""
    await _some(store)
    for now, ttl, ids in (
        *((24, None, ""), (25, None, "c"), (25, 0, "c"), (25, 15, "ca"), (44, 15, "ca"), (45, 15, "cab")),
        *((DAY, 15, "cdab"), (DAY, None, "cd")),
    ):
        found = await store.idle(now=now, ttl=ttl)
        assert "".join(one.id for one in found) == ids, (now, ttl)
        assert {one.id for one in (await store.list()).sessions if one.is_expired(now, ttl)} == set(ids)


async def test_the_oldest_sessions_are_the_least_recently_used(store: Store) -> None:
    """Whatever their ttl; those that have ended do not count."""
    await _some(store)
    await store.touch(SessionRef("ann", "a"), timestamp=40)
    await store.end(ending(1, SessionRef("ann", "e")))
    found = [one.id for one in await store.oldest(limit=4)]
    assert (set(found[:2]), found[2:]) == ({"c", "d"}, ["b", "a"])
    assert len(await store.oldest(limit=1)) == 1
    assert await store.active() == 4


async def test_tenants_with_sessions_are_listed(store: Store) -> None:
    """In order, page by page."""
    for tenant in ("b", "a", "c"):
        await store.for_tenant(tenant).create(session())
        await store.for_tenant(tenant).create(session(SessionRef("bob", "s2")))
    assert list(await store.tenants()) == ["a", "b", "c"]
    assert list(await store.tenants(limit=2)) == ["a", "b"]
    assert list(await store.tenants(after="b")) == ["c"]


async def test_tenants_with_only_memories_are_listed(store: Store) -> None:
    """Whoever's they are, in their place among the others, once; until all of them were dropped."""
    owners = {"a": ANN, "c": Owner("app"), "d": Owner("agent", "x")}
    for tenant, owner in owners.items():
        await put(store.for_tenant(tenant), memory("1", owner), owner=owner)
    for tenant in ("b", "d"):
        await store.for_tenant(tenant).create(session())
    assert list(await store.tenants()) == ["a", "b", "c", "d"]
    assert list(await store.tenants(limit=3)) == ["a", "b", "c"]
    assert list(await store.tenants(after="b", limit=1)) == ["c"]
    for tenant, owner in owners.items():
        assert await store.for_tenant(tenant).drop_memories(owner) == 1
    assert list(await store.tenants()) == ["b", "d"]


# -- ends to be told of --------------------------------------------------------


async def test_an_end_is_recorded_with_its_hooks(store: Store) -> None:
    """As it was given."""
    await store.create(session())
    await store.end(ending())
    assert await store.endings(due=49) == ()
    identity = (await store.get(REF)).identity
    assert await store.endings(due=50) == (ending(identity=identity),)
    assert await store.for_tenant("other").endings(due=DAY) == ()


async def test_the_ends_of_a_user_are_found(store: Store) -> None:
    """Due or not, of sessions that have their name and of those that do not; nobody else's."""
    refs = [SessionRef("ann", "a"), SessionRef("ann", "b"), SessionRef("bob", "a")]
    for number, ref in enumerate(refs):
        await store.create(session(ref))
        await store.end(ending(number, ref, withdrawn=number == 1))
    found = await store.endings_of("ann")
    assert [(one.id, one.session_id, one.withdrawn) for one in found] == [("end_0", "a", False), ("end_1", "b", True)]
    assert await store.endings_of("ann", limit=1) == found[:1]
    assert await store.endings_of("ann", after="end_0") == found[1:]
    assert await store.endings_of("ann", after="end_1") == ()
    assert await store.endings_of("nobody") == ()
    assert await store.for_tenant("other").endings_of("ann") == ()


@once(RULE)
async def test_a_recorded_delivery_is_permanent(store: Store) -> None:
    """A hook that was told is not told again; a failure puts the rest off."""
    await store.create(session())
    await store.end(ending())
    left = await store.settle("end_1", delivered="one")
    assert (left.hooks, left.attempts) == (("two",), 0)
    failed = await store.settle("end_1", due_at=90, error="x" * 2000)
    assert (failed.hooks, failed.attempts, failed.due_at) == (("two",), 1, 90)
    assert await store.endings(due=89) == ()
    (found,) = await store.endings(due=90)
    assert found == failed
    assert found.error == "x" * 500
    last = await store.settle("end_1", delivered="two")
    assert (last.hooks, last.attempts, last.error) == ((), 1, None)
    await store.forget_ending("end_1")
    assert await store.endings(due=DAY) == ()
    with pytest.raises(EndingNotFound):
        await store.settle("end_1", delivered="one")
    await store.forget_ending("end_1")


async def test_simultaneous_deliveries_are_all_recorded(store: Store) -> None:
    """None overwrites another."""
    hooks = tuple(f"hook {at}" for at in range(8))
    await store.create(session())
    await store.end(ending(hooks=hooks))
    await asyncio.gather(*(store.settle("end_1", delivered=hook) for hook in hooks))
    assert (await store.endings(due=DAY))[0].hooks == ()


async def test_one_of_several_simultaneous_claims_succeeds(store: Store) -> None:
    await store.create(session())
    await store.end(ending())
    (due,) = await store.endings(due=DAY)
    claims = [store.settle("end_1", due_at=due.due_at + at, expect_due=due.due_at) for at in range(1, 9)]
    made = await asyncio.gather(*claims, return_exceptions=True)
    (claimed,) = [one for one in made if not isinstance(one, BaseException)]
    assert all(one is claimed or isinstance(one, EndingNotFound) for one in made)
    assert await store.endings(due=DAY) == (claimed,)


async def test_ends_are_returned_in_due_order(store: Store) -> None:
    """Then in that in which they happened."""
    for number, (due, at) in enumerate(((9, 2), (5, 4), (5, 3))):
        ref = SessionRef("ann", f"s{number}")
        await store.create(session(ref))
        await store.end(ending(number, ref, due_at=due, ended_at=at))
    assert [one.id for one in await store.endings(due=DAY)] == ["end_2", "end_1", "end_0"]
    assert len(await store.endings(due=DAY, limit=2)) == 2
