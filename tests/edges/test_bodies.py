"""Hostile bodies: as large as allowed, deep, wide or strange.

Expect 4xx, flat memory, and service for others meanwhile. `test_rest_bad_input.py` and `test_rest_json.py` check
the errors; these tests send many at a time, and bad JSON inside texts such as the arguments of tool calls, which a
model can write in any form.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

from holdfast.limits import BODY_BYTES
from holdfast.testing import Reply
from tests.edges.rest_kit import BODIES, read_peak_memory
from tests.edges.server import Process, Served, gateway

MIB = 1 << 20
LIMIT = BODY_BYTES // 2
"""Bytes that a body may have: half of the default, which shows the same in half of the time."""
SIZE = LIMIT - MIB
"""Bytes of a body, nearly as many as there may be."""
GROWTH = 350 * MIB
"""What a server may grow by that reads a few bodies of the largest size at a time: far less than all of them decoded."""
AT_ONCE = 12


def make_full_body(start: bytes, unit: bytes, end: bytes = b"") -> bytes:
    """Return a body of the largest allowed size."""
    return start + unit * ((SIZE - len(start) - len(end)) // len(unit)) + end


def keys() -> bytes:
    """Return an object with as many distinct keys as fit."""
    return b"{" + b",".join(b'"%x":0' % at for at in range(SIZE // 12)) + b"}"


def bombs() -> dict[str, bytes]:
    """Return hostile bodies by name; they need some hundred megabytes, so only the sender builds them."""
    return {
        "open lists": make_full_body(b'{"messages":', b"["),
        "nested lists": b'{"metadata":' + b"[" * (SIZE // 2) + b"]" * (SIZE // 2 - 20) + b"}",
        "open objects": make_full_body(b"", b'{"a":'),
        "keys": keys(),
        "the same key": make_full_body(b"{", b'"a":0,', b'"b":0}'),
        "empty objects": make_full_body(b'{"messages":[', b"{},", b"{}]}"),
        "messages": make_full_body(
            b'{"messages":[', b'{"role":"user","content":""},', b'{"role":"user","content":""}]}'
        ),
        "parts": make_full_body(b'{"messages":[{"role":"user","content":[', b'{"type":"text","text":""},', b"0]}]}"),
        "a number": make_full_body(b'{"ttl":', b"9", b"}"),
        "a number with an exponent": make_full_body(b'{"ttl":1e', b"9", b"}"),
        "numbers": make_full_body(b'{"metadata":{"k":[', b"1,", b"1]}}"),
        "lone surrogates": make_full_body(b'{"metadata":{"k":"', b"\\ud800", b'"}}'),
        "escapes": make_full_body(b'{"id":"', b"\\u0041", b'"}'),
        "NaN": make_full_body(b'{"metadata":{"k":[', b"NaN,", b"NaN]}}"),
        "white space": make_full_body(b"", b" "),
        "zeros": make_full_body(b"", b"\x00"),
        "a text without end": make_full_body(b'{"id":"', b"a"),
    }


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak memory of a process is told on Linux only")
async def test_hostile_bodies_leave_the_memory_flat(tmp_path: Path) -> None:
    """Each of them is sent to every route that reads a body, a dozen at a time: all are refused, and the server
    hardly grows.
    """
    limits = {"HOLDFAST_GATEWAY__MAX_BODY": f"{LIMIT // MIB}MiB"}
    with Process(f"sqlite:///{tmp_path}/s.db", env=limits) as server:
        pid = server.process.pid
        limit = httpx2.Limits(max_connections=AT_ONCE)
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=120, limits=limit) as http:
            assert (await http.put("/v1/sessions/s", json={"messages": []})).status_code == 200
            before, room, bodies = read_peak_memory(pid), asyncio.Semaphore(AT_ONCE), bombs()

            async def send(name: str, method: str, url: str) -> None:
                async with room:
                    response = await http.request(method, url, content=bodies[name])
                assert 400 <= response.status_code < 500 or response.status_code == 503, (
                    name,
                    url,
                    response.text[:200],
                )
                assert len(response.content) < 10_000

            routes = [BODIES[0], BODIES[4]]
            await asyncio.gather(*(send(name, *route) for name in bodies for route in routes))
            assert read_peak_memory(pid) - before < GROWTH
            answer = await http.post("/v1/sessions/s/messages", json={"messages": [{"role": "user", "content": "hi"}]})
            assert answer.status_code == 200
            assert len((await http.get("/v1/sessions/s/messages")).json()["data"]) == 1


# -- JSON in texts --------------------------------------------------------------------

ARGUMENTS: dict[str, str] = {
    "deep": "[" * 20_000,
    "deep and closed": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "wide": "{" + ",".join(f'"k{at}":{at}' for at in range(3_000)) + "}",
    "a key twice": '{"a": 1, "a": 2}',
    "NaN": '{"a": NaN, "b": -Infinity, "c": 1e999}',
    "a huge number": '{"a": ' + "9" * 5_000 + "}",
    "a lone surrogate": '{"a": "\\ud800"}',
    "no JSON": "find the thing, please \\ud800 {",
    "nothing": "",
    "NUL": '{"a": "\x00\\u0000"}',
}


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_malformed_tool_call_arguments_are_kept_exactly(name: str) -> None:
    """When the client resends them it is the same call, and the log verifies. A later prompt has them in an object."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS[name]}}
    async with gateway([Reply(tool_calls=[call]), "done", "more"]) as (served, upstream):
        first = await served.chat("go")
        assert first["status"] == 200
        said = first["choices"][0]["message"]
        assert said["tool_calls"][0]["function"]["arguments"] == ARGUMENTS[name]
        history = [{"role": "user", "content": "go"}, said, {"role": "tool", "tool_call_id": "c1", "content": "x"}]
        second = await served.chat(history)
        assert (second["status"], second["session"]["reconciled"]) == (200, "continued")
        third = await served.chat([*history, second["choices"][0]["message"], {"role": "user", "content": "and"}])
        assert (third["status"], third["session"]["reconciled"]) == (200, "continued")
        assert [role for role, _ in await served.log()] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
            "assistant",
        ]
        told = upstream.requests[-1].body["messages"][1]["tool_calls"][0]["function"]["arguments"]
        text = ARGUMENTS[name]
        assert told == text or json.loads(told) == ({"arguments": text} if text else {})
        await assert_log_verifies(served)


async def assert_log_verifies(served: Served) -> None:
    session = await served.hf.session("s")
    assert await session.verify() == 6
