"""Connect to one MCP server (a program or a URL), reconnect when the connection is lost, and call its tools.

A program is started in its own process group, and is ended together with everything that it started. Each message is one line.
The SDK's own transport for programs is not used, for two reasons. It accepts lines of unlimited length, and the time to read a line grows with
the square of the line's length. And if a program ends by itself, its child processes stay alive.
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

from holdfast.background import cancel_task
from holdfast.errors import MissingExtra, ToolFailed
from holdfast.limits import MCP_MESSAGE_BYTES, MCP_TOOLS
from holdfast.tools.mcp.settings import EXTRA, START_SECONDS, McpSettings

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp import Client
    from mcp_types import CallToolResult, Tool

_log = logging.getLogger("holdfast.mcp")
_GRACE: Final = 2.0
"""Seconds to wait for a program to end by itself: once after its input is closed, and once more after SIGTERM."""
_DEAD: Final = 20.0
"""Maximum seconds to wait until a killed process is reaped, which takes a while on a busy machine."""
_POLL: Final = 0.01
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows has no SIGKILL."""
_GONE: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)
"""Exceptions that a pipe raises if either end is closed."""


@asynccontextmanager
async def open_stdio(settings: McpSettings, errors: Any) -> AsyncGenerator[Any, None]:
    """Start the program of a server, and yield streams that read from it and write to it, in the form of the SDK's transports.

    Args:
        settings: settings of the server, with a `command`.
        errors: file that receives the program's standard error.

    Raises:
        OSError: the program cannot be started.
        ValueError: the command or the environment is not valid.
    """
    from mcp.client.stdio import get_default_environment

    process = await anyio.open_process(
        [settings.command or "", *settings.args],
        env=get_default_environment() | dict(settings.env),
        stderr=errors,
        start_new_session=True,
    )
    try:
        into, read = anyio.create_memory_object_stream[Any](0)
        write, out = anyio.create_memory_object_stream[Any](0)
        async with read, write, anyio.create_task_group() as tasks:
            tasks.start_soon(_read_messages, process, into, settings.name)
            tasks.start_soon(_write_messages, process, out, into)
            try:
                yield read, write
            finally:
                tasks.cancel_scope.cancel()
    finally:
        await _end_shielded(process)


async def _read_messages(process: Process, into: MemoryObjectSendStream[Any], name: str) -> None:
    """Forward messages of the program to `into` until its output ends or a message is too large."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    assert process.stdout is not None, "it was started with pipes"
    lines, has_warned = _Lines(), False
    async with into:
        with suppress(*_GONE):
            async for chunk in process.stdout:
                for line in lines.add(chunk):
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        if line.strip() and not has_warned:
                            has_warned = True
                            _log.warning(
                                "an MCP server sent a line that is not a message of the protocol",
                                extra={"fields": {"server": name}},
                            )
                        continue
                    await into.send(SessionMessage(message))
                if lines.too_long:
                    fields = {"server": name, "most": MCP_MESSAGE_BYTES}
                    _log.warning("an MCP server's message is too large: disconnecting", extra={"fields": fields})
                    return


async def _write_messages(
    process: Process, out: MemoryObjectReceiveStream[Any], into: MemoryObjectSendStream[Any]
) -> None:
    """Send the messages from `out` to the program. If the program no longer reads, close the connection."""
    assert process.stdin is not None, "it was started with pipes"
    async with out:
        try:
            async for outgoing in out:
                line = outgoing.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(line.encode() + b"\n")
        except _GONE:
            await into.aclose()


class _Lines:
    """Splits chunks of bytes into lines. The time is linear in the length of the chunks."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def too_long(self) -> bool:
        """True if the unfinished line is longer than the maximum size of a message."""
        return len(self._rest) > MCP_MESSAGE_BYTES

    def add(self, chunk: bytes) -> Iterator[bytes]:
        """Add a chunk, and yield the lines that it completes."""
        first, *others = chunk.split(b"\n")
        self._rest += first
        for next_line in others:
            yield bytes(self._rest)
            self._rest = bytearray(next_line)


