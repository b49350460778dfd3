"""The contract, edits: retiring, pinning, erasing, and the views that forget."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as evolve

from holdfast import limits
from holdfast.domain.log import erase_content, extend
from holdfast.domain.messages import encode_payload
from holdfast.domain.session import NewEntry, SessionRef, Tail
from holdfast.errors import EntryNotFound, InvalidRequest, StaleSession
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.verify import verify

from .kit import REF, assistant, calls, live, result, seqs, session, texts, user
from .once import RULE, once
from .properties import SHARED_STORE

VIEW = {"v": SavedView(0, b"v")}
_numbers = itertools.count()


@once(RULE)
async def test_retired_entries_stay_in_the_log(store: Store) -> None:
    """They name the entry that took their place, and the live path goes on without them."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a"), assistant("b"), user("c"), assistant("d")], timestamp=2))
    done = await store.append(REF, Append(entries=[user("C")], retire_from=2, timestamp=3))
    assert (done.entries[0].seq, done.entries[0].total, done.session.messages) == (4, 30, 3)
    assert await live(store) == ["a", "b", "C"]
    whole = await store.entries(REF, retired=True)
    assert [(entry.message.text, entry.retired_by) for entry in whole] == [
        ("a", None),
        ("b", None),
        ("c", 4),
        ("d", 4),
        ("C", None),
    ]
    assert await verify(store, REF) == 5


def _kinds() -> st.SearchStrategy[NewEntry]:
    ids = st.sampled_from(["x", "y", "z"])
    tokens = st.integers(0, 50)
    return st.one_of(
        st.builds(user, st.sampled_from(["hi", "ho", ""]), tokens=tokens),
        st.builds(assistant, st.sampled_from(["yes", "no"]), tokens=tokens),
        st.builds(lambda some: calls(*some), st.lists(ids, min_size=1, max_size=3)),
        st.builds(result, ids, tokens=tokens),
    )


_writes = st.lists(
    st.tuples(st.lists(_kinds(), max_size=4), st.one_of(st.none(), st.integers(0, 25))), min_size=1, max_size=12
)


@given(writes=_writes)
@SHARED_STORE
async def test_a_rewound_log_equals_one_without_the_retired_entries(store: Store, writes: Any) -> None:
    """Against a plain list: after any appends and rewinds the live path is derived as if written straight."""
    ref = SessionRef("ann", f"s{next(_numbers)}")
    await store.create(session(ref))
    model: list[tuple[int, NewEntry]] = []
    given_out = 0
    for new, retire_from in writes:
        done = await store.append(ref, Append(entries=new, retire_from=retire_from, timestamp=2))
        model = [(seq, entry) for seq, entry in model if retire_from is None or seq < retire_from]
        model += [(given_out + at, entry) for at, entry in enumerate(new)]
        given_out += len(new)
        straight, tail = extend(Tail(), [entry for _, entry in model])
        where = [seq for seq, _ in model]
        expected = [evolve(entry, seq=where[entry.seq], unit=where[entry.unit], alias=None) for entry in straight]
        assert list(await store.entries(ref)) == expected
        assert done.session == await store.get(ref)
        assert done.session.messages == len(model)
        assert done.session.tail == _move_tail(tail, where, given_out)
        assert await verify(store, ref, page=3) == given_out


def _move_tail(tail: Tail, where: list[int], next_seq: int) -> Tail:
    """`tail` of a log written straight, with its places as they are in the log that went back."""
    places = {name: getattr(tail, name) for name in ("last_seq", "unit", "anchor")}
    moved = {name: at if at in (None, -1) else where[at] for name, at in places.items()}
    return evolve(tail, next_seq=next_seq, **moved)


# -- pins --------------------------------------------------------------------


