"""Iterating over pages: complete and without duplicates, for any page size and during writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.limits import PAGE
from holdfast.stores import open_store, walk
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from tests.contract.expiry import ending
from tests.contract.kit import REF, seqs, session, user

SMALL = 3
"""Of a page, where a test would have to make hundreds."""


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """One in memory, that is walked in small pages."""
    for name in ("_PAGE", "ENTRIES"):
        monkeypatch.setattr(walk, name, SMALL)
    store = await open_store("sqlite://:memory:", tenant="acme")
    yield store
    await store.close()


def _ref(at: int) -> SessionRef:
    return SessionRef("ann", f"s{at}")


async def _make_sessions(store: Store, count: int) -> None:
    """Sessions, each later than the one before it."""
    for at in range(count):
        await store.create(session(_ref(at), timestamp=10 * at))


# -- sessions ------------------------------------------------------------------


@pytest.mark.parametrize("gone", [[2], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("deleted", [False, True])
async def test_no_session_is_missed_if_a_page_changes_during_reading(
    store: Store, gone: list[int], *, deleted: bool
) -> None:
    """The last session of a page may be changed or deleted before the next page; a changed one is listed again."""
    await _make_sessions(store, 3 * SMALL)
    seen, changed = list[str](), False
    list_ = store.list

    async def list_and_change(**asked: Any) -> Any:
        nonlocal changed
        if "after" in asked and not changed:
            changed = True
            for at in gone:
                if deleted:
                    await store.remove(_ref(at))
                else:
                    await store.append(_ref(at), Append(entries=[user("x")], timestamp=1000 + at))
        return await list_(**asked)

    store.list = list_and_change  # type: ignore[method-assign]
    async for page in walk.iterate_session_pages(store, size=SMALL):
        seen += [one.id for one in page]
    again = [] if deleted else [f"s{at}" for at in gone]
    assert seen == [f"s{at}" for at in range(3 * SMALL)] + again


async def test_list_sessions_unused_since_a_time(store: Store) -> None:
    """Neither changed nor read; of an ended session only the end counts. The limit itself is included."""
    await _make_sessions(store, 6)
    await store.touch(_ref(0), timestamp=41)
    await store.touch(_ref(1), timestamp=40)
    await store.end(ending(1, _ref(2), ended_at=25, hooks=()))
    await store.touch(_ref(2), timestamp=90)
    assert [one.id async for one in walk.iterate_unchanged_sessions(store, 40)] == ["s1", "s2", "s3", "s4"]
    assert [one.id async for one in walk.iterate_unchanged_sessions(store, 40, status="closed")] == ["s2"]
    assert [one.id async for one in walk.iterate_unchanged_sessions(store, 40, user_id="bob")] == []


async def test_sessions_of_the_same_millisecond_are_all_listed(store: Store) -> None:
    """Even if a page ends among them."""
    for at in range(PAGE + 1):
        await store.create(session(_ref(at), timestamp=10))
    assert len([one async for one in walk.iterate_unchanged_sessions(store, 10)]) == PAGE + 1
    assert [one async for one in walk.iterate_unchanged_sessions(store, 9)] == []


# -- a log ---------------------------------------------------------------------


@pytest.fixture
async def log(store: Store) -> Store:
    """A session of some pages."""
    await store.create(session())
    await store.append(REF, Append(entries=[user(f"{at}") for at in range(2 * SMALL + 1)], timestamp=2))
    return store


def _is(*texts: str) -> Any:
    return lambda entry: entry.message.text in texts


@pytest.mark.parametrize("last", [0, SMALL - 1, SMALL, 2 * SMALL])
async def test_reading_a_log_up_to_an_entry(log: Store, last: int) -> None:
    """Inclusive, forwards and backwards, for any page boundaries."""
    found, end = await walk.read_entries_until(log, REF, _is(f"{last}"))
    assert end is not None
    assert [*seqs(tuple(found)), end.seq] == [*range(last + 1)]
    found, end = await walk.read_entries_until(log, REF, _is(f"{last}"), descending=True)
    assert end is not None
    assert [*seqs(tuple(found)), end.seq] == [*range(2 * SMALL, last - 1, -1)]
