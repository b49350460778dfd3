"""Request limits: each has a number that the error names, and a refused request writes nothing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import limits
from holdfast.config.loader import load
from holdfast.server import limits as server_limits
from holdfast.server.body_limits import BodyLimits
from tests.edges.rest_kit import HI, assert_error, create_session_s, read_peak_memory, send_raw
from tests.edges.server import Process, Served, gateway

BODY, MEDIA = 200_000, 50_000


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests and messages may have only a few items."""
    small = {"REQUEST_MESSAGE_BYTES": 50_000, "REQUEST_MESSAGES": 20, "REQUEST_TOOLS": 3}
    for name, number in {**small, "MESSAGE_PARTS": 5, "MESSAGE_CALLS": 4}.items():
        monkeypatch.setattr(limits, name, number)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body must arrive in a fifth of a second."""
    monkeypatch.setattr("holdfast.server.body_limits.BODY_SECONDS", 0.2)


def calls(count: int) -> dict[str, Any]:
    """Return an assistant message with `count` tool calls."""
    one = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{at}", **one} for at in range(count)]}


def parts(count: int) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "x"}] * count}


OVER: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "messages": ([HI] * 21, "messages", "20"),
    "parts": ([HI, parts(6)], "messages[1].content", "5"),
    "tool calls": ([calls(5)], "messages[0].tool_calls", "4"),
    "a message": ([{"role": "user", "content": "x" * 60_000}], "messages[0]", "50000"),
    "base64": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x;base64," + "A" * 80_000}}]}],
        "messages[0].content[0]",
        "50000",
    ),
}


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("name", OVER)
async def test_messages_over_the_limits_are_refused(name: str) -> None:
    """413 with the place and the number on every route that takes messages; a request at the limit is accepted."""
    messages, param, number = OVER[name]
    async with gateway(["ok"], limits=BodyLimits(BODY, MEDIA)) as (served, upstream):
        await create_session_s(served)
        for method, url in (
            ("POST", "/v1/chat/completions"),
            ("PUT", "/v1/sessions/s"),
            ("POST", "/v1/sessions/s/messages"),
        ):
            error = assert_error(await served.http.request(method, url, json={"messages": messages}), 413)
            assert (error["code"], error["param"]) == ("too_large", param)
            assert number in error["message"]
        assert await served.log() == [("user", "hi")]
        assert len((await served.http.get("/v1/sessions")).json()["data"]) == 1
        assert upstream.requests == []
        for good in ([HI] * 20, [parts(5)], [calls(4)]):
            assert (await served.http.put("/v1/sessions/t", json={"messages": good})).status_code == 200


@pytest.mark.usefixtures("small_limits")
async def test_too_many_tools_are_refused() -> None:
    """In a chat and for a working set."""
    async with gateway([], limits=BodyLimits(BODY, MEDIA)) as (served, _):
        await create_session_s(served)
        one = {"type": "function", "function": {"name": "f"}}
        for tools in ([one] * 4, [{"type": "namespace", "name": "n", "tools": [one] * 3}, one]):
            for url, body in (("/v1/chat/completions", {"messages": [HI]}), ("/v1/sessions/s/context", {})):
                assert assert_error(await served.http.post(url, json={**body, "tools": tools}), 413)["param"] == "tools"
        many = [{"type": "custom_tool_call", "call_id": f"c{at}", "name": "f", "input": ""} for at in range(5)]
        assert assert_error(await served.http.post("/v1/responses", json={"input": many}), 413)["param"] == "input"


async def test_session_fields_have_limits() -> None:
    """State, metadata and system messages, at once and step by step; existing values stay."""
    async with gateway([]) as (served, _):
        await create_session_s(served)
        long = "x" * (limits.STATE_BYTES + 1)
        system = ["y" * (limits.SYSTEM_BYTES // 2), "y" * (limits.SYSTEM_BYTES // 2)]
        for name, value in (("state", {"k": long}), ("metadata", {"k": long}), ("system_messages", system)):
            for method, url in (("POST", "/v1/sessions"), ("PATCH", "/v1/sessions/s")):
                error = assert_error(await served.http.request(method, url, json={name: value}), 413)
                assert (error["param"], error["code"]) == (name, "too_large")
        error = assert_error(
            await served.http.post("/v1/sessions/s/messages", json={"messages": [{**HI, "metadata": {"k": long}}]}), 413
        )
        assert error["param"] == "messages[0].metadata"
        half = {f"a{at}": "x" * (limits.STATE_BYTES // 6) for at in range(4)}
        assert (await served.http.patch("/v1/sessions/s", json={"state": half})).status_code == 200
        assert_error(
            await served.http.patch("/v1/sessions/s", json={"state": {f"b{k}": v for k, v in half.items()}}), 413
        )
        assert (await served.http.get("/v1/sessions/s")).json()["state"] == half
        assert (await served.http.patch("/v1/sessions/s", json={"state": {"a0": None, "b": 1}})).status_code == 200


# -- long values ----------------------------------------------------------------


async def test_megabyte_of_base64_is_kept() -> None:
    """Unchanged, with the message around it."""
    url = "data:image/png;base64," + "QUJD" * 350_000
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
    async with gateway(["nice"]) as (served, upstream):
        assert (await served.chat([{"role": "user", "content": content}]))["status"] == 200
        assert upstream.requests[0].body["messages"][0]["content"] == content
        stored = (await served.http.get("/v1/sessions/s/messages")).json()["data"]
        assert stored[0]["content"] == content


# -- timeouts and request heads ----------------------------------------------


@pytest.mark.usefixtures("hasty")
async def test_incomplete_body_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """408, declared or chunked, and the connection ends; the server continues. A larger declared body has more time."""
    monkeypatch.setattr("holdfast.server.body_limits._BYTES_OF_TIME", 25)
    async with gateway([], limits=BodyLimits(BODY)) as (served, _):
        head = f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n".encode()
        for rest, seconds in (
            (b'Content-Length: 50\r\n\r\n{"id"', b"0.6 s"),
            (b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"id"\r\n', b"0.2 s"),
        ):
            answer = await read_until_closed(served, head + rest)
            assert answer.startswith(b"HTTP/1.1 408")
            assert b'"code":"request_timeout"' in answer
            assert b"did not arrive within " + seconds in answer
            assert b"connection: close" in answer
        assert (await served.http.get("/v1/sessions")).json()["data"] == []


async def read_until_closed(served: Served, request: bytes) -> bytes:
    """Send a request and wait; return the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.usefixtures("hasty")
