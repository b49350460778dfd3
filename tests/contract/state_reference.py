"""The contract, state by scope: against dicts, in which every write is done key by key, or not at all."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.session import SessionRef
from holdfast.domain.state import Extend, Increment
from holdfast.errors import InvalidRequest
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import SessionPatch
from holdfast.stores.state import ScopedState

from .kit import session, user
from .properties import SHARED_STORE

_numbers = itertools.count()
_halves = st.integers(-8, 8).map(lambda number: number / 2)
_leaves = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), _halves, st.text('aü😀"\\ ', max_size=3))
_values = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("kü", max_size=1), inner, max_size=2),
    max_leaves=4,
)
_changes = st.one_of(
    _values,
    st.one_of(st.integers(-3, 3), _halves).map(Increment),
    st.lists(_values, max_size=2).map(lambda values: Extend(tuple(values))),
)
_names = st.sampled_from(["n", "l", "Ü ", "user:"])
_keys = st.tuples(st.sampled_from(["", "user:", "app:"]), _names).map("".join)
_delta = st.dictionaries(_keys.filter(lambda key: key != "user:"), _changes, min_size=1, max_size=5)
_moves = st.one_of(
    st.tuples(st.sampled_from(["append", "update"]), _delta),
    st.tuples(st.just("change"), st.booleans(), st.dictionaries(_names, _changes, max_size=4)),
    st.tuples(st.just("drop"), st.booleans()),
)


class Refused(Exception):
    """The reference does not take it."""


class Reference:
    """State of one session, its user, and its tenant, as dicts."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Any]] = {"": {}, "user:": {}, "app:": {}}
        self.versions = {"user:": 0, "app:": 0}
        self.floor = 0
        """The highest version of a scope that was dropped: the next scope that is written to for the first time continues above it."""

    def write(self, delta: dict[str, Any]) -> None:
        """All of it, or nothing."""
        before = copy.deepcopy(self.held)
        try:
            for key, change in delta.items():
                prefix = next((one for one in ("user:", "app:") if key.startswith(one)), "")
                self._one(self.held[prefix], key.removeprefix(prefix), change)
        except Refused:
            self.held = before
            raise
        for prefix in self.versions:
            changed = _to_json_values(self.held[prefix]) != _to_json_values(before[prefix])
            self.versions[prefix] = (self.versions[prefix] or self.floor * changed) + changed

    def drop(self, prefix: str) -> int:
        """Everything of a scope."""
        count = len(self.held[prefix])
        self.floor = max(self.floor, self.versions[prefix] + (count > 0))
        self.held[prefix], self.versions[prefix] = {}, 0
        return count

    @staticmethod
    def _one(held: dict[str, Any], name: str, change: Any) -> None:
        old = held.get(name)
        if isinstance(change, Increment):
            if old is not None and (isinstance(old, bool) or not isinstance(old, int | float)):
                raise Refused
            held[name] = change.by if old is None else old + change.by
        elif isinstance(change, Extend):
            if not isinstance(old, list | None):
                raise Refused
            held[name] = [*(old or ()), *change.values]
        elif change is None:
            held.pop(name, None)
        else:
            held[name] = change


def _to_json_values(held: dict[str, Any]) -> list[str]:
    """The values as JSON: `1` and `1.0` are told apart."""
    return sorted(json.dumps([key, value]) for key, value in held.items())


@given(moves=st.lists(_moves, min_size=1, max_size=25))
@SHARED_STORE
async def test_state_matches_the_reference(store: Store, moves: list[Any]) -> None:
    """After any writes to a session, its user and its tenant, also those that are refused."""
    number = next(_numbers)
    handle, ref, model = store.for_tenant(f"t{number}"), SessionRef("ann", "s"), Reference()
    await handle.create(session(ref))
    for move in moves:
        await _apply_to_both(handle, ref, model, move)
        assert _to_json_values((await handle.get(ref)).state) == _to_json_values(model.held[""])
        for prefix, user_id in (("user:", "ann"), ("app:", None)):
            found = await handle.state(user_id)
            assert found.values is not None
            assert (found.version, _to_json_values(dict(found.values))) == (
                model.versions[prefix],
                _to_json_values(model.held[prefix]),
            )


async def _apply_to_both(store: Store, ref: SessionRef, model: Reference, move: Any) -> None:
    """The same move on both."""
    if move[0] == "drop":
        prefix, user_id = ("user:", "ann") if move[1] else ("app:", None)
        assert await store.drop_state(user_id) == model.drop(prefix)
        return
    *_, changes = move
    prefix = "" if move[0] != "change" else "user:" if move[1] else "app:"
    delta = {prefix + name: change for name, change in changes.items()}
    try:
        model.write(delta)
    except Refused:
        with pytest.raises(InvalidRequest):
            await _write_delta(store, ref, move[0], changes, prefix)
        return
    told = await _write_delta(store, ref, move[0], changes, prefix)
    if prefix:
        held = {name: model.held[prefix][name] for name in changes if name in model.held[prefix]}
        assert told == ScopedState(model.versions[prefix], held)


async def _write_delta(store: Store, ref: SessionRef, how: str, changes: dict[str, Any], prefix: str) -> object:
    if how == "append":
        return await store.append(ref, Append(entries=[user("x")], timestamp=2, state_delta=changes))
    if how == "update":
        return await store.update(ref, SessionPatch(state=changes), timestamp=2)
    return await store.change_state("ann" if prefix == "user:" else None, changes, timestamp=2)
