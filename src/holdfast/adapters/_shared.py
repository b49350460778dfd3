"""Functions that several adapters use. This module imports no framework."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import holdfast

__all__ = ["find_runner", "finish_write", "read_entries", "to_chat"]

T = TypeVar("T")
GAP: Final = 16
"""Maximum number of log entries between two wanted ones for which one query reads both."""


async def _run_here(function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    return await function(*args, **kwargs)


def find_runner(hf: Any) -> tuple[Callable[..., Awaitable[Any]], Any]:
    """Return a function that runs functions in the event loop of a `Holdfast`, and the open `Holdfast`.

    Args:
        hf: an open `Holdfast`, or a portal.
    """
    return (hf.run, hf.hf) if isinstance(hf, holdfast.Portal) else (_run_here, hf)


async def finish_write(write: Awaitable[T]) -> T:
    """Await a write. If the caller is cancelled, wait until the write has ended, then raise the cancellation.

    So nothing changes in the session after the cancelled call, and the next call sees what was written.
    """
    task = asyncio.ensure_future(write)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        task.exception()  # the caller gets the cancellation in its place
        raise cancelled
    return task.result()


async def read_entries(
    run: Callable[..., Awaitable[Any]], session: holdfast.SessionHandle, seqs: Iterable[int]
) -> list[Any]:
    """Read entries of the log with few queries, in order. Entries in small gaps, and those after the last one, are read too.

    Args:
        run: the function that `find_runner` returned.
        session: the session.
        seqs: positions of the wanted entries in the log.
    """
    wanted = sorted(set(seqs))
    read: list[Any] = []
    while wanted:
        end = next((at for at in range(1, len(wanted)) if wanted[at] - wanted[at - 1] > GAP), len(wanted))
        stop = wanted[end - 1] + 1 if end < len(wanted) else None
        read += await run(session.entries, start=wanted[0], stop=stop)
        wanted = wanted[end:]
    return read


def to_chat(message: holdfast.Message) -> dict[str, Any]:
    """Convert a stored message to Chat Completions format, with the fields that every adapter needs."""
    content: Any = message.content
    if isinstance(content, tuple):
        content = [
            {"type": part.type, **({} if part.text is None else {"text": part.text}), **part.extra} for part in content
        ]
    made: dict[str, Any] = {"role": message.role, "content": content if isinstance(content, str | list) else ""}
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return made
