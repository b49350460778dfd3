"""The contract, sessions: made, found, listed, changed, replaced, deleted; and whose they are."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable
from typing import Any

import pytest

from holdfast.domain.messages import Message
from holdfast.domain.session import ModelCall, SessionRef, Usage
from holdfast.errors import (
    AmbiguousSession,
    EntryNotFound,
    SessionNotFound,
    StaleSession,
    StoreClosed,
)
from holdfast.limits import ID_BYTES, METADATA_BYTES, PAGE, STATE_BYTES, STATE_VALUE_BYTES, SYSTEM_BYTES
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.sessions import SessionPage, SessionPatch
from holdfast.stores.verify import verify

from .kit import REF, assistant, live, session, texts, user
from .once import RULE, once

NASTY = (
    "a",
    "A",
    "a ",
    " a",
    "a\0",
    "a\0b",
    "\0",
    "á",
    "a\u0301",
    "🙂",
    "%",
    "_",
    "' OR 1=1 --",
    '"; DROP TABLE sessions; --',
    "a/../b",
    "\n",
    "\ufeff",
    "\uffff",
    "x" * ID_BYTES,
    "🙂" * (ID_BYTES // 4),
)
"""Identifiers that a careless comparison takes for each other, or for something else."""


async def test_a_new_session_has_the_given_fields(store: Store) -> None:
    """Every field comes back, and the log is empty."""
    fields: dict[str, Any] = {
        "agent": "bo",
        "system_messages": (Message(role="system", content="be kind"),),
        "state": {"k": [1, {"x": None}]},
        "metadata": {"m": "\0"},
        "ttl": 5,
    }
    made = await store.create(session(timestamp=9, **fields))
    assert {name: getattr(made, name) for name in fields} == fields
    assert (made.tenant, made.ref, made.created_at, made.updated_at) == ("acme", REF, 9, 9)
    assert (made.messages, made.bytes, made.tokens, made.usage, made.status) == (0, 0, 0, Usage(), "active")
    assert await store.get(REF) == made
    assert await live(store) == []
    assert await verify(store, REF) == 0


async def test_a_session_is_found_by_its_id_without_the_user(store: Store) -> None:
    """Among all users of the tenant; ambiguous when two have one."""
    made = await store.create(session())
    await store.for_tenant("other").create(session(SessionRef("zoe", "s1")))
    assert await store.find("s1") == made
    await store.create(session(SessionRef("bob", "s1")))
    with pytest.raises(AmbiguousSession):
        await store.find("s1")


# -- whose they are ----------------------------------------------------------


async def test_identifiers_are_compared_by_bytes(store: Store) -> None:
    """No nasty identifier is taken for another, as a user, as a session or as a key."""
    pairs = [*itertools.product(NASTY[:7], NASTY[:7]), *((one, "s") for one in NASTY), *(("u", one) for one in NASTY)]
    refs = [SessionRef(*pair) for pair in pairs]
    for ref in refs:
        await store.create(session(ref))
        await store.append(ref, Append(entries=[user(f"{ref.user_id}|{ref.id}")], timestamp=2, idempotency_key="s"))
    for ref in refs:
        assert (await store.get(ref)).ref == ref
        assert await live(store, ref) == [f"{ref.user_id}|{ref.id}"]
    for who in (*NASTY, "u"):
        page = await store.list(user_id=who, limit=PAGE)
        assert sorted(found.id for found in page.sessions) == sorted(ref.id for ref in refs if ref.user_id == who)
    for key in NASTY:
        assert not (await store.append(refs[0], Append(timestamp=2, idempotency_key=key))).replayed


async def test_tenants_see_nothing_of_each_other(store: Store) -> None:
    """Not by any nasty name, in no method."""
    handles = {tenant: store.for_tenant(tenant) for tenant in NASTY}
    for tenant, handle in handles.items():
        assert await handle.list() == await store.list(user_id="nobody")
        with pytest.raises(SessionNotFound):
            await handle.find("s1")
        await handle.create(session(state={"of": tenant}))
        await handle.append(REF, Append(entries=[user(tenant)], timestamp=2, idempotency_key="k"))
    for tenant, handle in handles.items():
        assert await live(handle) == [tenant]
        assert [found.state for found in (await handle.list()).sessions] == [{"of": tenant}]
    assert await handles["a"].remove(REF)
    assert await live(handles["A"]) == ["A"]


# -- lists -------------------------------------------------------------------


async def test_lists_are_in_order_of_time_then_name(store: Store) -> None:
    """Newest first, ties by user and id; the other way round when asked."""
    for who, which, timestamp in [("b", "x", 5), ("a", "y", 5), ("a", "x", 5), ("c", "z", 9), ("d", "w", 1)]:
        await store.create(session(SessionRef(who, which), timestamp=timestamp))
    names = [(found.user_id, found.id) for found in (await store.list(descending=False)).sessions]
    assert names == [("d", "w"), ("a", "x"), ("a", "y"), ("b", "x"), ("c", "z")]
    assert [(found.user_id, found.id) for found in (await store.list()).sessions] == names[::-1]


async def test_list_pages_cover_all_sessions(store: Store) -> None:
    """`after` goes on behind the last one of a page, also among equal times."""
    for at in range(24):
        await store.create(session(SessionRef(f"u{at % 2}", f"s{at:02}"), timestamp=at // 8))
    for user_id, descending in itertools.product((None, "u1"), (False, True)):
        await _check_pages(store, user_id, descending=descending)


async def _check_pages(store: Store, user_id: str | None, *, descending: bool) -> None:
    whole = (await store.list(user_id=user_id, limit=PAGE, descending=descending)).sessions
    seen: list[SessionRef] = []
    more = True
    while more:
        after = seen[-1] if seen else None
        page = await store.list(user_id=user_id, limit=5, after=after, descending=descending)
        seen.extend(found.ref for found in page.sessions)
        more = page.has_more
    assert seen == [found.ref for found in whole]
    assert len(seen) == (24 if user_id is None else 12)


async def test_lists_are_filtered(store: Store) -> None:
    """By user, agent and status, together."""
    for at, agent in enumerate(["x", "y", None, "x"]):
        await store.create(session(SessionRef(f"u{at % 2}", f"s{at}"), agent=agent, timestamp=at))
    assert [found.id for found in (await store.list(agent="x")).sessions] == ["s3", "s0"]
    assert [found.id for found in (await store.list(agent="x", user_id="u0")).sessions] == ["s0"]
    assert [found.id for found in (await store.list(status="active", limit=1)).sessions] == ["s3"]
    assert (await store.list(status="closed")).sessions == ()
    assert (await store.list(status="active", limit=4)).has_more is False


async def test_lists_are_limited_to_a_time_range(store: Store) -> None:
    """`since` includes its moment and `until` does not; both go together with pages and other filters."""
    for at in range(40):
        await store.create(session(SessionRef(f"u{at % 2}", f"s{at:02}"), timestamp=at // 4))
    for user_id, status, descending in itertools.product((None, "u0"), (None, "active"), (False, True)):
        await _check_times(store, user_id, status, descending=descending)


async def _check_times(store: Store, user_id: str | None, status: str | None, *, descending: bool) -> None:

    async def walk(**bounds: int) -> set[int]:
        times: list[int] = []
        asked: dict[str, Any] = {"user_id": user_id, "status": status, "descending": descending, "limit": 3, **bounds}
        page = await store.list(**asked)
        while page.sessions:
            times += [found.updated_at for found in page.sessions]
            page = await store.list(**asked, after=page.sessions[-1].ref) if page.has_more else SessionPage((), False)
        assert times == sorted(times, reverse=descending)
        assert len(times) == len(set(times)) * (4 if user_id is None else 2)
        return set(times)

    assert await walk(since=3, until=6) == {3, 4, 5}
    assert await walk(since=8) == {8, 9}
    assert await walk(until=2) == {0, 1}
    assert await walk(since=6, until=6) == set()
    assert await walk(since=99) == set()


async def test_a_write_moves_a_session_to_the_front(store: Store) -> None:
    """Appending makes a session the newest; after it went, `after` goes on from where it stands now."""
    for at in range(3):
        await store.create(session(SessionRef("ann", f"s{at}"), timestamp=at))
    await store.append(SessionRef("ann", "s0"), Append(entries=[user("a")], timestamp=7))
    assert [found.id for found in (await store.list()).sessions] == ["s0", "s2", "s1"]
    assert [found.id for found in (await store.list(after=SessionRef("ann", "s0"))).sessions] == ["s2", "s1"]


async def test_sessions_are_listed_in_byte_order(store: Store) -> None:
    """Of equal times: by user, then id, as UTF-8 has them, on every store."""
    names = [
        "a",
        "B",
        "ä",
        "a ",
        "a\0",
        "\0",
        "\1",
        "😀",
        "\uffff",
        "a" * 512,
        "ß",
        "ss",
        "%",
        "_",
        "A",
        "é",
        "e\u0301",
    ]
    refs = [SessionRef(user_id, id_) for user_id in names for id_ in names[:6]]
    for ref in refs:
        await store.create(session(ref))
    found = await store.list(limit=1000, descending=False)
    expected = sorted(refs, key=lambda ref: (ref.user_id.encode(), ref.id.encode()))
    assert [one.ref for one in found.sessions] == expected
    page = await store.list(limit=1000, descending=False, after=expected[40])
    assert [one.ref for one in page.sessions] == expected[41:]


# -- changes -----------------------------------------------------------------


@once(RULE)
async def test_update_changes_only_the_given_fields(store: Store) -> None:
    """Unset fields stay; state is merged and None deletes; metadata is replaced."""
    await store.create(session(agent="x", state={"a": 1, "b": 2}, metadata={"m": 1}, ttl=5))
    patch = SessionPatch(state={"b": None, "c": 3}, metadata={"n": 2}, agent=None)
    changed = await store.update(REF, patch, timestamp=8)
    assert (changed.state, changed.metadata, changed.agent, changed.ttl) == ({"a": 1, "c": 3}, {"n": 2}, None, 5)
    assert (changed.version, changed.updated_at, changed.created_at) == (1, 8, 1)
    assert await store.get(REF) == changed
    system = (Message(role="system", content="x"),)
    assert (
        await store.update(REF, SessionPatch(system_messages=system, ttl=None), timestamp=9)
    ).system_messages == system
    emptied = SessionPatch(system_messages=(), state={"a": None, "c": None}, metadata={})
    assert await store.update(REF, emptied, timestamp=9) == await store.get(REF)
    assert (await store.get(REF)).state == {}


async def test_the_largest_fields_are_stored(store: Store) -> None:
    """Nearly to the byte that is the limit."""
    await store.create(session())
    fields: dict[str, Any] = {
        "state": _under_keys("x" * (STATE_BYTES - 100)),
        "metadata": {"k": "x" * (METADATA_BYTES - 100)},
        "system_messages": (Message(role="system", content="x" * (SYSTEM_BYTES - 100)),),
    }
    for field, value in fields.items():
        assert getattr(await store.update(REF, SessionPatch(**{field: value}), timestamp=2), field) == value
        assert getattr(await store.get(REF), field) == value


def _under_keys(text: str) -> dict[str, str]:
    """A text in pieces that one key may have."""
    size = STATE_VALUE_BYTES - 2
    return {f"k{at}": text[at : at + size] for at in range(0, len(text), size)}


async def test_replace_installs_a_complete_session(store: Store) -> None:
    """Nothing of the old one stays but the version, which goes on."""
    await store.create(session(state={"old": 1}))
    write = Append(
        entries=[user("old", pinned=True)],
        timestamp=2,
        idempotency_key="k",
        views={"v": SavedView(0, b"v")},
        calls=[ModelCall(model="m", timestamp=1)],
    )
    await store.append(REF, write)
    done = await store.replace(session(timestamp=7, metadata={"new": 1}), [user("a"), assistant("b")])
    assert (done.session.version, done.version) == (2, 2)
    assert (done.session.state, done.session.metadata, done.session.usage) == ({}, {"new": 1}, Usage())
    assert done.session == await store.get(REF)
    assert texts(done.entries) == await live(store) == ["a", "b"]
    assert (await store.window(REF, "v")).view is None
    assert await store.calls(REF) == ()
    assert not (await store.append(REF, write)).replayed
    with pytest.raises(StaleSession):
        await store.append(REF, Append(entries=[user("c")], timestamp=8, expect=0))
    assert await verify(store, REF) == 3


async def test_delete_removes_everything(store: Store) -> None:
    """The session, its log, its keys; deleting again says False; a new one of that name begins anew."""
    await store.create(session(state={"k": 1}))
    await store.append(REF, Append(entries=[user("a"), user("b")], timestamp=2, idempotency_key="k"))
    assert await store.remove(REF) is not None
    assert await store.remove(REF) is None
    with pytest.raises(SessionNotFound):
        await store.get(REF)
    fresh = await store.create(session())
    assert (fresh.version, fresh.state, await live(store)) == (0, {}, [])
    with pytest.raises(EntryNotFound):
        await store.erase(REF, 0)


# -- handles -----------------------------------------------------------------


async def test_a_closed_store_raises(store: Store) -> None:
    """Closing twice is fine; using it is `StoreClosed`, through every handle."""
    other = store.for_tenant("other")
    await store.create(session())
    await store.ping()
    await store.close()
    await store.close()
    for handle in (store, other):
        calls: list[Awaitable[object]] = [
            handle.get(REF),
            handle.append(REF, Append(timestamp=1)),
            handle.ping(),
            handle.list(),
        ]
        calls += [handle.lease("sweep", "one", now=0, until=10), handle.release("sweep", "one"), handle.learned("m")]
        for call in calls:
            with pytest.raises(StoreClosed):
                await call


async def test_closing_a_tenants_handle_closes_only_that_handle(store: Store) -> None:
    """The database belongs to the handle that opened it."""
    other = store.for_tenant("other")
    assert other.tenant == "other"
    await other.create(session())
    await other.close()
    with pytest.raises(StoreClosed):
        await other.get(REF)
    assert await live(store.for_tenant("other")) == []
    await store.ping()
