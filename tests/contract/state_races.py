"""The contract, state that sessions share, under many writers: nothing is lost, whichever session or opening it comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import pytest

from holdfast.domain.session import SessionRef
from holdfast.domain.state import Extend, Increment
from holdfast.errors import SessionExists, StaleState
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import SessionPatch
from holdfast.stores.state import ScopedState

from .cancellation import at_every_await, with_neighbours
from .kit import session, texts, user
from .state import BOTH, all_of

WRITERS = 20
KEYS = 20
"""Of each of them."""


def _one_of(openings: list[Store], number: int) -> Store:
    return openings[number % len(openings)]


async def _together(*writers: Awaitable[object]) -> None:
    async def one(writer: Awaitable[object]) -> None:
        await writer

    async with anyio.create_task_group() as group:
        for writer in writers:
            group.start_soon(one, writer)


async def test_twenty_sessions_of_a_user_lose_nothing(openings: list[Store]) -> None:
    """Each writes keys of its own with its entries, and counts: every key is there, and the count is exact."""
    refs = [SessionRef("ann", f"s{at}") for at in range(WRITERS)]
    for ref in refs:
        await openings[0].create(session(ref))

    async def write(at: int, ref: SessionRef) -> None:
        for number in range(KEYS):
            delta = {f"user:{ref.id}.{number}": number, "user:count": Increment(), "last": number}
            await _one_of(openings, at).append(ref, Append(entries=[user(f"{number}")], timestamp=2, state_delta=delta))

    await _together(*(write(at, ref) for at, ref in enumerate(refs)))
    expected: dict[str, Any] = {f"{ref.id}.{number}": number for ref in refs for number in range(KEYS)}
    expected["count"] = WRITERS * KEYS
    for store in openings:
        assert await store.state("ann") == ScopedState(WRITERS * KEYS, expected)
        for ref in refs:
            assert texts(await store.entries(ref)) == [f"{number}" for number in range(KEYS)]
            assert (await store.get(ref)).state == {"last": KEYS - 1}


@pytest.mark.parametrize("scope", BOTH)
async def test_writers_of_a_scope_lose_nothing(openings: list[Store], scope: str | None) -> None:
    """Keys apart, one counter and one list, from the first write on, when the scope is not there yet."""

    async def write(at: int) -> None:
        for number in range(5):
            delta = {f"{at}.{number}": [at], "count": Increment(2), "list": Extend((at,)), f"{at}.{number - 1}": None}
            told = await _one_of(openings, at + number).change_state(scope, delta, timestamp=2)
            assert told.values is not None
            assert (told.values["list"].count(at), told.version * 2) == (number + 1, told.values["count"])

    await _together(*(write(at) for at in range(WRITERS)))
    found = await openings[-1].state(scope)
    assert found.values is not None
    assert (found.version, found.values["count"]) == (WRITERS * 5, WRITERS * 10)
    assert sorted(found.values["list"]) == sorted(list(range(WRITERS)) * 5)
    assert {key for key in found.values if "." in key} == {f"{at}.4" for at in range(WRITERS)}


async def test_state_of_users_and_tenants_changes_concurrently(openings: list[Store]) -> None:
    """Sessions of several users that write to their own and to the common state, in whatever order: none waits for ever."""
    users = ["ann", "bob", "cid", "dee"]
    refs = [SessionRef(users[at % len(users)], f"s{at}") for at in range(WRITERS)]

    async def write(at: int, ref: SessionRef) -> None:
        keys = ["user:n", "app:n", "n"]
        delta = {key: Increment() for key in (keys if at % 2 else reversed(keys))}
        store = _one_of(openings, at)
        await store.create(session(ref, state=delta))
        for _ in range(4):
            await store.append(ref, Append(entries=[user("x")], timestamp=2, state_delta=delta))
            await store.update(ref, SessionPatch(state=delta), timestamp=2)
        await store.change_state(None if at % 2 else ref.user_id, {"n": Increment(0.5)}, timestamp=3)

    await _together(*(write(at, ref) for at, ref in enumerate(refs)))
    halves = WRITERS / 2 / 2
    assert await all_of(openings[-1], None) == {"n": WRITERS * 9 + halves}
    found = [(await all_of(openings[-1], name))["n"] for name in users]
    assert sum(found) == WRITERS * 9 + halves
    assert {(await openings[-1].get(ref)).state["n"] for ref in refs} == {9}


async def test_one_of_many_compare_and_set_writers_wins(openings: list[Store]) -> None:
    """By the version of a scope, by the value under a key, and by that in a session, also where nothing is yet."""
    ref = SessionRef("ann", "s1")
    await openings[0].create(session(ref))
    for round_ in range(3):
        before = None if round_ == 0 else await all_of(openings[0])
        expected = {"turn": None if before is None else before["turn"]}
        version = (await openings[0].state(None)).version
        own = (await openings[0].get(ref)).state.get("turn")
        won: dict[str, list[int]] = {"value": [], "version": [], "own": []}

        async def attempt(what: str, at: int, write: Coroutine[Any, Any, object], won: dict[str, list[int]]) -> None:
            try:
                await write
                won[what].append(at)
            except StaleState:
                pass

        tries: list[Awaitable[None]] = []
        for at in range(WRITERS):
            store, turn = _one_of(openings, at), {"turn": [round_, at]}
            append = Append(timestamp=2, state_delta=turn, state_expect={"turn": own})
            value = store.change_state("ann", turn, timestamp=2, values=expected)
            tries += [
                attempt("value", at, value, won),
                attempt("version", at, store.change_state(None, turn, timestamp=2, expect=version), won),
                attempt("own", at, store.append(ref, append), won),
            ]
        await _together(*tries)
        (by_value,), (by_version,), (by_own,) = won["value"], won["version"], won["own"]
        assert await all_of(openings[-1]) == {"turn": [round_, by_value]}
        assert await all_of(openings[-1], None) == {"turn": [round_, by_version]}
        assert (await openings[-1].get(ref)).state == {"turn": [round_, by_own]}


async def test_state_is_dropped_while_others_write(openings: list[Store]) -> None:
    """What is counted as dropped was there, all else is left, and versions go on."""
    dropped: list[int] = []

    async def write(at: int) -> None:
        for number in range(5):
            await _one_of(openings, at).change_state("ann", {f"{at}.{number}": 1}, timestamp=2)

    async def drop() -> None:
        for _ in range(10):
            dropped.append(await openings[0].drop_state("ann"))
            await asyncio.sleep(0)

    await _together(*(write(at) for at in range(10)), drop())
    found = await openings[-1].state("ann")
    assert found.values is not None
    assert sum(dropped) + len(found.values) == 50
    assert found.version >= 50 + sum(1 for count in dropped if count) or (found.version, found.values) == (0, {})
    assert await openings[-1].drop_state("ann") == len(found.values)


async def test_a_state_change_cancelled_at_any_await_is_complete_or_absent(store: Store) -> None:
    """With its entries, its session, or by itself: never half, and not twice; the next one goes on from there."""

    async def make(store: Store, ref: SessionRef) -> None:
        await store.create(session(ref))

    async def nothing(store: Store, ref: SessionRef) -> None:
        """The operation makes what it needs."""

    def append(store: Store, ref: SessionRef) -> Coroutine[Any, Any, object]:
        delta = {"n": Increment(), "user:n": Increment(), f"app:{ref.user_id}/{ref.id}": Increment()}
        return store.append(ref, Append(entries=[user("d")], state_delta=delta, timestamp=3))

    def create(store: Store, ref: SessionRef) -> Coroutine[Any, Any, object]:
        delta = {"n": 1, "user:made": Increment(), f"app:{ref.user_id}/{ref.id}": Increment()}
        return store.create(session(ref, state=delta))

    def change(store: Store, ref: SessionRef) -> Coroutine[Any, Any, object]:
        return store.change_state(f"{ref.user_id}/{ref.id}", {"n": Increment(), "l": Extend((1,))}, timestamp=3)

    # What was given up may be done still: of the same session, or scope, the next write comes behind it.
    async def judge_append(ref: SessionRef) -> None:
        await append(store, ref)
        done = len(await store.entries(ref))
        assert done in (1, 2)
        assert (await store.get(ref)).state == {"n": done}
        assert (await all_of(store, None))[f"{ref.user_id}/{ref.id}"] == done

    async def judge_create(ref: SessionRef) -> None:
        with suppress(SessionExists):
            await create(store, ref)
        assert (await store.get(ref)).state == {"n": 1}
        assert (await all_of(store, None))[f"{ref.user_id}/{ref.id}"] == 1

    async def judge_change(ref: SessionRef) -> None:
        user_id = f"{ref.user_id}/{ref.id}"
        await change(store, ref)
        found = await store.state(user_id)
        assert found in [ScopedState(done, {"n": done, "l": [1] * done}) for done in (1, 2)]

    await with_neighbours(store)
    await at_every_await(store, "state append", append, judge_append, make)
    await at_every_await(store, "state create", create, judge_create, nothing)
    await at_every_await(store, "state change", change, judge_change, nothing)
    for name in ("soon", "late"):
        made = (await store.list(user_id=name, limit=1000)).sessions
        counted = {
            "n": sum(one.messages for one in made),
            "made": sum(one.id.startswith("state create") for one in made),
        }
        assert await all_of(store, name) == counted
