"""Bodies over the limit of the REST API and the gateway."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import httpx2

from holdfast.server.body_limits import BodyLimits
from tests.edges.rest_kit import BODIES, assert_error
from tests.edges.server import gateway


async def test_body_over_the_limit_is_a_413() -> None:
    """With the limit, declared or not; the connection may continue."""
    async with gateway(["ok"], limits=BodyLimits(body=2000)) as (served, _):
        big = json.dumps({"messages": [{"role": "user", "content": "x" * 5000}], "id": "big"}).encode()

        async def pieces() -> Any:
            for at in range(0, len(big), 100):
                yield big[at : at + 100]

        for method, url in BODIES:
            for content in (big, pieces()):
                response = await served.http.request(method, url, content=content)
                assert assert_error(response, 413)["code"] == "too_large"
                assert "2000" in response.text
        assert (await served.http.get("/v1/sessions")).json()["data"] == []
        assert (await served.chat("hi"))["status"] == 200


async def test_body_far_over_the_limit_is_a_413() -> None:
    """A client that sends 40 MB and reads meanwhile gets one answer; others are served."""
    async with gateway(["Hello!"]) as (served, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Length: 40000000\r\n\r\n"
        writer.write(head.encode() + b"x" * 40_000_000)
        first, *lines = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if line)
        content = await reader.readexactly(int(httpx2.Headers(headers)["content-length"]))
        error = assert_error(httpx2.Response(int(first.split()[1]), headers=headers, content=content), 413)
        assert error["code"] == "too_large"
        rest = b""
        with suppress(ConnectionError):
            rest = await asyncio.wait_for(reader.read(), 20)
        assert rest == b""
        writer.close()
        assert (await served.chat("hi"))["status"] == 200
