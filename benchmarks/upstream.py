"""An upstream that answers at once, in a process of its own: `python -m benchmarks.upstream` prints its port."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress

TEXT = "I have looked it up: it was sent on Monday."
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": ?true')


def _answer(kind: str, body: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def _chunk(choices: list[object], **more: object) -> str:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "instant", "choices": choices, **more}
    return f"data: {json.dumps(chunk)}\n\n"


_USAGE = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
_MESSAGE = {"role": "assistant", "content": TEXT}
WHOLE = _answer(
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
STREAMED = _answer(
    "text/event-stream",
    _chunk([{"index": 0, "delta": _MESSAGE, "finish_reason": None}])
    + _chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    + _chunk([], usage=_USAGE)
    + "data: [DONE]\n\n",
)


class Instant(asyncio.Protocol):
    """Reads a request by its length, looks whether it is to be streamed, and writes one of two answers."""

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
            self._transport.write(STREAMED if streamed else WHOLE)


async def main() -> None:
    """Listen until killed."""
    server = await asyncio.get_running_loop().create_server(Instant, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
