"""A client on bare sockets that reads a stream as slowly as a test wants and disconnects when it wants."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

SMALL = 4096
"""Bytes of a receive buffer that is soon full."""
_OPEN: list[Line] = []


class Line:
    """One request and its answer as it arrives.

    Attributes:
        head: status line and headers of the answer, once they were read.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = b""
        self._reader = reader
        self._writer = writer
        self._lines: deque[str] = deque()
        self._rest = b""
        self._ended = False

    @classmethod
    async def ask(
        cls,
        port: int,
        text: str,
        session: str = "s",
        *,
        path: str = "/v1/chat/completions",
        key: str | None = None,
        small: bool = False,
        **fields: Any,
    ) -> Line:
        """Ask for a streamed reply.

        Args:
            port: the server's port on this machine.
            text: the user's message.
            session: the session.
            path: the API's path.
            key: an `Idempotency-Key`.
            small: use a small receive buffer.
            fields: more fields of the body.
        """
        sock = socket.socket()
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=SMALL if small else 1 << 16)
        writer.write(_request(port, text, session, path=path, key=key, **fields))
        line = cls(reader, writer)
        _OPEN.append(line)
        return line

    def send_another(self, text: str, session: str) -> None:
        """Send another request on the same connection before the first answer has ended."""
        self._writer.write(_request(self._writer.get_extra_info("peername")[1], text, session))

    async def begin(self) -> int:
        """Read the head; return the status."""
        self.head = await self._reader.readuntil(b"\r\n\r\n")
        return int(self.head.split(b" ", 2)[1])

    async def lines(self) -> AsyncIterator[str]:
        """Yield the non-empty lines of the answer, comments included, until the server ends it."""
        if not self.head:
            await self.begin()
        while True:
            while self._lines:
                yield self._lines.popleft()
            if self._ended:
                return
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            *whole, self._rest = (self._rest + (await self._reader.readexactly(size + 2))[:-2]).split(b"\n")
            self._lines.extend(line.decode() for line in whole if line)
            self._ended = size == 0

    async def words(self) -> AsyncIterator[str]:
        """Yield the text of the reply, piece by piece."""
        async for line in self.lines():
            if line.startswith("data: {"):
                told = json.loads(line[6:])
                for said in (told, *(told.get("choices") or ())):
                    delta = said.get("delta") or {}
                    if word := delta.get("content") or delta.get("text"):
                        yield word

    async def text(self) -> str:
        """Return the whole text of the reply."""
        return "".join([word async for word in self.words()])

    async def is_cut_off(self) -> bool:
        """Read the rest; return True if the server closed the connection before the end of the answer."""
        data = self.head
        try:
            while piece := await self._reader.read(1 << 16):
                data = (data + piece)[-64:]
        except ConnectionError:
            return True
        return not data.endswith(b"0\r\n\r\n")

    def drop(self) -> None:
        """Drop the connection at once."""
        self._writer.transport.abort()


def _request(
    port: int, text: str, session: str, *, path: str = "/v1/chat/completions", key: str | None = None, **fields: Any
) -> bytes:
    said = {"session_id": session, "stream": True, "messages": [{"role": "user", "content": text}], **fields}
    body = json.dumps(said).encode()
    head = [
        f"POST {path} HTTP/1.1",
        f"host: 127.0.0.1:{port}",
        f"content-length: {len(body)}",
        *([f"idempotency-key: {key}"] if key else []),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def drop_all() -> None:
    """Drop all requests of a test."""
    while _OPEN:
        _OPEN.pop().drop()