async def _end_shielded(process: Process) -> None:
    """End the program, even if the caller is cancelled. A task is used because anyio's shield does not protect from asyncio's cancellation."""
    ending = asyncio.create_task(_end(process))
    with anyio.CancelScope(shield=True):
        try:
            await asyncio.shield(ending)
        finally:
            await asyncio.wait([ending])


async def _end(process: Process) -> None:
    """End the program: close its input, send SIGTERM if it still runs, and finally kill it and its children."""
    assert process.stdin is not None, "it was started with pipes"
    assert process.stdout is not None, "it was started with pipes"
    try:
        with suppress(*_GONE):
            await process.stdin.aclose()
        if not await _wait_for_end(process):
            _signal(process, signal.SIGTERM)
            await _wait_for_end(process)
    finally:
        _signal(process, _KILL)
    await _wait_for_end(process, _DEAD)
    with anyio.move_on_after(_GRACE), suppress(*_GONE):  # an unread pipe stays open
        while True:
            await process.stdout.receive()


async def _wait_for_end(process: Process, seconds: float = _GRACE) -> bool:
    """Return True if the process ends within `seconds`.

    `Process.wait` is not used, because it would also wait for children that inherited the pipes of the process.
    """
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110  # a process reports its end only through `wait`
            await anyio.sleep(_POLL)
    return process.returncode is not None


def _signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to the process group, if it still exists. Windows has no groups: there, end the process."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.kill()


_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""First and longest pause, in seconds, between attempts to reach a server. Each pause is twice the one before. A tool call ends the pause."""
_RELIST_PAUSE: Final = 1.0
"""Minimum seconds between two requests for the list of tools, however often the server announces changes."""
_QUOTE_PREFIX: Final = "; it said: "
"""Text before a quotation of a program's standard error."""
_QUOTED_CHARS: Final = 2000
"""Maximum characters of a program's standard error that are quoted if the program cannot be started."""


