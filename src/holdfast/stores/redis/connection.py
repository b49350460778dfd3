"""One connection, on which commands follow each other without waiting for answers.

What many tasks ask in one step of the event loop is sent in one go, and answers are taken in order. So a caller who gives up
leaves nothing behind but an answer that is dropped. A connection that breaks reports to each caller what is known: `NotExecuted`
when its command was not sent, `OutcomeUnknown` when it was.
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
"""Of a cluster."""
WATCH_SECONDS: Final = 1.0
"""Seconds between two looks at whether answers are late."""


class NotExecuted(Exception):  # not an error: an outcome
    """The command was certainly not executed: running it again may do better."""


class OutcomeUnknown(Exception):  # not an error: an outcome
    """The connection broke when the command had been sent."""


class ErrorReply(Exception):  # not an error: an outcome
    """The server answered with an error; `code` is its first word, and nothing of the command was done."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Endpoint(msgspec.Struct, frozen=True):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """As it is written in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Login(msgspec.Struct, frozen=True):
    """How to come in, the same at every server of a cluster."""

    user: str | None
    password: str | None
    database: int
    encrypted: bool
    verified: bool
    name: str
    """What the server's list of clients shows."""

    def __repr__(self) -> str:
        """The name: a password must not reach a log."""
        return f"Login({self.name})"

    @property
    def commands(self) -> list[Command]:
        """What is sent first on each connection."""
        commands: list[Command] = []
        if self.user is not None:
            commands.append(("AUTH", self.user, self.password or ""))
        elif self.password is not None:
            commands.append(("AUTH", self.password))
        if self.database:
            commands.append(("SELECT", self.database))
        return [*commands, ("CLIENT", "SETNAME", self.name)]

    def make_tls_context(self) -> ssl.SSLContext | None:
        """Return how the connection is encrypted; None: it is not."""
        if not self.encrypted:
            return None
        context = ssl.create_default_context()
        if not self.verified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


def compute_slot(tag: bytes) -> int:
    """Return the slot of what a key's braces hold."""
    return binascii.crc_hqx(tag, 0) % SLOTS


# -- errors ------------------------------------------------------------------

_INNER: Final = re.compile(r"\b(OOM|MISCONF|WRONGTYPE|READONLY|NOREPLICAS|NOPERM|CLUSTERDOWN|MASTERDOWN)\b")
"""What a script was refused for, where the server says only that it was."""
_WORDS: Final = {
    "OOM": "its memory is full (maxmemory); nothing of this was stored. Make room, then send it again",
    "MISCONF": "it cannot write to its disk; nothing of this was stored. Make room, then send it again",
    "READONLY": "it is read-only, perhaps a replica; nothing of this was stored",
    "NOREPLICAS": "it has fewer replicas than it was told to wait for; nothing of this was stored",
    "LOADING": "it is still loading its data",
    "BUSY": "a script of another program keeps it busy",
    "WRONGPASS": "it does not let this user in: check user and password",
    "NOAUTH": "it asks for a password",
    "NOPERM": "this user may not do that: docs/storage.md says what it needs",
    "MOVED": "it is one of a cluster: name it with redis+cluster://",
    "CROSSSLOT": "it is one of a cluster: name it with redis+cluster://",
    "CLUSTERDOWN": "the cluster does not serve all of its slots",
    "MASTERDOWN": "it is a replica without its master",
    "TRYAGAIN": "its slots are being moved",
}
"""What the caller, or whoever owns the server, can do about it."""
TRANSIENT: Final = ("LOADING", "READONLY", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "NOREPLICAS")
"""What may be over in a moment."""


def parse_error_reply(text: str) -> ErrorReply:
    """Return what the server answered."""
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
    """The one place where what a server refused becomes an error of ours. Its own words may quote a key, and stay behind."""
    words = _WORDS.get(exc.code)
    if words is not None:
        return StoreUnavailable(f"{name}: {words} (Redis: {exc.code})")
    if exc.code == "WRONGTYPE":
        return StoreCorrupt(f"{name}: another program wrote to a key of this store (Redis: {exc.code})")
    return StoreError(f"{name}: Redis: {exc}")


# -- one connection ----------------------------------------------------------


_Call = tuple[bytes, asyncio.Future[Any]]
"""A packed command and who waits for its answer."""


class PipelinedConnection(asyncio.Protocol):
    """An open connection. Made by `open_connection`."""

    _transport: asyncio.WriteTransport
    _timer: asyncio.TimerHandle

    def __init__(self) -> None:
        self.number = 0
        """The server's number of the connection."""
        self.on_end: Callable[[PipelinedConnection], None] = lambda _: None
        """Called when it breaks."""
        self._reader = Reader(replyError=parse_error_reply)
        self._queued: list[_Call] = []
        self._sent: deque[asyncio.Future[Any]] = deque()
        self._cause: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()

    # -- called by the event loop --------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one, and does not say so
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                future = self._sent.popleft()
                if future.done():  # the caller has gone
                    continue
                if isinstance(answer, ErrorReply):
                    future.set_exception(answer)
                    future.exception()  # of a command that only precedes another one, nobody asks
                else:
                    future.set_result(answer)
        except (ProtocolError, LookupError) as exc:  # what answers is no Redis
            self.kill(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self.kill(exc or ConnectionResetError("the server closed the connection"))
        if not self._closed.done():
            self._closed.set_result(None)

    # -- called by others --------------------------------------------------------

    @property
    def pending(self) -> int:
        """Commands without an answer."""
        return len(self._queued) + len(self._sent)

    async def call(self, *commands: Command) -> Any:
        """The answer to the last of some commands that follow each other with nothing between.

        Raises:
            Lost: they were not sent.
            Unsure: they were sent, and the connection broke before the answer.
            Refused: the server answered the last one with an error.
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
        """Wait until everything was answered, then close."""
        waiting = [one for one in (*self._sent, *(future for _, future in self._queued)) if not one.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=PATIENCE)
        self.kill(NotExecuted("the store was closed"))
        await asyncio.shield(self._closed)

    def kill(self, cause: BaseException) -> None:
        """Take no more, and report to each caller what is known."""
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
                future.exception()  # it may be that nobody waits for it any more
        self._sent.clear()
        self._queued.clear()
        self._timer.cancel()
        try:
            self._transport.abort()
        except RuntimeError:  # its loop has ended before it
            pass
        self.on_end(self)

    def _flush(self) -> None:
        """Send what has queued up."""
        batch = [call for call in self._queued if not call[1].cancelled()]
        self._queued.clear()
        if batch:
            self._sent.extend(future for _, future in batch)
            self._transport.write(b"".join(packed for packed, _ in batch))

    def _watch(self, waiting: asyncio.Future[Any] | None = None, since: float = 0.0) -> None:
        """Give up a server that does not answer: it is as good as gone."""
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
    """Return a connection to a server that answers.

    Raises:
        Lost: there is none; another attempt may do better.
        Refused: it does not let us in.
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
    """Commands as arguments of a script; `keys` gets the place of each key, from 1. Their second part is the key.

    An argument that is a `Key` is one as well.
    """
    flat: list[Argument] = []
    for name, key, *arguments in commands:
        place = keys.setdefault(key, len(keys) + 1) if key else 0  # type: ignore[arg-type]  # it is bytes
        flat += (name, place, len(arguments))
        flat += [keys.setdefault(one, len(keys) + 1) if type(one) is Key else one for one in arguments]
    return flat


class Key(bytes):
    """A key among the arguments of a command."""
