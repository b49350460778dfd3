"""Run one turn of a session at a time, in this process and on all servers that share a database.

In one process, the turns of a session wait in a queue. Across servers, a turn *claims* its session: it stores its name in the
session for a limited time. The claim is part of the write that opens the turn, and its release is part of the write that ends it,
so a short turn needs no additional write. Only a turn that takes longer than `RENEWAL_MS` renews its claim with a separate write.
When a server dies, its claims expire, and the next turn takes the session over. The clocks of the servers must agree to within
two seconds.

A turn that arrives while another one is running waits, is refused, or interrupts the running turn, depending on its mode. A
turn can be interrupted while it waits for a model or a tool, but never in a write. The part of its reply that was received is
stored, as if the caller had disconnected. The messages of its request are in the log in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, cast, get_args

import msgspec

from holdfast import faults
from holdfast.background import KeyedRepeater
from holdfast.callers import Deputy, describe_self_wait, find_self_wait, identify_caller, start_deputy
from holdfast.domain.session import Claim, Session, SessionRef
from holdfast.engine.lost_writes import LostWrite, find_result
from holdfast.errors import (
    HoldfastError,
    InvalidRequest,
    SessionBusy,
    SessionNotFound,
    StaleSession,
    StoreError,
    TurnInterrupted,
    TurnLost,
)
from holdfast.limits import TURNS_WAITING
from holdfast.liveness import is_dead
from holdfast.numbers import is_number
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.session_changes import compute_claim_end
from holdfast.stores.wrapper import StoreWrapper

T = TypeVar("T")
QueueMode = Literal["queue", "reject", "interrupt"]
MODES: Final[tuple[str, ...]] = get_args(QueueMode)
Pause = Callable[[float], Awaitable[object]]
"""Function that waits for a number of seconds."""

LEASE: Final = 5_000
"""Milliseconds after which a claim that was not renewed expires. After a server's host has crashed, its sessions are blocked for
this long.
"""
RENEWAL_MS: Final = 1_500
"""Milliseconds after which a claim is renewed. Two renewals in a row may fail before the claim expires. Turns that take less time
need no renewal.
"""
AGAIN: Final = 1_000
"""Milliseconds until a renewal is tried again after an error of the store."""
SHORTEST, LONGEST = 0.05, 1.0
"""First and longest pause in seconds between two reads of a session that a turn on another server has claimed. Each pause is twice
as long as the previous one."""
_RACES: Final = 16
"""Attempts of a turn to write at the current version if other writers change the session each time. After that, the turn writes
at any version, protected by its claim alone.
"""
_LONGEST_TIMEOUT: Final = 86_400.0
_log = logging.getLogger("holdfast.turn")


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for a turn that arrives while another turn of its session is running.

    Raises:
        InvalidRequest: a value is invalid.
    """

    mode: QueueMode = "queue"
    """The new turn waits (`queue`), is refused (`reject`), or ends the running turn (`interrupt`). A request can choose another mode."""
    timeout: float = 300.0
    """Longest time that the new turn waits, in seconds. Other work on the session, such as `pop` or `close`, waits no longer either."""

    def __post_init__(self) -> None:
        check_mode(self.mode)
        if not is_number(self.timeout) or not 0 < self.timeout <= _LONGEST_TIMEOUT:
            raise InvalidRequest(
                f"queue_timeout must be more than 0 and at most {_LONGEST_TIMEOUT:.0f} seconds", param="queue_timeout"
            )


def check_mode(mode: Any) -> QueueMode | None:
    """Return `mode`, which may be None. Raises `InvalidRequest` for an unknown mode."""
    if mode is not None and mode not in MODES:
        raise InvalidRequest(f"session_queue must be one of {', '.join(MODES)}", param="session_queue")
    return cast("QueueMode | None", mode)


