"""The contract, compactions: what lies over a range of the log, and what the log does to it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict
from msgspec.structs import replace as evolve

from holdfast import limits
from holdfast.domain.session import ERASED, ModelCall, SessionRef
from holdfast.errors import InvalidRequest, StaleSession
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView

from .kit import REF, assistant, compaction, fates, lay, make_failed, seqs, session, user
from .once import RULE, once

VIEW = {"v": SavedView(3, b"v", (0,))}


async def _log_of(store: Store, length: int, ref: SessionRef = REF) -> None:
    """A session with a log of that length, at version 1."""
    await store.create(session(ref))
    log = [(user, assistant)[at % 2](str(at)) for at in range(length)]
    await store.append(ref, Append(entries=log, timestamp=2))


# -- laying ------------------------------------------------------------------


async def test_a_compaction_is_read_back_unchanged(store: Store) -> None:
    """With its id, and that it is live; the write that brought it tells the same."""
    await _log_of(store, 6)
    new = compaction(
        *(0, 3, "Ünïcode \0 text"),
        model="gpt",
        prompt_tokens=7,
        completion_tokens=8,
        report={"kept": ["A-17"], "share": 0.5},
        through=5,
        built_at=1,
    )
    (laid,) = await lay(store, new)
    fields = asdict(new)
    del fields["built_at"]
    assert asdict(laid) == {**fields, "id": 1, "status": "live"}
    assert await store.compactions(REF) == (laid,)


@once(RULE)
async def test_a_compaction_is_written_with_entries_views_and_calls(store: Store) -> None:
    """One write: its range may end with an entry that comes with it."""
    await _log_of(store, 4)
    call = ModelCall(model="m", timestamp=1, prompt_tokens=5)
    write = Append(
        entries=[user("4"), assistant("5")], timestamp=3, views=VIEW, calls=[call], compactions=[compaction(0, 5)]
    )
    done = await store.append(REF, write)
    assert (done.version, done.compactions[0].status) == (2, "live")
    rows = await store.window(REF, "v")
    assert (rows.view, rows.compaction) == (VIEW["v"], done.compactions[0])
    assert done.session == await store.get(REF)


@once(RULE)
async def test_a_refused_write_stores_no_compaction(store: Store) -> None:
    """All or nothing, with a stale `expect` too; a retry by its key lays nothing again."""
    await _log_of(store, 4)
    with pytest.raises(InvalidRequest):
        await store.append(REF, Append(compactions=[compaction(0, 2**70)], timestamp=3, views=VIEW))
    with pytest.raises(StaleSession):
        await store.append(REF, Append(compactions=[compaction(0, 1)], timestamp=3, expect=0))
    assert await store.compactions(REF) == ()
    write = Append(entries=[user("4")], compactions=[compaction(0, 1)], timestamp=3, idempotency_key="k")
    await store.append(REF, write)
    again = await store.append(REF, write)
    assert (again.replayed, again.compactions, await fates(store)) == (True, (), [(1, "live")])


@once(RULE)
async def test_a_compaction_changes_the_session_but_does_not_count_as_use(store: Store) -> None:
    """The version goes on, so that whoever remembers the session reads it again; its time and status stay."""
    await _log_of(store, 4)
    before = await store.get(REF)
    done = await store.append(REF, Append(compactions=[compaction(0, 1)], timestamp=99))
    assert done.session == evolve(before, version=2) == await store.get(REF)
    with pytest.raises(StaleSession):
        await store.append(REF, Append(entries=[user("x")], timestamp=3, expect=1))
    done = await store.append(REF, Append(entries=[user("x")], compactions=[compaction(0, 2)], timestamp=100))
    assert (done.version, done.session.updated_at) == (3, 100)


# -- failing -----------------------------------------------------------------


async def test_only_the_newest_failed_attempts_are_kept(store: Store) -> None:
    """Their ids go on."""
    await _log_of(store, 4)
    await lay(store, compaction(0, 1))
    count = limits.FAILURES_KEPT + 5
    for _ in range(count):
        await lay(store, make_failed())
    kept = [(id_, "failed") for id_ in range(2 + 5, 2 + count)]
    assert await fates(store) == [(1, "live"), *kept]


async def test_only_the_newest_inactive_compactions_are_kept(store: Store) -> None:
    """Live and failed ones do not count; ids go on, and none is given again."""
    await _log_of(store, 4)
    await lay(store, compaction(0, 1, view="w"), make_failed())
    count = limits.COMPACTIONS_KEPT + 5
    for _ in range(count):
        await lay(store, compaction(0, 1))
    newest = 2 + count
    history = [(id_, "superseded") for id_ in range(newest - limits.COMPACTIONS_KEPT, newest)]
    assert await fates(store) == [(1, "live"), (2, "failed"), *history, (newest, "live")]
    for id_ in (newest, newest - 1):
        await store.drop_compaction(REF, id_, timestamp=3)
    (next_one,) = await lay(store, compaction(0, 1))
    assert next_one.id == newest + 1


# -- what does not hold any more ---------------------------------------------


@once(RULE)
async def test_a_compaction_of_erased_messages_is_not_stored(store: Store) -> None:
    """Neither its text nor its report is written; one made from what stands since is laid."""
    await _log_of(store, 6)
    await store.erase(REF, 1)
    told = {"report": {"quote": "secret"}, "built_at": 1}
    late, attempt = await lay(store, compaction(0, 3, "secret", **told), make_failed(0, 3, "secret", **told))
    assert (late.status, late.text, late.report) == ("dead", "", None)
    assert (attempt.status, attempt.report, attempt.error) == ("failed", None, ERASED)
    (fresh,) = await lay(store, compaction(0, 3, built_at=2))
    assert fresh.status == "live"


@once(RULE)
async def test_a_view_older_than_its_compaction_is_not_saved(store: Store) -> None:
    """Views of other keys are, and so is the one that comes with the compaction."""
    await _log_of(store, 6)
    before = SavedView(0, b"before", built_at=1)
    with_it = {"v": SavedView(3, b"with it", built_at=1)}
    await store.append(REF, Append(compactions=[compaction(0, 3, built_at=1)], views=with_it, timestamp=3))
    await store.append(REF, Append(entries=[user("x")], views={"v": before, "w": before}, timestamp=3))
    assert [(await store.window(REF, view)).view for view in "vw"] == [
        SavedView(3, b"with it"),
        SavedView(0, b"before"),
    ]
    await store.append(REF, Append(views={"v": SavedView(4, b"after", built_at=2)}, timestamp=3))
    assert (await store.window(REF, "v")).view == SavedView(4, b"after")


# -- dropping ----------------------------------------------------------------


@once(RULE)
async def test_a_view_older_than_a_drop_is_not_saved(store: Store) -> None:
    """It holds what was dropped."""
    await _log_of(store, 6)
    await lay(store, compaction(0, 3))
    await store.drop_compaction(REF, 1, timestamp=3)
    await store.append(REF, Append(views={"v": SavedView(4, b"late", built_at=2)}, timestamp=3))
    assert (await store.window(REF, "v")).view is None


# -- what the log does to them -----------------------------------------------


async def test_erasing_empties_every_compaction_with_the_entry(store: Store) -> None:
    """Whatever its status; those beside it keep what they tell."""
    await _log_of(store, 8)
    told: dict[str, Any] = {"report": {"quote": "said"}}
    await lay(store, compaction(0, 1, **told))
    await lay(store, compaction(0, 3, **told), compaction(0, 5, **told), compaction(2, 5, view="w", **told))
    await store.drop_compaction(REF, 4, timestamp=3)
    await lay(store, make_failed(0, 5, "it said: said", **told), compaction(4, 5, view="x", **told))
    await store.erase(REF, 3)
    assert await fates(store) == [(1, "live"), (2, "dead"), (3, "dead"), (4, "dropped"), (5, "failed"), (6, "live")]
    kept = await store.compactions(REF)
    assert [one.id for one in kept if one.text] == [one.id for one in kept if one.report] == [1, 6]
    assert kept[4].error == ERASED
    assert (await store.window(REF, "v")).compaction == kept[0]


async def test_erasing_updates_the_totals_of_compactions(store: Store) -> None:
    """Of compactions behind it: their running totals are those of the live path."""
    await _log_of(store, 6)
    await lay(store, compaction(2, 3), compaction(0, 1, view="w"))
    await store.erase(REF, 1, tokens=4)
    entries = await store.entries(REF)
    assert [one.total for one in await store.compactions(REF, live=True)] == [entries[3].total] == [34]
    await store.append(REF, Append(retire_from=5, timestamp=3))
    await store.erase(REF, 5, tokens=1)
    assert (await store.compactions(REF, live=True))[0].total == 34


async def test_replace_and_delete_remove_compactions(store: Store) -> None:
    """A session that takes the place begins with none; other sessions keep theirs."""
    other = SessionRef("bob", "s1")
    await _log_of(store, 6)
    await _log_of(store, 6, other)
    await lay(store, compaction(0, 3))
    await lay(store, compaction(0, 3), ref=other)
    await store.replace(session(), [user("a"), assistant("b")])
    assert await store.compactions(REF) == ()
    assert [one.id for one in await lay(store, compaction(0, 1))] == [1]
    await store.remove(REF)
    await _log_of(store, 6)
    assert await store.compactions(REF) == ()
    assert await fates(store, other) == [(1, "live")]


# -- limits ------------------------------------------------------------------


async def test_the_largest_compaction_is_stored(store: Store) -> None:
    """To the byte."""
    await _log_of(store, 2)
    large = compaction(0, 1, "é" * (limits.COMPACTION_BYTES // 2))
    assert await lay(store, large) == await store.compactions(REF)


# -- windows -----------------------------------------------------------------


async def test_a_head_of_thousands_of_entries_is_read(store: Store) -> None:
    """Whatever the view keeps, in order, and each once."""
    await store.create(session())
    await store.append(REF, Append(entries=[user(str(at)) for at in range(3000)], timestamp=2))
    keep = (*range(2500, 0, -1), 3, 9999)
    await store.append(REF, Append(views={"v": SavedView(2700, b"", keep)}, timestamp=2))
    rows = await store.window(REF, "v")
    assert seqs(rows.head) == list(range(1, 2501))
    assert seqs(rows.entries) == list(range(2700, 3000))
