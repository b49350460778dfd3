"""The servers: which one has a key, a few connections to each, and what is tried again.

What was certainly not executed is: a server that cannot be reached, or is loading, is asked again for a while, a slot that
has moved is asked for where it is now. What was sent when a connection broke is sent again only where that does no harm.
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
    PASSING,
    SLOTS,
    Argument,
    Command,
    Lost,
    PipelinedConnection,
    Place,
    Refused,
    Unsure,
    open_connection,
    slot_of,
    translate,
)
from holdfast.stores.redis.keys import tag_of

BUSY: Final = 64
"""Commands without an answer, from which another connection is opened."""
MOVES: Final = 8
"""Times that one command follows a slot from server to server without a pause."""


class Script(msgspec.Struct, frozen=True):
    """A script, and what servers that have seen it know it by."""

    text: bytes
    sha: bytes


@cache
def script(*names: str) -> Script:
    """The script that some files are one after the other."""
    folder = Path(__file__).parent / "scripts"
    text = b"\n".join((folder / f"{name}.lua").read_bytes() for name in names)
    return Script(text, sha1(text).hexdigest().encode())  # noqa: S324  # what Redis knows it by


class Nodes:
    """One server, or those of a cluster."""

    def __init__(self, address: RedisAddress, remembered: SessionCache[Any]) -> None:
        self.clustered = address.clustered
        self.name = address.name
        self._login, self._seeds, self._size = address.login, address.places, address.pool
        # After a loss the server may be another one, whose past is not that of the first: nothing is believed of it.
        self._lost = remembered.clear
        self._slots: list[Place | None] = [None] * SLOTS if self.clustered else []
        self._connections: dict[Place, list[PipelinedConnection]] = {}
        self._opening: dict[Place, asyncio.Task[PipelinedConnection]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._dead: dict[Place, list[int]] = {}
        """Connections that broke: what they may still bring is not to be executed any more."""
        self._closed = False

    # -- asking ----------------------------------------------------------------

    async def run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Argument], *, once: bool) -> Any:
        """Return what a script answers. All keys are in one slot; `once` as with `call`."""
        rest = (len(keys), *keys, *arguments)
        try:
            return await self.call(keys[0], ("EVALSHA", script.sha, *rest), once=once)
        except Refused:  # the server does not know the script yet, or not any more
            return await self.call(keys[0], ("EVAL", script.text, *rest), once=once)

    async def call(self, key: bytes, command: Command, *, once: bool = False) -> Any:
        """Return the answer to a command.

        Args:
            key: where it goes.
            command: its parts.
            once: not to be sent again when it is not known whether it was executed.

        Raises:
            Unsure: with `once`, when that is not known.
            Refused: the server does not know the script.
            HoldfastError: the server refused it, or cannot be reached.
        """
        place: Place | None = None
        asking, attempt, moves, give_up = False, 0, 0, inf
        while True:
            try:
                connection = await self._connection(place or await self._home(key))
                return await (connection.call(("ASKING",), command) if asking else connection.call(command))
            except Refused as exc:
                if self.clustered and exc.code in ("MOVED", "ASK") and moves < MOVES:
                    moves, place, asking = moves + 1, self._follow(exc), exc.code == "ASK"
                    continue
                self._refuse(exc, late=monotonic() > give_up)
                if exc.code == "READONLY":
                    connection.kill(exc)
            except (Lost, Unsure) as exc:
                if once and isinstance(exc, Unsure):
                    raise
                self._give_up(exc, give_up)
            give_up = min(give_up, monotonic() + RECONNECTING)
            attempt, moves, place, asking = attempt + 1, 0, None, False
            await asyncio.sleep(min(0.005 * 2**attempt, 0.2) * random.uniform(0.5, 1.0))  # noqa: S311  # spreads rivals
            if self.clustered:
                await self._refresh()

    def _refuse(self, exc: Refused, *, late: bool) -> None:
        """Raise what a server answered, unless another attempt may do better."""
        if exc.code == "NOSCRIPT":
            raise exc
        if late or exc.code not in PASSING:
            raise translate(exc, self.name) from exc

    def _give_up(self, exc: Exception, at: float) -> None:
        if monotonic() > at:
            raise StoreUnavailable(f"{self.name} cannot be reached: {exc}") from exc.__cause__

    async def everywhere(self, *command: Argument) -> dict[Place, Any]:
        """Return the answer of every server that has slots; a `Refused` in place of one that was none."""
        return {place: await self._answer(place, command) for place in await self._homes()}

    async def scan(self, pattern: str) -> AsyncIterator[bytes]:
        """Yield the keys that match, of every server; a key may come twice."""
        for place in await self._homes():
            cursor: bytes | int = 0
            while cursor != b"0":
                answer = await self._answer(place, ("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
                if isinstance(answer, Refused):
                    raise translate(answer, self.name)
                cursor, keys = answer
                for key in keys:
                    yield key

    async def _answer(self, place: Place, command: Command) -> Any:
        give_up = monotonic() + RECONNECTING
        while True:
            try:
                return await (await self._connection(place)).call(command)
            except Refused as exc:
                return exc
            except (Lost, Unsure) as exc:
                self._give_up(exc, give_up)
                await asyncio.sleep(0.02)

    # -- where -----------------------------------------------------------------

    async def _home(self, key: bytes) -> Place:
        """Return the server that has `key`; ask which one it is if that is not known."""
        if not self.clustered:
            return self._seeds[0]
        slot = slot_of(tag_of(key))
        if self._slots[slot] is None:
            await self._refresh()
        place = self._slots[slot]
        if place is None:
            raise Lost("no server has this slot")
        return place

    async def _homes(self) -> list[Place]:
        """Return all servers that have slots."""
        if not self.clustered:
            return [self._seeds[0]]
        if not any(self._slots):
            await self._refresh()
        return sorted({one for one in self._slots if one}, key=str)

    def _follow(self, exc: Refused) -> Place:
        """Return where a server says that a slot is, for good or for one command: `… 3999 10.0.0.7:6381`."""
        slot, address = str(exc).split()[-2:]
        host, _, port = address.rpartition(":")
        place = Place(host.strip("[]") or self._seeds[0].host, int(port))
        if exc.code == "MOVED":
            self._slots[int(slot)] = place
            self._lost()
        return place

    async def _refresh(self) -> None:
        """Ask which server has which slots; several who need it ask once."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._load_slots())
        await asyncio.shield(self._refreshing)

    async def _load_slots(self) -> None:
        for place in dict.fromkeys([*self._connections, *self._seeds]):
            try:
                connection = await self._connection(place)
                ranges = await connection.call(("CLUSTER", "SLOTS"))
            except Refused as exc:
                if exc.code in ("ERR", "NOPERM"):
                    raise StoreUnavailable(
                        f"{self.name}: it is no cluster, or does not say what it has ({exc})"
                    ) from exc
            except (Lost, Unsure):
                continue
            else:
                slots: list[Place | None] = [None] * SLOTS
                for first, last, (host, port, *_), *_replicas in ranges:
                    slots[first : last + 1] = [Place((host or b"").decode() or place.host, port)] * (last - first + 1)
                self._slots = slots
                return

    # -- connections -----------------------------------------------------------

    async def _connection(self, place: Place) -> PipelinedConnection:
        """A connection to a server: the one with the least to do."""
        connections = self._connections.get(place)
        if not connections:
            return await asyncio.shield(self._start_opening(place))
        connection = connections[0] if len(connections) == 1 else min(connections, key=_load)
        if connection.pending >= BUSY and len(connections) < self._size:
            self._start_opening(place)
        return connection

    def _start_opening(self, place: Place) -> asyncio.Task[PipelinedConnection]:
        if self._closed:
            raise StoreClosed
        task = self._opening.get(place)
        if task is None:
            task = self._opening[place] = asyncio.get_running_loop().create_task(self._open(place))
            task.add_done_callback(_ignore_failure)
        return task

    async def _open(self, place: Place) -> PipelinedConnection:
        try:
            connection = await open_connection(self._login, place, lambda connection: self._forget(place, connection))
        finally:
            self._opening.pop(place, None)
        for number in self._dead.pop(place, ()):
            try:
                await connection.call(("CLIENT", "KILL", "ID", number))
            except Refused:  # it has gone by itself, or this user may not
                pass
        if self._closed:
            connection.kill(Lost("the store is closed"))
        else:
            self._connections.setdefault(place, []).append(connection)
        return connection

    def _forget(self, place: Place, connection: PipelinedConnection) -> None:
        connections = self._connections.get(place, [])
        if connection in connections:
            connections.remove(connection)
        if not connections:
            self._connections.pop(place, None)
        if not self._closed:
            self._dead.setdefault(place, []).append(connection.number)
            self._lost()

    async def close(self) -> None:
        """Wait for what was asked, then close the connections."""
        self._closed = True
        if self._opening:
            await asyncio.wait(self._opening.values(), timeout=PATIENCE)
        await asyncio.gather(*(one.finish() for some in self._connections.values() for one in some))

    def kill(self) -> None:
        """Let go of everything without a word, where there is no time for one."""
        self._closed = True
        for connection in [one for some in self._connections.values() for one in some]:
            connection.kill(Lost("the store was forgotten"))


def _load(connection: PipelinedConnection) -> int:
    return connection.pending // (BUSY // 2)


def _ignore_failure(task: asyncio.Task[PipelinedConnection]) -> None:
    """An attempt that nobody waits for any more may fail without a word."""
    if not task.cancelled():
        task.exception()
