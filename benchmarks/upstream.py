"""A model server in its own process: `python -m benchmarks.upstream [CHUNKS SECONDS]` prints its port.

It replies at once. With arguments it streams each reply in CHUNKS chunks over SECONDS seconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import suppress

TEXT = "I have looked it up: it was sent on Monday."
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": ?true')


def _format_answer(kind: str, body: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def _format_chunk(choices: list[object], **more: object) -> str:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "instant", "choices": choices, **more}
    return f"data: {json.dumps(chunk)}\n\n"


_USAGE = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
_MESSAGE = {"role": "assistant", "content": TEXT}
WHOLE = _format_answer(
    "application/json",
    json.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "instant",
            "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
            "usage": _USAGE,
        }
    ),
)
STREAMED = _format_answer(
    "text/event-stream",
    _format_chunk([{"index": 0, "delta": _MESSAGE, "finish_reason": None}])
    + _format_chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    + _format_chunk([], usage=_USAGE)
    + "data: [DONE]\n\n",
)


def make_chunks(count: int) -> list[bytes]:
    """Return a streamed reply as parts: the head, `count` chunks, and the end of the stream."""
    words = [
        _format_chunk([{"index": 0, "delta": {"content": f"word {at} "}, "finish_reason": None}]) for at in range(count)
    ]
    end = (
        _format_chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        + _format_chunk([], usage=_USAGE)
        + "data: [DONE]\n\n"
    )
    lengths = sum(map(len, [*words, end]))
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {lengths}\r\n\r\n"
    return [part.encode() for part in (head, *words, end)]


class InstantUpstream(asyncio.Protocol):
    """An HTTP server that reads a request by its length and writes a whole or a streamed reply."""

    pace: tuple[list[bytes], float] | None = None
    """Parts of a streamed reply and the seconds between two of them; None to send it at once."""

    def __init__(self) -> None:
        self._seen = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._seen += data
        while (head := self._seen.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._seen, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self._seen) < end:
                return
            streamed = _STREAM.search(self._seen, head, end)
            del self._seen[:end]
            assert self._transport is not None
            if streamed and self.pace is not None:
                self._send_part(0)
            else:
                self._transport.write(STREAMED if streamed else WHOLE)

    def _send_part(self, at: int) -> None:
        assert self._transport is not None
        assert self.pace is not None
        parts, pause = self.pace
        if at < len(parts) and not self._transport.is_closing():
            self._transport.write(parts[at])
            asyncio.get_running_loop().call_later(pause, self._send_part, at + 1)


async def main() -> None:
    """Listen until the process is killed."""
    if len(sys.argv) > 2:
        count, seconds = int(sys.argv[1]), float(sys.argv[2])
        InstantUpstream.pace = (make_chunks(count), seconds / count)
    server = await asyncio.get_running_loop().create_server(InstantUpstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
