"""Artifacts over HTTP: content of any size in and out, ranges, conditions, and browser safety."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.artifacts.settings import ArtifactSettings
from holdfast.server.artifacts import format_disposition
from holdfast.server.body_limits import BodyLimits
from tests.edges.server import Served, gateway

BASE = "/v1/sessions/s/artifacts"
DIGITS = b"0123456789"


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A server with a session `s` and a small limit for JSON bodies."""
    async with gateway([], limits=BodyLimits(body=2000)) as (running, _):
        await running.http.post("/v1/sessions", json={"id": "s"})
        yield running


async def put(served: Served, name: str, content: Any = DIGITS, **headers: str) -> dict[str, Any]:
    """Save an artifact; return the answer with `status` and `headers`."""
    name, _, query = name.partition("?")
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    response = await served.http.put(f"{BASE}/{quote(name)}?{query}", content=content, headers=sent)
    return {"status": response.status_code, "headers": response.headers, **response.json()}


async def get(served: Served, name: str, method: str = "GET", **headers: str) -> Any:
    """Load an artifact."""
    name, _, query = name.partition("?")
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    return await served.http.request(method, f"{BASE}/{quote(name)}?{query}", headers=sent)


async def list_blob_keys(served: Served) -> list[str]:
    """Return the keys of all stored contents."""
    return sorted([key async for key in served.hf.artifacts.blobs.list_old(2**60)])


# -- ranges and conditions -----------------------------------------------------


async def test_range_of_a_large_content_reads_only_that_part(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the bytes before nor those after it."""
    content = bytes(range(250)) * 20_000
    await put(served, "a.bin", content)
    read: list[tuple[int, int]] = []
    real = served.hf.artifacts.blobs.get

    def record_read(key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        read.append((start, stop))
        return real(key, start, stop)

    monkeypatch.setattr(served.hf.artifacts.blobs, "get", record_read)
    assert (await get(served, "a.bin", range="bytes=2000000-2000999")).content == content[2_000_000:2_001_000]
    assert read == [(2_000_000, 2_001_000)]


# -- browser safety ----------------------------------------------------------------


@given(st.text(max_size=30))
def test_name_cannot_break_out_of_its_header(name: str) -> None:
    """The header is always one line of characters that every client accepts."""
    shown = format_disposition(name)
    assert re.fullmatch(r"attachment; filename=\"[A-Za-z0-9 ._()@+-]*\"; filename\*=UTF-8''[A-Za-z0-9._~%-]*", shown)


# -- refused requests ------------------------------------------------------------


async def test_too_large_content_is_refused_before_it_is_read(served: Served) -> None:
    """By the declared size; undeclared content is cut off. The artifact limit applies, not that of other bodies."""
    served.hf.artifacts.settings = ArtifactSettings(max_bytes=100_000)
    assert (await put(served, "a.bin", bytes(100_000)))["status"] == 201
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    head = f"PUT {BASE}/b.bin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100001\r\n\r\n"
    writer.write(head.encode())
    assert b" 413 " in await reader.readline()
    writer.close()
    await writer.wait_closed()

    async def unsaid() -> AsyncGenerator[bytes, None]:
        for _ in range(100):
            yield bytes(10_000)

    refused = await put(served, "b.bin", unsaid())
    assert (refused["status"], refused["error"]["code"]) == (413, "too_large")
    assert "100000" in refused["error"]["message"]
    assert len(await list_blob_keys(served)) == 1


async def test_too_slow_content_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.body_streams.BODY_SECONDS", 0.05)
    async with gateway([]) as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s"})
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = f"PUT {BASE}/b.bin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nfirst"
        writer.write(head.encode())
        assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert await list_blob_keys(served) == []


async def test_upload_aborted_by_the_client_leaves_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a name nor content."""
    ended, begun = asyncio.Event(), asyncio.Event()
    real = served.hf.artifacts.blobs.put

    async def record_read(key: str, chunks: Any) -> None:
        begun.set()
        try:
            await real(key, chunks)
        finally:
            ended.set()

    monkeypatch.setattr(served.hf.artifacts.blobs, "put", record_read)
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    head = f"PUT {BASE}/b.bin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n\r\n"
    writer.write(head.encode() + bytes(3_000_000))
    await begun.wait()
    writer.transport.abort()
    await ended.wait()
    assert await list_blob_keys(served) == []
    assert (await served.http.get(BASE)).json()["data"] == []