async def test_annotate_sets_pin_and_importance(store: Store) -> None:
    """Each by itself; None takes the importance away."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a")], timestamp=2))
    assert (await store.annotate(REF, 0, pinned=True)).pinned
    entry = await store.annotate(REF, 0, importance=0.5)
    assert (entry.pinned, entry.importance) == (True, 0.5)
    assert (entry,) == await store.entries(REF)
    entry = await store.annotate(REF, 0, pinned=False, importance=None)
    assert (entry.pinned, entry.importance) == (False, None)
    assert (entry,) == await store.entries(REF)
    with pytest.raises(InvalidRequest):
        await store.annotate(REF, 0, importance=float("inf"))


@once(RULE)
async def test_annotate_keeps_refusals_in_the_metadata(store: Store) -> None:
    """Each write replaces them; what else is in the metadata stays, and views are forgotten."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a", metadata={"kept": 1}), user("b")], timestamp=2))
    entry = await store.annotate(REF, 0, refused_by={"main": "400 invalid_image", "other": "422"})
    assert entry.metadata == {"kept": 1, "refused_by": {"main": "400 invalid_image", "other": "422"}}
    assert (entry, await store.annotate(REF, 1, refused_by={})) == await store.entries(REF)
    entry = await store.annotate(REF, 0, pinned=True)
    assert entry.metadata == {"kept": 1, "refused_by": {"main": "400 invalid_image", "other": "422"}}
    entry = await store.annotate(REF, 0, refused_by={})
    assert (entry.metadata, entry.pinned) == ({"kept": 1}, True)
    assert entry == (await store.entries(REF))[0]
    assert (await store.get(REF)).reshaped == (await store.get(REF)).version


@once(RULE)
async def test_annotate_keeps_choices_about_facts_in_the_metadata(store: Store) -> None:
    """Each write replaces them; what else is in the metadata stays, and an erasure takes them away."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a", metadata={"kept": 1})], timestamp=2))
    entry = await store.annotate(REF, 0, facts={2: "pinned", 0: "dropped"})
    assert entry.metadata == {"kept": 1, "standing_facts": {"2": "pinned", "0": "dropped"}}
    assert (entry,) == await store.entries(REF)
    assert (await store.annotate(REF, 0, facts={})).metadata == {"kept": 1}
    await store.annotate(REF, 0, facts={2: "pinned"})
    await store.erase(REF, 0)
    assert (await store.entries(REF))[0].metadata is None


@once(RULE)
async def test_only_live_entries_can_be_annotated(store: Store) -> None:
    """`EntryNotFound`, and the version stays."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a"), user("b")], timestamp=2))
    await store.append(REF, Append(retire_from=1, timestamp=2))
    for seq in (-1, 1, 2, 10**12):
        with pytest.raises(EntryNotFound):
            await store.annotate(REF, seq, pinned=True)
    assert (await store.get(REF)).version == 2


# -- importance in bulk ------------------------------------------------------


async def test_rate_sets_unset_importances(store: Store) -> None:
    """Of live entries without an importance; the version and the views stay."""
    await store.create(session())
    log = [user("a"), user("b", importance=0.9), user("c"), user("d"), user("e", importance=0.0)]
    await store.append(REF, Append(entries=log, timestamp=2))
    await store.append(REF, Append(entries=[user("D")], retire_from=3, timestamp=3))
    before = await store.append(REF, Append(views=VIEW, timestamp=3))
    assert await store.rate(REF, {0: 0.25, 1: 0.1, 3: 0.5, 5: 1, 77: 0.5, -1: 0.5}) == 2
    assert [entry.importance for entry in await store.entries(REF)] == [0.25, 0.9, None, 1.0]
    assert [entry.importance for entry in await store.entries(REF, start=3, stop=5, retired=True)] == [None, 0.0]
    assert (await store.get(REF), await _load_saved_view(store)) == (before.session, VIEW["v"])
    assert await store.rate(REF, {0: 0.75, 5: 0.75}) == 0
    assert await store.rate(REF, {}) == 0
    assert await verify(store, REF) == 6


# -- erasing -----------------------------------------------------------------


