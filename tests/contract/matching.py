"""The contract, matching: digests are found where they stand, in the logs of their user and nowhere else."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from holdfast import limits
from holdfast.domain.history import OldEntry
from holdfast.domain.messages import DIGEST_SIZE, GENESIS, Message, chain, make_alias
from holdfast.domain.session import Ending, Entry, NewEntry, SessionRef
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.matching import Sighting

from .kit import REF, assistant, calls, new, result, session, user
from .once import RULE, once
from .properties import SHARED_STORE

SECOND, THIRD = SessionRef("ann", "s2"), SessionRef("ann", "s3")
UNKNOWN = b"\x07" * DIGEST_SIZE
_numbers = itertools.count()


class Place(NamedTuple):
    """What matters of a sighting."""

    id: str
    mark: int
    seq: int
    live: bool = True
    last: bool = False


def digests(*messages: Message, after: bytes = GENESIS) -> list[bytes]:
    """The chain along visible messages."""
    return list(itertools.accumulate(messages, chain, initial=after))[1:]


async def _append(store: Store, *entries: NewEntry, ref: SessionRef = REF, **write: Any) -> tuple[Entry, ...]:
    return (await store.append(ref, Append(entries=entries, **{"timestamp": 2, **write}))).entries


async def _make_session(store: Store, *entries: NewEntry, ref: SessionRef = REF) -> tuple[Entry, ...]:
    """A session that says that."""
    await store.create(session(ref))
    return await _append(store, *entries, ref=ref)


def _places(found: tuple[Sighting, ...]) -> list[Place]:
    return [Place(one.ref.id, one.mark, one.seq, one.live, one.last) for one in found]


async def _find_places(store: Store, *marks: bytes, user_id: str = "ann", **asked: Any) -> list[Place]:
    return _places(await store.sightings(user_id, marks, **asked))


def _ending(ref: SessionRef, number: object = "") -> Ending:
    """An end of a session, or of one of several that had the name."""
    return Ending(
        id=f"end_{number or ref.id}",
        user_id=ref.user_id,
        session_id=ref.id,
        withdrawn=True,
        reason="delete",
        ended_at=9,
        due_at=9,
        hooks=("hook",),
    )


# -- what is found -------------------------------------------------------------


async def test_a_visible_message_is_found_by_its_digest(openings: list[Store]) -> None:
    """With all there is to know of its place, through every opening; tool messages and their calls are not."""
    store = openings[-1]
    made = await openings[0].create(session())
    log = await _append(openings[0], user("a"), assistant("b"), calls("c1"), result("c1"), assistant("d"), timestamp=7)
    for entry in log:
        found = await store.sightings("ann", [entry.digest])
        expected = Sighting(
            ref=REF,
            identity=made.identity,
            mark=0,
            seq=entry.seq,
            digest=entry.digest,
            live=True,
            last=entry.seq == 4,
            updated_at=7,
        )
        assert found == ((expected,) if entry.message.visible else ())


async def test_the_search_can_be_limited_to_a_session(store: Store) -> None:
    """Then it alone is looked at, whatever is in others; one that is not there, or another user's, has nothing."""
    one, two = await _make_session(store, user("a"), assistant("b"))
    await _make_session(store, user("a"), ref=SECOND)
    bob = SessionRef("bob", "s1")
    await _make_session(store, user("a"), assistant("b"), ref=bob)
    assert await _find_places(store, one.digest, two.digest, session=SECOND) == [Place("s2", 0, 0, last=True)]
    assert await _find_places(store, one.digest, two.digest, session=REF) == [Place("s1", 1, 1, last=True)]
    assert await _find_places(store, one.digest, session=THIRD) == []
    assert await _find_places(store, one.digest, session=bob) == []
    assert await _find_places(store, one.digest, session=SessionRef("ann", "s1", "end_1")) == []


