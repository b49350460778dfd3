"""After any sequence of changes to sessions, by any process, the index contains exactly what the logs say."""

from __future__ import annotations

from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.session import Ending, SessionRef
from holdfast.errors import HoldfastError
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from tests.service.index_kit import Bench, bench, make_entry

REFS = [SessionRef("ada", "s"), SessionRef("bob", "s")]
WORDS = ["tea", "coffee with milk", "order 17", "会議", "the of and", ""]
_texts = st.sampled_from(WORDS)
_roles = st.sampled_from(["user", "assistant", "tool", "system"])
_places = st.integers(0, 12)
_entries = st.lists(st.tuples(_roles, _texts), min_size=1, max_size=5)
_append_step = st.tuples(st.just("append"), _entries)
_edit = st.tuples(st.just("edit"), _places, st.lists(st.tuples(_roles, _texts), max_size=4))
_erase = st.tuples(st.just("erase"), _places)
_settle = st.tuples(st.just("settle"))
_rare = st.one_of(
    st.tuples(st.just("pin"), _places),
    st.tuples(st.just("install"), _entries),
    st.sampled_from([("delete",), ("remove",), ("withdraw",), ("rebuild",), ("walk", True), ("walk", False)]),
)
_steps = st.one_of(_append_step, _append_step, _edit, _settle, _erase, _edit, _settle, _rare)
_walks = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1]).map(REFS.__getitem__), st.booleans(), _steps), min_size=2, max_size=16
)
FIRST: Any = ("append", [("user", "tea"), ("assistant", "coffee with milk"), ("tool", "order 17"), ("user", "tea")])
"""The first step, so that there is something to change."""


async def apply_step(one: Bench, ref: SessionRef, store: Store, step: tuple[Any, ...]) -> None:
    """Apply one step; an impossible step changes nothing."""
    one.time += 1
    match step:
        case ("append", entries):
            await _ensure_session(one, ref, store)
            await store.append(ref, _make_append(one, entries))
        case ("edit", place, entries):
            await store.append(ref, _make_append(one, entries, retire_from=place))
        case ("erase", place):
            await store.erase(ref, place)
        case ("pin", place):
            await store.annotate(ref, place, pinned=True)
        case ("install", entries):
            new = NewSession(id=ref.id, user_id=ref.user_id, timestamp=one.time)
            await store.replace(new, [make_entry(role, text, one.time) for role, text in entries])
        case ("delete",):
            await store.remove(ref)
        case ("remove",):
            await store.remove(ref)
        case ("withdraw",):
            await store.end(_make_ending(one, ref))
        case ("settle",):
            await one.service.settled()
        case ("walk", whole):
            await one.service.walk(whole=whole)
        case ("rebuild",):
            await one.service.rebuild()


def _make_append(one: Bench, entries: list[tuple[str, str]], **more: Any) -> Append:
    return Append(entries=[make_entry(role, text, one.time) for role, text in entries], timestamp=one.time, **more)


def _make_ending(one: Bench, ref: SessionRef) -> Ending:
    fields: dict[str, Any] = {"withdrawn": True, "reason": "delete", "ended_at": one.time, "due_at": one.time}
    return Ending(id=f"end-{one.time}", user_id=ref.user_id, session_id=ref.id, **fields)


async def _ensure_session(one: Bench, ref: SessionRef, store: Store) -> None:
    try:
        await store.get(ref)
    except HoldfastError:
        await store.create(NewSession(id=ref.id, user_id=ref.user_id, timestamp=one.time))


async def _run_steps(
    steps: list[tuple[SessionRef, bool, tuple[Any, ...]]], *, elsewhere: bool, **settings: Any
) -> None:
    async with bench(**settings) as one:
        for ref, there, step in [(REFS[0], False, FIRST), (REFS[0], False, ("settle",)), *steps]:
            try:
                await apply_step(one, ref, one.elsewhere if there and elsewhere else one.here, step)
            except HoldfastError:
                continue
        await one.service.settled()
        if elsewhere:
            await one.service.walk(whole=True)
        known = [ref for ref in REFS if await one.read_wanted(ref) is not None]
        fed = known if elsewhere else [ref for ref in known if await _was_written(one, ref)]
        await one.check([*fed, *(ref for ref in REFS if ref not in known)])
        assert one.service.last_error is None


async def _was_written(one: Bench, ref: SessionRef) -> bool:
    return (await one.elsewhere.get(ref)).tail.next_seq > 0


@given(_walks)
def test_index_matches_the_writes_of_this_process(
    steps: list[tuple[SessionRef, bool, tuple[Any, ...]]],
) -> None:
    anyio.run(lambda: _run_steps(steps, elsewhere=False))


@given(_walks)
def test_index_that_outlives_the_process_matches_its_writes(
    steps: list[tuple[SessionRef, bool, tuple[Any, ...]]],
) -> None:
    anyio.run(lambda: _run_steps(steps, elsewhere=False, lasting=False))


@given(_walks)
def test_whole_walk_indexes_the_writes_of_other_processes(
    steps: list[tuple[SessionRef, bool, tuple[Any, ...]]],
) -> None:
    anyio.run(lambda: _run_steps(steps, elsewhere=True))
