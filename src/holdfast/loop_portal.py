"""Use a `Holdfast` from synchronous code, from threads, and from other event loops."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from inspect import isawaitable, iscoroutine
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from holdfast.callers import identify_thread
from holdfast.errors import InvalidRequest, StoreClosed
from holdfast.holdfast import Holdfast
from holdfast.loop_thread import Block, Call, LoopThread

CLOSE_SECONDS: Final = 10.0
"""Longest time that `Portal.close` waits for running calls by default, in seconds."""
P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """An open `Holdfast` with an event loop and a daemon thread of its own, used as `with holdfast.Portal(url) as portal`.

    `call`, `run`, `enter` and `iterate` run everything in that loop, with the caller's context variables, so any number of threads
    and event loops can share the portal. Each call costs two switches between threads, about 0.1 ms.

    A portal that is not closed is closed when the interpreter exits. In a forked process it is not open.

    Args:
        arguments: positional arguments of `holdfast.open`.
        settings: keyword arguments of `holdfast.open`.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._make = partial(Holdfast, *arguments, **settings)
        self._starting = threading.Lock()
        self._thread: LoopThread[Holdfast] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start the thread, and open the `Holdfast` there. Raises the errors of `holdfast.open`."""
        if self._thread is not None and self._thread.is_inherited:
            self._starting, self._thread = (
                threading.Lock(),
                None,
            )  # another thread may have had the lock when the process was forked
        with self._starting:
            if self._thread is not None:
                raise InvalidRequest("this portal is open already")
            thread = LoopThread(self._make, "holdfast portal")
            thread.start()
            self._thread = thread
        atexit.register(self._close_at_exit)
        return self

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Take no new calls, wait for the running ones, then close the `Holdfast` and end the thread. Closing twice is allowed.

        Calls and `with` blocks that have not ended in time are cancelled. They raise `StoreClosed`, and a warning of the logger
        `holdfast.Portal` names them. `with` blocks of the calling thread are cancelled at once, because they cannot end meanwhile.

        Args:
            timeout: longest time to wait for running calls, in seconds.

        Raises:
            RuntimeError: the caller runs in the portal's own loop, which would wait for itself.
        """
        thread = self._thread
        if thread is not None and not thread.is_inherited:
            try:
                thread.close(timeout)
            finally:
                if thread.is_closed and self._thread is thread:
                    self._thread = None
                    atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self.close(0.0)  # only daemon threads still run, and they end now

    @property
    def hf(self) -> Holdfast:
        """The open `Holdfast`. Pass its methods, and those of what it returns, to `call`, `run` and `enter`.

        In another event loop, its parts cannot be read directly: pass a function, as in
        `await portal.run(lambda: portal.hf.memories.recall("seats", owners))`.

        Raises:
            StoreClosed: the portal is not open.
        """
        return self._get_thread().value

    def call(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function in the portal's loop, and wait for its result. For synchronous code.

            session = portal.call(portal.hf.session, "support-42", user_id="ada")

        If the wait is interrupted, for example by Ctrl-C, the function is cancelled.

        Args:
            function: an async function, for example a method of a session.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Raises:
            StoreClosed: the portal is not open, or was closed before the function ended.
            RuntimeError: the caller runs in the portal's own loop, which would wait for itself.
        """
        return self._get_thread().run(Call(_bind(function, *args, **kwargs), function, identify_thread()))

    async def run(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function in the portal's loop, and await its result. For code in any event loop.

        The caller's loop never waits. If the caller is cancelled, so is the function, and the caller waits until it has ended. The
        arguments and errors are those of `call`.
        """
        thread = self._get_thread()
        if asyncio.get_running_loop() is thread.loop:
            made: Any = function(*args, **kwargs)
            result: T = await made if isawaitable(made) else made
            return result
        caller = asyncio.current_task() or identify_thread()
        return await thread.run_async(Call(_bind(function, *args, **kwargs), function, caller))

    def enter(self, manager: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        """Return a context manager for synchronous code that enters an async one in the portal's loop.

        with portal.enter(session.turn("Where is my order?")) as turn:
            turn.add(ask_model(turn.messages))

        If entering is interrupted, for example by Ctrl-C, the async context manager is exited.
        """
        return Block(self._get_thread(), manager)

    def iterate(self, iterable: AsyncIterable[T]) -> Generator[T, None, None]:
        """Iterate over an async iterable in the portal's loop. For synchronous code.

        for record in portal.iterate(session.records("orders").iterate()):
            print(record.key)

        The async iterator is closed when the loop over it ends, also before its last item.
        """
        block = Block(self._get_thread(), _open_iterator(iterable))
        with block as iterator:
            while True:
                try:
                    item = block.run(partial(anext, iterator))
                except StopAsyncIteration:
                    return
                yield item

    def _get_thread(self) -> LoopThread[Holdfast]:
        if self._thread is None:
            raise StoreClosed("this portal is not open: use it as `with holdfast.Portal(…) as portal`")
        self._thread.check_open()
        return self._thread


def _bind(function: Any, /, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    if iscoroutine(function):
        function.close()
    if not callable(function):
        raise InvalidRequest(
            f"a portal needs a function and its arguments, not {type(function).__name__}:"
            " pass session.append, 'text' instead of session.append('text')"
        )
    return partial(function, *args, **kwargs)


@asynccontextmanager
async def _open_iterator(iterable: AsyncIterable[T]) -> AsyncIterator[AsyncIterator[T]]:
    iterator = aiter(iterable)
    try:
        yield iterator
    finally:
        if (close := getattr(iterator, "aclose", None)) is not None:
            await close()