async def test_an_erased_message_is_found_only_by_its_digest(store: Store) -> None:
    """Its alias is gone, on the live path and off it; those of others stay."""
    reply, other, left = (Message(role="assistant", content=text) for text in ("said", "other", "left"))
    _, one, _, two, _, three = await _make_session(
        store, user("a"), new(reply), user("b"), new(other), user("c"), new(left)
    )
    await _append(store, retire_from=4)
    marks = {
        entry.seq: make_alias(b"", message) or b"" for entry, message in ((one, reply), (two, other), (three, left))
    }
    for entry in (one, three):
        assert await _find_places(store, marks[entry.seq], alias=True) == [Place("s1", 0, entry.seq, live=entry is one)]
        await store.erase(REF, entry.seq)
        assert await _find_places(store, marks[entry.seq], alias=True) == []
        assert await _find_places(store, entry.digest) == [Place("s1", 0, entry.seq, live=entry is one)]
    assert await _find_places(store, marks[two.seq], alias=True) == [Place("s1", 0, two.seq, last=True)]


# -- aliases -------------------------------------------------------------------


@once(RULE)
async def test_a_reply_is_found_by_its_text_alone(store: Store) -> None:
    """Wherever it stands: for clients that leave out what came before. Told with the entry's own digest."""
    reply = Message(role="assistant", content="forty-two")
    _, one = await _make_session(store, user("a"), new(reply))
    *_, two = await _make_session(store, user("x"), assistant("y"), user("z"), new(reply), ref=SECOND)
    mark = make_alias(GENESIS, reply) or b""
    found = await store.sightings("ann", [mark], alias=True)
    assert _places(found) == [Place("s2", 0, 3, last=True), Place("s1", 0, 1, last=True)]
    assert [one.digest for one in found] == [two.digest, one.digest]
    assert await _find_places(store, mark) == await _find_places(store, one.digest, alias=True) == []
    assert (
        await _find_places(store, make_alias(GENESIS, Message(role="user", content="a")) or UNKNOWN, alias=True) == []
    )


@once(RULE)
async def test_an_alias_is_not_read_back(store: Store) -> None:
    """It is for whoever writes it: what a write answers is what reading gives."""
    written = await _make_session(store, user("a"), assistant("b"))
    assert [entry.alias for entry in written] == [None, None]
    assert await store.entries(REF) == written


# -- what is not found ---------------------------------------------------------


async def test_matches_belong_to_one_user(store: Store) -> None:
    """Not of others who said the same, nor of another tenant's user of that name."""
    bob, other = SessionRef("bob", "s9"), store.for_tenant("other")
    one, two = await _make_session(store, user("a"), assistant("b"))
    await _make_session(store, user("a"), assistant("b"), user("c"), ref=bob)
    await _make_session(other, user("a"), assistant("b"), user("c"))
    marks = digests(*(entry.message for entry in (user("a"), assistant("b"), user("c"))))
    reply = make_alias(GENESIS, two.message) or b""
    assert await _find_places(store, *marks) == [Place("s1", 1, 1, last=True)]
    assert await _find_places(store, *marks, user_id="bob") == [Place("s9", 2, 2, last=True)]
    assert await _find_places(other, *marks) == [Place("s1", 2, 2, last=True)]
    for user_id in ("Ann", "ann ", "ann\0", "carl"):
        assert await _find_places(store, one.digest, user_id=user_id) == []
        assert await _find_places(store, reply, user_id=user_id, alias=True) == []
    assert await _find_places(store, reply, alias=True) == [Place("s1", 0, 1, last=True)]


async def test_withdrawn_sessions_are_not_found(store: Store) -> None:
    """An earlier mark that stands elsewhere counts then."""
    one, two = await _make_session(store, user("a"), assistant("b"))
    await _make_session(store, user("a"), ref=SECOND)
    await store.end(_ending(REF))
    assert await _find_places(store, one.digest, two.digest) == [Place("s2", 0, 0, last=True)]
    assert await _find_places(store, make_alias(GENESIS, two.message) or b"", alias=True) == []
    assert await _find_places(store, one.digest, session=SessionRef("ann", "s1", "end_s1")) == []
    await _make_session(store, user("a"), assistant("b"))
    assert await _find_places(store, one.digest, two.digest) == [Place("s1", 1, 1, last=True)]


