"""Identify the code that waits for a function: a task, or synchronous code that calls the function from another thread.

A lock remembers the caller that holds it. If the same caller asks for the lock again, it would wait for itself.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, Final, TypeVar

T = TypeVar("T")


class ThreadCaller:
    """Synchronous code in one thread: it cannot go on before its call returns.

    Attributes:
        name: name of the thread.
        thread: the thread's `threading.get_ident()`.
    """

    def __init__(self) -> None:
        self.name = threading.current_thread().name
        self.thread = threading.get_ident()


Caller = asyncio.Task[Any] | ThreadCaller
"""Code that waits for the result of a call before it goes on."""


class Deputy:
    """A task that works for a caller in another thread or event loop.

    Attributes:
        caller: the caller.
        is_released: True if the task ends without its caller: the caller has left its block, or does not wait any more.
    """

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.is_released = False


_of_thread: Final[ContextVar[ThreadCaller | None]] = ContextVar("holdfast_thread", default=None)
_deputy: Final[ContextVar[tuple[weakref.ref[asyncio.Task[Any]], Deputy] | None]] = ContextVar(
    "holdfast_deputy", default=None
)
"""The task that is a deputy. Other tasks that it starts inherit the value, but are callers of their own."""


def identify_thread() -> ThreadCaller:
    """Return the caller that represents the synchronous code which calls this function.

    A thread of a pool serves several requests, and one of them may go on in another thread. So a thread is the same caller only
    as long as it keeps its context variables: servers start each request with a copy of their own.
    """
    caller = _of_thread.get()
    if caller is None or caller.thread != threading.get_ident():
        caller = ThreadCaller()
        _of_thread.set(caller)
    return caller


def act_for(deputy: Deputy) -> None:
    """Declare that the current task is this deputy."""
    task = asyncio.current_task()
    assert task is not None, "coroutines run in tasks"
    _deputy.set((weakref.ref(task), deputy))


def start_deputy(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task that works for the current caller, which waits for it."""
    caller = identify_caller()
    context = copy_context()
    task = asyncio.get_running_loop().create_task(work, context=context)
    if caller is not None:
        deputy = caller if isinstance(caller, Deputy) else Deputy(caller)
        context.run(_deputy.set, (weakref.ref(task), deputy))
    return task


def identify_caller() -> asyncio.Task[Any] | Deputy | None:
    """Return the current task, or the deputy that it is; None outside of tasks."""
    task, found = asyncio.current_task(), _deputy.get()
    return found[1] if found is not None and found[0]() is task else task


def find_self_wait(
    holder: asyncio.Task[Any] | Deputy | None, waiting: asyncio.Task[Any] | Deputy | None
) -> Caller | None:
    """Return the caller that would wait for itself if `waiting` waited for what `holder` has; None if it would not."""
    if isinstance(holder, Deputy) and holder.is_released:
        return None
    held_by = holder.caller if isinstance(holder, Deputy) else holder
    caller = waiting.caller if isinstance(waiting, Deputy) else waiting
    return held_by if held_by is caller else None


def describe_caller(caller: Caller) -> str:
    """Return the caller's kind and name, for example `task 'Task-3'`."""
    if isinstance(caller, ThreadCaller):
        return f"thread {caller.name!r}"
    return f"task {caller.get_name()!r}"


def describe_self_wait(caller: Caller, what: str) -> str:
    """Return the message of the error for a caller that would wait for itself.

    Args:
        caller: the caller.
        what: what it has open, such as `a turn of session 's'`.
    """
    kind, _, name = describe_caller(caller).partition(" ")
    return (
        f"{what} is open in this {kind} already ({name}), so this call would wait for itself:"
        " end the turn first, or write with turn.add()"
    )
