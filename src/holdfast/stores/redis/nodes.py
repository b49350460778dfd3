"""The servers of a store: find the server of a key, open a few connections to each server, and retry commands.

A command that was certainly not executed is sent again. If the server cannot be reached or is loading its data, this is repeated
for some seconds. If the slot has moved, the command is sent to the slot's new server. If the connection broke after a command was
sent, the command may have been executed. It is then sent again only if executing it twice does no harm.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from functools import cache
from hashlib import sha1
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from holdfast.errors import StoreClosed, StoreUnavailable
from holdfast.stores.logic.network import PATIENCE, RECONNECTING, SessionCache
from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.connection import (
    SLOTS,
    TRANSIENT,
    Argument,
    Command,
    Endpoint,
    ErrorReply,
    NotExecuted,
    OutcomeUnknown,
    PipelinedConnection,
    compute_slot,
    open_connection,
    translate_error_reply,
)
from holdfast.stores.redis.keys import extract_hash_tag

BUSY: Final = 64
"""If all connections to a server have this many commands without a reply, another connection is opened."""
MOST_REDIRECTS: Final = 8
"""Number of redirects that a command follows in a row. After that, it waits before the next attempt."""


class Script(msgspec.Struct, frozen=True):
    """A Lua script and its SHA-1. Servers that have loaded the script find it by the SHA-1."""

    text: bytes
    sha: bytes


@cache
def load_script(*names: str) -> Script:
    """Return a script that consists of the given files, one after the other."""
    folder = Path(__file__).parent / "scripts"
    text = b"\n".join((folder / f"{name}.lua").read_bytes() for name in names)
    return Script(text, sha1(text).hexdigest().encode())  # noqa: S324  # Redis identifies scripts by SHA-1


class Nodes:
    """The server of a store, or the servers of a cluster.

    Args:
        address: the parsed URL.
        remembered: cache of session heads. It is cleared whenever a connection is lost.
    """

    def __init__(self, address: RedisAddress, remembered: SessionCache[Any]) -> None:
        self.is_cluster = address.is_cluster
        self.name = address.name
        self._login, self._seeds, self._size = address.login, address.endpoints, address.pool
        # After a lost connection the server may be another one with other data, so remembered heads cannot be trusted.
        self._forget_remembered = remembered.clear
        self._slots: list[Endpoint | None] = [None] * SLOTS if self.is_cluster else []
        self._connections: dict[Endpoint, list[PipelinedConnection]] = {}
        self._opening: dict[Endpoint, asyncio.Task[PipelinedConnection]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._dead: dict[Endpoint, list[int]] = {}
        """Ids of broken connections, by server. The server is asked to close them, so that it does not execute their commands later."""
        self._closed = False

    # -- commands --------------------------------------------------------------

    async def run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Argument], *, once: bool) -> Any:
        """Run a script and return its reply. All keys must be in one slot. If `once` is True, do not run it again if it may have run."""
        rest = (len(keys), *keys, *arguments)
        try:
            return await self.call(keys[0], ("EVALSHA", script.sha, *rest), once=once)
        except ErrorReply:  # the server does not know the script, or has forgotten it
            return await self.call(keys[0], ("EVAL", script.text, *rest), once=once)

    async def call(self, key: bytes, command: Command, *, once: bool = False) -> Any:
        """Send a command and return its reply.

        Args:
            key: the key by which the server is found.
            command: the parts of the command.
            once: if True, do not send the command again if it may have been executed.

        Raises:
            OutcomeUnknown: `once` is True, and the command may have been executed.
            ErrorReply: the server does not know the script.
            HoldfastError: the server refused the command, or cannot be reached.
        """
        endpoint: Endpoint | None = None
        asking, attempt, moves, give_up = False, 0, 0, inf
        while True:
            try:
                connection = await self._get_connection(endpoint or await self._find_server(key))
                return await (connection.call(("ASKING",), command) if asking else connection.call(command))
            except ErrorReply as exc:
                if self.is_cluster and exc.code in ("MOVED", "ASK") and moves < MOST_REDIRECTS:
                    moves, endpoint, asking = moves + 1, self._follow_redirect(exc), exc.code == "ASK"
                    continue
                self._raise_error_reply(exc, late=monotonic() > give_up)
                if exc.code == "READONLY":
                    connection.kill(exc)
            except (NotExecuted, OutcomeUnknown) as exc:
                if once and isinstance(exc, OutcomeUnknown):
                    raise
                self._give_up(exc, give_up)
            give_up = min(give_up, monotonic() + RECONNECTING)
            attempt, moves, endpoint, asking = attempt + 1, 0, None, False
            await asyncio.sleep(min(0.005 * 2**attempt, 0.2) * random.uniform(0.5, 1.0))  # noqa: S311  # spreads retries
            if self.is_cluster:
                await self._refresh()

    def _raise_error_reply(self, exc: ErrorReply, *, late: bool) -> None:
        """Raise an exception for an error reply, unless another attempt may succeed.

        Args:
            exc: the error reply.
            late: True if there is no time for another attempt.
        """
        if exc.code == "NOSCRIPT":
            raise exc
        if late or exc.code not in TRANSIENT:
            raise translate_error_reply(exc, self.name) from exc

    def _give_up(self, exc: Exception, at: float) -> None:
        if monotonic() > at:
            raise StoreUnavailable(f"{self.name} cannot be reached: {exc}") from exc.__cause__

    async def call_all(self, *command: Argument) -> dict[Endpoint, Any]:
        """Send a command to every server that has slots; return the replies. An error is returned as an `ErrorReply`."""
        return {endpoint: await self._call_server(endpoint, command) for endpoint in await self._list_servers()}

    async def scan(self, pattern: str) -> AsyncIterator[bytes]:
        """Yield the keys of all servers that match the pattern. A key may be yielded more than once."""
        for endpoint in await self._list_servers():
            cursor: bytes | int = 0
            while cursor != b"0":
                answer = await self._call_server(endpoint, ("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
                if isinstance(answer, ErrorReply):
                    raise translate_error_reply(answer, self.name)
                cursor, keys = answer
                for key in keys:
                    yield key

    async def _call_server(self, endpoint: Endpoint, command: Command) -> Any:
        give_up = monotonic() + RECONNECTING
        while True:
            try:
                return await (await self._get_connection(endpoint)).call(command)
            except ErrorReply as exc:
                return exc
            except (NotExecuted, OutcomeUnknown) as exc:
                self._give_up(exc, give_up)
                await asyncio.sleep(0.02)

    # -- routing ---------------------------------------------------------------

    async def _find_server(self, key: bytes) -> Endpoint:
        """Return the server that has `key`. If the server of the key's slot is unknown, load the cluster's map of slots first."""
        if not self.is_cluster:
            return self._seeds[0]
        slot = compute_slot(extract_hash_tag(key))
        if self._slots[slot] is None:
            await self._refresh()
        endpoint = self._slots[slot]
        if endpoint is None:
            raise NotExecuted("no server has this slot")
        return endpoint

    async def _list_servers(self) -> list[Endpoint]:
        """Return all servers that have slots, sorted."""
        if not self.is_cluster:
            return [self._seeds[0]]
        if not any(self._slots):
            await self._refresh()
        return sorted({one for one in self._slots if one}, key=str)

    def _follow_redirect(self, exc: ErrorReply) -> Endpoint:
        """Return the server that a redirect such as `MOVED 3999 10.0.0.7:6381` names. A `MOVED` also updates the map of slots."""
        slot, address = str(exc).split()[-2:]
        host, _, port = address.rpartition(":")
        endpoint = Endpoint(host.strip("[]") or self._seeds[0].host, int(port))
        if exc.code == "MOVED":
            self._slots[int(slot)] = endpoint
            self._forget_remembered()
        return endpoint

    async def _refresh(self) -> None:
        """Load the map of slots. Concurrent callers share one request."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._load_slots())
        await asyncio.shield(self._refreshing)

    async def _load_slots(self) -> None:
        for endpoint in dict.fromkeys([*self._connections, *self._seeds]):
            try:
                connection = await self._get_connection(endpoint)
                ranges = await connection.call(("CLUSTER", "SLOTS"))
            except ErrorReply as exc:
                if exc.code in ("ERR", "NOPERM"):
                    raise StoreUnavailable(
                        f"{self.name}: it is not a cluster, or this user may not run CLUSTER SLOTS ({exc})"
                    ) from exc
            except (NotExecuted, OutcomeUnknown):
                continue
            else:
                slots: list[Endpoint | None] = [None] * SLOTS
                for first, last, (host, port, *_), *_replicas in ranges:
                    slots[first : last + 1] = [Endpoint((host or b"").decode() or endpoint.host, port)] * (
                        last - first + 1
                    )
                self._slots = slots
                return

    # -- connections -----------------------------------------------------------

    async def _get_connection(self, endpoint: Endpoint) -> PipelinedConnection:
        """Return the least busy connection to a server.

        If there is none, open one. If all are busy, start to open another one for later commands.
        """
        connections = self._connections.get(endpoint)
        if not connections:
            return await asyncio.shield(self._start_opening(endpoint))
        connection = connections[0] if len(connections) == 1 else min(connections, key=_compute_load)
        if connection.pending >= BUSY and len(connections) < self._size:
            self._start_opening(endpoint)
        return connection

    def _start_opening(self, endpoint: Endpoint) -> asyncio.Task[PipelinedConnection]:
        if self._closed:
            raise StoreClosed
        task = self._opening.get(endpoint)
        if task is None:
            task = self._opening[endpoint] = asyncio.get_running_loop().create_task(self._open(endpoint))
            task.add_done_callback(_ignore_failure)
        return task

    async def _open(self, endpoint: Endpoint) -> PipelinedConnection:
        try:
            connection = await open_connection(
                self._login, endpoint, lambda connection: self._forget(endpoint, connection)
            )
        finally:
            self._opening.pop(endpoint, None)
        for number in self._dead.pop(endpoint, ()):
            try:
                await connection.call(("CLIENT", "KILL", "ID", number))
            except ErrorReply:  # the connection has already ended, or this user may not kill it
                pass
        if self._closed:
            connection.kill(NotExecuted("the store is closed"))
        else:
            self._connections.setdefault(endpoint, []).append(connection)
        return connection

    def _forget(self, endpoint: Endpoint, connection: PipelinedConnection) -> None:
        connections = self._connections.get(endpoint, [])
        if connection in connections:
            connections.remove(connection)
        if not connections:
            self._connections.pop(endpoint, None)
        if not self._closed:
            self._dead.setdefault(endpoint, []).append(connection.number)
            self._forget_remembered()

    async def close(self) -> None:
        """Wait for outstanding replies, then close all connections."""
        self._closed = True
        if self._opening:
            await asyncio.wait(self._opening.values(), timeout=PATIENCE)
        await asyncio.gather(*(one.close() for some in self._connections.values() for one in some))

    def kill(self) -> None:
        """Close all connections at once."""
        self._closed = True
        for connection in [one for some in self._connections.values() for one in some]:
            connection.kill(NotExecuted("the store was never closed"))


def _compute_load(connection: PipelinedConnection) -> int:
    return connection.pending // (BUSY // 2)


def _ignore_failure(task: asyncio.Task[PipelinedConnection]) -> None:
    """Mark the task's exception as retrieved. The caller that waited for the task may have been cancelled."""
    if not task.cancelled():
        task.exception()