@once(RULE)
async def test_a_session_withdrawn_by_another_process_is_not_found(store: Store) -> None:
    """The one in its place is."""
    one, two = await _make_session(store, user("a"), assistant("b"))
    await store.replace(session(timestamp=9), [user("a")], ending=_ending(REF))
    assert await _find_places(store, one.digest, two.digest) == [Place("s1", 0, 0, last=True)]


async def test_deleted_data_is_not_found(store: Store) -> None:
    """Deleted, or replaced by another log."""
    one, two = await _make_session(store, user("a"), assistant("b"))
    reply = make_alias(GENESIS, two.message) or b""
    await store.replace(session(), [user("z")])
    assert await _find_places(store, one.digest, two.digest) == await _find_places(store, reply, alias=True) == []
    await _make_session(store, user("a"), assistant("b"), ref=SECOND)
    assert await _find_places(store, one.digest, two.digest) == [Place("s2", 1, 1, last=True)]
    await store.remove(SECOND)
    assert await _find_places(store, one.digest, two.digest) == await _find_places(store, reply, alias=True) == []


# -- logs that are installed ---------------------------------------------------


@once(RULE)
async def test_an_erased_reply_is_installed_without_an_alias(store: Store) -> None:
    """What it is said to have been is in its digest alone."""
    reply = Message(role="assistant", content="b")
    await store.replace(session(), [OldEntry(message=reply, tokens=1, timestamp=1, stands_for=UNKNOWN)])
    assert await _find_places(store, UNKNOWN) == [Place("s1", 0, 0, last=True)]
    for said in (reply, Message(role="assistant", content="[erased]")):
        assert await _find_places(store, make_alias(b"", said) or b"", alias=True) == []


# -- against a search of everything --------------------------------------------

_who = st.sampled_from(["ann", "bob"])
_texts = st.lists(st.sampled_from(["a", "b", "c"]), max_size=3)
_moves = st.lists(
    st.one_of(
        st.tuples(st.just("say"), _who, st.integers(0, 2), _texts, st.one_of(st.none(), st.integers(0, 4))),
        st.tuples(st.just("erase"), _who, st.integers(0, 2), st.integers(0, 4)),
        st.tuples(st.just("delete"), _who, st.integers(0, 2)),
        st.tuples(st.just("withdraw"), _who, st.integers(0, 2)),
    ),
    max_size=12,
)


async def _apply(store: Store, made: dict[SessionRef, int], move: tuple[Any, ...]) -> None:
    """One thing that happens to a session, which is made when it is not there."""
    kind, who, number, *more = move
    ref = SessionRef(who, f"s{number}")
    if ref not in made:
        made[ref] = next(_numbers)
        await store.create(session(ref))
    if kind == "say":
        spoken = [user(text) if at % 2 == 0 else assistant(text) for at, text in enumerate(more[0])]
        await store.append(ref, Append(entries=spoken, retire_from=more[1], timestamp=2))
    elif kind == "erase":
        if more[0] < (await store.get(ref)).tail.next_seq:
            await store.erase(ref, more[0])
    else:
        await (store.remove(ref) if kind == "delete" else store.end(_ending(ref, f"of {made[ref]}")))
        del made[ref]


async def _search_everywhere(
    store: Store, made: dict[SessionRef, int], who: str, mark: bytes
) -> list[tuple[SessionRef, Place]]:
    """Where a digest stands, by looking everywhere."""
    found = []
    for ref in sorted((ref for ref in made if ref.user_id == who), key=lambda ref: -made[ref]):
        tail = (await store.get(ref)).tail
        for entry in await store.entries(ref, retired=True, descending=True):
            if entry.message.visible and entry.digest == mark:
                live = entry.retired_by is None
                place = Place(ref.id, 0, entry.seq, live, live and tail.digest == mark)
                found.append((ref, place))
    return found