async def test_erasing_keeps_seq_and_digest(store: Store) -> None:
    """Content and metadata go, calls keep their ids, later totals follow the new count, and the chain holds."""
    await store.create(session())
    log = [user("q"), calls("x"), result("x", "secret", tokens=70, metadata={"original": "secret"}), assistant("a")]
    before = (await store.append(REF, Append(entries=log, timestamp=2))).entries
    entry = await store.erase(REF, 2, tokens=4)
    assert entry.message == erase_content(before[2].message)
    assert (entry.erased, entry.metadata, entry.tokens, entry.total) == (True, None, 4, 24)
    assert (entry.digest, entry.unit) == (before[2].digest, 1)
    await store.erase(REF, 1)
    after = await store.entries(REF)
    assert after[2] == entry
    assert [found.total for found in after] == [10, 20, 24, 34]
    assert after[1].message.tool_calls[0].id == "x"
    stored = await store.get(REF)
    assert (stored.tokens, stored.bytes) == (34, sum(len(encode_payload(found.message)) for found in after))
    done = await store.append(REF, Append(entries=[user("next")], timestamp=3))
    assert done.entries[0].total == 44
    assert await verify(store, REF) == 5


async def test_erasing_updates_the_totals_of_every_path(store: Store) -> None:
    """Retired entries that came after it too; those after its own retirement not."""
    await store.create(session())
    await store.append(REF, Append(entries=[user(str(at)) for at in range(5)], timestamp=2))
    await store.append(REF, Append(entries=[user("5"), user("6")], retire_from=3, timestamp=2))
    await store.append(REF, Append(entries=[user("7")], retire_from=6, timestamp=2))
    for seq, tokens in ((1, 3), (4, 1), (5, 25), (6, 2)):
        await store.erase(REF, seq, tokens=tokens)
        assert await verify(store, REF) == 8
    assert (await store.get(REF)).tokens == 10 + 3 + 10 + 25 + 10


