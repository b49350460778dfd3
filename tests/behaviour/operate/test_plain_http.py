"""Requests with no host or two, and WebSocket handshakes: each gets one plain answer and has no other effect."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.behaviour.kit import Served, gateway

HANDSHAKE = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: aGVsbG8gd29ybGQhISEhIQ==\r\n"


async def ask(served: Served, head: str, *, path: str = "/healthz", version: str = "1.1") -> tuple[int, Any, bytes]:
    """Send a request exactly as written; return its status, its body, and what followed until the connection was
    closed.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", served.url.rpartition(":")[2])
    close = "" if "Connection" in head else "Connection: close\r\n"
    writer.write(f"GET {path} HTTP/{version}\r\n{head}{close}\r\n".encode())
    answer = await reader.read()
    writer.close()
    head_bytes, _, rest = answer.partition(b"\r\n\r\n")
    status, *lines = head_bytes.decode().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length"))
    return int(status.split()[1]), json.loads(rest[:length]), rest[length:]


@pytest.mark.parametrize("path", ["/healthz", "/v1/sessions"])
@pytest.mark.parametrize(
    "hosts",
    ["", "Host: localhost\r\nHost: localhost\r\n", "Host: evil.example\r\nHost: localhost\r\n"],
    ids=["none", "the same twice", "two"],
)
async def test_request_without_exactly_one_host_is_refused(hosts: str, path: str) -> None:
    async with gateway([]) as served:
        status, body, rest = await ask(served, hosts, path=path)
        assert (status, body["error"]["code"], rest) == (400, "invalid_host", b"")
        assert (await ask(served, "Host: localhost\r\n", path=path))[0] == 200


async def test_http_1_0_may_have_no_host_but_not_two() -> None:
    async with gateway([], "gateway: {allowed_hosts: [a.example]}") as served:
        assert (await ask(served, "Host: a.example\r\n", path="/", version="1.0"))[0] == 200
        assert (await ask(served, "", path="/", version="1.0"))[1]["error"]["code"] == "host_not_allowed"
        assert (await ask(served, "Host: a.example\r\n" * 2, version="1.0"))[1]["error"]["code"] == "invalid_host"


@pytest.mark.parametrize("path", ["/", "/v1/chat/completions", "/nothing/here"])
async def test_websocket_handshake_gets_one_plain_answer(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway([]) as served:
        status, body, rest = await ask(served, f"Host: localhost\r\n{HANDSHAKE}", path=path)
        assert (status, body["error"]["code"], rest) == (400, "websocket_not_supported", b"")
        assert served.upstream.requests == []
        assert not caplog.records, "no traceback, no advice to install something"


async def test_other_upgrades_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """HTTP allows the server to ignore them; clients offer HTTP/2 this way."""
    async with gateway([]) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.url.rpartition(":")[2])
        offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
        writer.write(f"GET /healthz HTTP/1.1\r\nHost: localhost\r\n{offer}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        writer.close()
        assert not any("Unsupported upgrade" in record.message for record in caplog.records)
