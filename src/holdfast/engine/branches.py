"""Several that speak in one turn: which part is whose, what each has of the turn's place in its session's queue, and who may write.

In a log the results of calls stand directly behind them. So whoever has written calls is the only one to write until all of them
have a result; the others' models go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from holdfast.domain.session import BRANCH, JOINED, STEP
from holdfast.engine.session_lock import END, SessionLock, SessionLocks
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended

T = TypeVar("T")


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One agent's part of a turn in which several speak."""

    step: str | None = None
    """The agent's name, where others speak after it: the client is sent nothing of what it says. None: it ends the reply."""
    ends: bool = False
    """Whether its last write is the turn's."""
    joined: bool = False
    """Whether what it says stands in a reply that joins several."""
    branch: str = ""
    """See `Responder.branch`."""

    def add_metadata(self, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
        """`metadata` of a message of this part, with what it is a part of."""
        own = {STEP: self.step, BRANCH: self.branch, JOINED: self.joined}
        noted = {**(metadata or {}), **{name: value for name, value in own.items() if value}}
        return noted or None


class WriteArbiter:
    """Who may write to a turn's log, of all that speak in it at once."""

    def __init__(self) -> None:
        self._holder: Branch | None = None
        self._changed = asyncio.Condition()

    async def append(self, branch: Branch, work: Callable[[], Awaitable[Appended]]) -> Appended:
        """Do a write of a branch when no other one's calls wait for their results."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._holder in (None, branch))
            appended = await work()
            self._holder = branch if appended.session.tail.open_calls else None
            self._changed.notify_all()
            return appended

    async def release(self, branch: Branch) -> None:
        """A branch writes nothing more, whatever became of its calls."""
        async with self._changed:
            if self._holder is branch:
                self._holder = None
                self._changed.notify_all()


class Branch(SessionLock):
    """One speaker's part of a turn's lock: it is interrupted with the turn, never alone, and ends with it.

    The task that began it cancels its task when the turn is to be cut.

    Args:
        whole: the turn's lock, or the branch that it is a part of.
        locks: of the store handle.
        arbiter: of the turn.
    """

    def __init__(self, whole: SessionLock, locks: SessionLocks, arbiter: WriteArbiter) -> None:
        super().__init__(locks, whole.ref, whole.mode)
        self._whole = whole
        self._arbiter = arbiter
        self._writes: set[asyncio.Task[Any]] = set()

    def check(self) -> None:
        """Raise if the turn should not go on."""
        self._whole.check()

    async def run_interruptibly(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`, which is cancelled with this task."""
        self.check()
        return await work()

    async def read(self, chunks: AsyncIterator[T]) -> T | Any:
        """Return the next of `chunks`, or `END`."""
        chunk = await anext(chunks, END)
        self.check()
        return chunk

    def keep_open_for(self, task: asyncio.Task[Any]) -> None:
        """Note a write: the branch is not over before it."""
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def append(self, store: Store, write: Append, *, last: bool = False) -> Appended:
        """Write when no other branch's calls wait for their results; it is never the turn's `last` write."""
        return await self._arbiter.append(self, lambda: self._append_whole(store, write))

    async def _append_whole(self, store: Store, write: Append) -> Appended:
        whole = self._whole
        while isinstance(whole, Branch):  # its arbiter is the same
            whole = whole._whole  # noqa: SLF001 - its own kind
        return await whole.append(store, write)

    async def end(self) -> None:
        """Wait for its writes, and let the others write."""
        while self._writes:
            await asyncio.wait(tuple(self._writes))
        await self._arbiter.release(self)
