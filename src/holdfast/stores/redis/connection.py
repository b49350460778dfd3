"""A pipelined connection to a Redis server: it sends commands without waiting for earlier replies.

All commands that tasks issue in one iteration of the event loop are sent together. Replies arrive in the order of the commands.
So if a caller is cancelled, its reply is simply dropped. When the connection breaks, each waiting caller gets an exception:
`NotExecuted` if its command had not been sent, otherwise `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import binascii
import re
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final, cast

import msgspec

from holdfast.errors import HoldfastError, MissingExtra, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.stores.logic.network import PATIENCE

try:
    from hiredis import ProtocolError, Reader, pack_command
except ImportError as exc:  # pragma: no cover  # the tests' environment has it
    raise MissingExtra("a Redis store", "redis") from exc

Argument = bytes | str | int
Command = tuple[Argument, ...]
SLOTS: Final = 16384
"""Number of slots in a Redis cluster."""
WATCH_SECONDS: Final = 1.0
"""Seconds between two checks for overdue replies."""


class NotExecuted(Exception):  # not an error: an outcome
    """The command was not executed, so it can safely be sent again."""


class OutcomeUnknown(Exception):  # not an error: an outcome
    """The connection broke after the command was sent, so it may or may not have been executed."""


class ErrorReply(Exception):  # not an error: an outcome
    """The server replied with an error. It did not execute the command.

    Attributes:
        code: the first word of the reply, such as `OOM`.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Endpoint(msgspec.Struct, frozen=True):
    """Host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Login(msgspec.Struct, frozen=True):
    """Credentials and settings of a connection. They are the same for all servers of a cluster."""

    user: str | None
    password: str | None
    database: int
    encrypted: bool
    verified: bool
    name: str
    """Client name, shown in the server's list of clients."""

    def __repr__(self) -> str:
        """Return only the client name, so that no log contains the password."""
        return f"Login({self.name})"

    @property
    def commands(self) -> list[Command]:
        """The commands that are sent first on a new connection."""
        commands: list[Command] = []
        if self.user is not None:
            commands.append(("AUTH", self.user, self.password or ""))
        elif self.password is not None:
            commands.append(("AUTH", self.password))
        if self.database:
            commands.append(("SELECT", self.database))
        return [*commands, ("CLIENT", "SETNAME", self.name)]

    def make_tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings of the connection; None if it is not encrypted."""
        if not self.encrypted:
            return None
        context = ssl.create_default_context()
        if not self.verified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


def compute_slot(tag: bytes) -> int:
    """Return the cluster slot of a key with this hash tag."""
    return binascii.crc_hqx(tag, 0) % SLOTS


# -- errors ------------------------------------------------------------------

_INNER: Final = re.compile(r"\b(OOM|MISCONF|WRONGTYPE|READONLY|NOREPLICAS|NOPERM|CLUSTERDOWN|MASTERDOWN)\b")
"""Finds the error code of the failed command in the text of an error that a script raised."""
_MESSAGES: Final = {
    "OOM": "its memory is full (maxmemory); nothing was stored. Free some memory, then retry",
    "MISCONF": "it cannot write to its disk; nothing was stored. Free some space, then retry",
    "READONLY": "it is read-only, perhaps a replica; nothing was stored",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write requires; nothing was stored",
    "LOADING": "it is still loading its data. Retry later",
    "BUSY": "it is busy with a script of another program. Retry later",
    "WRONGPASS": "the login failed: check the user and the password",
    "NOAUTH": "it requires a password",
    "NOPERM": "this user lacks a permission: docs/storage-redis.md lists the required ones",
    "MOVED": "it belongs to a cluster: use redis+cluster:// in the URL",
    "CROSSSLOT": "it belongs to a cluster: use redis+cluster:// in the URL",
    "CLUSTERDOWN": "the cluster does not serve all of its slots",
    "MASTERDOWN": "it is a replica that has lost its master",
    "TRYAGAIN": "its slots are being moved. Retry later",
}
"""Error messages by Redis error code. They say what happened and what the caller or the operator of the server can do."""
TRANSIENT: Final = ("LOADING", "READONLY", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "NOREPLICAS")
"""Error codes after which a command may succeed if it is sent again soon."""


def parse_error_reply(text: str) -> ErrorReply:
    """Convert the text of an error reply to an exception."""
    code = text.partition(" ")[0]
    if code == "ERR" and "without any password" in text:
        return ErrorReply("WRONGPASS", text)
    if code not in ("ERR", "EXECABORT") and code.isupper():
        return ErrorReply(code, text)
    inner = _INNER.search(text)
    if inner is None and "user executing the script" in text:
        return ErrorReply("NOPERM", text)
    return ErrorReply(inner[0] if inner else "ERR", text)


def translate_error_reply(exc: ErrorReply, name: str) -> HoldfastError:
    """Convert an error reply to a `HoldfastError`. For known errors, the server's text is left out, because it may quote a key."""
    message = _MESSAGES.get(exc.code)
    if message is not None:
        return StoreUnavailable(f"{name}: {message} (Redis: {exc.code})")
    if exc.code == "WRONGTYPE":
        return StoreCorrupt(f"{name}: another program wrote to a key of this store (Redis: {exc.code})")
    return StoreError(f"{name}: Redis: {exc}")


# -- one connection ----------------------------------------------------------


_Call = tuple[bytes, asyncio.Future[Any]]
"""An encoded command, and the future for its reply."""


