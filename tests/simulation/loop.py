"""An event loop that picks the next ready callback by its seed, has a time of its own, and can kill what belongs to a process.

Nothing waits: if nothing is ready, the time jumps to the next timer. So an hour of a gateway takes a second, and the same seed makes the
same run. With a real database, no time is skipped while an operation of it runs, and a seed does not repeat its run exactly.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import inspect
import logging
import random
import secrets
import sys
import time
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any, TypeVar

import pytest

from holdfast.stores import sqlite
from holdfast.stores.sql import remote

T = TypeVar("T")
PROCESS: ContextVar[int] = ContextVar("process", default=0)
"""The process that a task or callback belongs to; 0: the world outside of the gateway."""
_LONGEST = 2.0
"""Seconds of real time to wait for a database before the time jumps after all."""
_PATIENCE = 10.0
"""Seconds of real time to wait for a thread, which only opening a database needs, before a run counts as stuck."""


class Stuck(AssertionError):
    """Raised if nobody in the world will ever do anything again."""


class SeededLoop(asyncio.SelectorEventLoop):
    """See the module.

    Args:
        seed: of the order of callbacks.

    Attributes:
        dead: processes that were killed: none of their callbacks runs again.
        operations: number of operations of a database that run.
    """

    operations = 0
    _ready: Any
    _scheduled: Any
    _stopping: bool

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dead: set[int] = set()
        self._chance = Random(seed)
        self._seconds = 0.0
        self._graveyard: list[Any] = []

    def time(self) -> float:
        return self._seconds

    def _write_to_self(self) -> None:
        """Nothing waits in a selector."""

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled
        if not ready and not timers:
            self._wait_for_thread()
        elif not ready:
            self._seconds = max(self._seconds, timers[0].when())
        while timers and timers[0].when() <= self._seconds:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        if not self.operations and self._chance.random() < 0.5:  # connecting relies on the order of its callbacks
            ready.rotate(-self._chance.randrange(len(ready)))
        for _ in range(min(len(ready), 4)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            if handle._context.get(PROCESS, 0) in self.dead:
                self._graveyard.append(handle)  # else its coroutine would be closed now, and clean up
                continue
            handle._run()

    def _wait_for_thread(self) -> None:
        until = time.monotonic() + _PATIENCE
        while not self._ready:
            if time.monotonic() > until:
                raise Stuck("nothing is ready, and no timer is set")
            time.sleep(0.0005)


class DatabaseLoop(SeededLoop):
    """A seeded loop that waits for the operations of a database."""

    def _write_to_self(self) -> None:
        super(SeededLoop, self)._write_to_self()  # type: ignore[misc]

    def _run_once(self) -> None:
        seconds = 0.0
        if (
            self.operations and not self._ready
        ):  # as on a real clock, since an operation may wait for a timer of its own
            seconds = max(0.0, self._scheduled[0].when() - self.time()) if self._scheduled else _PATIENCE
        self._look(min(seconds, _LONGEST))
        super()._run_once()

    def _look(self, seconds: float) -> None:
        self._process_events(self._selector.select(seconds))  # type: ignore[attr-defined]

    def _wait_for_thread(self) -> None:
        self._look(_PATIENCE)
        if not self._ready:
            raise Stuck("nothing is ready, and no timer is set")


@contextmanager
def operation() -> Iterator[None]:
    """Skip no time during an operation of a database."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, DatabaseLoop):
        yield
        return
    loop.operations += 1
    try:
        yield
    finally:
        loop.operations -= 1


def run(seed: int, main: Coroutine[Any, Any, T], *, exact: bool = True) -> T:
    """Run `main` in a seeded loop. What is left of it is dropped, as when a process is killed. `exact` is False for a real database."""
    with _repeatable(seed, exact=exact):
        loop = SeededLoop(seed) if exact else DatabaseLoop(seed)
        asyncio.set_event_loop(loop)
        hook = sys.unraisablehook
        try:
            return loop.run_until_complete(main)
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                coroutine: Any = task.get_coro()
                if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                    coroutine.close()  # of a process that was killed first; else it warns that it was never awaited
            loop.set_exception_handler(lambda *_: None)
            sys.unraisablehook = lambda _: None
            loop._ready.clear()
            loop._scheduled.clear()
            loop.close()
            asyncio.set_event_loop(None)
            del loop, left
            gc.collect()
            sys.unraisablehook = hook


def _detach(database: Any, patch: pytest.MonkeyPatch) -> None:
    """Let the operations of a database end, although the process that began them is killed: its connections are others' too."""

    def wrap(original: Any) -> Any:
        async def run_apart(*args: Any, **kwargs: Any) -> Any:
            async def work() -> Any:
                with operation():
                    return await original(*args, **kwargs)

            context = copy_context()
            context.run(PROCESS.set, 0)
            return await asyncio.get_running_loop().create_task(work(), context=context)

        return run_apart

    for name in ("read", "write"):
        patch.setattr(database, name, wrap(getattr(database, name)))


@contextmanager
def _repeatable(seed: int, *, exact: bool) -> Iterator[None]:
    """Let nothing depend on the machine: ids and secrets come from the seed, no thread works, and the collector rests."""
    ids, pauses = Random(seed), Random(seed + 1)
    database: Any = sqlite._Database

    def make_uuid() -> uuid.UUID:
        return uuid.UUID(int=ids.getrandbits(128), version=4)

    async def work(self: Any, operation: Any) -> Any:
        for _ in range(pauses.randrange(3)):
            await asyncio.sleep(0)
        if self._brief is None:  # it is opened
            return await self._writer.submit(operation)
        ((result, error),) = self._brief.run([operation])
        if error is not None:
            raise error
        return result

    def read(self: Any, steps: Any, *, single: bool = False, short: bool = False) -> Any:
        return work(self, sqlite.Operation(steps, single=True))

    def write(self: Any, steps: Any, *, scrub: bool = False, **_: Any) -> Any:
        return work(self, sqlite.Operation(steps, scrub, writing=True))

    was_on = gc.isenabled()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", make_uuid)
        patch.setattr(secrets, "token_bytes", lambda size=None: ids.randbytes(size or 32))
        patch.setattr(secrets, "token_hex", lambda size=None: ids.randbytes(size or 32).hex())
        if exact:
            patch.setattr(database, "read", read)
            patch.setattr(database, "write", write)
        else:
            for one in (database, remote.RemoteDatabase):
                _detach(one, patch)
        gc.disable()
        gc.freeze()  # what was there before need not be looked at
        state = random.getstate()
        random.seed(seed)
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)
            random.setstate(state)
            gc.unfreeze()
            if was_on:
                gc.enable()
