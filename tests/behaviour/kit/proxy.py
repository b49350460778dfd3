"""A connection that breaks at a chosen moment: what stands between a store and its server."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

Loss = Literal["request", "answer", "late"]
"""What a broken connection loses: the packet, the server's answer, or the packet until the next connection inserts its write's id."""
ANSWERING = 30.0
"""Seconds that a server may take to answer what the connection breaks behind."""


class Proxy:
    """Passes bytes on, both ways, until a packet to the server holds the marker it was armed with.

    Then the connection breaks: before the packet is passed on, or when the server has answered it, so that what was asked
    is done and nobody knows. Or the packet reaches the server after its sender has given it up.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self._server = (parts.hostname, parts.port)
        self._parts = parts
        self._marker: bytes | None = None
        self._loss: Loss = "request"
        self._for_good = False
        self._late: tuple[_Way, bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.broke = 0

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._listening.sockets[0].getsockname()[1]
        user = f"{self._parts.username}:{self._parts.password}" if self._parts.password else self._parts.username
        login = f"{user}@" if user else ""
        self.url = urlunsplit((self._parts.scheme, f"{login}127.0.0.1:{port}", *self._parts[2:]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def arm(self, marker: bytes, loss: Loss, *, for_good: bool = False) -> None:
        """Break at the next packet that holds `marker`, and, if `for_good`, accept no connection afterwards."""
        self._marker, self._loss, self._for_good = marker, loss, for_good

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(*self._server)
        way = _Way(writer, server_writer)
        both = [
            asyncio.create_task(self._to_server(reader, way)),
            asyncio.create_task(self._to_client(server_reader, way)),
        ]
        self._tasks.update(both)
        try:
            await asyncio.gather(*both, return_exceptions=True)
        finally:
            for end in (server_writer, writer):
                end.transport.abort()
            self._tasks.difference_update(both)

    async def _to_server(self, reader: asyncio.StreamReader, way: _Way) -> None:
        while data := await reader.read(1 << 20):
            if self._marker is not None and self._marker in data:
                self._marker = None
                self.broke += 1
                way.broken = True
                if self._for_good:
                    self._listening.close()
                if self._loss == "answer":
                    await way.pass_on_and_wait(data)
                way.client.transport.abort()
                if self._loss == "late":
                    self._late = way, data
                    await way.answered.wait()
                break
            way.server.write(data)
            if self._late is not None and b"INSERT INTO writes" in data:
                (late, held), self._late = self._late, None
                await late.pass_on_and_wait(held)
        way.server.transport.abort()

    async def _to_client(self, reader: asyncio.StreamReader, way: _Way) -> None:
        while data := await reader.read(1 << 20):
            if way.broken:
                way.answered.set()
            else:
                way.client.write(data)
        way.client.transport.abort()


class _Way:
    """A connection that is passed on, to both of its ends."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.broken = False
        """Whether the client gets nothing any more."""
        self.answered = asyncio.Event()
        """Whether the server has said something since."""

    async def pass_on_and_wait(self, data: bytes) -> None:
        """Pass a packet on to the server of a broken connection, and wait for the answer."""
        self.server.write(data)
        async with asyncio.timeout(ANSWERING):
            await self.answered.wait()
