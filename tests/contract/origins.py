"""The contract, origins: which entries of several sessions are copies of one entry."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as evolve

from holdfast.domain.origins import Origin
from holdfast.domain.session import Ending, SessionRef
from holdfast.errors import InvalidRequest, SessionNotFound, StaleSession
from holdfast.stores.base import Store
from holdfast.stores.log import Append

from .kit import REF, session, user
from .once import REFUSED, RULE, once

FORK = SessionRef("ann", "fork")
RANGES = (Origin(0, "parent", 0), Origin(2, "parent", 5), Origin(3, "child", 3))
OWN = (Origin(0, "parent", 0),)


async def _make_fork(store: Store) -> None:
    """A session and its fork of three entries."""
    await store.replace(session(identity="parent"), [user("a"), user("b"), user("c")])
    await store.share(REF, "parent")
    await store.replace(session(FORK, identity="child", origins=RANGES), [user("a"), user("b"), user("c")])


def _list_ranges(found: object) -> dict[str, tuple[Origin, ...]]:
    return {id_: tuple(ranges) for id_, ranges in found.items()}  # type: ignore[attr-defined]  # a mapping


async def test_every_opening_reads_origins_in_order(openings: list[Store]) -> None:
    """By session, and by the session that was copied; sessions that share nothing are in no answer."""
    await _make_fork(openings[0])
    await openings[0].replace(session(SessionRef("ann", "alone")), [user("a")])
    for store in openings:
        assert _list_ranges(await store.origins("ann", ["s1", "alone", "nowhere"])) == {"s1": OWN}
        assert _list_ranges(await store.origins("ann", ["fork", "s1"])) == {"s1": OWN, "fork": RANGES}
        assert _list_ranges(await store.origins("ann", [])) == {}
        assert _list_ranges(await store.sharing("ann", "parent")) == {"s1": OWN, "fork": RANGES}
        assert _list_ranges(await store.sharing("ann", "child")) == {"fork": RANGES}
        assert _list_ranges(await store.sharing("ann", "nobody")) == {}


@once(RULE)
async def test_sharing_changes_nothing_else_and_happens_once(store: Store) -> None:
    """Neither version nor times; a fork that is forked keeps the origins that it has."""
    await _make_fork(store)
    before = await store.get(REF), await store.get(FORK)
    await store.share(REF, "parent")
    await store.share(FORK, "child")
    assert (await store.get(REF), await store.get(FORK)) == before
    assert _list_ranges(await store.sharing("ann", "parent")) == {"s1": OWN, "fork": RANGES}


@once(RULE)
async def test_only_the_given_session_is_shared(store: Store) -> None:
    """Another one of its name is not, and one that is not there either."""
    await _make_fork(store)
    for ref, identity in (
        (REF, "another"),
        (SessionRef("ann", "nowhere"), "parent"),
        (SessionRef("bob", "s1"), "parent"),
    ):
        with pytest.raises(SessionNotFound):
            await store.share(ref, identity)


async def test_origins_belong_to_one_user(store: Store) -> None:
    """Sessions of another user with the same ids and sources are not found."""
    await _make_fork(store)
    await store.replace(session(SessionRef("bob", "fork"), identity="other", origins=RANGES), [user("a")] * 3)
    assert _list_ranges(await store.sharing("ann", "parent")) == {"s1": OWN, "fork": RANGES}
    assert _list_ranges(await store.sharing("bob", "parent")) == {"fork": RANGES}
    assert _list_ranges(await store.origins("bob", ["s1"])) == {}


async def test_a_fork_keeps_its_origins_when_its_parent_is_deleted(store: Store) -> None:
    """And they go with the fork."""
    await _make_fork(store)
    await store.append(FORK, Append(entries=[user("d")], retire_from=1, timestamp=3))
    await store.erase(FORK, 0)
    await store.remove(REF)
    assert _list_ranges(await store.sharing("ann", "parent")) == {"fork": RANGES}
    await store.remove(FORK)
    assert _list_ranges(await store.sharing("ann", "parent")) == {}


@once(RULE)
async def test_a_replaced_session_has_new_origins(store: Store) -> None:
    """None, or those that it brings."""
    await _make_fork(store)
    await store.replace(session(FORK), [user("x")])
    assert _list_ranges(await store.origins("ann", ["fork"])) == {}
    await store.replace(session(REF, origins=(Origin(0, "third", 4),)), [user("x")])
    assert _list_ranges(await store.sharing("ann", "parent")) == {}
    assert _list_ranges(await store.sharing("ann", "third")) == {"s1": (Origin(0, "third", 4),)}


@once(RULE)
async def test_a_withdrawn_session_shares_nothing(store: Store) -> None:
    """It waits to be deleted; a new session of its name has nothing of it."""
    await _make_fork(store)
    ended = Ending(
        id="e1", user_id="ann", session_id="fork", withdrawn=True, reason="delete", ended_at=9, due_at=9, hooks=("h",)
    )
    assert await store.end(ended)
    assert _list_ranges(await store.sharing("ann", "parent")) == {"s1": OWN}
    await store.replace(session(FORK), [user("x")])
    assert _list_ranges(await store.origins("ann", ["fork"])) == {}


@once(REFUSED)
async def test_invalid_origins_are_refused(store: Store) -> None:
    """Ranges begin at 0 and go up; a session that is made empty has copied nothing."""
    wrong = [
        (Origin(1, "parent", 0),),
        (Origin(0, "parent", 0), Origin(0, "parent", 5)),
        (Origin(0, "parent", -1),),
        (Origin(0, "", 0),),
    ]
    for ranges in wrong:
        with pytest.raises(InvalidRequest):
            await store.replace(session(FORK, origins=ranges), [user("a")])
    with pytest.raises(InvalidRequest):
        await store.create(session(FORK, origins=RANGES))


async def test_a_write_adds_origins_to_those_of_the_session(store: Store) -> None:
    """A session without origins first gets one for its own entries. A refused write adds none."""
    await _make_fork(store)
    await store.replace(session(REF, identity="parent"), [user("a"), user("b")])
    more = (Origin(3, "parent", 1), Origin(4, "parent", 4))
    write = Append(entries=[user("A"), user("b")], retire_from=0, timestamp=3, origins=more)
    with pytest.raises(StaleSession):
        await store.append(REF, evolve(write, expect=99))
    assert _list_ranges(await store.origins("ann", ["s1"])) == {}
    await store.append(REF, write)
    assert _list_ranges(await store.origins("ann", ["s1"])) == {"s1": (*OWN, *more)}
    again = (Origin(6, "parent", 1), Origin(7, "parent", 7))
    await store.append(REF, Append(entries=[user("A"), user("b")], retire_from=0, timestamp=3, origins=again))
    assert _list_ranges(await store.sharing("ann", "parent"))["s1"] == (*OWN, *more, *again)
    with pytest.raises(InvalidRequest, match="origins"):
        await store.append(REF, evolve(write, origins=more[::-1]))


@once(RULE)
async def test_added_origins_replace_the_last_range_if_they_begin_with_it(store: Store) -> None:
    """The last range of a session is for entries that come later. A write may begin with copies again."""
    await store.replace(session(REF, identity="parent"), [user("a"), user("b")])
    first, second = (Origin(2, "parent", 0), Origin(3, "parent", 3)), (Origin(3, "parent", 0), Origin(4, "parent", 4))
    for more in (first, second):
        await store.append(REF, Append(entries=[user("a")], retire_from=1, timestamp=3, origins=more))
    expected = (*OWN, first[0], *second)
    assert _list_ranges(await store.origins("ann", ["s1"])) == {"s1": expected}
    assert _list_ranges(await store.sharing("ann", "parent"))["s1"] == expected
