"""Large requests of a tenant take turns, a stalled body blocks no other tenant, and bodies over the limit are not read."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from holdfast.limits import MIB
from holdfast.server import protocol
from holdfast.server.body_limits import BodyLimits
from holdfast.server.limits import DRAIN_BYTES, LARGE_BYTES, LARGE_REQUESTS_OF_TENANT
from holdfast.server.permissions import Refused
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import gateway

PIECE = 64 * 1024


async def test_a_tenant_has_a_number_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another tenant has its own. A request that waits too long is refused, with a time to try again."""
    limits = BodyLimits()
    taken = [await limits.take_turn("a") for _ in range(LARGE_REQUESTS_OF_TENANT)]
    assert (await limits.take_turn("b")) is not taken[0]
    waiting = asyncio.ensure_future(limits.take_turn("a"))
    await asyncio.sleep(0)
    assert not waiting.done()
    taken.pop().release()
    taken.append(await waiting)
    monkeypatch.setattr("holdfast.server.body_limits.BODY_SECONDS", 0.01)
    with pytest.raises(Refused) as refused:
        await limits.take_turn("a")
    assert (refused.value.status, refused.value.code, refused.value.headers["retry-after"]) == (503, "busy", "1")


async def test_stalled_uploads_do_not_block_other_tenants() -> None:
    """Regression: four connections that announced 32 MiB and stalled blocked every body over 64 KiB for 60 s."""
    async with gateway([]) as (served, _):
        keys = [await create_stored_key(served.hf, tenant=tenant) for tenant in ("attacker", "victim")]
        head = f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nAuthorization: Bearer {keys[0]}\r\n"
        begun = head.encode() + f"Content-Length: {2 * LARGE_BYTES}\r\n\r\n".encode() + b" " * PIECE
        writers = []
        for _ in range(2 * LARGE_REQUESTS_OF_TENANT):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(begun)
            await writer.drain()
            writers.append(writer)
        body = {"messages": [{"role": "user", "content": "x" * (LARGE_BYTES + 1)}]}
        answer = await served.http.put("/v1/sessions/s", json=body, headers=bearer(keys[1]))
        assert answer.status_code == 200
        for writer in writers:
            writer.transport.abort()


async def test_too_large_body_is_not_read_to_its_end() -> None:
    """Regression: 100 MB were answered with 413 but read all the same."""
    async with gateway([], limits=BodyLimits(MIB)) as (served, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        size = 100 * MIB
        writer.write(
            f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        answer = await reader.readuntil(b"\r\n")
        assert answer.startswith(b"HTTP/1.1 413")
        sent = 0
        with suppress(OSError):
            while sent < size:
                writer.write(b" " * PIECE)
                await writer.drain()
                sent += PIECE
        assert sent <= DRAIN_BYTES + 16 * MIB, "what the system's own buffers hold comes on top"
        writer.close()


async def test_connection_with_an_unread_body_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the client stops sending."""
    monkeypatch.setattr(protocol, "DRAIN_SECONDS", 0.05)
    async with gateway([], limits=BodyLimits(MIB)) as (served, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Length: {100 * MIB}\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n")
        writer.write(b" " * PIECE)
        await asyncio.wait_for(reader.read(), 20)
        writer.close()
