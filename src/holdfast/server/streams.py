"""Bodies of any size, in and out, little of them in memory at a time."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Send

from holdfast.errors import HoldfastError, TooLarge
from holdfast.server.intake import check_encoding, declared
from holdfast.server.permissions import Refused

UPLOAD_SECONDS: Final = 3600.0
"""Seconds that a body may take to arrive whole."""
_log = logging.getLogger("holdfast.server")


async def arriving(request: Request, most: int, what: str, *, patience: float) -> AsyncGenerator[bytes, None]:
    """A request's body as it comes.

    Args:
        request: the request.
        most: bytes it may have.
        what: names the limit.
        patience: seconds until the next piece of it is there.

    Raises:
        TooLarge: by its own word, or by what came.
        Refused: it is compressed, or comes too slowly.
    """
    check_encoding(request.headers)
    size = declared(request.headers) or 0
    if size > most:
        raise TooLarge(f"the body has {size} bytes; {what} is {most}")
    size, until = 0, anyio.current_time() + UPLOAD_SECONDS
    async with aclosing(request.stream()) as pieces:
        while True:
            # A scope around one piece alone: none may be open while a piece is at work elsewhere.
            with anyio.CancelScope(deadline=min(anyio.current_time() + patience, until)) as waiting:
                try:
                    piece = await anext(pieces)
                except StopAsyncIteration:
                    return
            if waiting.cancelled_caught:
                break
            size += len(piece)
            if size > most:
                raise TooLarge(f"the body is larger than {most} bytes, {what}")
            yield piece
    waited = f"no more of the body came for {patience:g} s, or all of it did not within {UPLOAD_SECONDS:g} s"
    raise Refused(408, "request_timeout", waited, connection="close")


async def begun(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same chunks, the first of which is there: what is wrong with it is raised here, before a reply has begun."""
    try:
        first = await anext(chunks, b"")
    except BaseException:
        await chunks.aclose()
        raise
    return _resumed(first, chunks)


async def _resumed(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        yield first
        async for chunk in chunks:
            yield chunk


class Streamed(StreamingResponse):
    """A reply whose body comes in chunks; it is closed with its chunks, also when whoever asked has gone."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], status: int, headers: Mapping[str, str]) -> None:
        super().__init__(chunks, status, headers)
        self._chunks = chunks

    async def stream_response(self, send: Send) -> None:
        """Send it. What fails behind the first chunk ends the connection: the body is shorter than it was said to be."""
        async with aclosing(self._chunks):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for chunk in self._chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except HoldfastError as exc:
                _log.error("a reply was cut off: %s: %s", exc.code, exc)
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