class SessionLock:
    """The lock of one turn, or of other work, on a session. Locks of the same session wait in a queue.

    When the lock is first in its queue, it can claim the session, which excludes turns on other servers. Use it as
    `async with locks.make_turn_lock(ref) as lock`.

    Attributes:
        ref: the session.
        mode: what the turn does if another turn is running.
        is_turn: False if the lock is for other work than a turn. Other work is never refused at once, and cannot be interrupted.
        is_brief: True for a turn that consists of a single write and is never interrupted.
        interrupted: True if another turn interrupted this one.
        stopped: True if this turn interrupted another one.
        claimed_until: time when the turn's claim expires, in milliseconds since the epoch; 0: it has no claim.
        is_taken: True if another server took the session over.
        owner: the caller that holds the session; None: this lock does not hold it, or any caller may wait for it.
    """

    def __init__(
        self, locks: SessionLocks, ref: SessionRef, mode: QueueMode, *, is_turn: bool = True, is_brief: bool = False
    ) -> None:
        self.ref = ref
        self.mode = mode
        self.is_turn = is_turn
        self.is_brief = is_brief
        self.interrupted = False
        self.stopped = False
        self.claimed_until = 0
        self.is_taken = False
        self.owner: asyncio.Task[Any] | Deputy | None = None
        self.given: asyncio.Future[None] | None = None
        self._locks = locks
        self._deadline = 0.0
        self._cuttable: asyncio.Task[Any] | None = None
        self._was_cut = False
        self._holder = ""
        self._may_claim = False
        """True if the session may have a claim of this turn, which must be released at the end of the turn."""
        self._seen: Session | None = None
        """The session after the last write or read of the turn; None: the turn has not claimed it yet."""
        self._untils: set[int] = set()
        """Times of the turn's claims, one for each attempt to write; see `lost_writes`."""
        self._lost: LostWrite | None = None
        """The last write whose answer was lost; None: none was lost, or it is certain that it will never be committed."""
        self._writing = asyncio.Lock()
        self._is_over = False

    async def __aenter__(self) -> Self:
        """Wait until the turn is first in the queue, at most as long as the settings say.

        Raises:
            SessionBusy: the turn is refused, or has waited too long.
            InvalidRequest: the caller has a turn of the session open, so it would wait for itself.
        """
        self._deadline = asyncio.get_running_loop().time() + self._locks.settings.timeout
        await self._locks.enter(self)
        if self.is_turn:
            self._holder = self._locks.make_holder()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._may_claim:
                task = self._locks.begin(self.ref, self._release())
                if kind is not asyncio.CancelledError:  # a cancelled caller does not wait for the write
                    await asyncio.shield(task)
        finally:
            self._is_over = True
            self._locks.leave(self)

    @property
    def is_first(self) -> bool:
        """True if this turn is first in the queue of its session in this process."""
        return bool(self._holder)

    def get_seconds_left(self) -> float:
        """Return the number of seconds for which the turn may still wait; 0: it has waited too long."""
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    # -- interruption ------------------------------------------------------

    def interrupt(self) -> None:
        """Interrupt the turn as soon as it waits for a model or a tool. A second call changes nothing."""
        if not self.is_brief:
            self.interrupted = True
            self._cut()

    def _cut(self) -> None:
        task, self._cuttable = self._cuttable, None
        if task is not None and task is not asyncio.current_task():
            self._was_cut = True
            task.cancel()

    def check(self) -> None:
        """Raise `TurnInterrupted` or `TurnLost` if another turn interrupted this one, or another server took the session over."""
        if self.is_taken:
            raise TurnLost(self.ref.id)
        if self.interrupted:
            raise TurnInterrupted(self.ref.id)

    async def run_interruptibly(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`. If the turn is interrupted, `work` is cancelled, so `work` must not write.

        Raises:
            TurnInterrupted: another turn interrupted this one.
            TurnLost: another server took the session over.
        """
        if self.is_taken or self.interrupted:
            self.check()
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        cancelled = task.cancelling()
        self._cuttable, self._was_cut = task, False
        try:
            return await work()
        except asyncio.CancelledError:
            if self._was_cut and task.cancelling() <= cancelled + 1:
                self.check()
            raise
        finally:
            self._cuttable = None
            if self._was_cut:
                task.uncancel()

    async def run_in_task(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `work`, which runs in a task of its own. Otherwise like `run_interruptibly`.

        Each time that its I/O is ready, the event loop resumes only `work`, and none of the functions that wait for it.
        """
        self.check()
        waiting = asyncio.current_task()
        assert waiting is not None, "coroutines run in tasks"
        cancelled = waiting.cancelling()
        self._cuttable = task = start_deputy(work())
        self._was_cut = False
        try:
            return await task  # cancels `task` if the caller is cancelled, and waits until it has ended
        except asyncio.CancelledError:
            if self._was_cut and waiting.cancelling() == cancelled:
                self.check()
            raise
        finally:
            self._cuttable = None
            del task  # else its error and this frame form a cycle that keeps the prompt in memory

    def keep_open_for(self, task: asyncio.Task[Any]) -> None:
        """Register a write that may take longer than its caller lives.

        Only branches of a turn need this; see `Branch.keep_open_for`.
        """

    # -- writing under the session's claim -----------------------------------

    async def append(
        self, store: Store, write: Append, *, last: bool = False, base: Session | None = None, again: bool = False
    ) -> Appended:
        """Write for the turn. The first write claims the session, later writes renew the claim, and the last write releases it.

        Args:
            store: where the turn writes.
            write: the write. Its `timestamp` must be the current time.
            last: True if the write ends the turn.
            base: for the first write: the session as last read.
            again: True if the write repeats the last one that failed. If that one is in the log, nothing is written.

        Raises:
            SessionBusy: a turn on another server holds the session.
            TurnLost: another server took the session over; nothing was written.
            StoreError: the store failed, and did not write, or cannot be read. If it failed after it had written, no error is raised.
        """
        if not self._holder:
            return await store.append(self.ref, write)
        await self._writing.acquire()
        try:
            return await self._append(store, write, last=last, base=base, again=again)
        finally:
            self._writing.release()

    async def _append(
        self, store: Store, write: Append, *, last: bool, base: Session | None = None, again: bool = False
    ) -> Appended:
        """Write only if the session has the version that the turn last saw, so that a delayed write of an earlier attempt cannot succeed.

        If writes outside of turns have changed the version, the write is repeated at the current version.
        """
        if self.is_taken:
            raise self._mark_lost()
        if self._lost is not None and (found := await self._find_lost(store, again=again)) is not None:
            return found
        claimed, seen = self.claimed_until > 0, self._seen
        follows = claimed and write.expect is None
        until, earlier = write.timestamp + LEASE, self._lost if again else None
        while until in self._untils:
            until -= 1
        self._untils.add(until)
        write = msgspec.structs.replace(
            write,
            entries=write.entries if earlier is None else earlier.write.entries,
            claim=Claim(self._holder, until),
            release=self._holder if last else None,
            expect=seen.version if follows and seen is not None else write.expect,
        )
        lost = LostWrite(write, seen or base, () if earlier is None else earlier.untils)
        try:
            try:
                appended = await store.append(self.ref, write)
            except StaleSession:
                if not follows:
                    raise
                appended = await self._append_after_others(store, lost, again=again)
        except SessionBusy as exc:
            if claimed or self.is_taken:
                raise self._mark_lost() from exc
            raise
        except BaseException as exc:  # noqa: BLE001 - a cancelled write may be committed, too
            return await self._recover(store, lost, exc)
        if self._lost is not None and lost.has_content and self._lost.result is None:
            self._lost = None  # the store cannot commit it any more, because the version has changed
        self._follow(appended.session)
        return appended

    async def _append_after_others(self, store: Store, lost: LostWrite, *, again: bool) -> Appended:
        for _ in range(_RACES - 1):
            if self._lost is not None and (found := await self._find_lost(store, again=again)) is not None:
                return found
            session = await self._locks.store.get(self.ref)
            if session.claim is None or session.claim.holder != self._holder:
                raise self._mark_lost()
            lost.base, lost.write = session, msgspec.structs.replace(lost.write, expect=session.version)
            try:
                return await store.append(self.ref, lost.write)
            except StaleSession:
                continue
        lost.write = msgspec.structs.replace(lost.write, expect=None)
        return await store.append(self.ref, lost.write)

    async def _recover(self, store: Store, lost: LostWrite, error: BaseException) -> Appended:
        """Return the result of a write that raised `error`, if the store has committed it nevertheless; otherwise raise `error`."""
        if isinstance(error, HoldfastError) and not isinstance(error, StoreError):  # the store has refused the write
            raise error
        self._may_claim = True
        if not lost.has_content:
            raise error
        self._lost, found = lost, None
        if isinstance(error, Exception):
            with suppress(Exception):  # if the store cannot be read, `error` says so
                found = await self._find_lost(store, again=True)
        if found is None:
            raise error
        return found

    async def _find_lost(self, store: Store, *, again: bool) -> Appended | None:
        """Look for the write whose answer was lost. Return its result if `again` and if it is in the log. Raises the errors of `find_result`."""
        lost = self._lost
        assert lost is not None, "the caller has checked it"
        if lost.result is None:
            lost.result = await find_result(self._locks.store, self.ref, lost, self._locks.clock())
            if lost.result is not None:
                self._follow(lost.result.session)
                self.is_taken = not self.claimed_until and lost.write.release is None
                if isinstance(store, StoreWrapper):
                    store.note_append(self.ref, lost.write, lost.result)
        if not again or lost.result is None:
            return None
        self._lost = None
        return lost.result

    def _mark_lost(self) -> TurnLost:
        self._forget_claim()
        self.is_taken = True
        return TurnLost(self.ref.id)

    def _forget_claim(self) -> None:
        self.claimed_until, self._may_claim = 0, False
        self._locks.renewals.stop(self)

    def _follow(self, session: Session) -> None:
        """Update the state of the claim from a session that was just written or read."""
        claim = session.claim
        if claim is None or claim.holder != self._holder:
            self._forget_claim()
            return
        if not (self.claimed_until or self._is_over):
            self._locks.renewals.begin(self, self._locks.check_interval_ms)
        self.claimed_until, self._may_claim = claim.until, True
        self._seen = session
        if claim.wanted:
            self.interrupt()

    async def open(self, opening: Callable[[], Awaitable[Session | None]]) -> None:
        """Run `opening`, and claim the session for the turn. Repeat both until the claim succeeds.

        Args:
            opening: function that compares the request with the log, and writes new messages with `append`. It returns the
                session that it read if the session must be claimed, or None if no claim is needed.

        Raises:
            SessionBusy: a turn on another server holds the session, and this turn is refused or has waited too long.
            TurnInterrupted: another turn has interrupted this one; the messages of the request are in the log.
        """
        while True:
            try:
                session = await opening()
                if session is None:
                    return
                if self.claimed_until or await self._claim(session):
                    break
            except SessionBusy as busy:
                if await self._release_leftover():
                    continue
                if self.mode == "reject":
                    raise
                self.stopped = self.stopped or self.mode == "interrupt"
                await self._wait_for_claim(busy)
        self.check()

    async def _claim(self, session: Session) -> bool:
        """Claim a session without writing messages. Return False if the session has changed and must be read again.

        Raises `SessionBusy` if a turn on another server holds the session.
        """
        write = Append(timestamp=self._locks.clock(), expect=session.version, identity=session.identity)
        try:
            await self.append(self._locks.store, write)
        except StaleSession:
            return False
        return True

    async def _release(self) -> None:
        """Release a claim that the last write of the turn did not release. If that fails, the claim expires by itself."""
        self._is_over = True
        self._locks.renewals.stop(self)
        await self._locks.wait_for_others(self.ref)
        async with self._writing:
            if not self._may_claim:
                return
            self._forget_claim()
            identity = self._seen.identity if self._seen else None
            try:
                write = Append(timestamp=self._locks.clock(), identity=identity, release=self._holder)
                await self._locks.store.append(self.ref, write)
            except SessionNotFound:
                pass
            except StoreError as exc:
                _log.warning("the claim on session %r could not be released: it expires", self.ref.id, exc_info=exc)

    async def _release_leftover(self) -> bool:
        """Release the claim of a turn that ended without releasing it. Return True if there was such a claim.

        A claim of this process belongs to a turn that has ended, because otherwise this turn would not be first in the queue. The
        store failed when the ended turn should have released the claim. The turns of a dead process have ended too.
        """
        claim = (await self._locks.store.get(self.ref)).claim
        if claim is None:
            return False
        is_own = claim.holder.rpartition("-")[0] == self._holder.rpartition("-")[0]
        if not (is_own or is_dead(claim.holder)):
            return False
        await self._locks.store.append(self.ref, Append(timestamp=self._locks.clock(), release=claim.holder))
        return True

    async def _wait_for_claim(self, busy: SessionBusy) -> None:
        """Wait until no turn on another server holds the session, by reading the session again and again.

        Raises `SessionBusy` after waiting too long.
        """
        store, seconds = self._locks.store, SHORTEST
        while True:
            claim, now = (await store.get(self.ref)).claim, self._locks.clock()
            if claim is None or (until := compute_claim_end(claim, now)) <= now or is_dead(claim.holder):
                return
            if self.mode == "interrupt" and not claim.wanted:
                await store.want(self.ref, claim.holder)
            left = self.get_seconds_left()
            if not left:
                raise SessionBusy(self.ref.id, until=until, waited=self._locks.settings.timeout) from busy
            await self._locks.pause(min(seconds, left, max(SHORTEST, (until - now) / 1000)))
            seconds = min(2 * seconds, LONGEST)

    async def renew(self) -> int:
        """Renew the claim if it is due; otherwise read if another server wants to interrupt the turn.

        Returns:
            Milliseconds until the next call; 0: there is no claim to renew.
        """
        await faults.hit("before-claim-renewed")
        try:
            async with self._writing:
                if not self.claimed_until:  # the turn has ended meanwhile
                    return 0
                await self._renew()
        except TurnLost:
            self._cut()
            return 0
        except SessionNotFound:  # deleted: the turn will notice
            return 0
        except StoreError as exc:
            _log.warning("the claim on session %r could not be renewed", self.ref.id, exc_info=exc)
            return AGAIN
        return self._locks.check_interval_ms

    async def _renew(self) -> None:
        now, store = self._locks.clock(), self._locks.store
        if now >= self.claimed_until - LEASE + RENEWAL_MS:
            identity = self._seen.identity if self._seen else None
            await self._append(store, Append(timestamp=now, identity=identity), last=False)
            return
        session = await store.get(self.ref)
        if session.claim is None or session.claim.holder != self._holder:
            raise self._mark_lost()
        self._follow(session)


class _Line:
    """The queue of one session: the lock that holds the session, and the waiting locks, in order."""

    def __init__(self, holder: SessionLock) -> None:
        self.holder = holder
        self.waiting: list[SessionLock] = []

    def list_turns(self) -> list[SessionLock]:
        """Return those locks in the queue that belong to turns."""
        return [lock for lock in (self.holder, *self.waiting) if lock.is_turn]

    def join(self, lock: SessionLock) -> None:
        """Add a lock at the end of the queue.

        A lock with mode `interrupt` is added before those waiting turns at the end of the queue that do not interrupt.
        """
        at = len(self.waiting)
        if lock.mode == "interrupt":
            while at and self.waiting[at - 1].is_turn and self.waiting[at - 1].mode != "interrupt":
                at -= 1
            for earlier in (self.holder, *self.waiting[:at]):
                if earlier.is_turn:
                    earlier.interrupt()
                    lock.stopped = lock.stopped or not earlier.is_brief
        self.waiting.insert(at, lock)


class SessionLocks:
    """The locks of one tenant's sessions in this process, and the writes that continue after their callers were cancelled.

    Attributes:
        settings: mode and timeout for requests that do not choose their own.
        pause: waits for a number of seconds; tests replace it.

    Args:
        store: the tenant's store, without write steps.
        clock: returns milliseconds since the epoch.
        settings: the attribute `settings`.
        process: name of this process, by which other processes with the same database recognise its claims.
    """

    def __init__(self, store: Store, clock: Callable[[], int], settings: QueueSettings, process: str) -> None:
        self.settings = settings
        self.pause: Pause = asyncio.sleep
        self.store = store
        self.clock = clock
        self._process = process
        self._numbers = count()
        self._lines: dict[SessionRef, _Line] = {}
        self._settling: dict[SessionRef, set[asyncio.Task[Any]]] = {}
        self.renewals: KeyedRepeater[SessionLock] = KeyedRepeater(SessionLock.renew)
        """Renews the claims of running turns. Most turns end before the first renewal."""

    # -- places in the queue -------------------------------------------------

    def make_turn_lock(self, ref: SessionRef, mode: QueueMode | None = None) -> SessionLock:
        """Return a lock for a turn. If `mode` is None, the mode of `settings` applies."""
        return SessionLock(self, ref, mode or self.settings.mode)

    def make_brief_lock(self, ref: SessionRef, mode: QueueMode) -> SessionLock:
        """Return a lock for a single write that must not come between the writes of one turn, on any server."""
        return SessionLock(self, ref, mode, is_brief=True)

    def make_exclusive_lock(self, ref: SessionRef) -> SessionLock:
        """Return a lock for work other than turns, which never runs between two writes of a turn in this process."""
        return SessionLock(self, ref, "queue", is_turn=False)

    def make_holder(self) -> str:
        """Return a unique name for a new claim: the name of the process, `-`, and a number."""
        return f"{self._process}-{next(self._numbers)}"

    def is_busy(self, ref: SessionRef) -> bool:
        """Return True if a turn of the session is running or waiting in this process."""
        line = self._lines.get(ref)
        return line is not None and bool(line.list_turns())

    @property
    def is_empty(self) -> bool:
        """True if no lock is held or waits, and no write is in progress."""
        return not self._lines and not self._settling

    async def enter(self, lock: SessionLock) -> None:
        """Add a lock to the queue of its session, and wait until it is first and the writes of the previous turn are done.

        See `SessionLock.__aenter__`.
        """
        line, caller = self._lines.get(lock.ref), identify_caller()
        if line is None:
            self._lines[lock.ref] = _Line(lock)
        elif (own := find_self_wait(line.holder.owner, caller)) is not None:
            raise InvalidRequest(describe_self_wait(own, f"a turn of session {lock.ref.id!r}"))
        else:
            await self._wait_in(line, lock)
        if lock.ref in self._settling:
            try:
                await self._wait_for_writes(lock)
            except BaseException:
                self.leave(lock)
                raise
        lock.owner = caller

    async def _wait_in(self, line: _Line, lock: SessionLock) -> None:
        turns = line.list_turns() if lock.is_turn else []
        if turns and (lock.mode == "reject" or len(turns) > TURNS_WAITING):
            raise SessionBusy(lock.ref.id, until=self.clock() + LEASE)
        lock.given = asyncio.get_running_loop().create_future()
        line.join(lock)
        came = False
        try:
            await asyncio.wait((lock.given,), timeout=lock.get_seconds_left())
            came = lock.given.done()
        finally:
            if not came and lock.given.done():  # cancelled at the moment when it became first
                self.leave(lock)
            elif not came:
                line.waiting.remove(lock)
        if not came:
            raise self._make_timeout(lock)

    async def _wait_for_writes(self, lock: SessionLock) -> None:
        """Wait for writes of earlier turns whose callers were cancelled. Raises `SessionBusy` after waiting too long."""
        while left_over := self._settling.get(lock.ref):
            if not (left := lock.get_seconds_left()):
                raise self._make_timeout(lock)
            await asyncio.wait(tuple(left_over), timeout=left)

    def _make_timeout(self, lock: SessionLock) -> SessionBusy:
        return SessionBusy(lock.ref.id, until=self.clock() + LEASE, waited=self.settings.timeout)

    def leave(self, lock: SessionLock) -> None:
        """Remove a lock that is first in its queue, and give the session to the next lock."""
        lock.owner = None
        line = self._lines[lock.ref]
        if not line.waiting:
            del self._lines[lock.ref]
            return
        line.holder = line.waiting.pop(0)
        assert line.holder.given is not None, "a waiting lock has a future"
        line.holder.given.set_result(None)

    @property
    def check_interval_ms(self) -> int:
        """Milliseconds between two checks of a claim; in mode `interrupt` fewer than usual, so that turns on other servers wait less."""
        return AGAIN if self.settings.mode == "interrupt" else RENEWAL_MS

    # -- writes that outlive their callers -------------------------------------

    def begin(self, ref: SessionRef, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` and return its task without waiting. The session's next turn waits for `work`."""
        task = asyncio.ensure_future(work)
        self._settling.setdefault(ref, set()).add(task)
        task.add_done_callback(lambda done: self._forget_settled(ref, done))
        return task

    async def wait_for_others(self, ref: SessionRef) -> None:
        """Wait until all tasks of a session that `begin` started have ended, except the current task."""
        while others := self._settling.get(ref, set()) - {asyncio.current_task()}:
            await asyncio.wait(others)

    def _forget_settled(self, ref: SessionRef, task: asyncio.Task[Any]) -> None:
        tasks = self._settling[ref]
        tasks.discard(task)
        if not tasks:
            del self._settling[ref]
        if not task.cancelled() and task.exception() is not None:
            _log.error("a turn of session %r could not be written", ref.id, exc_info=task.exception())

    async def close(self) -> None:
        """Wait for every write, and stop renewing claims."""
        while self._settling:
            await asyncio.wait([task for tasks in self._settling.values() for task in tasks])
        self.renewals.close()
