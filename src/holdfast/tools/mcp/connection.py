"""One MCP server, a program or an address: started or connected to, kept, connected to again, and called.

A program is started in a process group of its own, spoken to line by line, and ended with all that it started. The SDK has such a transport,
too, but it takes lines without an end, in time that grows with their square, and leaves children alive whose parent ended by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import Process

from holdfast.errors import MissingExtra, ToolFailed
from holdfast.limits import MCP_MESSAGE_BYTES, MCP_TOOLS
from holdfast.repeating import cancel_task
from holdfast.tools.mcp.settings import EXTRA, McpSettings

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp import Client
    from mcp_types import CallToolResult, Tool

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


_FIRST, _LONGEST = 1.0, 60.0
"""Seconds until a server that could not be reached, or went away soon, is tried again; they double. A call tries at once."""
_BETWEEN: Final = 1.0
"""Seconds after a server was asked for its tools until it is asked again, however often it tells of others."""
_SAYS: Final = "; it said: "
"""Before what a program said on its standard error."""
_SAID: Final = 2000
"""Characters of what a program says on its standard error that are told where it cannot be started."""


class Connection:
    """One server.

    Attributes:
        settings: how it is reached.
        told: whether it has told its tools, now or before.
        offered: its tools that are offered, as it told them last; they stay while it is away.
        error: why it is away; None: it is there, or was not tried yet.

    Args:
        changed: called when its tools have changed.
    """

    def __init__(self, settings: McpSettings, changed: Callable[[], None]) -> None:
        self.settings = settings
        self.offered: tuple[Tool, ...] = ()
        self.error: str | None = None
        self.told = False
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._lost = asyncio.Event()
        """Set when the connection that stands is of no use any more."""
        self._tried = asyncio.Event()
        """Set when the attempt to connect that runs, or comes next, has ended, either way."""
        self._wanted = asyncio.Event()
        """Set by a call that cannot wait until the next attempt is due."""
        self._stale = asyncio.Event()
        """Set when its tools have changed."""

    async def open(self) -> None:
        """Connect; return when that succeeded, or failed for the first time: then it goes on trying.

        Raises:
            MissingExtra: the SDK is not installed.
        """
        _sdk()
        self._task = asyncio.create_task(self._keep(), name=f"mcp {self.settings.name}")
        await self._tried.wait()

    async def close(self) -> None:
        """Let go of it; a program is ended."""
        task, self._task = self._task, None
        await cancel_task(task)
        self._tried.set()  # who waits for it waits no more

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool by the name that the server has for it.

        Raises:
            ToolFailed: the server is away, went away meanwhile, or refused the call as such.
        """
        client = await self._connected()
        from mcp import MCPError

        try:
            return await client.call_tool(tool, dict(arguments), read_timeout_seconds=self.settings.timeout)
        except MCPError as exc:
            if self._is_over(exc):
                self._lose(client)
                raise ToolFailed(
                    f"the connection to MCP server {self.settings.name!r} was lost: the tool may have done its work or not"
                ) from exc
            raise ToolFailed(f"MCP server {self.settings.name!r} refused the call: {exc.message}") from exc
        except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            self._lose(client)
            raise ToolFailed(f"MCP server {self.settings.name!r} gave no answer: {_why(exc)}") from exc
        except (RuntimeError, ValueError) as exc:  # what it answered is no result: of no concern to its other calls
            raise ToolFailed(f"MCP server {self.settings.name!r} gave a wrong answer: {_why(exc)}") from exc

    async def _connected(self) -> Client:
        """The client, of a server that is away after one more try. Raises `ToolFailed`."""
        if self._lost.is_set():
            self._lose(self._client)
        if self._client is None:
            tried = self._tried
            self._wanted.set()
            await tried.wait()
        if self._client is None:
            # What a program says at its end is for whoever runs the server: it may hold secrets, and this goes into the log.
            why = (self.error or "").partition(_SAYS)[0]
            raise ToolFailed(f"MCP server {self.settings.name!r} cannot be reached: {why}")
        return self._client

    def _lose(self, client: Client | None) -> None:
        """Give a connection up, unless there is a newer one already: the next call waits for that."""
        if client is not None and self._client is client:
            self._client, self._tried = None, asyncio.Event()
            self._lost.set()

    def _is_over(self, error: Any) -> bool:
        """Whether an error says that the connection is of no use any more, and not the call."""
        from mcp_types import CONNECTION_CLOSED

        return error.code == CONNECTION_CLOSED or (self.settings.url is not None and "terminated" in error.message)

    # -- being there -------------------------------------------------------

    async def _keep(self) -> None:
        pause, clock = 0.0, asyncio.get_running_loop().time
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), pause)
            self._wanted.clear()
            began = clock()
            try:
                await self._connect()
            except Exception as exc:  # noqa: BLE001 - whatever a server does, it is away, and no turn fails for it
                self.error = _why(exc)
                fields = {"server": self.settings.name, "error": type(_inner(exc.__cause__ or exc)).__name__}
                _log.warning("an MCP server cannot be reached", extra={"fields": fields})
                tried, self._tried = self._tried, asyncio.Event()
                tried.set()
            pause = 0.0 if clock() - began > _LONGEST else min(max(2 * pause, _FIRST), _LONGEST)

    async def _connect(self) -> None:
        """Connect, and return when the connection is lost. Raises whatever came in between before it stood."""
        self._lost = lost = asyncio.Event()
        async with self._opened(lost) as client:
            self._client, self.error = client, None
            self._tried.set()
            told = asyncio.create_task(self._told_changes(client))
            try:
                await lost.wait()
                self._lose(client)
                self.error = "it went away"
            finally:
                told.cancel()
                await asyncio.wait({told})
        _log.warning("an MCP server went away", extra={"fields": {"server": self.settings.name}})

    @asynccontextmanager
    async def _opened(self, lost: asyncio.Event) -> AsyncGenerator[Client, None]:
        sdk = _sdk()
        async with AsyncExitStack() as stack:
            said = await stack.enter_async_context(_said()) if self.settings.command else None
            transport = _watched(self._transport(said), lost)
            client = sdk(transport, message_handler=self._heard, cache=None)
            try:
                async with asyncio.timeout(self.settings.start_timeout):
                    await stack.enter_async_context(client)
                    await self._take_tools(client)
            except TimeoutError as exc:
                raise TimeoutError(
                    f"it did not answer within {self.settings.start_timeout:g} s{_quoted(said)}"
                ) from exc
            except Exception as exc:
                raise ConnectionError(_why(exc) + _quoted(said)) from exc
            yield client

    def _transport(self, said: _Said | None) -> Any:
        settings = self.settings
        if settings.command is not None:
            assert said is not None, "a program has a standard error"
            return over_stdio(settings, said.file)
        from holdfast.tools.mcp.http import over_http

        assert settings.url is not None, "a server has a command or a url"
        return over_http(settings.name, settings.url, settings.headers)

    async def _take_tools(self, client: Client) -> None:
        """Ask for its tools, page by page."""
        found: list[Tool] = []
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += [tool for tool in page.tools if self.settings.offers(tool.name)]
            cursor = page.next_cursor
            if not cursor or len(found) > MCP_TOOLS:
                break
        if len(found) > MCP_TOOLS:
            fields = {"server": self.settings.name, "taken": MCP_TOOLS}
            _log.warning("an MCP server has too many tools: the first ones are offered", extra={"fields": fields})
        self.offered, self.told = tuple(found[:MCP_TOOLS]), True
        self._changed()

    async def _heard(self, message: Any) -> None:
        """Take note of what the server tells by itself: that its tools have changed (protocols before 2026-07-28)."""
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._stale.set()

    async def _told_changes(self, client: Client) -> None:
        """Ask for its tools anew whenever it tells that they have changed."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, client)
            while True:
                await self._stale.wait()
                self._stale.clear()
                try:
                    async with asyncio.timeout(self.settings.start_timeout):
                        await self._take_tools(client)
                except Exception:  # noqa: BLE001 - a server's own affair; what it had is still offered
                    fields = {"server": self.settings.name}
                    _log.warning("an MCP server did not tell its new tools", extra={"fields": fields})
                await asyncio.sleep(_BETWEEN)

    async def _listen(self, client: Client) -> None:
        """The same where a protocol wants to be asked for it (2026-07-28)."""
        from mcp.client.subscriptions import ListenNotSupportedError

        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._stale.set()
        except ListenNotSupportedError:
            pass
        except Exception as exc:  # noqa: BLE001 - it does not tell, or no longer; what it has now is offered
            fields = {"server": self.settings.name, "error": type(exc).__name__}
            _log.info("an MCP server does not tell of new tools", extra={"fields": fields})


def _sdk() -> type[Client]:
    """The SDK's client. Raises `MissingExtra`."""
    try:
        from mcp import Client
    except ImportError as exc:
        raise MissingExtra("an MCP server", extra=EXTRA) from exc
    return Client


