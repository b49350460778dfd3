"""A network that is slow at times and drops connections: what stands between a server and its database."""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

STALL = 0.2
"""Most seconds that a packet is held back while the network is slow."""


class Network:
    """Passes bytes on, both ways; its connections can be dropped, and while it is `slow` packets come late.

    Args:
        url: the database's; `url` of the network leads to the same through it.
        chance: decides what is slow.
    """

    def __init__(self, url: str, chance: random.Random) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        self._server = (parts.hostname, parts.port or 5432)
        self._parts = parts
        self._chance = chance
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.slow = False
        self.dropped = 0

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._listening.sockets[0].getsockname()[1]
        user = self._parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(self._parts._replace(netloc=f"{user}@127.0.0.1:{port}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drop(self) -> None:
        """Break every connection, in the middle of whatever it does."""
        for writer in list(self._connections.values()):
            self.dropped += 1
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            server_reader, server = await asyncio.open_connection(*self._server)
            try:
                await asyncio.gather(self._pass(reader, server), self._pass(server_reader, writer))
            finally:
                server.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # asyncio reports a cancelled task of a connection as an error
        finally:
            writer.transport.abort()
            del self._connections[task]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self.slow and self._chance.random() < 0.2:
                await asyncio.sleep(self._chance.uniform(0, STALL))
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one end has gone: so does the other")