async def test_many_incomplete_large_bodies_time_out() -> None:
    """All of them get an answer, and later requests are served."""
    async with gateway([], limits=BodyLimits(BODY)) as (served, _):
        head = f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        begun = head.encode() + b"186A0\r\n" + b" " * 100_000 + b"\r\n"
        answers = await asyncio.gather(
            *(read_until_closed(served, begun) for _ in range(server_limits.LARGE_REQUESTS_OF_TENANT * 2))
        )
        assert {answer[9:12] for answer in answers} <= {b"408", b"503"}
        big = {"metadata": {"k": "x" * 100_000}}
        done = await asyncio.gather(
            *(served.http.post("/v1/sessions", json=big) for _ in range(server_limits.LARGE_REQUESTS_OF_TENANT * 2))
        )
        assert [response.status_code for response in done] == [201] * len(done)


async def read_refusal_code(served: Served, request: bytes) -> str | None:
    """Return the error code of a refused request; None if the connection was closed before it was all sent."""
    try:
        answer = await send_raw(served, request)
    except ConnectionError:
        return None
    assert answer.startswith(b"HTTP/1.1 431"), answer[:80]
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"])


async def test_endless_head_is_refused() -> None:
    """431 for a long line, long headers, many headers or a trailer; none is kept."""
    async with gateway([]) as (served, _):
        host = f"Host: 127.0.0.1:{served.port}\r\n".encode()
        long = b"x" * (server_limits.HEAD_BYTES * 10)
        get = b"GET /healthz HTTP/1.1\r\n" + host
        chunked = b"POST /v1/sessions HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        for request in (
            b"GET /" + long,
            b"GET /healthz?" + long + b" HTTP/1.1\r\n",
            get + b"X-Long: " + long,
            get + b"X-Many: some words\r\n" * 5000,
            get + b"X-Many: some words\r\n" * 5000 + b"\r\n",
        ):
            refused = await read_refusal_code(served, request)
            assert refused in ("head_too_large", None)
        assert (
            await read_refusal_code(served, get + b"X-Long: " + b"x" * (server_limits.HEAD_BYTES + 1) + b"\r\n\r\n")
            == "head_too_large"
        )
        assert await read_refusal_code(served, chunked + b"X-Trailer: " + long) in ("head_too_large", None)
        assert (await served.http.get("/healthz")).status_code == 200


