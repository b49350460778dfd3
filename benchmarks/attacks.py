"""Attacks of one tenant on a server, in a separate process so that they do not slow down the client that measures.

`python -m benchmarks.attacks NAME URL KEY` prints a line when the attack starts, and attacks until the process is killed.
`python -m benchmarks.attacks upstream` starts an upstream that never ends a reply, and prints its address.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

MIB: Final = 1 << 20


class Attacker:
    """A client of the attacking tenant.

    Attributes:
        url: the server's address.
        token: value of the header `Authorization`.
    """

    def __init__(self, url: str, key: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self.token = f"Bearer {key}"
        self._http = http

    async def send(self, method: str, path: str, content: bytes | AsyncIterator[bytes] | None = None) -> int:
        """Send one request with a JSON body; return its status, or 0 if the connection failed."""
        headers = {"authorization": self.token, **({"content-type": "application/json"} if content is not None else {})}
        with suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
            async with self._http.request(method, self.url + path, headers=headers, data=content) as response:
                await response.read()
                return response.status
        return 0


Attack = Callable[[Attacker], Awaitable[None]]


def _encode(body: Any) -> bytes:
    return json.dumps(body).encode()


def _make_user_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _encode_chat(session: str, *messages: Mapping[str, Any], **more: Any) -> bytes:
    return _encode({"model": "m", "session_id": session, "messages": messages, **more})


def _announce_start() -> None:
    """Print a line that tells the benchmark that the attack starts."""
    print("started", flush=True)


def _make_distinct_words(size: int, seed: int) -> str:
    rnd = random.Random(seed)
    return " ".join("".join(rnd.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(size // 8))


async def _search(attacker: Attacker) -> None:
    """Store eight messages of 1 MB of distinct words and search them."""
    bodies = [
        _encode({"messages": [_make_user_message(f"harbour {_make_distinct_words(MIB, seed)}")]}) for seed in range(8)
    ]
    _announce_start()
    await attacker.send("POST", "/v1/sessions", _encode({"id": "s"}))
    for body in bodies:
        await attacker.send("POST", "/v1/sessions/s/messages", body)
    while True:
        await asyncio.gather(*(attacker.send("GET", "/v1/search?q=harbour+kelp") for _ in range(4)))


async def _stall(attacker: Attacker) -> None:
    """Open eight connections that announce 32 MiB, send 128 KiB and stall; reopen each that the server closes."""
    at = urlsplit(attacker.url)
    head = (
        f"POST /v1/sessions HTTP/1.1\r\nHost: {at.netloc}\r\nAuthorization: {attacker.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {32 * MIB}\r\n\r\n"
    )

    async def stall() -> None:
        while True:
            reader, writer = await asyncio.open_connection(at.hostname, at.port)
            try:
                writer.write(head.encode() + b"[" + b" " * 128 * 1024)
                await reader.read()
            finally:
                writer.close()

    _announce_start()
    await asyncio.gather(*(stall() for _ in range(8)))


async def _stream_endlessly(attacker: Attacker) -> None:
    """Run two chats whose upstream sends small chunks without end."""
    _announce_start()
    while True:
        chats = (_encode_chat(f"endless-{at}", _make_user_message("go on"), stream=True) for at in range(2))
        await asyncio.gather(*(attacker.send("POST", "/v1/chat/completions", chat) for chat in chats))


async def _count_tokens(attacker: Attacker) -> None:
    """Store eight messages of 1 MB of one repeated letter and build prompts from them."""
    body = _encode({"messages": [_make_user_message("a" * MIB) for _ in range(8)]})
    context = _encode({"strategy": "digest", "budget": 8000})
    _announce_start()
    await attacker.send("POST", "/v1/sessions", _encode({"id": "a"}))
    await attacker.send("POST", "/v1/sessions/a/messages", body)
    while True:
        await asyncio.gather(*(attacker.send("POST", "/v1/sessions/a/context", context) for _ in range(4)))


async def _send_huge_bodies(attacker: Attacker) -> None:
    """Send bodies of 100 MB without a content length on four connections."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100 * MIB // 65_536):
            yield b" " * 65_536

    _announce_start()
    while True:
        await asyncio.gather(*(attacker.send("POST", "/v1/sessions", pieces()) for _ in range(4)))


