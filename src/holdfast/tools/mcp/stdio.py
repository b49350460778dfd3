"""A server that is a program: started in a process group of its own, spoken to line by line, and ended with all that it started.

The SDK has such a transport, too. That one takes lines without an end, in time that grows with their square, and leaves children
alive whose parent ended by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import Process

from holdfast.limits import MCP_MESSAGE_BYTES
from holdfast.tools.mcp.settings import McpSettings

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

_log = logging.getLogger("holdfast.mcp")
_GRACE: Final = 2.0
"""Seconds that a program has to end by itself when its input ends, and again when it is told to."""
_DEAD: Final = 20.0
"""Seconds for one that was killed to be seen dead: on a machine with much to do that takes a while."""
_POLL: Final = 0.01
_GONE: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)
"""What a pipe raises whose other end, or whose own, is closed."""


@asynccontextmanager
async def over_stdio(settings: McpSettings, errors: Any) -> AsyncGenerator[Any, None]:
    """Start the program; its messages, and where to send others, as transports of the SDK have them.

    Args:
        settings: of the server: it has a command.
        errors: what it has as its standard error.

    Raises:
        OSError: it cannot be started.
        ValueError: its command or its environment cannot be one.
    """
    from mcp.client.stdio import get_default_environment

    process = await anyio.open_process(
        [settings.command or "", *settings.args],
        env=get_default_environment() | dict(settings.env),
        cwd=settings.cwd,
        stderr=errors,
        start_new_session=True,
    )
    try:
        into, read = anyio.create_memory_object_stream[Any](0)
        write, out = anyio.create_memory_object_stream[Any](0)
        async with read, write, anyio.create_task_group() as tasks:
            tasks.start_soon(_listen, process, into, settings.name)
            tasks.start_soon(_say, process, out, into)
            try:
                yield read, write
            finally:
                tasks.cancel_scope.cancel()
    finally:
        await _end_surely(process)


async def _listen(process: Process, into: MemoryObjectSendStream[Any], name: str) -> None:
    """Hand on what it says, until it ends, or says too much at once."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    assert process.stdout is not None, "it was started with pipes"
    lines, told = _Lines(), False
    async with into:
        with suppress(*_GONE):
            async for chunk in process.stdout:
                for line in lines.add(chunk):
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        if line.strip() and not told:
                            told = True
                            _log.warning("an MCP server says what is no message", extra={"fields": {"server": name}})
                        continue
                    await into.send(SessionMessage(message))
                if lines.too_long:
                    fields = {"server": name, "most": MCP_MESSAGE_BYTES}
                    _log.warning("an MCP server's message is too large: it is let go of", extra={"fields": fields})
                    return


async def _say(process: Process, out: MemoryObjectReceiveStream[Any], into: MemoryObjectSendStream[Any]) -> None:
    """Send it what it is to be told; where it does not listen any more, the connection is over."""
    assert process.stdin is not None, "it was started with pipes"
    async with out:
        try:
            async for one in out:
                line = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(line.encode() + b"\n")
        except _GONE:
            await into.aclose()


class _Lines:
    """Lines out of chunks, each put together once."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def too_long(self) -> bool:
        """Whether the line that has begun is longer than a message may be."""
        return len(self._rest) > MCP_MESSAGE_BYTES

    def add(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that end in `chunk`."""
        first, *others = chunk.split(b"\n")
        self._rest += first
        for next_line in others:
            yield bytes(self._rest)
            self._rest = bytearray(next_line)


async def _end_surely(process: Process) -> None:
    """End it, also where who waits for that is cancelled meanwhile: anyio's shields do not hold off asyncio's own cancelling."""
    ending = asyncio.create_task(_end(process))
    with anyio.CancelScope(shield=True):
        try:
            await asyncio.shield(ending)
        finally:
            await asyncio.wait([ending])


async def _end(process: Process) -> None:
    """End its input, then tell it to end; what is left of it then, and of what it started, is killed."""
    assert process.stdin is not None, "it was started with pipes"
    assert process.stdout is not None, "it was started with pipes"
    try:
        with suppress(*_GONE):
            await process.stdin.aclose()
        if not await _ended(process):
            _signal(process, signal.SIGTERM)
            await _ended(process)
    finally:
        _signal(process, signal.SIGKILL)
    await _ended(process, _DEAD)
    with anyio.move_on_after(_GRACE), suppress(*_GONE):  # unread, a pipe stays open
        while True:
            await process.stdout.receive()


async def _ended(process: Process, seconds: float = _GRACE) -> bool:
    """Whether it ends in time. `Process.wait` would wait for its children as well, where they have its pipes."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110  # nothing tells the end of a process but its `wait`
            await anyio.sleep(_POLL)
    return process.returncode is not None


def _signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to it and to what it started, if there is any of it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