@SHARED_STORE
@given(moves=_moves)
async def test_matches_equal_a_search_of_everything(store: Store, moves: list[tuple[Any, ...]]) -> None:
    """Whoever says what, and whatever becomes of it: no place is missed, and none is another's."""
    store = store.for_tenant(f"t{next(_numbers)}")
    made: dict[SessionRef, int] = {}
    marks: dict[bytes, None] = {}
    for move in moves:
        await _apply(store, made, move)
        for ref in made:
            marks |= dict.fromkeys(entry.digest for entry in await store.entries(ref, retired=True))
    for who in ("ann", "bob", "carl"):
        for mark in marks:
            found = await store.sightings(who, [bytes(DIGEST_SIZE), mark], limit=limits.SIGHTINGS)
            told = [(one.ref, Place(one.ref.id, one.mark - 1, one.seq, one.live, one.last)) for one in found]
            assert told == await _search_everywhere(store, made, who, mark)


# -- sessions that end with a digest ---------------------------------------------


async def test_a_session_is_found_by_the_end_of_its_live_path(store: Store) -> None:
    """Tool messages aside; most recently used first, and not by what it ended with before."""
    one, two = (await _make_session(store, user("a"), assistant("b"), calls("c1"), result("c1")))[:2]
    await store.create(session(SECOND))
    await _append(store, user("a"), assistant("b"), ref=SECOND, timestamp=9)
    assert await _find_places(store, one.digest, two.digest, UNKNOWN, ends=True) == [
        Place("s2", 1, 1, last=True),
        Place("s1", 1, 3, last=True),
    ]
    assert await _find_places(store, one.digest, ends=True) == []
    await _append(store, user("x"), ref=SECOND, timestamp=10)
    assert await _find_places(store, two.digest, ends=True) == [Place("s1", 0, 3, last=True)]
    await _append(store, user("new"), ref=SECOND, retire_from=1, timestamp=11)
    await _append(store, ref=SECOND, retire_from=1, timestamp=12)
    assert await _find_places(store, one.digest, two.digest, ends=True) == [Place("s1", 1, 3, last=True)]
    assert await _find_places(store, one.digest, ends=True) == [Place("s2", 0, 0, last=True)]


async def test_ends_of_other_users_and_of_deleted_sessions_are_not_found(openings: list[Store]) -> None:
    """Nor of a session that lost its name."""
    store = openings[0]
    (entry,) = await _make_session(store, user("a"))
    assert await _find_places(openings[-1], entry.digest, ends=True) == [Place("s1", 0, 0, last=True)]
    assert await _find_places(store, entry.digest, user_id="bob", ends=True) == []
    await store.remove(REF)
    assert await _find_places(openings[-1], entry.digest, ends=True) == []
    await store.replace(session(), [user("a")])
    assert await _find_places(store, entry.digest, ends=True) == [Place("s1", 0, 0, last=True)]
    await store.replace(session(timestamp=9), [user("b")], ending=_ending(REF))
    assert await _find_places(store, entry.digest, ends=True) == []


async def test_an_end_is_found_among_many_continued_sessions(store: Store) -> None:
    """More of them than one look-up returns, all made later."""
    entry = (await _make_session(store, user("a"), assistant("b")))[-1]
    for at in range(limits.SIGHTINGS + 1):
        await _make_session(store, user("a"), assistant("b"), user(f"{at}"), ref=SessionRef("ann", f"later{at}"))
    assert "s1" not in [one.id for one in await _find_places(store, entry.digest, limit=limits.SIGHTINGS)]
    assert await _find_places(store, entry.digest, ends=True) == [Place("s1", 0, 1, last=True)]