class McpConnection:
    """Connection to one MCP server.

    Attributes:
        settings: how to reach the server.
        is_listed: True if the server has listed its tools at least once.
        offered: tools of the server that agents may use, as last listed; they are kept while the server is unavailable.
        error: reason why the server is unavailable; None: it is available, or was not tried yet.

    Args:
        settings: becomes the attribute.
        changed: called each time the server has listed its tools.
    """

    def __init__(self, settings: McpSettings, changed: Callable[[], None]) -> None:
        self.settings = settings
        self.offered: tuple[Tool, ...] = ()
        self.error: str | None = None
        self.is_listed = False
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._lost = asyncio.Event()
        """Set when the current connection is unusable."""
        self._attempted = asyncio.Event()
        """Set when an attempt to connect has succeeded or failed: the running attempt or, if none is running, the next one."""
        self._wanted = asyncio.Event()
        """Set by a tool call to start the next attempt to connect at once."""
        self._stale = asyncio.Event()
        """Set when the server announces that its tools have changed."""

    async def open(self) -> None:
        """Connect to the server. Return after the first attempt. If it fails, attempts continue in the background.

        Raises:
            MissingExtra: the SDK is not installed.
        """
        _import_client()
        self._task = asyncio.create_task(self._keep_connected(), name=f"mcp {self.settings.name}")
        await self._attempted.wait()

    async def close(self) -> None:
        """Disconnect from the server. If the server is a program, end it."""
        task, self._task = self._task, None
        await cancel_task(task)
        self._attempted.set()  # release the callers that wait for a connection

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool by the name that it has on the server.

        Raises:
            ToolFailed: the server is unavailable, refused the call, or gave an invalid answer; or the connection was lost during the
                call.
        """
        client = await self._get_client()
        from mcp import MCPError

        try:
            return await client.call_tool(tool, dict(arguments), read_timeout_seconds=self.settings.timeout)
        except MCPError as exc:
            if self._is_over(exc):
                self._lose(client)
                raise ToolFailed(
                    f"the connection to MCP server {self.settings.name!r} was lost: the tool may or may not have done its work"
                ) from exc
            raise ToolFailed(f"MCP server {self.settings.name!r} refused the call: {exc.message}") from exc
        except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            self._lose(client)
            raise ToolFailed(f"MCP server {self.settings.name!r} did not answer: {_describe(exc)}") from exc
        except (RuntimeError, ValueError) as exc:  # an invalid result, which does not concern other calls
            raise ToolFailed(f"MCP server {self.settings.name!r} gave an invalid answer: {_describe(exc)}") from exc

    async def _get_client(self) -> Client:
        """Return the client of the connection. If there is no connection, wait for one attempt to connect.

        Raises:
            ToolFailed: the attempt failed.
        """
        if self._lost.is_set():
            self._lose(self._client)
        if self._client is None:
            tried = self._attempted
            self._wanted.set()
            await tried.wait()
        if self._client is None:
            # What a program writes when it fails is for the operator of the server: it may hold secrets, and this text goes into the log.
            why = (self.error or "").partition(_QUOTE_PREFIX)[0]
            raise ToolFailed(f"MCP server {self.settings.name!r} cannot be reached: {why}")
        return self._client

    def _lose(self, client: Client | None) -> None:
        """Mark a connection as lost, unless a newer one has replaced it. The next call waits for a new connection."""
        if client is not None and self._client is client:
            self._client, self._attempted = None, asyncio.Event()
            self._lost.set()

    def _is_over(self, error: Any) -> bool:
        """Return True if an error means that the connection is unusable, not only that the call failed."""
        from mcp_types import CONNECTION_CLOSED

        return error.code == CONNECTION_CLOSED or (self.settings.url is not None and "terminated" in error.message)

    # -- connecting ---------------------------------------------------------

    async def _keep_connected(self) -> None:
        pause, clock = 0.0, asyncio.get_running_loop().time
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), pause)
            self._wanted.clear()
            began = clock()
            try:
                await self._connect()
            except Exception as exc:  # noqa: BLE001 - whatever goes wrong, the server counts as unavailable, and no turn fails because of it
                self.error = _describe(exc)
                fields = {"server": self.settings.name, "error": type(_unwrap(exc.__cause__ or exc)).__name__}
                _log.warning("an MCP server cannot be reached", extra={"fields": fields})
                tried, self._attempted = self._attempted, asyncio.Event()
                tried.set()
            pause = 0.0 if clock() - began > _LONGEST_PAUSE else min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)

    async def _connect(self) -> None:
        """Connect, and return when the connection is lost. Raise an error if the connection cannot be established."""
        self._lost = lost = asyncio.Event()
        async with self._open_client(lost) as client:
            self._client, self.error = client, None
            self._attempted.set()
            following = asyncio.create_task(self._follow_changes(client))
            try:
                await lost.wait()
                self._lose(client)
                self.error = "the connection was lost"
            finally:
                following.cancel()
                await asyncio.wait({following})
        _log.warning("the connection to an MCP server was lost", extra={"fields": {"server": self.settings.name}})

    @asynccontextmanager
    async def _open_client(self, lost: asyncio.Event) -> AsyncGenerator[Client, None]:
        sdk = _import_client()
        async with AsyncExitStack() as stack:
            errors = await stack.enter_async_context(_capture_errors()) if self.settings.command else None
            transport = _watch_transport(self._open_transport(errors), lost)
            client = sdk(transport, message_handler=self._handle_message, cache=None)
            try:
                async with asyncio.timeout(START_SECONDS):
                    await stack.enter_async_context(client)
                    await self._take_tools(client)
            except TimeoutError as exc:
                raise TimeoutError(f"it did not answer within {START_SECONDS:g} s{_quote(errors)}") from exc
            except Exception as exc:
                raise ConnectionError(_describe(exc) + _quote(errors)) from exc
            yield client

    def _open_transport(self, errors: _StandardError | None) -> Any:
        settings = self.settings
        if settings.command is not None:
            assert errors is not None, "a program has a standard error"
            return open_stdio(settings, errors.file)
        from holdfast.tools.mcp.http import open_http

        assert settings.url is not None, "a server has a command or a url"
        return open_http(settings.name, settings.url, settings.headers)

    async def _take_tools(self, client: Client) -> None:
        """Request the list of the server's tools, page by page, and keep those that agents may use."""
        found: list[Tool] = []
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += [tool for tool in page.tools if self.settings.is_offered(tool.name)]
            cursor = page.next_cursor
            if not cursor or len(found) > MCP_TOOLS:
                break
        if len(found) > MCP_TOOLS:
            fields = {"server": self.settings.name, "taken": MCP_TOOLS}
            _log.warning("an MCP server has too many tools: the first ones are offered", extra={"fields": fields})
        self.offered, self.is_listed = tuple(found[:MCP_TOOLS]), True
        self._changed()

    async def _handle_message(self, message: Any) -> None:
        """Handle a notification of the server. In protocol versions before 2026-07-28, servers announce changed tools by notifications."""
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._stale.set()

    async def _follow_changes(self, client: Client) -> None:
        """Request the list of tools again each time the server announces a change."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._subscribe, client)
            while True:
                await self._stale.wait()
                self._stale.clear()
                try:
                    async with asyncio.timeout(START_SECONDS):
                        await self._take_tools(client)
                except Exception:  # noqa: BLE001 - the server's problem; its previous tools stay offered
                    fields = {"server": self.settings.name}
                    _log.warning("an MCP server did not list its new tools", extra={"fields": fields})
                await asyncio.sleep(_RELIST_PAUSE)

    async def _subscribe(self, client: Client) -> None:
        """Subscribe to changes of the server's tools, as protocol version 2026-07-28 requires."""
        from mcp.client.subscriptions import ListenNotSupportedError

        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._stale.set()
        except ListenNotSupportedError:
            pass
        except Exception as exc:  # noqa: BLE001 - the server does not announce changes (any more); its current tools stay offered
            fields = {"server": self.settings.name, "error": type(exc).__name__}
            _log.info("an MCP server does not announce new tools", extra={"fields": fields})


