"""One turn of a session at a time: in this process by a queue, over several servers by the turn's claim (`claiming`).

A turn that comes while another one runs waits for it, is refused, or interrupts it, as its mode says. An interrupted turn is
cut where it waits for a model or a tool, never in a write: what has arrived of its reply is stored, as if whoever asked had
gone. What came with it is in the log in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from itertools import count
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, get_args

import msgspec

from holdfast.domain.session import SessionRef
from holdfast.engine.claiming import AGAIN, LEASE, RENEWED, Claiming, Pause
from holdfast.errors import InvalidRequest, SessionBusy, TurnInterrupted, TurnLost
from holdfast.limits import TURNS_WAITING
from holdfast.numbers import is_number
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended

T = TypeVar("T")
QueueMode = Literal["queue", "reject", "interrupt"]
MODES: Final[tuple[str, ...]] = get_args(QueueMode)
_LONGEST: Final = 86_400.0
_END: Final = object()
_log = logging.getLogger("holdfast.turn")


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a turn while another one of its session runs. Raises `InvalidRequest` for what cannot be."""

    mode: QueueMode = "queue"
    """It waits (`queue`), is refused (`reject`), or ends the one that runs (`interrupt`), unless a request says otherwise."""
    timeout: float = 300.0
    """Seconds that it waits."""

    def __post_init__(self) -> None:
        checked_mode(self.mode)
        if not is_number(self.timeout) or not 0 < self.timeout <= _LONGEST:
            raise InvalidRequest(
                f"queue_timeout must be more than 0 and at most {_LONGEST:.0f} seconds", param="queue_timeout"
            )


def checked_mode(mode: Any) -> QueueMode | None:
    """`mode`, which may be None. Raises `InvalidRequest` for one that there is not."""
    if mode is not None and mode not in MODES:
        raise InvalidRequest(f"session_queue must be one of {', '.join(MODES)}", param="session_queue")
    known: QueueMode | None = mode
    return known


