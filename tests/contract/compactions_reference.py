"""The contract, compactions: against a reference that asks the whole history each time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.session import NewCompaction, SessionRef
from holdfast.errors import CompactionNotFound
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.verify import verify

from .kit import compaction, lay, session, user
from .properties import SHARED_STORE

_numbers = itertools.count()
_views = st.sampled_from(["v", "w"])
_place = st.integers(0, 14)
_lag = st.one_of(st.none(), st.integers(0, 2))
_moves = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 3), st.one_of(st.none(), _place)),
    st.tuples(st.just("lay"), _views, st.tuples(_place, _place).map(sorted), _lag),
    st.tuples(st.just("fail"), _views, st.tuples(_place, _place).map(sorted), _lag),
    st.tuples(st.just("drop"), st.integers(1, 9)),
    st.tuples(st.just("erase"), _place, st.integers(0, 20)),
)


class Reference:
    """A session's compactions, the slow way: whether one is in use is asked of the whole history each time."""

    def __init__(self) -> None:
        self.version = 0
        self.next_seq = 0
        self.live: list[int] = []
        self.gone_at = 0
        self.all: list[dict[str, Any]] = []

    def append(self, count: int, retire_from: int | None) -> None:
        self.version += 1
        if retire_from is not None and any(seq >= retire_from for seq in self.live):
            self.live = [seq for seq in self.live if seq < retire_from]
            self._kill(lambda one: one["last"] >= retire_from)
        self.live += range(self.next_seq, self.next_seq + count)
        self.next_seq += count

    def lay(self, new: NewCompaction) -> None:
        one = {"id": len(self.all) + 1, "view": new.view, "first": new.first, "last": new.last, "text": new.text}
        late = new.built_at is not None and new.built_at < self.gone_at
        if late:
            one["text"] = ""
        if new.error is not None:
            self.all.append({**one, "status": "failed"})
            return
        self.version += 1
        mine = self._live_of(new.view)
        holds = mine is None or (
            new.first <= mine["first"]
            and mine["last"] <= new.last
            and (new.built_at is None or mine["laid_at"] <= new.built_at)
        )
        one |= {"status": "live" if holds and not late and new.last in self.live else "dead", "laid_at": self.version}
        if one["status"] == "live" and mine is not None:
            mine["status"] = "superseded"
        self.all.append(one)

    def drop(self, id_: int) -> bool:
        found = [one for one in self.all if one["id"] == id_ and one["status"] in ("live", "superseded")]
        for one in found:
            one["status"] = "dropped"
            self.version += 1
            self.gone_at = self.version
        self._revive()
        return bool(found)

    def erase(self, seq: int) -> bool:
        if seq >= self.next_seq:
            return False
        self.version += 1
        self.gone_at = self.version
        for one in self.all:
            if one["first"] <= seq <= one["last"]:
                one["text"] = ""
        self._kill(lambda one: one["first"] <= seq <= one["last"])
        return True

    def list_rows(self) -> list[tuple[Any, ...]]:
        return [(one["id"], one["view"], one["status"], one["text"]) for one in self.all]

    def _live_of(self, view: str) -> dict[str, Any] | None:
        found = [one for one in self.all if one["view"] == view and one["status"] == "live"]
        assert len(found) <= 1
        return found[0] if found else None

    def _kill(self, which: Any) -> None:
        for one in self.all:
            if one["status"] in ("live", "superseded") and which(one):
                one["status"] = "dead"
        self._revive()

    def _revive(self) -> None:
        for view in ("v", "w"):
            rest = [one for one in self.all if one["view"] == view and one["status"] == "superseded"]
            if self._live_of(view) is None and rest:
                rest[-1]["status"] = "live"


@given(moves=st.lists(_moves, min_size=1, max_size=30))
@SHARED_STORE
async def test_compactions_match_the_reference(store: Store, moves: list[Any]) -> None:
    """After any appends, edits, erasures, drops and compactions, laid in time or late."""
    ref, model = SessionRef("ann", f"c{next(_numbers)}"), Reference()
    await store.create(session(ref))
    for move in ("append", 4, None), *moves:
        await _apply_to_both(store, ref, model, move)
        found = await store.compactions(ref)
        assert [(one.id, one.view, one.status, one.text) for one in found] == model.list_rows()
        assert (await store.get(ref)).version == model.version
        for view in ("v", "w"):
            live = [one for one in found if one.view == view and one.status == "live"]
            assert (await store.window(ref, view)).compaction == (live[0] if live else None)
    await verify(store, ref)


async def _apply_to_both(store: Store, ref: SessionRef, model: Reference, move: Any) -> None:
    """The same move on both."""
    match move:
        case ("append", count, retire_from):
            entries = [user("x") for _ in range(count)]
            await store.append(ref, Append(entries=entries, retire_from=retire_from, timestamp=2))
            model.append(count, retire_from)
        case ("lay" | "fail" as what, view, (first, last), lag):
            built_at = None if lag is None else model.version - lag
            error = "no" if what == "fail" else None
            new = compaction(first, last, view=view, built_at=built_at, error=error)
            await lay(store, new, ref=ref)
            model.lay(new)
        case ("drop", id_):
            if model.drop(id_):
                await store.drop_compaction(ref, id_, timestamp=3)
            else:
                with pytest.raises(CompactionNotFound):
                    await store.drop_compaction(ref, id_, timestamp=3)
        case ("erase", seq, tokens):
            if model.erase(seq):
                await store.erase(ref, seq, tokens=tokens)