def _import_client() -> type[Client]:
    """Return the SDK's client class. Raise `MissingExtra` if the SDK is not installed."""
    try:
        from mcp import Client
    except ImportError as exc:
        raise MissingExtra("an MCP server", extra=EXTRA) from exc
    return Client


@asynccontextmanager
async def _watch_transport(transport: Any, lost: asyncio.Event) -> AsyncGenerator[Any, None]:
    """Wrap a transport so that `lost` is set when the server closes it. The SDK itself reports this only at the next call."""
    async with transport as (read, write):
        into, out = anyio.create_memory_object_stream[Any](0)

        async def forward() -> None:
            try:
                async with into:
                    async for message in read:
                        await into.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # no reader any more
            finally:
                lost.set()

        async with anyio.create_task_group() as tasks, out:
            tasks.start_soon(forward)
            try:
                yield out, write
            finally:
                tasks.cancel_scope.cancel()


# -- standard error of a program -------------------------------------------------


class _StandardError(asyncio.Protocol):
    """Collects the standard error of a program, and keeps only the last part.

    Attributes:
        file: the file that the program writes to.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        self._end = b""

    def data_received(self, data: bytes) -> None:
        """Append data, and keep only the last part. Otherwise a program that runs for a long time could fill the memory."""
        self._end = (self._end + data)[-_QUOTED_CHARS:]

    @property
    def text(self) -> str:
        return self._end.decode(errors="replace").strip()


@asynccontextmanager
async def _capture_errors() -> AsyncGenerator[_StandardError, None]:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        errors = _StandardError(file)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: errors, os.fdopen(reading, "rb"))
        try:
            yield errors
        finally:
            transport.close()


def _quote(errors: _StandardError | None) -> str:
    return f"{_QUOTE_PREFIX}{errors.text}" if errors is not None and errors.text else ""


def _describe(error: BaseException) -> str:
    """Return the message of an error, or the name of its type if the message is empty. For an exception group, use its first error."""
    error = _unwrap(error)
    return str(error) or type(error).__name__


def _unwrap(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups. Return any other error unchanged."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