@asynccontextmanager
async def _watched(transport: Any, lost: asyncio.Event) -> AsyncGenerator[Any, None]:
    """A transport that notes when its other side has closed it: the SDK tells that with the next call only."""
    async with transport as (read, write):
        into, out = anyio.create_memory_object_stream[Any](0)

        async def forward() -> None:
            try:
                async with into:
                    async for message in read:
                        await into.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # nobody listens any more
            finally:
                lost.set()

        async with anyio.create_task_group() as tasks, out:
            tasks.start_soon(forward)
            try:
                yield out, write
            finally:
                tasks.cancel_scope.cancel()


# -- what a program says ---------------------------------------------------------


class _Said(asyncio.Protocol):
    """The end of what a program says on its standard error.

    Attributes:
        file: what the program writes to.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        self._end = b""

    def data_received(self, data: bytes) -> None:
        """Keep the last of it: a program may talk for years."""
        self._end = (self._end + data)[-_SAID:]

    @property
    def text(self) -> str:
        """The last of it."""
        return self._end.decode(errors="replace").strip()


@asynccontextmanager
async def _said() -> AsyncGenerator[_Said, None]:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        said = _Said(file)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: said, os.fdopen(reading, "rb"))
        try:
            yield said
        finally:
            transport.close()


def _quoted(said: _Said | None) -> str:
    return f"{_SAYS}{said.text}" if said is not None and said.text else ""


def _why(error: BaseException) -> str:
    """The innermost words of an error."""
    error = _inner(error)
    return str(error) or type(error).__name__


def _inner(error: BaseException) -> BaseException:
    """The error itself: task groups wrap theirs."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