@once(RULE)
async def test_erasing_a_missing_entry_is_an_error(store: Store) -> None:
    """`EntryNotFound`; a retired entry can be erased."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a"), user("secret")], timestamp=2))
    await store.append(REF, Append(retire_from=1, timestamp=2))
    with pytest.raises(EntryNotFound):
        await store.erase(REF, 2)
    assert (await store.erase(REF, 1)).retired_by == 2
    assert texts(await store.entries(REF, retired=True)) == ["a", "[erased]"]


# -- views -------------------------------------------------------------------


async def test_a_window_has_the_head_and_the_rest(store: Store) -> None:
    """The entries the view keeps from before its frontier, then the live path from the frontier on."""
    await store.create(session())
    log = [assistant("hello"), user("task"), *(user(str(at)) for at in range(2, 10))]
    await store.append(REF, Append(entries=log, timestamp=2))
    saved = SavedView(6, b"state", (0, 1, 4))
    await store.append(REF, Append(views={"v": saved, "w": SavedView(0, b"")}, timestamp=2))
    rows = await store.window(REF, "v")
    assert rows.view == saved
    assert (seqs(rows.head), seqs(rows.entries)) == ([0, 1, 4], [6, 7, 8, 9])
    assert rows.session == await store.get(REF)
    rows = await store.window(REF, "w")
    assert (rows.view, rows.head, len(rows.entries)) == (SavedView(0, b""), (), 10)


async def test_the_least_recently_saved_views_are_dropped(store: Store) -> None:
    """Where a write saves a view and nothing else, however far the views have come. One that is saved again stays."""
    await store.create(session())
    await store.append(REF, Append(entries=[user(str(at)) for at in range(60)], timestamp=2))
    for at in range(limits.VIEWS_KEPT):
        await store.append(REF, Append(views={f"v{at}": SavedView(50 - at, b"")}, timestamp=3 + at))
    await store.append(REF, Append(views={"v0": SavedView(2, b"")}, timestamp=40))
    await store.append(REF, Append(views={"new": SavedView(1, b"")}, timestamp=41))
    kept = {key for key in ("new", *(f"v{at}" for at in range(limits.VIEWS_KEPT))) if await _has_view(store, key)}
    assert kept == {"new", "v0", *(f"v{at}" for at in range(2, limits.VIEWS_KEPT))}


async def _has_view(store: Store, key: str) -> bool:
    return (await store.window(REF, key)).view is not None


async def _load_saved_view(store: Store) -> SavedView | None:
    return (await store.window(REF, "v")).view


async def _with_a_view(store: Store) -> None:
    await store.create(session())
    await store.append(REF, Append(entries=[user("a"), user("b"), user("c")], timestamp=2, views=VIEW))
    assert await _load_saved_view(store) == VIEW["v"]


@once(RULE)
async def test_edits_drop_the_views_that_contain_them(store: Store) -> None:
    """Retiring, pinning, unpinning and erasing drop every view of the session."""
    await _with_a_view(store)
    for forget in (
        lambda: store.annotate(REF, 0, pinned=True),
        lambda: store.annotate(REF, 0, pinned=False),
        lambda: store.annotate(REF, 0, facts={0: "dropped"}),
        lambda: store.erase(REF, 0),
        lambda: store.append(REF, Append(retire_from=2, timestamp=2)),
    ):
        await store.append(REF, Append(views=VIEW, timestamp=2))
        assert await _load_saved_view(store) == VIEW["v"]
        await forget()
        assert await _load_saved_view(store) is None


@once(RULE)
async def test_a_view_built_before_a_change_is_not_saved(store: Store) -> None:
    """Two processes: one builds, the other edits, the first one saves."""
    await _with_a_view(store)
    built_at = (await store.window(REF, "v")).session.version
    edited = await store.append(REF, Append(entries=[user("C")], retire_from=2, timestamp=2))
    late = Append(entries=[user("d")], views={"v": SavedView(0, b"late", built_at=built_at)}, timestamp=2)
    await store.append(REF, late)
    assert await _load_saved_view(store) is None
    fresh = {"v": SavedView(0, b"fresh", built_at=edited.session.version)}
    await store.append(REF, Append(views=fresh, timestamp=2))
    assert await _load_saved_view(store) == SavedView(0, b"fresh")


@once(RULE)
async def test_a_write_that_retires_keeps_the_views_it_saves(store: Store) -> None:
    """The views it brings are of the log as it leaves it."""
    await _with_a_view(store)
    await store.append(REF, Append(views={"w": SavedView(1, b"w")}, timestamp=2))
    fresh = {"v": SavedView(1, b"fresh")}
    await store.append(REF, Append(entries=[user("C")], retire_from=2, views=fresh, timestamp=2))
    assert await _load_saved_view(store) == fresh["v"]
    assert (await store.window(REF, "w")).view is None


@once(RULE)
async def test_plain_appends_keep_views(store: Store) -> None:
    """What comes at the end of the log is not what a view has seen."""
    await _with_a_view(store)
    await store.append(REF, Append(entries=[user("d")], timestamp=2))
    await store.append(REF, Append(retire_from=9, timestamp=2))
    assert await _load_saved_view(store) == VIEW["v"]


@once(RULE)
async def test_saving_a_view_is_not_a_change_of_the_session(store: Store) -> None:
    """Version and time stay; `expect` guards it all the same."""
    await _with_a_view(store)
    before = await store.get(REF)
    saved = Append(views={"v": SavedView(2, b"more")}, timestamp=99, expect=before.version)
    assert (await store.append(REF, saved)).session == before == await store.get(REF)
    assert await _load_saved_view(store) == SavedView(2, b"more")
    with pytest.raises(StaleSession):
        await store.append(REF, Append(views=VIEW, timestamp=99, expect=before.version + 1))
    assert await _load_saved_view(store) == SavedView(2, b"more")
