"""One connection, on which commands follow each other without waiting for answers.

One task sends what has queued up meanwhile in one go, another one takes the answers, in order. So a caller who gives up
leaves nothing behind but an answer that nobody takes: whose it is follows from its place. A connection that breaks tells
each caller what is known: `Lost` when its command was not sent, `Unsure` when it was.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError, MissingExtra, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.stores.logic.network import PATIENCE

try:
    from hiredis import pack_command
    from redis import exceptions
    from redis.asyncio.connection import Connection, SSLConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.crc import key_slot
except ImportError as exc:  # pragma: no cover  # the tests' environment has it
    raise MissingExtra("a Redis store", "redis") from exc

Argument = bytes | str | int
Command = tuple[Argument, ...]
SLOTS: Final = 16384
"""Of a cluster."""
WATCHED: Final = 1.0
"""Seconds between two looks at whether answers are late."""


class Lost(Exception):  # not an error: an outcome
    """The command was certainly not executed: running it again may do better."""


class Unsure(Exception):  # not an error: an outcome
    """The connection broke when the command had been sent."""


class Refused(Exception):  # not an error: an outcome
    """The server answered with an error; `code` is its first word, and nothing of the command was done."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Place(msgspec.Struct, frozen=True):
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

    def connection(self, place: Place) -> Connection:
        """A connection that is not open yet."""
        given: dict[str, Any] = {
            "host": place.host,
            "port": place.port,
            "db": self.database,
            "username": self.user,
            "password": self.password,
            "client_name": self.name,
            "protocol": 2,
            "socket_timeout": None,
            "socket_connect_timeout": PATIENCE / 3,
            "socket_read_size": 1 << 18,
            "retry": Retry(NoBackoff(), 0),
        }
        if not self.encrypted:
            return Connection(**given)
        if not self.verified:
            given |= {"ssl_cert_reqs": ssl.CERT_NONE, "ssl_check_hostname": False}
        return SSLConnection(**given)


def slot_of(tag: bytes) -> int:
    """The slot of what a key's braces hold."""
    return key_slot(tag, SLOTS)


# -- errors ------------------------------------------------------------------

_CODES: Final = (
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "WRONGPASS"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
)
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
PASSING: Final = ("LOADING", "READONLY", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "NOREPLICAS")
"""What may be over in a moment."""


def parse_refusal(exc: Exception) -> Refused:
    """What the server said."""
    text = str(exc)
    if "Authentication required" in text:
        return Refused("NOAUTH", text)
    first = text.partition(" ")[0]
    code = next((code for kind, code in _CODES if isinstance(exc, kind)), first if first.isupper() else "ERR")
    if code != "ERR":
        return Refused(code, text)
    inner = _INNER.search(text)
    if inner is None and "user executing the script" in text:
        return Refused("NOPERM", text)
    return Refused(inner[0] if inner else code, text)


def translate(exc: Refused, name: str) -> HoldfastError:
    """The one place where what a server refused becomes an error of ours. Its own words may quote a key, and stay behind."""
    words = _WORDS.get(exc.code)
    if words is not None:
        return StoreUnavailable(f"{name}: {words} (Redis: {exc.code})")
    if exc.code == "WRONGTYPE":
        return StoreCorrupt(f"{name}: another program wrote to a key of this store (Redis: {exc.code})")
    return StoreError(f"{name}: Redis: {exc}")


# -- one connection ----------------------------------------------------------


_Call = tuple[Command, asyncio.Future[Any]]
"""A command and who waits for its answer."""


