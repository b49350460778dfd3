"""Let several agents answer in one turn, in sequence or in parallel, without mixing their tool calls in the log.

Providers require tool results directly after their calls. So an agent that has written calls is the only one that may write
until all of these calls have results. The models of other agents continue meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from holdfast.domain.session import BRANCH, JOINED, STEP, Session
from holdfast.engine.session_lock import SessionLock, SessionLocks
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended

T = TypeVar("T")


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The role of one agent in a turn in which several agents answer."""

    step: str | None = None
    """The agent's name, if other agents answer after it; the client receives none of this agent's text. None: the agent ends the
    reply.
    """
    ends: bool = False
    """True if the agent's last write ends the turn."""
    joined: bool = False
    """True if the agent's text becomes part of a reply that several agents write together."""
    branch: str = ""
    """The path of the agent among agents that run in parallel: the value of `Responder.branch`."""

    def add_metadata(self, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return a message's metadata, with `step`, `branch` and `joined` added if they have a value."""
        own = {STEP: self.step, BRANCH: self.branch, JOINED: self.joined}
        added = {**(metadata or {}), **{name: value for name, value in own.items() if value}}
        return added or None


class WriteArbiter:
    """Decides which of several agents in a turn may write to the log at a time."""

    def __init__(self) -> None:
        self._holder: Branch | None = None
        self._changed = asyncio.Condition()

    async def append(self, branch: Branch, work: Callable[[], Awaitable[Appended]]) -> Appended:
        """Run `work`, which writes for a branch. If another branch has calls without results, wait for the results first."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._holder in (None, branch))
            appended = await work()
            self._holder = branch if appended.session.tail.open_calls else None
            self._changed.notify_all()
            return appended

    async def release(self, branch: Branch) -> None:
        """Let other branches write. The given branch must not write any more, even if its calls have no results."""
        async with self._changed:
            if self._holder is branch:
                self._holder = None
                self._changed.notify_all()


class Branch(SessionLock):
    """The lock of one agent that runs in parallel with others in a turn. The agent writes through the lock of the whole turn.

    A branch is interrupted only together with the turn, and ends with the turn. If the turn is interrupted, the task that started
    the branch cancels the task of the branch.

    Args:
        whole: the turn's lock, or the branch that contains this one.
        locks: the locks of the tenant's sessions.
        arbiter: the turn's arbiter, which all branches of the turn share.
    """

    def __init__(self, whole: SessionLock, locks: SessionLocks, arbiter: WriteArbiter) -> None:
        super().__init__(locks, whole.ref, whole.mode)
        self._whole = whole
        self._arbiter = arbiter
        self._writes: set[asyncio.Task[Any]] = set()

    def check(self) -> None:
        """Raise `TurnInterrupted` or `TurnLost` if the turn must not continue."""
        self._whole.check()

    async def run_interruptibly(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`. If the current task is cancelled, `work` is cancelled too."""
        self.check()
        return await work()

    def keep_open_for(self, task: asyncio.Task[Any]) -> None:
        """Register a write. The branch does not end before the write is done."""
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def append(
        self, store: Store, write: Append, *, last: bool = False, base: Session | None = None, again: bool = False
    ) -> Appended:
        """Write through the turn's lock. If another branch has calls without results, wait for the results first.

        `last` is ignored, because a branch never ends the turn.
        """
        return await self._arbiter.append(self, lambda: self._append_whole(store, write, base=base, again=again))

    async def _append_whole(self, store: Store, write: Append, *, base: Session | None, again: bool) -> Appended:
        whole = self._whole
        while isinstance(whole, Branch):  # branches of a turn share the arbiter
            whole = whole._whole  # noqa: SLF001 - of this class
        return await whole.append(store, write, base=base, again=again)

    async def end(self) -> None:
        """Wait for the writes of this branch, then let other branches write."""
        while self._writes:
            await asyncio.wait(tuple(self._writes))
        await self._arbiter.release(self)
