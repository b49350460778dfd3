"""The contract, media: contents that entries name are kept once a session, and go with the last entry that names them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.history import OldEntry
from holdfast.domain.messages import DIGEST_SIZE, Message
from holdfast.domain.session import Ending, SessionRef
from holdfast.errors import InvalidMessage, SessionNotFound, StaleSession
from holdfast.stores.base import Store
from holdfast.stores.log import Append

from .kit import REF, session, user
from .once import RULE, once
from .properties import SHARED_STORE

SECOND = SessionRef("ann", "s2")
_numbers = itertools.count()


def content(number: int, size: int = 40) -> bytes:
    """One of several contents."""
    return (b"%d\0\xff'\\\"" % number).ljust(size, b"\x80")


def sha(number: int, size: int = 40) -> bytes:
    """The hash by which it is known."""
    return hashlib.sha256(content(number, size)).digest()


def make_contents(*numbers: int) -> dict[bytes, bytes]:
    """Contents that come with a write."""
    return {sha(number): content(number) for number in numbers}


async def _append_naming(store: Store, *named: Collection[int], bring: Collection[int] = (), **write: Any) -> None:
    """One entry for each, that names those contents."""
    entries = [user(f"about {list(numbers)}", media=tuple(map(sha, numbers))) for numbers in named]
    await store.append(REF, Append(entries=entries, media=make_contents(*bring), **{"timestamp": 2, **write}))


async def _list_contents(store: Store, ref: SessionRef = REF, among: int = 9) -> list[int]:
    """Which contents a session has; each is what it was."""
    found = await store.media(ref, [sha(number) for number in range(among)])
    assert all(found[sha(number)] == content(number) for number in range(among) if sha(number) in found)
    return [number for number in range(among) if sha(number) in found]


# -- keeping -------------------------------------------------------------------


async def test_media_are_read_back_unchanged(openings: list[Store]) -> None:
    """By hash, through every opening; what is not there is not in the answer."""
    await openings[0].create(session())
    await _append_naming(openings[0], [0, 1], [2], bring=[0, 1, 2])
    assert await openings[-1].media(REF, [sha(1), sha(5), sha(1)]) == make_contents(1)
    assert await openings[-1].media(REF, []) == {}
    assert await _list_contents(openings[-1]) == [0, 1, 2]


@once(RULE)
async def test_media_are_stored_once_per_session(store: Store) -> None:
    """Later entries name what is there already; whoever brings it again changes nothing."""
    await store.create(session())
    await _append_naming(store, [0, 0], bring=[0])
    await _append_naming(store, [0])
    await _append_naming(store, [1, 0], bring=[0, 1])
    assert await _list_contents(store) == [0, 1]
    gone = await store.remove(REF)
    assert gone is not None
    assert (gone.media, gone.media_bytes) == (2, 80)


@once(RULE)
async def test_media_that_no_entry_references_are_not_stored(store: Store) -> None:
    """It may have been brought in vain."""
    await store.create(session())
    await _append_naming(store, [0], bring=[0, 1])
    await _append_naming(store, bring=[2])
    assert await _list_contents(store) == [0]
    await store.replace(session(), [user("a", media=(sha(3),))], media=make_contents(3, 4))
    assert await _list_contents(store) == [3]


async def test_a_mebibyte_of_media_is_stored(store: Store) -> None:
    """And an empty one."""
    large = content(7, 1 << 20)
    digest, empty = hashlib.sha256(large).digest(), hashlib.sha256(b"").digest()
    await store.create(session())
    write = Append(entries=[user("a", media=(digest, empty))], media={digest: large, empty: b""}, timestamp=2)
    await store.append(REF, write)
    assert await store.media(REF, [digest, empty]) == {digest: large, empty: b""}
    gone = await store.remove(REF)
    assert gone is not None
    assert (gone.media, gone.media_bytes) == (2, 1 << 20)


# -- all or nothing ------------------------------------------------------------


@once(RULE)
async def test_entries_reference_existing_media(store: Store) -> None:
    """Or what comes with it; else the write is refused, and says which entry."""
    await store.create(session())
    await _append_naming(store, [0], bring=[0])
    before = await store.get(REF)
    with pytest.raises(InvalidMessage) as refused:
        await _append_naming(store, [0, 1], [0, 2], bring=[1])
    assert refused.value.param == "messages[1]"
    with pytest.raises(InvalidMessage) as refused:
        await store.replace(session(), [user("a"), user("b"), user("c", media=(sha(0),))])
    assert refused.value.param == "messages[2]"
    assert await store.get(REF) == before
    assert await _list_contents(store) == [0]


@once(RULE)
async def test_a_refused_write_stores_no_media(store: Store) -> None:
    """Nor does one that was done before; it answers what the first one did."""
    await store.create(session())
    with pytest.raises(StaleSession):
        await _append_naming(store, [0], bring=[0], expect=7)
    assert await _list_contents(store) == []
    for _ in range(2):
        await _append_naming(store, [1], bring=[1], idempotency_key="k")
    assert (await store.get(REF)).messages == 1
    await store.erase(REF, 0)
    await _append_naming(store, [1], bring=[1], idempotency_key="k")
    assert await _list_contents(store) == []


# -- going ---------------------------------------------------------------------


async def test_media_are_deleted_with_their_session(store: Store) -> None:
    """Removed or replaced."""
    await store.create(session())
    await _append_naming(store, [0], bring=[0])
    assert await store.remove(REF)
    await store.create(session())
    assert await _list_contents(store) == []
    await store.remove(REF)
    await store.create(session())
    await _append_naming(store, [0], [1], bring=[0, 1])
    await store.replace(session(), [user("a", media=(sha(1),))], media=make_contents(1))
    assert await _list_contents(store) == [1]


@once(RULE)
async def test_media_stay_with_a_withdrawn_session(store: Store) -> None:
    """Under its ref, until it goes."""
    await store.create(session())
    await _append_naming(store, [0], bring=[0])
    given: dict[str, Any] = {"withdrawn": True, "reason": "delete", "ended_at": 9, "due_at": 9, "hooks": ("hook",)}
    await store.replace(
        session(timestamp=9), [user("z")], ending=Ending(id="e", user_id="ann", session_id="s1", **given)
    )
    gone = SessionRef("ann", "s1", "e")
    assert (await _list_contents(store), await _list_contents(store, gone)) == ([], [0])
    await store.remove(gone)
    with pytest.raises(SessionNotFound):
        await store.media(gone, [sha(0)])


# -- installing ----------------------------------------------------------------


@once(RULE)
async def test_media_are_installed_with_a_past(store: Store) -> None:
    """Those of retired entries too; an erased one names nothing, whatever it named."""
    message = Message(role="user", content="a")
    old: dict[str, Any] = {"tokens": 1, "timestamp": 1}
    entries = [
        OldEntry(message=message, media=(sha(0),), **old),
        OldEntry(message=message, media=(sha(1),), retired_by=3, **old),
        OldEntry(message=message, media=(sha(2), sha(3)), retired_by=3, stands_for=b"\x07" * DIGEST_SIZE, **old),
        OldEntry(message=message, media=(sha(0),), **old),
    ]
    await store.replace(session(), entries, media=make_contents(0, 1, 3))
    assert await _list_contents(store) == [0, 1]
    await store.erase(REF, 1)
    assert await _list_contents(store) == [0]


# -- whose ---------------------------------------------------------------------


async def test_media_belong_to_one_session(store: Store) -> None:
    """Nobody reads, or names, those of another session, user or tenant; nor loses his own when theirs go."""
    others = [(store, SECOND), (store, SessionRef("bob", "s1")), (store.for_tenant("other"), REF)]
    await store.create(session())
    await _append_naming(store, [0], bring=[0])
    for handle, ref in others:
        await handle.create(session(ref))
        assert await _list_contents(handle, ref) == []
        with pytest.raises(InvalidMessage):
            await handle.append(ref, Append(entries=[user("a", media=(sha(0),))], timestamp=2))
        await handle.append(ref, Append(entries=[user("a", media=(sha(0),))], media=make_contents(0), timestamp=2))
    for handle, ref in others:
        await handle.erase(ref, 0)
        assert await _list_contents(handle, ref) == []
        await handle.remove(ref)
    assert await _list_contents(store) == [0]


# -- against a count of every use ----------------------------------------------

_named = st.lists(st.integers(0, 3), max_size=3)
_moves = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.lists(_named, max_size=2), st.one_of(st.none(), st.integers(0, 5))),
        st.tuples(st.just("erase"), st.integers(0, 8)),
        st.tuples(st.just("replace"), st.lists(_named, max_size=2)),
    ),
    max_size=12,
)


@SHARED_STORE
@given(moves=_moves)
async def test_listed_media_are_referenced_by_some_entry(store: Store, moves: list[tuple[Any, ...]]) -> None:
    """Whatever is said, retired, erased and replaced, and only what is not there is brought."""
    store = store.for_tenant(f"t{next(_numbers)}")
    await store.create(session())
    uses: list[set[int]] = []
    for kind, what, *more in moves:
        held = set().union(*uses)
        if kind == "say":
            await _append_naming(store, *what, bring=set().union(*what) - held, retire_from=more[0])
            uses += map(set, what)
        elif kind == "replace":
            entries = [user("a", media=tuple(map(sha, numbers))) for numbers in what]
            await store.replace(session(), entries, media=make_contents(*set().union(*what)))
            uses = [set(numbers) for numbers in what]
        elif what < len(uses):
            await store.erase(REF, what)
            uses[what] = set()
        assert await _list_contents(store, among=5) == sorted(set().union(*uses))