async def _queue_turns(attacker: Attacker) -> None:
    """Queue twenty-four turns of 11 MiB behind a running turn of the same session."""
    text = "word " * (11 * MIB // 5)
    bodies = [_encode_chat("w", _make_user_message(f"{at} {text}")) for at in range(24)]
    _announce_start()
    while True:
        first = asyncio.create_task(
            attacker.send("POST", "/v1/chat/completions", _encode_chat("w", _make_user_message("go on"), stream=True))
        )
        await asyncio.sleep(0.5)
        await asyncio.gather(*(attacker.send("POST", "/v1/chat/completions", body) for body in bodies))
        await first


async def _send_many_messages(attacker: Attacker) -> None:
    """Send chats of 90,000 messages and bodies of nearly a million JSON values."""
    messages = [{"role": "user", "content": [{"type": "text", "text": f"{at}"}]} for at in range(90_000)]
    chat = _encode_chat("many", *messages)
    values = _encode({"metadata": {"a": [[1]] * 450_000}})
    _announce_start()
    while True:
        await asyncio.gather(
            attacker.send("POST", "/v1/chat/completions", chat), attacker.send("POST", "/v1/sessions", values)
        )


async def _read_records_slowly(attacker: Attacker) -> None:
    """Store two records of 31 MiB and read them on sixteen connections, 64 KiB at a time with pauses."""
    at = urlsplit(attacker.url)
    request = f"GET /v1/records?namespace=a HTTP/1.1\r\nHost: {at.netloc}\r\nAuthorization: {attacker.token}\r\n\r\n"

    async def read() -> None:
        while True:
            with suppress(ConnectionError):
                reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=64 * 1024)
                try:
                    writer.write(request.encode())
                    for _ in range(100):
                        await asyncio.sleep(0.2)
                        if not await reader.read(64 * 1024):
                            break
                finally:
                    writer.close()

    value = _encode({"value": "x" * 31 * MIB})
    for key in ("1", "2"):
        await attacker.send("PUT", f"/v1/records/record?namespace=a&key={key}", value)
    _announce_start()
    await asyncio.gather(*(read() for _ in range(16)))


async def _put_large_records(attacker: Attacker) -> None:
    """Store records of 31 MiB on four connections: two texts, and two lists of 900,000 numbers and texts."""
    values = [_encode({"value": "x" * 31 * MIB}), _encode({"value": [["text of a list", 1]] * 290_000})]
    _announce_start()
    while True:
        await asyncio.gather(
            *(attacker.send("PUT", f"/v1/records/record?namespace=a&key={at}", values[at % 2]) for at in range(4))
        )


async def _delete_many_records(attacker: Attacker) -> None:
    """Store 4,000 records of 20 KB and delete them with one request, again and again."""
    value = "x" * 20_000
    bodies = [
        _encode(
            {"changes": [{"op": "put", "namespace": ["a"], "key": f"{at}-{one}", "value": value} for one in range(100)]}
        )
        for at in range(40)
    ]

    async def store() -> None:
        for body in bodies:
            await attacker.send("POST", "/v1/records", body)

    await store()
    _announce_start()
    while True:
        await attacker.send("DELETE", "/v1/records")
        await store()


ATTACKS: Final[Mapping[str, Attack]] = {
    "searches of 1 MB messages": _search,
    "stalled uploads": _stall,
    "an upstream reply without end": _stream_endlessly,
    "messages of 1 MB of one letter": _count_tokens,
    "bodies of 100 MB": _send_huge_bodies,
    "queued turns of 11 MiB": _queue_turns,
    "bodies of 90,000 messages": _send_many_messages,
    "slow readers of large records": _read_records_slowly,
    "records of 31 MiB": _put_large_records,
    "deleting 4,000 records": _delete_many_records,
}


async def _attack(name: str, url: str, key: str) -> None:
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        await ATTACKS[name](Attacker(url, key, http))


async def _serve_upstream() -> None:
    """Answer every chat with small chunks, as fast as the client reads them, until it disconnects."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    event = {**chunk, "choices": [{"index": 0, "delta": {"content": "x "}, "finish_reason": None}]}
    pieces = f"data: {json.dumps(event)}\n\n".encode() * 50

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            while True:
                writer.write(pieces)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Attack, or serve as the upstream, at a low priority: real attackers do not share the server's processor."""
    os.nice(5)
    asyncio.run(_serve_upstream() if sys.argv[1:] == ["upstream"] else _attack(*sys.argv[1:4]))


if __name__ == "__main__":
    main()
