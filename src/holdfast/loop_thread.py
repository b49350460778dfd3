"""Run an event loop in a daemon thread, and run functions in it for callers in other threads and loops."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from contextvars import Context
from inspect import isawaitable
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from holdfast.callers import Caller, Deputy, act_for, describe_caller, identify_thread
from holdfast.errors import InvalidRequest, StoreClosed

T = TypeVar("T")
R = TypeVar("R")
CANCEL_SECONDS: Final = 5.0
"""Longest time that closing waits for cancelled calls to end, in seconds."""
_OWN_LOOP: Final = "this code runs in the portal's own loop and would wait for itself: await the function instead"
_log = logging.getLogger("holdfast.portal")


class Call(Generic[T]):
    """One function that runs in the loop for a caller in another thread.

    Attributes:
        name: name of the function, for messages.
        caller: the code that waits for the function.
        outcome: the function's result, or the exception that it raised.
        deputy: represents the caller in the loop.
        is_block: True if the function waits until its caller leaves a `with` block.

    Args:
        work: the function. If it returns an awaitable, this is awaited.
        of: the object that `name` describes: a function, or the context manager of a block.
        caller: the attribute `caller`.
        is_block: the attribute `is_block`.
    """

    def __init__(self, work: Callable[[], Any], of: Any, caller: Caller, *, is_block: bool = False) -> None:
        # Partial functions, and context managers that were made by a generator function, have the function as `func`.
        function = getattr(of, "func", of)
        self.name: str = getattr(function, "__qualname__", type(function).__qualname__)
        self.caller = caller
        self.outcome: Future[T] = Future()
        self.deputy = Deputy(caller)
        self.is_block = is_block
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._reason: BaseException | None = None

    def __str__(self) -> str:
        return f"{self.name} for {describe_caller(self.caller)}"

    def start(self) -> None:
        """Start the function. Runs in the loop."""
        if self.outcome.set_running_or_notify_cancel():
            self._task = asyncio.ensure_future(_perform(self._work, self.deputy, self.outcome))
            self._task.add_done_callback(self._finish)

    def cancel(self, reason: BaseException | None = None) -> None:
        """Cancel the function. Runs in the loop.

        Args:
            reason: the exception for the caller; None: `concurrent.futures.CancelledError`.
        """
        self.release()
        self._reason = self._reason or reason
        if self._task is None:
            self.refuse()
        else:
            self._task.cancel()

    def release(self) -> None:
        """Record that the function now ends without its caller, so the caller may wait for it."""
        self.deputy.is_released = True

    def refuse(self) -> None:
        """End a call whose function does not run: it has not started, or its loop has ended."""
        if self.outcome.cancel():
            self.outcome.set_running_or_notify_cancel()  # wakes callers that wait
        elif not self.outcome.done():
            self.outcome.set_exception(CancelledError())

    def _finish(self, task: asyncio.Task[T]) -> None:
        if self.outcome.done():
            return
        if task.cancelled():
            self.outcome.set_exception(self._reason or CancelledError())
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


async def _perform(work: Callable[[], Any], deputy: Deputy, outcome: Future[Any]) -> Any:
    act_for(deputy)
    try:
        made = work()
        return await made if isawaitable(made) else made
    except (KeyboardInterrupt, SystemExit) as exc:  # a task that raises these would end the loop
        outcome.set_exception(exc)


class LoopThread(Generic[T]):
    """A daemon thread with an event loop, in which an async context manager is open.

    Attributes:
        loop: the loop.
        value: the value of the context manager.

    Args:
        make: creates the context manager, in the loop.
        name: name of the thread.
    """

    loop: asyncio.AbstractEventLoop
    value: T

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]], name: str) -> None:
        self._make = make
        self._stop = asyncio.Event()
        self._opened: Future[T] = Future()
        self._closed: Future[None] = Future()
        self._gate = threading.RLock()
        self._calls: set[Call[Any]] = set()
        self._is_closing = False
        self._process = os.getpid()
        # The loop's own tasks do not see the context variables of the code that opens the portal.
        self._thread = threading.Thread(target=Context().run, args=(self._main,), name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until the context manager is open. Raises the errors of opening it.

        If the wait is interrupted, the context manager is closed as soon as it is open.
        """
        self._thread.start()
        try:
            self.value = self._opened.result()
        except BaseException:
            self._is_closing = True
            self._opened.add_done_callback(self._stop_if_open)
            raise

    def _stop_if_open(self, opened: Future[T]) -> None:
        if opened.exception() is None:
            self.post(self._stop.set)

    def _main(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException as exc:  # noqa: BLE001 - for the callers that wait
            for future in (self._opened, self._closed):
                if not future.done():
                    future.set_exception(exc)
        finally:
            with self._gate:
                self._is_closing = True
                left = list(self._calls)
            for call in left:
                call.refuse()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            async with self._make() as value:
                self._opened.set_result(value)
                await self._stop.wait()
        except Exception as exc:  # noqa: BLE001 - for the callers that wait
            (self._closed if self._opened.done() else self._opened).set_exception(exc)
        else:
            self._closed.set_result(None)

    @property
    def is_inherited(self) -> bool:
        """True in a process that was forked from the one that started the thread: the thread does not run here."""
        return os.getpid() != self._process

    @property
    def is_current(self) -> bool:
        """True for code that runs in this thread."""
        return threading.get_ident() == self._thread.ident

    @property
    def is_closed(self) -> bool:
        """True if the context manager is closed."""
        return self._closed.done()

    def check_open(self) -> None:
        """Raise `StoreClosed` if calls are not possible. Running calls may go on to call while the thread is being closed."""
        if self.is_inherited:
            raise StoreClosed(
                f"this portal was opened by process {self._process}, before a fork: open portals in the child"
                " process, or start it with the method spawn"
            )
        if sys.is_finalizing():
            raise StoreClosed("the interpreter is shutting down")
        if self._is_closing and not self.is_current:
            raise StoreClosed("this portal is closed, or is being closed and takes no new calls")

    def check_foreign(self) -> None:
        """Raise `RuntimeError` in the loop's own thread, where waiting for the loop would never end."""
        if self.is_current:
            raise RuntimeError(_OWN_LOOP)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Run `callback` in the loop, without waiting. Does nothing if the loop has ended."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args)

    def submit(self, call: Call[Any]) -> None:
        """Start a call in the loop, with the caller's context variables, without waiting.

        Raises:
            StoreClosed: calls are not possible.
        """
        try:
            self.check_open()  # before the lock, which another thread may have had when this process was forked
            with self._gate:
                self.check_open()
                self._calls.add(call)
                call.outcome.add_done_callback(lambda _: self._calls.discard(call))
                self.loop.call_soon_threadsafe(call.start)
        except StoreClosed:
            call.refuse()
            raise
        except BaseException:  # an interruption: it is not known if the call has started
            self.post(call.cancel)
            raise

    def run(self, call: Call[R]) -> R:
        """Start a call, and block the caller's thread until it has ended. If the wait is interrupted, the call is cancelled."""
        self.check_foreign()
        try:
            self.submit(call)
            return call.outcome.result()
        except BaseException:
            if not call.outcome.done():
                self.post(call.cancel)
                wait((call.outcome,))
            raise
        finally:
            del call  # the traceback of the call's error refers to this frame

    async def run_async(self, call: Call[R]) -> R:
        """Start a call, and await its result in the caller's own loop.

        If the caller is cancelled, so is the call. The caller then waits until the call has ended.
        """
        self.submit(call)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: Future[R]) -> None:
            with suppress(RuntimeError):  # the caller's loop is closed
                loop.call_soon_threadsafe(ended.set)

        call.outcome.add_done_callback(wake)
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self.post(call.cancel)
            await ended.wait()
            error = call.outcome.exception()
            if error is not None and not isinstance(error, CancelledError):
                raise error from None
            raise
        try:
            return call.outcome.result()
        except CancelledError as exc:
            raise asyncio.CancelledError from exc
        finally:
            del call

    def close(self, timeout: float) -> None:
        """Take no new calls, wait for the running ones, cancel those that remain, close the context manager, and end the thread.

        Blocks of the caller itself cannot end while it waits here, so they are cancelled at once. Raises the errors of closing the
        context manager.

        Args:
            timeout: longest time to wait for running calls, in seconds.
        """
        self.check_foreign()
        with self._gate:
            is_first, self._is_closing = not self._is_closing, True
            running, caller = list(self._calls), identify_thread()
        if is_first:
            own = [call for call in running if call.is_block and call.caller is caller]
            try:
                wait([call.outcome for call in running if call not in own], timeout)
            finally:  # also if the wait is interrupted
                self._cancel([call for call in running if not call.outcome.done()], timeout)
                self.post(self._stop.set)
        self._closed.result()
        self._thread.join(CANCEL_SECONDS)

    def _cancel(self, calls: list[Call[Any]], timeout: float) -> None:
        if not calls:
            return
        names = ", ".join(map(str, calls))
        _log.warning("a portal was closed, with at most %g seconds for running calls; cancelled: %s", timeout, names)
        for call in calls:
            self.post(call.cancel, StoreClosed(f"the portal was closed while this call was running: cancelled {call}"))
        if running := wait([call.outcome for call in calls], CANCEL_SECONDS).not_done:
            names = ", ".join(str(call) for call in calls if call.outcome in running)
            _log.error("calls through a closed portal were cancelled, but do not end: %s", names)