async def test_incomplete_head_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """408, or a closed connection if nothing was sent."""
    async with gateway([]) as (served, _):
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.server.protocol.HEAD_SECONDS", 0.05)
            assert await read_until_closed(served, b"") == b""
            answer = await read_until_closed(
                served, f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nX-A: b".encode()
            )
        assert answer.startswith(b"HTTP/1.1 408")
        assert (await served.http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("name", ["Idempotency-Key", "X-Session-Id", "If-Match"])
async def test_duplicate_header_is_refused(name: str) -> None:
    async with gateway([]) as (served, _):
        await create_session_s(served)
        url = "/v1/chat/completions" if name == "X-Session-Id" else "/v1/sessions/s/messages"
        headers = [(name, "1"), (name, "1")]
        assert assert_error(await served.http.post(url, json={"messages": [HI]}, headers=headers), 400)[
            "param"
        ].lower() == (name.lower())
        assert await served.log() == [("user", "hi")]


# -- memory ------------------------------------------------------------------

MIB = 1 << 20
REQUESTS = 50
GROWTH = 700 * MIB
"""Far below 50 times 100 MB, far above what 4 bodies of the largest size take."""


async def yield_hundred_megabytes(sent: list[int]) -> AsyncIterator[bytes]:
    """Yield a body in pieces."""
    piece = b" " * 65_536
    for _ in range(100 * MIB // len(piece)):
        sent.append(len(piece))
        yield piece


async def send_hundred_megabytes(http: httpx2.AsyncClient, *, declared: bool, sent: list[int]) -> int:
    """Return the status of a request with 100 MB; 0 if the server closed the connection."""
    headers = {"Content-Length": str(100 * MIB)} if declared else {}
    try:
        response = await http.post("/v1/sessions", content=yield_hundred_megabytes(sent), headers=headers)
    except httpx2.TransportError:
        return 0
    return int(response.status_code)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak memory of a process is told on Linux only")
async def test_memory_stays_flat(tmp_path: Path) -> None:
    """Fifty concurrent requests of 100 MB, declared and not, are refused before their end, and the server hardly
    grows. This client reads no answer before it has sent everything, so it may only see a closed connection.
    """
    with Process(f"sqlite:///{tmp_path}/s.db") as server:
        pid = server.process.pid
        limit = httpx2.Limits(max_connections=REQUESTS)
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=120, limits=limit) as http:
            assert (await http.post("/v1/sessions", json={})).status_code == 201
            before, sent = read_peak_memory(pid), list[int]()
            wanted = [send_hundred_megabytes(http, declared=at % 2 == 0, sent=sent) for at in range(REQUESTS)]
            statuses = await asyncio.gather(*wanted)
            assert set(statuses) <= {413, 503, 0}
            assert sum(sent) < REQUESTS * 100 * MIB * 0.7
            assert read_peak_memory(pid) - before < GROWTH
            assert (await http.post("/v1/sessions", json={})).status_code == 201


# -- the numbers -------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")


def test_documented_limits_match_the_code() -> None:
    """All that can be configured are documented, and those others that users meet."""
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| `([\w.]+)` \|", PAGE, re.MULTILINE)
    told = {name: number.strip() for number, name in rows}
    for key, number in (("gateway.max_body", limits.BODY_BYTES), ("gateway.max_media", limits.MEDIA_BYTES)):
        assert told.pop(key) == format_limit("_BYTES", number)
    for name, value in {**vars(limits), **vars(server_limits)}.items():
        if name in told:
            assert told.pop(name) == format_limit(name, value), name
    assert told == {}


def format_limit(name: str, value: float) -> str:
    """Return a number as documented."""
    if "_SECONDS" in name:
        return f"{value:g} s"
    if name.endswith("_BYTES"):
        for unit, size in (("MiB", MIB), ("KiB", 1024)):
            if value % size == 0:
                return f"{int(value) // size} {unit}"
        return f"{int(value):,} bytes"
    return f"{int(value):,}"


def test_configured_limits_are_read() -> None:
    gateway = load("gateway: {max_body: 1MiB, max_media: 2KiB}", env={}).gateway
    assert (gateway.max_body, gateway.max_media) == (MIB, 2048)