class PipelinedConnection:
    """An open connection and its two tasks. Made by `open_connection`."""

    def __init__(self, raw: Connection, ended: Callable[[PipelinedConnection], None]) -> None:
        self._raw = raw
        self._ended = ended
        self._queued: list[_Call] = []
        self._sent: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._cause: BaseException | None = None
        self.number = 0
        """The server's number of the connection."""
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(work) for work in (self._send(), self._receive(), self._watch())]

    @property
    def pending(self) -> int:
        """Commands without an answer."""
        return len(self._queued) + len(self._sent)

    @property
    def broken(self) -> bool:
        """Whether it takes no more."""
        return self._cause is not None

    async def call(self, *commands: Command) -> Any:
        """The answer to the last of some commands that follow each other with nothing between.

        Raises:
            Lost: they were not sent.
            Unsure: they were sent, and the connection broke before the answer.
            Refused: the server answered the last one with an error.
        """
        if self._cause is not None:
            raise Lost(str(self._cause)) from self._cause
        for command in commands:
            future: asyncio.Future[Any] = self._loop.create_future()
            self._queued.append((command, future))
        self._wake.set()
        return await future

    async def finish(self) -> None:
        """Wait until everything was answered, then close."""
        waiting = [future for _, future in (*self._sent, *self._queued) if not future.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=PATIENCE)
        self.kill(Lost("the store was closed"))
        await self.gone()

    async def gone(self) -> None:
        """Wait until nothing is left of one that was killed."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill(self, cause: BaseException) -> None:
        """Take no more, and tell everyone who waits what is known."""
        if self._cause is not None:
            return
        self._cause = cause
        for (_, future), error in [(c, Unsure) for c in self._sent] + [(c, Lost) for c in self._queued]:
            if not future.done():
                failure = error(f"{type(cause).__name__}")
                failure.__cause__ = cause
                future.set_exception(failure)
                future.exception()  # nobody may wait for it any more
        self._sent.clear()
        self._queued.clear()
        for task in self._tasks:
            task.cancel()
        try:
            self._tasks.append(asyncio.get_running_loop().create_task(hang_up(self._raw)))
        except RuntimeError:  # its loop has ended before it
            pass
        self._ended(self)

    async def _send(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                batch = [call for call in self._queued if not call[1].cancelled()]
                self._queued.clear()
                self._sent.extend(batch)
                packed = [pack_command(command) for command, _ in batch]  # type: ignore[arg-type]  # any number of parts
                await self._raw.send_packed_command(packed, check_health=False)
        except Exception as exc:  # noqa: BLE001  # whatever it is, nothing goes on here
            self.kill(exc)

    async def _receive(self) -> None:
        read, sent = self._raw.read_response, self._sent
        try:
            while True:
                answer: Any = None
                error: Refused | None = None
                try:
                    answer = await read(disable_decoding=True, disconnect_on_error=False)
                except exceptions.ConnectionError as exc:
                    if not isinstance(exc, _ANSWERS):
                        raise
                    error = parse_refusal(exc)
                except exceptions.ResponseError as exc:
                    error = parse_refusal(exc)
                future = sent.popleft()[1]
                if future.done():  # whoever asked has gone
                    continue
                if error is None:
                    future.set_result(answer)
                else:
                    future.set_exception(error)
                    future.exception()  # of a command that only goes before another one, nobody asks
        except Exception as exc:  # noqa: BLE001  # whatever it is, nothing goes on here
            self.kill(exc)

    async def _watch(self) -> None:
        """A server that does not answer is as good as gone."""
        waiting: _Call | None = None
        since = 0.0
        while True:
            await asyncio.sleep(WATCHED)
            first = self._sent[0] if self._sent else None
            if first is not waiting:
                waiting, since = first, monotonic()
            elif first is not None and monotonic() - since > PATIENCE:
                self.kill(TimeoutError(f"no answer for {PATIENCE:.0f} seconds"))


_ANSWERS: Final = (exceptions.BusyLoadingError, exceptions.AuthenticationError, exceptions.AuthorizationError)
"""Kinds of connection errors that are answers of a server all the same."""


async def open_connection(
    login: Login, place: Place, ended: Callable[[PipelinedConnection], None]
) -> PipelinedConnection:
    """A connection to a server that answers.

    Raises:
        Lost: there is none; another attempt may do better.
        Refused: it does not let us in.
    """
    raw = login.connection(place)
    try:
        async with asyncio.timeout(PATIENCE / 3):
            await raw.connect()  # type: ignore[no-untyped-call]  # redis has types, not everywhere
            await raw.send_command("CLIENT", "ID", check_health=False)
            number = await raw.read_response()
    except BaseException as exc:
        await hang_up(raw)
        if isinstance(exc, exceptions.ResponseError | exceptions.AuthenticationError):
            refusal = parse_refusal(exc)
            raise (Lost(refusal.code) if refusal.code in PASSING else refusal) from exc
        if isinstance(exc, exceptions.RedisError | OSError | TimeoutError):
            raise Lost(f"{type(exc).__name__}") from exc
        raise
    connection = PipelinedConnection(raw, ended)
    connection.number = int(number)
    return connection


async def hang_up(raw: Connection) -> None:
    """Close a connection, whatever it is doing."""
    try:
        await raw.disconnect(nowait=True)
    except Exception:  # noqa: BLE001, S110  # it is gone in any case
        pass


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
