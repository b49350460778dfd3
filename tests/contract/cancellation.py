"""The contract, cancellation: a caller that gives up, at every single await of every operation."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.errors import SessionNotFound
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import SessionPatch
from holdfast.stores.verify import verify

from .kit import assistant, compaction, session, texts, user

Operation = Callable[[Store, SessionRef], Coroutine[Any, Any, object]]
"""Something that a caller does with a session, and may give up."""

MOST_AWAITS = 200
NEIGHBOURS = [SessionRef("neighbour", f"n{at}") for at in range(4)]
VALUES: dict[str, Any] = {"state": {"is": 1}, "metadata": {"is": 1}}


@types.coroutine
def cut(work: Coroutine[Any, Any, object], at: int, *, late: bool) -> Generator[Any, None, object]:
    """What `work` returns; the task that runs it is cancelled at its await number `at`, from 0.

    Args:
        work: an operation.
        at: where; behind its last await nothing is cancelled.
        late: not when it begins to wait, but at the very moment when what it waits for is there.
    """
    task = asyncio.current_task()
    assert task is not None
    step: Callable[[], Any] = partial(work.send, None)
    for number in itertools.count():
        try:
            waits_for = step()
        except StopIteration as done:
            return done.value
        if number == at:
            if late and isinstance(waits_for, asyncio.Future):
                waits_for.add_done_callback(lambda _: task.cancel())
            else:
                task.cancel()
        try:
            yield waits_for
            step = partial(work.send, None)
        except BaseException as exc:  # noqa: BLE001  # whatever it is, it is the operation's
            step = partial(work.throw, exc)
    raise AssertionError("unreachable")


async def _is_cancelled_at(store: Store, ref: SessionRef, act: Operation, at: int, *, late: bool) -> bool:
    """Whether the caller was cancelled at that await; neighbours ask at the same time, and get what is theirs."""

    async def run() -> object:
        return await cut(act(store, ref), at, late=late)

    task = asyncio.create_task(run())
    asking = [asyncio.create_task(store.get(other)) for other in NEIGHBOURS]
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    asking += [asyncio.create_task(store.get(other)) for other in NEIGHBOURS[:2]]
    answers = await asyncio.gather(*asking)
    for other, answer in zip([*NEIGHBOURS, *NEIGHBOURS[:2]], answers, strict=True):
        assert (answer.ref, answer.metadata) == (other, {"is": other.id})
    if isinstance(outcome, Exception):
        raise outcome
    return isinstance(outcome, asyncio.CancelledError)


async def _make_session(store: Store, ref: SessionRef) -> None:
    """A session that every operation has something to do with."""
    await store.create(session(ref, **VALUES))
    await store.append(ref, Append(entries=[user("a"), assistant("b"), user("c")], timestamp=2))


async def _nothing(store: Store, ref: SessionRef) -> None:
    """No session: the operation makes it, or needs none."""


async def with_neighbours(store: Store) -> None:
    """Make those who ask at the same time."""
    for other in NEIGHBOURS:
        await store.create(session(other, metadata={"is": other.id}))


async def at_every_await(
    store: Store,
    name: str,
    act: Operation,
    judge: Callable[[SessionRef], Awaitable[None]],
    first: Operation = _make_session,
) -> None:
    """Do it with a new session each time, cancelled one await later each time, until it ends before it is."""
    for late in (False, True):
        for at in range(MOST_AWAITS):
            ref = SessionRef("late" if late else "soon", f"{name} {at}")
            await first(store, ref)
            cancelled = await _is_cancelled_at(store, ref, act, at, late=late)
            await judge(ref)
            if not cancelled:
                break
        else:
            pytest.fail(f"it still awaits something after {MOST_AWAITS} awaits")


async def _read_all(store: Store, ref: SessionRef) -> tuple[Any, ...] | None:
    """All that an operation may have changed, at one moment; None when there is no such session."""
    try:
        rows = await store.window(ref, "v")
    except SessionNotFound:
        return None
    found = rows.session
    marks = [(entry.pinned, entry.importance, entry.erased) for entry in rows.entries]
    laid = rows.compaction and rows.compaction.text
    return found.version, found.state, found.metadata, found.tokens, texts(rows.entries), marks, laid


WRITES: dict[str, Operation] = {
    "append": lambda store, ref: store.append(
        ref, Append(entries=[user("d"), assistant("e")], state_delta={"k": 1}, timestamp=3)
    ),
    "append expecting": lambda store, ref: store.append(ref, Append(entries=[user("d")], expect=1, timestamp=3)),
    "edit": lambda store, ref: store.append(ref, Append(entries=[user("C")], retire_from=2, timestamp=3)),
    "lay": lambda store, ref: store.append(ref, Append(compactions=[compaction(0, 1)], timestamp=3)),
    "update": lambda store, ref: store.update(ref, SessionPatch(state={"is": None}, metadata={}), timestamp=3),
    "annotate": lambda store, ref: store.annotate(ref, 0, pinned=True),
    "rate": lambda store, ref: store.rate(ref, {0: 0.25, 2: 0.5}),
    "erase": lambda store, ref: store.erase(ref, 1, tokens=1),
    "replace": lambda store, ref: store.replace(session(ref), [user("z")]),
    "remove": lambda store, ref: store.remove(ref),
}
READS: dict[str, Operation] = {
    "get": lambda store, ref: store.get(ref),
    "find": lambda store, ref: store.find(NEIGHBOURS[0].id),
    "list": lambda store, ref: store.list(limit=2),
    "entries": lambda store, ref: store.entries(ref),
    "window": lambda store, ref: store.window(ref, "v"),
    "calls": lambda store, ref: store.calls(ref),
    "prompt_texts": lambda store, ref: store.prompt_texts(ref),
    "compactions": lambda store, ref: store.compactions(ref),
    "learned": lambda store, ref: store.learned("m"),
    "ping": lambda store, ref: store.ping(),
}


@pytest.mark.parametrize("what", WRITES)
async def test_a_write_cancelled_at_any_await_is_complete_or_absent(store: Store, what: str) -> None:
    """Never half; the session goes on, and nobody else notices."""
    whole = SessionRef("whole", "s")
    await _make_session(store, whole)
    before = await _read_all(store, whole)
    await WRITES[what](store, whole)
    after = await _read_all(store, whole)
    assert before != after

    async def judge(ref: SessionRef) -> None:
        assert await _read_all(store, ref) in (before, after)
        if what != "remove":
            await store.append(ref, Append(entries=[user("more")], timestamp=4))
            await verify(store, ref)

    await with_neighbours(store)
    await at_every_await(store, what, WRITES[what], judge)


async def test_a_cancelled_read_is_not_another_readers_answer(store: Store) -> None:
    """Whoever asks at the same time, or next, gets what they asked for."""

    async def judge(ref: SessionRef) -> None:
        rows = await store.window(ref, "v")
        assert (rows.session.ref, texts(rows.entries)) == (ref, ["a", "b", "c"])

    await with_neighbours(store)
    for what, read in READS.items():
        await at_every_await(store, what, read, judge)


async def test_a_write_cancelled_at_any_await_is_retried_by_its_key(store: Store) -> None:
    """Once written, whenever its first caller gave up; the answer is of this write."""

    def append_twice_with_a_key(store: Store, ref: SessionRef) -> Coroutine[Any, Any, Any]:
        entries = [user(f"{ref.user_id} {ref.id}")]
        return store.append(ref, Append(entries=entries, timestamp=3, idempotency_key="k", fingerprint=b"f"))

    async def judge(ref: SessionRef) -> None:
        again = await append_twice_with_a_key(store, ref)
        assert (texts(again.entries), again.version) == ([f"{ref.user_id} {ref.id}"], 2)
        assert texts(await store.entries(ref)) == ["a", "b", "c", f"{ref.user_id} {ref.id}"]

    await with_neighbours(store)
    await at_every_await(store, "keyed", append_twice_with_a_key, judge)


async def test_creating_a_session_can_be_cancelled_at_any_await(store: Store) -> None:
    """It is made whole, or not at all; then it can be made."""

    async def judge(ref: SessionRef) -> None:
        try:
            made = await store.get(ref)
        except SessionNotFound:
            made = await store.create(session(ref, **VALUES))
        assert (made.version, made.state, made.metadata) == (0, VALUES["state"], VALUES["metadata"])

    def make(store: Store, ref: SessionRef) -> Coroutine[Any, Any, Any]:
        return store.create(session(ref, **VALUES))

    await with_neighbours(store)
    await at_every_await(store, "make", make, judge, _nothing)


async def test_a_lease_cancelled_at_any_await_is_held_or_free(store: Store) -> None:
    """Whoever has it then is told so, and no second one is."""

    async def judge(ref: SessionRef) -> None:
        name = f"{ref.user_id} {ref.id}"
        second = await store.lease(name, "two", now=1, until=10)
        assert await store.lease(name, "one", now=1, until=10) is not second

    def ask(store: Store, ref: SessionRef) -> Coroutine[Any, Any, bool]:
        return store.lease(f"{ref.user_id} {ref.id}", "one", now=0, until=10)

    await with_neighbours(store)
    await at_every_await(store, "lease", ask, judge, _nothing)