class Hold:
    """A place in a session's queue, and what is held when it comes up: `async with queues.turn(ref) as hold`.

    Attributes:
        ref: whose queue.
        mode: what it does while a turn runs.
        turn: whether it is a turn; else it only waits, for as long as it takes, and is neither counted nor interrupted.
        steady: whether nobody ends it: it is a turn to the others, and takes no longer than a write.
        interrupted: whether another turn asked for its place.
        stopped: whether it asked another turn for its place.
    """

    def __init__(
        self, queues: Queues, ref: SessionRef, mode: QueueMode, *, turn: bool = True, steady: bool = False
    ) -> None:
        self.ref = ref
        self.mode = mode
        self.turn = turn
        self.steady = steady
        self.interrupted = False
        self.stopped = False
        self.task: asyncio.Task[Any] | None = None
        self.given: asyncio.Future[None] | None = None
        self._queues = queues
        self._claiming: Claiming | None = None
        self._deadline = 0.0
        self._cuttable: asyncio.Task[Any] | None = None
        self._cut = False

    async def __aenter__(self) -> Self:
        """Wait for it.

        Raises:
            SessionBusy: it is refused, or has waited for too long.
            InvalidRequest: this task has a turn of the session open, and would wait for itself.
        """
        self._deadline = asyncio.get_running_loop().time() + self._queues.settings.timeout
        await self._queues.enter(self)
        if self.turn:
            self._claiming = self._queues.claiming(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        claiming, self._claiming = self._claiming, None
        try:
            if claiming is not None and claiming.left:
                task = self._queues.begin(self.ref, claiming.release())
                if kind is not asyncio.CancelledError:  # whoever is given up does not wait for its writes
                    await asyncio.shield(task)
        finally:
            self._queues.leave(self)

    def left(self) -> float:
        """Seconds that it may still wait."""
        return self._deadline - asyncio.get_running_loop().time()

    # -- being interrupted -------------------------------------------------

    def interrupt(self) -> None:
        """Cut the turn: now where it waits for a model or a tool, else when it would begin to. A second time changes nothing."""
        if self.steady:
            return
        self.interrupted = True
        self._give_up()

    def _give_up(self) -> None:
        task, self._cuttable = self._cuttable, None
        if task is not None and task is not asyncio.current_task():
            self._cut = True
            task.cancel()

    def check(self) -> None:
        """Raises `TurnInterrupted`, or `TurnLost`, where it should not go on."""
        if self._claiming is not None and self._claiming.taken:
            raise TurnLost(self.ref.id)
        if self.interrupted:
            raise TurnInterrupted(self.ref.id)

    async def interruptible(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives, which is given up when the turn is interrupted. Writes should not be among it.

        Raises:
            TurnInterrupted: it was.
            TurnLost: another server took the session over.
        """
        self.check()
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        cancelled = task.cancelling()
        self._cuttable, self._cut = task, False
        try:
            return await work()
        except asyncio.CancelledError:
            if self._cut and task.cancelling() <= cancelled + 1:
                self.check()
            raise
        finally:
            self._cuttable = None
            if self._cut:
                task.uncancel()

    async def passed(self, chunks: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """`chunks` until the turn is interrupted; whoever gives them closes them. Raises as `interruptible` does."""
        while True:
            chunk: Any = await self.interruptible(lambda: anext(chunks, _END))
            if chunk is _END:
                return
            yield chunk

    def writes(self, task: asyncio.Task[Any]) -> None:
        """A write of the turn was begun, which may outlive whoever asked for it."""

    # -- over several servers ----------------------------------------------

    async def written(self, store: Store, write: Append, *, last: bool = False) -> Appended:
        """Do a write of the turn, which claims its session; see `Claiming.written`."""
        if self._claiming is None:
            return await store.append(self.ref, write)
        return await self._claiming.written(store, write, last=last)

    async def opened(self, opening: Callable[[], Awaitable[Any]]) -> None:
        """Do what opens the turn, again if need be, until its session is claimed.

        Args:
            opening: relates what came to the log and writes it, `written`; gives the session as it found it, where it has to
                be claimed yet, or None where there is nothing to claim it for.

        Raises:
            SessionBusy: a turn of another server has the session; it is refused, or has waited for too long.
            TurnInterrupted: another turn asked for its place meanwhile; what came is in the log.
        """
        claiming = self._claiming
        assert claiming is not None, "a turn opens behind those before it"
        while True:
            try:
                session = await opening()
                if session is None:
                    return
                if await claiming.hold(session):
                    break
            except SessionBusy as busy:
                if await claiming.free():
                    continue
                if self.mode == "reject":
                    raise
                self.stopped = self.stopped or self.mode == "interrupt"
                await claiming.wait(busy, self._queues.pause, self.left, interrupt=self.mode == "interrupt")
        self.check()

    def told(self) -> None:
        """Another server wants the session, or has taken it over."""
        claiming = self._claiming
        if claiming is not None and claiming.taken:
            self._give_up()
        else:
            self.interrupt()


class Reservation:
    """A session that a request was given, until its turn has opened: no other request is given it meanwhile."""

    def __init__(self, reserved: Counter[SessionRef], ref: SessionRef) -> None:
        self._reserved = reserved
        self._ref: SessionRef | None = ref
        reserved[ref] += 1

    def release(self) -> None:
        """Let others have the session. Twice is fine."""
        ref, self._ref = self._ref, None
        if ref is None:
            return
        self._reserved[ref] -= 1
        if not self._reserved[ref]:
            del self._reserved[ref]


class _Line:
    """Those of one session, in the order in which their turn comes: the one that has it, and those that wait."""

    def __init__(self, holder: Hold) -> None:
        self.holder = holder
        self.waiting: list[Hold] = []

    def turns(self) -> list[Hold]:
        """Those of them that are turns."""
        return [hold for hold in (self.holder, *self.waiting) if hold.turn]

    def join(self, hold: Hold) -> None:
        """Take one in: at the end, or, if it interrupts, before those turns at the end that only wait."""
        at = len(self.waiting)
        if hold.mode == "interrupt":
            while at and self.waiting[at - 1].turn and self.waiting[at - 1].mode != "interrupt":
                at -= 1
            for earlier in (self.holder, *self.waiting[:at]):
                if earlier.turn:
                    earlier.interrupt()
                    hold.stopped = hold.stopped or not earlier.steady
        self.waiting.insert(at, hold)


class Queues:
    """The queues of one store handle's sessions in this process, and what their turns write to its end.

    Attributes:
        settings: what holds where a request says nothing else.
        pause: waits for so many seconds; tests have it wait for something else.

    Args:
        store: the tenant's, as it is.
        clock: milliseconds since the epoch.
        settings: see above.
        process: names this process to the others on the database.
    """

    def __init__(self, store: Store, clock: Callable[[], int], settings: QueueSettings, process: str) -> None:
        self.settings = settings
        self.pause: Pause = asyncio.sleep
        self._store = store
        self._clock = clock
        self._process = process
        self._numbers = count()
        self._lines: dict[SessionRef, _Line] = {}
        self._settling: dict[SessionRef, set[asyncio.Task[Any]]] = {}
        self._reserved: Counter[SessionRef] = Counter()

    def reserve(self, ref: SessionRef) -> Reservation:
        """Keep a session for a request that was given it, until its turn opens."""
        return Reservation(self._reserved, ref)

    def is_reserved(self, ref: SessionRef) -> bool:
        """Return True if a request was given the session, and its turn has not opened yet."""
        return ref in self._reserved

    @property
    def empty(self) -> bool:
        """Whether nothing runs, waits or is being written."""
        return not self._lines and not self._settling

    def busy(self, ref: SessionRef) -> bool:
        """Whether a turn of the session runs or waits in this process."""
        line = self._lines.get(ref)
        return line is not None and bool(line.turns())

    def turn(self, ref: SessionRef, mode: QueueMode | None = None) -> Hold:
        """A place for a turn; None: the `settings`' mode."""
        return Hold(self, ref, mode or self.settings.mode)

    def steady(self, ref: SessionRef, mode: QueueMode) -> Hold:
        """A place for a write that may come between the turns of a session on any server, and not between the writes of one."""
        return Hold(self, ref, mode, steady=True)

    def alone(self, ref: SessionRef) -> Hold:
        """A place for something that is no turn, and may not come between the writes of one in this process."""
        return Hold(self, ref, "queue", turn=False)

    def claiming(self, hold: Hold) -> Claiming:
        """What claims the session of a turn that has come up."""
        # Whoever interrupts as a rule should not have to wait until the next renewal to be heard.
        every = AGAIN if self.settings.mode == "interrupt" else RENEWED
        holder = f"{self._process}-{next(self._numbers)}"
        return Claiming(self._store, hold.ref, holder, self._clock, hold.told, every=every)

    # -- waiting -----------------------------------------------------------

    async def enter(self, hold: Hold) -> None:
        """Wait until it has come up, and what a turn before it left to be written is; see `Hold.__aenter__`."""
        line = self._lines.get(hold.ref)
        if line is None:
            self._lines[hold.ref] = _Line(hold)
        elif line.holder.task is asyncio.current_task():
            raise InvalidRequest(f"a turn of session {hold.ref.id!r} is open in this task already: end it first")
        else:
            await self._waited(line, hold)
        try:
            while left_over := self._settling.get(hold.ref):
                await asyncio.wait(tuple(left_over))
        except BaseException:
            self.leave(hold)
            raise
        hold.task = asyncio.current_task()

    async def _waited(self, line: _Line, hold: Hold) -> None:
        busy = SessionBusy(hold.ref.id, until=self._clock() + LEASE)
        turns = line.turns() if hold.turn else []
        if turns and (hold.mode == "reject" or len(turns) > TURNS_WAITING):
            raise busy
        hold.given = asyncio.get_running_loop().create_future()
        line.join(hold)
        came = False
        try:
            await asyncio.wait((hold.given,), timeout=max(0.0, hold.left()) if hold.turn else None)
            came = hold.given.done()
        finally:
            if not came and hold.given.done():  # cancelled in the moment in which it came up
                self.leave(hold)
            elif not came:
                line.waiting.remove(hold)
        if not came:
            raise busy

    def leave(self, hold: Hold) -> None:
        """Whoever comes next has it."""
        hold.task = None
        line = self._lines[hold.ref]
        if not line.waiting:
            del self._lines[hold.ref]
            return
        line.holder = line.waiting.pop(0)
        assert line.holder.given is not None, "who waits waits for something"
        line.holder.given.set_result(None)

    # -- writes that outlive whoever asked for them --------------------------

    async def settle(self, ref: SessionRef, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` to its end, whatever happens to the caller; the session's next turn waits for it."""
        return await asyncio.shield(self.begin(ref, work))

    def begin(self, ref: SessionRef, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The same, not waited for here."""
        task = asyncio.ensure_future(work)
        self._settling.setdefault(ref, set()).add(task)
        task.add_done_callback(lambda done: self._settled(ref, done))
        return task

    def _settled(self, ref: SessionRef, task: asyncio.Task[Any]) -> None:
        tasks = self._settling[ref]
        tasks.discard(task)
        if not tasks:
            del self._settling[ref]
        if not task.cancelled() and task.exception() is not None:
            _log.error("a turn of session %r could not be written", ref.id, exc_info=task.exception())

    async def close(self) -> None:
        """Wait for every write."""
        while self._settling:
            await asyncio.wait([task for tasks in self._settling.values() for task in tasks])
