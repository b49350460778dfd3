"""Stream request and response bodies of any size in constant memory."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.errors import HoldfastError, TooLarge
from holdfast.server.body_limits import check_encoding, get_declared_size
from holdfast.server.limits import ANSWER_BYTES, BODY_SECONDS
from holdfast.server.permissions import Refused

UPLOAD_SECONDS: Final = 3600.0
"""Time limit for a whole request body, in seconds."""
_log = logging.getLogger("holdfast.server")


async def read_chunks(request: Request, most: int, what: str) -> AsyncGenerator[bytes, None]:
    """Yield a request's body as it arrives.

    Args:
        request: the request.
        most: maximum size in bytes.
        what: name of the size limit, for the error message.

    Raises:
        TooLarge: the declared or the actual size is over the limit.
        Refused: the body is compressed, or arrives too slowly.
    """
    check_encoding(request.headers)
    size = get_declared_size(request.headers) or 0
    if size > most:
        raise TooLarge(f"the body has {size} bytes; {what} is {most}")
    size, until = 0, anyio.current_time() + UPLOAD_SECONDS
    async with aclosing(request.stream()) as pieces:
        while True:
            # A scope around one piece only: none may be open while the caller works on a piece.
            with anyio.CancelScope(deadline=min(anyio.current_time() + BODY_SECONDS, until)) as waiting:
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
    waited = f"no data arrived for {BODY_SECONDS:g} s, or the body took longer than {UPLOAD_SECONDS:g} s"
    raise Refused(408, "request_timeout", waited, connection="close")


async def read_first_chunk(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Read the first chunk, and return a generator that yields this chunk and all others.

    An error in the first chunk is raised at once, before a response begins.
    """
    try:
        first = await anext(chunks, b"")
    except BaseException:
        await chunks.aclose()
        raise
    return _prepend(first, chunks)


async def _prepend(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        yield first
        async for chunk in chunks:
            yield chunk


class ChunkedResponse(StreamingResponse):
    """A response whose body comes from a generator of chunks. The generator is always closed, even if the client disconnects."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], status: int, headers: Mapping[str, str]) -> None:
        super().__init__(chunks, status, headers)
        self._chunks = chunks

    async def stream_response(self, send: Send) -> None:
        """Send the body. An error in the middle ends the connection, so that the client sees that the body is incomplete."""
        async with aclosing(self._chunks):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for chunk in self._chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except HoldfastError as exc:
                _log.error("a response was cut off: %s: %s", exc.code, exc)
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class LargeResponse(Response):
    """A response that is sent in pieces, so that only a small part of it waits in the connection's buffer.

    Sending ends when the client has read nearly everything.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body, size = bytes(self.body), len(self.body)
        for start in range(0, size, ANSWER_BYTES):
            end = start + ANSWER_BYTES
            await send({"type": "http.response.body", "body": body[start:end], "more_body": end < size})
