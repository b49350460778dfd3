"""The contract, notes: entries that are in the log and are not messages."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as evolve

from holdfast.domain.history import to_old_entry
from holdfast.domain.session import Session
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.verify import verify

from .kit import REF, assistant, calls, live, note, result, seqs, session, user
from .once import RULE, once
from .properties import SHARED_STORE


async def test_a_note_is_read_back_only_where_notes_are_asked_for(store: Store) -> None:
    """It has a place, a time and metadata, and is not on the live path."""
    await store.create(session())
    event = note({"event": "handoff", "deep": [1, None, {"k": "\u2028 🙂"}]}, metadata={"by": "bo"}, timestamp=7)
    written = await store.append(REF, Append(entries=[user("a"), event, assistant("b")], timestamp=2))
    assert seqs(written.entries) == [0, 1, 2]
    assert seqs(await store.entries(REF)) == [0, 2]
    assert seqs((await store.window(REF, None)).entries) == [0, 2]
    for flags in ({"notes": True}, {"retired": True}, {"notes": True, "retired": True}):
        assert seqs(await store.entries(REF, **flags)) == [0, 1, 2]
    found = (await store.entries(REF, start=1, limit=1, notes=True))[0]
    assert found == written.entries[1]
    assert (found.kind, found.message, found.metadata, found.timestamp) == ("note", event.message, {"by": "bo"}, 7)
    assert (found.turn_id, found.unit, found.tokens, found.total, found.replaced_by) == (0, 1, 0, 10, None)
    assert await verify(store, REF) == 3


async def test_pages_with_notes_cover_messages_and_notes(store: Store) -> None:
    """In both directions, and also where there are more notes than messages."""
    await store.create(session())
    new = [note(0), user("a"), note(2), note(3), assistant("b"), note(5)]
    await store.append(REF, Append(entries=new, timestamp=2))
    for size in (1, 2, 4):
        upward: list[int] = []
        while page := await store.entries(REF, start=upward[-1] + 1 if upward else 0, limit=size, notes=True):
            upward += seqs(page)
        downward: list[int] = []
        while page := await store.entries(
            REF, stop=downward[-1] if downward else None, limit=size, descending=True, notes=True
        ):
            downward += seqs(page)
        assert upward == downward[::-1] == [0, 1, 2, 3, 4, 5]


@once(RULE)
async def test_notes_are_retired_with_what_is_retired(store: Store) -> None:
    """Also those after the last message that is retired, and those before it stay."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a"), note(1), assistant("b"), note(3)], timestamp=2))
    await store.append(REF, Append(entries=[note(4)], timestamp=2))
    await store.append(REF, Append(entries=[assistant("c")], retire_from=2, timestamp=3))
    everything = await store.entries(REF, retired=True)
    assert [entry.replaced_by for entry in everything] == [None, None, 5, 5, 5, None]
    assert seqs(await store.entries(REF, notes=True)) == [0, 1, 5]
    await store.append(REF, Append(entries=[note(6)], timestamp=4))
    await store.append(REF, Append(retire_from=6, timestamp=5))
    assert seqs(await store.entries(REF, notes=True)) == [0, 1, 5]
    assert await live(store) == ["a", "c"]
    assert await verify(store, REF) == 7


@once(RULE)
async def test_a_note_is_erased_for_good(store: Store) -> None:
    """Its payload and metadata go, and no total changes."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a"), note("secret", metadata={"k": 1}), user("b")], timestamp=2))
    before = (await store.get(REF)).tail
    erased = await store.erase(REF, 1, tokens=4)
    assert (erased.message.origin, erased.metadata, erased.erased, erased.tokens) == (None, None, True, 0)
    assert (await store.entries(REF, start=1, limit=1, notes=True))[0] == erased
    assert (await store.get(REF)).tail == before
    assert await verify(store, REF) == 3


@once(RULE)
async def test_erasing_a_message_keeps_the_totals_of_notes_right(store: Store) -> None:
    """A note has the total of the message before it."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a"), note(), assistant("b"), note()], timestamp=2))
    await store.erase(REF, 0, tokens=3)
    assert [entry.total for entry in await store.entries(REF, notes=True)] == [3, 3, 13, 13]
    assert await verify(store, REF) == 4


@once(RULE)
async def test_a_log_with_notes_can_be_installed(store: Store) -> None:
    """Live and retired, in the same places."""
    await store.create(session())
    await store.append(REF, Append(entries=[note(0), user("a"), note(2), assistant("b"), note(4)], timestamp=2))
    await store.append(REF, Append(entries=[assistant("c"), note(6)], retire_from=3, timestamp=3))
    await store.erase(REF, 2)
    old = await store.entries(REF, retired=True)
    after = (await store.replace(session(), [to_old_entry(entry) for entry in old])).session
    assert await store.entries(REF, retired=True) == old
    assert after.messages == 2
    assert await verify(store, REF) == 7


@once(RULE)
async def test_no_note_is_found_by_digest(store: Store) -> None:
    """A note has the digest of the message before it, and only that message is found."""
    await store.create(session())
    entries = (await store.append(REF, Append(entries=[user("a"), note(), note()], timestamp=2))).entries
    assert {entry.digest for entry in entries} == {entries[0].digest}
    for ends in (False, True):
        found = await store.sightings(REF.user_id, [entries[0].digest], ends=ends)
        assert [place.seq for place in found] == [0]


_numbers = count()


@given(st.lists(st.sampled_from(["user", "reply", "calls", "x", "y", "note", "cut"]), max_size=12))
@SHARED_STORE
async def test_messages_are_the_same_with_and_without_notes(store: Store, kinds: list[str]) -> None:
    """For any log and any edits, the live path and the tail are those of the log without its notes."""
    makers = {"user": user, "reply": assistant}
    names = [evolve(REF, id=f"notes-{next(_numbers)}") for _ in range(2)]
    plain, noted = [await store.create(session(ref)) for ref in names]
    for at, kind in enumerate(kinds):
        for one in (plain, noted):
            if kind == "note" and one is plain:
                continue
            if kind == "cut":
                path = await store.entries(one.ref)
                start = path[len(path) // 2].seq if path else 0
                await store.append(one.ref, Append(retire_from=start, timestamp=9))
                continue
            new = {"calls": calls("x", "y"), "note": note(at)}.get(kind) or (
                makers[kind](str(at)) if kind in makers else result(kind)
            )
            await store.append(one.ref, Append(entries=[new], timestamp=9))
    paths = [await store.entries(one.ref) for one in (plain, noted)]
    assert len(paths[0]) == len(paths[1])
    place = {entry.seq: twin.seq for twin, entry in zip(*paths, strict=True)}
    mapped = tuple(evolve(entry, seq=place[entry.seq], unit=place.get(entry.unit, -1)) for entry in paths[1])
    assert mapped == paths[0]
    ends = [await store.get(one.ref) for one in (plain, noted)]
    assert _describe(ends[0]) == _describe(ends[1])
    await verify(store, noted.ref)


def _describe(one: Session) -> tuple[object, ...]:
    tail = one.tail
    return (one.messages, tail.turn_id, tail.total, tail.digest, tail.last_kind, tail.open_calls, one.turns)
