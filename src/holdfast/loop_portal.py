"""Use a `Holdfast` from synchronous code, from threads, and from other event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from holdfast.errors import InvalidRequest, StoreClosed
from holdfast.holdfast import Holdfast

_NOT_OPEN: Final = "this portal is not open: use it as `with holdfast.portal(…) as portal`"
P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """An open `Holdfast` with an event loop and a daemon thread of its own, used as `with holdfast.portal(url) as portal`.

    `call`, `run` and `enter` run everything in that loop, so any number of threads and event loops can share the portal.
    Each call costs two switches between threads, about 0.1 ms.

    Args:
        arguments: positional arguments of `holdfast.open`.
        settings: keyword arguments of `holdfast.open`.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._make = partial(Holdfast, *arguments, **settings)
        self._stack = ExitStack()
        self._blocking: BlockingPortal | None = None
        self._hf: Holdfast | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start the thread, and open the `Holdfast` there. Raises the errors of `holdfast.open`."""
        if self._blocking is not None:
            raise InvalidRequest("this portal is open already")
        with ExitStack() as stack:
            blocking = stack.enter_context(start_blocking_portal(name="holdfast portal"))
            self._hf = stack.enter_context(blocking.wrap_async_context_manager(blocking.call(self._make)))
            self._blocking, self._loop = blocking, blocking.call(_get_loop)
            self._stack = stack.pop_all()
        return self

    def close(self) -> None:
        """Close the `Holdfast`, and end the thread. Calls that still run in other threads fail. Closing twice is allowed."""
        self._blocking = self._hf = self._loop = None
        self._stack.close()

    @property
    def hf(self) -> Holdfast:
        """The open `Holdfast`. Pass its methods, and those of what it returns, to `call`, `run` and `enter`.

        In another event loop, its parts cannot be read directly: pass a function, as in
        `await portal.run(lambda: portal.hf.memories.recall("seats", owners))`.

        Raises:
            StoreClosed: the portal is not open.
        """
        if self._hf is None:
            raise StoreClosed(_NOT_OPEN)
        return self._hf

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function in the portal's loop, and wait for its result. For synchronous code.

            session = portal.call(portal.hf.session, "support-42", user_id="ada")

        Args:
            function: an async function, for example a method of a session.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Raises:
            StoreClosed: the portal is not open.
            RuntimeError: the caller runs in the portal's own loop, which would wait for itself.
        """
        return self._get_blocking().call(partial(function, *args, **kwargs))

    async def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function in the portal's loop, and await its result. For code in any event loop.

        If the caller is cancelled, so is the function. The arguments and errors are those of `call`.
        """
        if asyncio.get_running_loop() is self._loop:
            return await function(*args, **kwargs)
        return await asyncio.wrap_future(self._get_blocking().start_task_soon(partial(function, *args, **kwargs)))

    def enter(self, manager: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        """Return a context manager for synchronous code that enters an async one in the portal's loop.

        with portal.enter(session.turn("Where is my order?")) as turn:
            turn.add(ask_model(turn.messages))
        """
        return self._get_blocking().wrap_async_context_manager(manager)

    def _get_blocking(self) -> BlockingPortal:
        if self._blocking is None:
            raise StoreClosed(_NOT_OPEN)
        return self._blocking


async def _get_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