class PipelinedConnection(asyncio.Protocol):
    """An open connection. `open_connection` creates it."""

    _transport: asyncio.WriteTransport
    _timer: asyncio.TimerHandle

    def __init__(self) -> None:
        self.number = 0
        """The id that the server gave the connection."""
        self.on_end: Callable[[PipelinedConnection], None] = lambda _: None
        """Called when the connection ends."""
        self._reader = Reader(replyError=parse_error_reply)
        self._queued: list[_Call] = []
        self._sent: deque[asyncio.Future[Any]] = deque()
        self._cause: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()

    # -- called by the event loop --------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's transport does not declare this type
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                future = self._sent.popleft()
                if future.done():  # the caller was cancelled
                    continue
                if isinstance(answer, ErrorReply):
                    future.set_exception(answer)
                    future.exception()  # marked as retrieved: only the last command of a call is awaited
                else:
                    future.set_result(answer)
        except (ProtocolError, LookupError) as exc:  # the peer is not a Redis server
            self.kill(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self.kill(exc or ConnectionResetError("the server closed the connection"))
        if not self._closed.done():
            self._closed.set_result(None)

    # -- called by others --------------------------------------------------------

    @property
    def pending(self) -> int:
        """Number of commands that have no reply yet."""
        return len(self._queued) + len(self._sent)

    async def call(self, *commands: Command) -> Any:
        """Send commands one directly after the other, and return the reply to the last one.

        Raises:
            NotExecuted: the commands were not sent.
            OutcomeUnknown: the connection broke after the commands were sent and before the reply arrived.
            ErrorReply: the server replied to the last command with an error.
        """
        if self._cause is not None:
            raise NotExecuted(str(self._cause)) from self._cause
        if not self._queued:
            self._loop.call_soon(self._flush)
        for command in commands:
            future = self._loop.create_future()
            self._queued.append((pack_command(command), future))  # type: ignore[arg-type]  # any number of parts
        return await future

    async def close(self) -> None:
        """Wait up to `PATIENCE` seconds for the outstanding replies, then close the connection."""
        waiting = [one for one in (*self._sent, *(future for _, future in self._queued)) if not one.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=PATIENCE)
        self.kill(NotExecuted("the store was closed"))
        await asyncio.shield(self._closed)

    def kill(self, cause: BaseException) -> None:
        """Close the connection at once. Waiting callers get `OutcomeUnknown` if their command was sent, otherwise `NotExecuted`."""
        if self._cause is not None:
            return
        self._cause = cause
        for future, error in [(one, OutcomeUnknown) for one in self._sent] + [
            (one, NotExecuted) for _, one in self._queued
        ]:
            if not future.done():
                failure = error(f"{type(cause).__name__}")
                failure.__cause__ = cause
                future.set_exception(failure)
                future.exception()  # marked as retrieved: its caller may have been cancelled
        self._sent.clear()
        self._queued.clear()
        self._timer.cancel()
        try:
            self._transport.abort()
        except RuntimeError:  # the event loop is already closed
            pass
        self.on_end(self)

    def _flush(self) -> None:
        """Send the queued commands."""
        batch = [call for call in self._queued if not call[1].cancelled()]
        self._queued.clear()
        if batch:
            self._sent.extend(future for _, future in batch)
            self._transport.write(b"".join(packed for packed, _ in batch))

    def _watch(self, waiting: asyncio.Future[Any] | None = None, since: float = 0.0) -> None:
        """Check for overdue replies, and close the connection if the server has not replied for `PATIENCE` seconds."""
        first = self._sent[0] if self._sent else None
        if first is not waiting:
            since = monotonic()
        elif first is not None and monotonic() - since > PATIENCE:
            self.kill(TimeoutError(f"no answer for {PATIENCE:.0f} seconds"))
            return
        self._timer = self._loop.call_later(WATCH_SECONDS, self._watch, first, since)


async def open_connection(
    login: Login, endpoint: Endpoint, on_end: Callable[[PipelinedConnection], None]
) -> PipelinedConnection:
    """Connect to a server and log in.

    Raises:
        NotExecuted: the server cannot be reached at the moment; another attempt may succeed.
        ErrorReply: the server refused the login.
    """
    loop = asyncio.get_running_loop()
    connection: PipelinedConnection | None = None
    try:
        async with asyncio.timeout(PATIENCE / 3):
            _, connection = await loop.create_connection(
                PipelinedConnection, endpoint.host, endpoint.port, ssl=login.make_tls_context()
            )
            for command in login.commands:
                await connection.call(command)
            connection.number = await connection.call(("CLIENT", "ID"))
    except BaseException as exc:
        if connection is not None:
            connection.kill(exc)
        if isinstance(exc, ErrorReply) and exc.code in TRANSIENT:
            raise NotExecuted(exc.code) from exc
        if isinstance(exc, OSError | TimeoutError | OutcomeUnknown | NotExecuted):
            raise NotExecuted(type(exc.__cause__ or exc).__name__) from exc
        raise
    connection.on_end = on_end
    return connection


def flatten(commands: Sequence[Command], keys: dict[bytes, int]) -> list[Argument]:
    """Convert commands to arguments of a script.

    Args:
        commands: the second part of each command is its key. Arguments of type `Key` are keys too.
        keys: receives the index of each key, counted from 1. In the result, indexes take the place of the keys.
    """
    flat: list[Argument] = []
    for name, key, *arguments in commands:
        place = keys.setdefault(key, len(keys) + 1) if key else 0  # type: ignore[arg-type]  # it is bytes
        flat += (name, place, len(arguments))
        flat += [keys.setdefault(one, len(keys) + 1) if type(one) is Key else one for one in arguments]
    return flat


class Key(bytes):
    """A key in the arguments of a command."""