class Block(AbstractContextManager[T]):
    """A `with` block of synchronous code around an async context manager. One task of the loop enters and exits the manager.

    Args:
        thread: the thread of the loop.
        manager: the async context manager.
    """

    def __init__(self, thread: LoopThread[Any], manager: AbstractAsyncContextManager[T]) -> None:
        self._thread = thread
        self._manager = manager
        self._entered: Future[T] = Future()
        self._jobs: asyncio.Queue[Callable[[], Awaitable[None]] | None] = asyncio.Queue()
        self._error: BaseException | None = None
        self._call: Call[bool | None] = Call(self._hold, manager, identify_thread(), is_block=True)
        self._is_used = self._is_left = self._is_busy = False

    def __enter__(self) -> T:
        self._thread.check_foreign()
        if self._is_used:
            raise InvalidRequest("this block was entered before: call portal.enter again")
        self._is_used, call = True, self._call
        call.caller = call.deputy.caller = identify_thread()
        call.outcome.add_done_callback(self._fail_entering)
        try:
            self._thread.submit(call)
            return self._entered.result()
        except BaseException as exc:
            if not call.outcome.done():
                self._thread.post(self._give_up, exc)
                wait((call.outcome,))
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._thread.is_inherited or sys.is_finalizing():
            return None  # the loop does not run here, or not any more
        self._thread.post(self._leave, error)
        if self._thread.is_current:  # the garbage collector closes a generator that has this block
            return None
        return self._call.outcome.result()

    def run(self, function: Callable[[], Awaitable[R]]) -> R:
        """Run a function in the task that has entered the manager, and block the caller's thread until the function has ended."""
        self._thread.check_foreign()
        self._thread.check_open()
        outcome: Future[R] = Future()

        async def perform() -> None:
            try:
                outcome.set_result(await function())
            except Exception as exc:  # noqa: BLE001 - for the caller
                outcome.set_exception(exc)

        self._thread.post(self._jobs.put_nowait, perform)
        ends: list[Future[Any]] = [outcome, self._call.outcome]
        wait(ends, return_when=FIRST_COMPLETED)
        if not outcome.done():
            self._call.outcome.result()  # the error with which the block was cancelled
            raise StoreClosed("the block has ended")
        return outcome.result()

    async def _hold(self) -> bool | None:
        self._entered.set_result(await self._manager.__aenter__())
        cancelled: asyncio.CancelledError | None = None
        try:
            while (job := await self._jobs.get()) is not None and not self._is_left:
                self._is_busy = True
                await job()
                self._is_busy = False
        except asyncio.CancelledError as exc:
            if not self._is_left:  # the portal is being closed
                cancelled = exc
        error = cancelled or self._error
        if error is None:
            return await self._manager.__aexit__(None, None, None)
        is_handled = await self._manager.__aexit__(type(error), error, error.__traceback__)
        if cancelled is not None:
            raise cancelled
        return is_handled

    def _fail_entering(self, outcome: Future[bool | None]) -> None:
        if not self._entered.done():
            self._entered.set_exception(CancelledError() if outcome.cancelled() else outcome.exception())

    def _leave(self, error: BaseException | None) -> None:
        self._is_left, self._error = True, error
        self._call.release()
        self._jobs.put_nowait(None)
        if self._is_busy:  # the caller does not wait for the function any more
            self._call.cancel()

    def _give_up(self, error: BaseException) -> None:
        """Exit the manager, and do not wait until it is entered."""
        self._leave(error)
        if not self._entered.done():
            self._call.cancel()
