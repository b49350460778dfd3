"""Invalid input to the REST API and the gateway: a clear error in OpenAI's shape, never a 500."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from holdfast.server.body_limits import BodyLimits
from tests.edges.rest_kit import BODIES, HI, assert_error, create_session_s, send_raw
from tests.edges.server import gateway

NO_JSON: dict[str, bytes] = {
    "nothing": b"",
    "half": b'{"messages": [',
    "two": b"{}{}",
    "a list": b"[]",
    "a text": b'"x"',
    "null": b"null",
    "a number": b"7",
    "NaN": b'{"messages": NaN}',
    "infinity": b'{"messages": 1e999}',
    "no UTF-8": b'{"messages": "\xff\xfe"}',
    "UTF-16": '{"messages": []}'.encode("utf-16"),
    "a lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "a lone surrogate in a key": b'{"\\udc00": 1}',
    "deep lists": b'{"messages": ' + b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a little too deep": b'{"metadata": ' + b"[" * 70 + b"]" * 70 + b"}",
    "a huge number": b'{"messages": ' + b"9" * 30 + b"}",
    "a number too long to read": b'{"messages": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON.keys())
async def test_bodies_that_are_not_a_json_object_are_refused(body: bytes) -> None:
    """Every route that reads a body answers 400."""
    async with gateway([]) as (served, upstream):
        await create_session_s(served)
        for method, url in BODIES:
            assert_error(await served.http.request(method, url, content=body), 400)
        assert await served.log() == [("user", "hi")]
        assert upstream.requests == []


WRONG: list[tuple[str, str, Any, str | None]] = [
    ("POST", "/v1/sessions", {"id": 5}, "id"),
    ("POST", "/v1/sessions", {"id": ""}, "session_id"),
    ("POST", "/v1/sessions", {"id": "x" * 600}, "session_id"),
    ("POST", "/v1/sessions", {"user_id": ["u"]}, "user_id"),
    ("POST", "/v1/sessions", {"user_id": "é" * 300}, "user_id"),
    ("POST", "/v1/sessions", {"agent": "nobody"}, "agent"),
    ("POST", "/v1/sessions", {"agent": {}}, "agent"),
    ("POST", "/v1/sessions", {"state": []}, "state"),
    ("POST", "/v1/sessions", {"metadata": "m"}, "metadata"),
    ("POST", "/v1/sessions", {"ttl": -1}, "ttl"),
    ("POST", "/v1/sessions", {"ttl": -5}, "ttl"),
    ("POST", "/v1/sessions", {"ttl": 1.5}, "ttl"),
    ("POST", "/v1/sessions", {"ttl": True}, "ttl"),
    ("POST", "/v1/sessions", {"ttl": 2**60}, "ttl"),
    ("POST", "/v1/sessions", {"system_messages": 5}, "system_messages"),
    ("POST", "/v1/sessions", {"system_messages": False}, "system_messages"),
    ("POST", "/v1/sessions", {"system_messages": {}}, "system_messages"),
    ("POST", "/v1/sessions", {"state": False}, "state"),
    ("POST", "/v1/sessions", {"metadata": 0}, "metadata"),
    ("PATCH", "/v1/sessions/s", {"system_messages": 0}, "system_messages"),
    ("POST", "/v1/sessions/s/context", {"system_messages": False}, "system_messages"),
    ("POST", "/v1/chat/completions", {"model": "m", "messages": [HI], "user": False}, "user"),
    ("POST", "/v1/chat/completions", {"model": "m", "messages": [HI], "user_id": 0}, "user_id"),
    (
        "POST",
        "/v1/chat/completions",
        {"model": "m", "messages": [HI], "stream": True, "stream_options": False},
        "stream_options",
    ),
    ("POST", "/v1/sessions", {"system_messages": [HI]}, "system_messages[0].role"),
    ("POST", "/v1/sessions", {"system_messages": [5]}, "system_messages[0]"),
    ("POST", "/v1/sessions", {"system_messages": {"role": "system", "content": "x"}}, "system_messages"),
    ("POST", "/v1/sessions", {"metdata": {}}, "metdata"),
    ("PUT", "/v1/sessions/s", {}, "messages"),
    ("PUT", "/v1/sessions/s", {"messages": {}}, "messages"),
    ("PUT", "/v1/sessions/s", {"messages": [5]}, "messages[0]"),
    ("PUT", "/v1/sessions/s", {"messages": [HI, {"role": "user"}]}, "messages[1].content"),
    ("PUT", "/v1/sessions/s", {"messages": [{**HI, "turn_id": -1}]}, "messages[0].turn_id"),
    ("PUT", "/v1/sessions/s", {"messages": [{**HI, "turn_id": 3}, {**HI, "turn_id": 1}]}, "messages[1].turn_id"),
    (
        "PUT",
        "/v1/sessions/s",
        {"messages": [{"role": "system", "content": "x"}, {**HI, "turn_id": 3}, {**HI, "turn_id": 1}]},
        "messages[2].turn_id",
    ),
    ("PUT", "/v1/sessions/s", {"messages": [{**HI, "pinned": 1}]}, "messages[0].pinned"),
    ("PUT", "/v1/sessions/s", {"messages": [{**HI, "importance": 2}]}, "messages[0].importance"),
    ("PUT", "/v1/sessions/s", {"messages": [{**HI, "timestamp": "now"}]}, "messages[0].timestamp"),
    ("PUT", "/v1/sessions/s", {"messages": [{**HI, "metadata": []}]}, "messages[0].metadata"),
    ("PUT", "/v1/sessions/s", {"messages": [], "state": 1}, "state"),
    ("POST", "/v1/chat/completions", {"session_id": "s", "messages": [HI], "model": ""}, "model"),
    ("POST", "/v1/chat/completions", {"session_id": "new", "messages": [HI], "model": ""}, "model"),
    ("POST", "/v1/sessions/s/context", {"model": ""}, "model"),
    ("PATCH", "/v1/sessions/s", {"id": "t"}, "id"),
    ("PATCH", "/v1/sessions/s", {"user_id": "t"}, "user_id"),
    ("PATCH", "/v1/sessions/s", {"agent": "nobody"}, "agent"),
    ("PATCH", "/v1/sessions/s", {"ttl": "1h"}, "ttl"),
    ("PATCH", "/v1/sessions/s", {"state": 1}, "state"),
    ("POST", "/v1/sessions/s/messages", {}, "messages"),
    ("POST", "/v1/sessions/s/messages", {"messages": []}, "messages"),
    ("POST", "/v1/sessions/s/messages", {"messages": [HI], "mesages": []}, "mesages"),
    ("POST", "/v1/sessions/s/messages", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ("POST", "/v1/sessions/s/messages", {"messages": [{**HI, "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    ("POST", "/v1/sessions/s/messages", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("POST", "/v1/sessions/s/messages", {"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
    ("POST", "/v1/sessions/s/messages", {"messages": [{**HI, "name": 5}]}, "messages[0].name"),
    ("PATCH", "/v1/sessions/s/messages/0", {"pinned": "yes"}, "pinned"),
    ("PATCH", "/v1/sessions/s/messages/0", {"importance": -1}, "importance"),
    ("PATCH", "/v1/sessions/s/messages/0", {"importance": True}, "importance"),
    ("PATCH", "/v1/sessions/s/messages/0", {"content": "new"}, "content"),
    ("PATCH", "/v1/sessions/s/messages/x", {}, "seq"),
    ("PATCH", "/v1/sessions/s/messages/-1", {}, "seq"),
    ("PATCH", "/v1/sessions/s/messages/" + "9" * 5000, {}, "seq"),
    ("DELETE", "/v1/sessions/s/messages/%C2%B2", None, "seq"),
    ("POST", "/v1/sessions/s/context", {"strategy": "magic"}, "strategy"),
    ("POST", "/v1/sessions/s/context", {"strategy": 5}, "strategy"),
    ("POST", "/v1/sessions/s/context", {"strategy": "token_window", "budgett": 5}, "budgett"),
    ("POST", "/v1/sessions/s/context", {"strategy": "token_window", "budget": 0}, "budget"),
    ("POST", "/v1/sessions/s/context", {"strategy": "token_window", "budget": "x"}, "budget"),
    ("POST", "/v1/sessions/s/context", {"strategy": "token_window", "target": 1}, "target"),
    ("POST", "/v1/sessions/s/context", {"dialect": "klingon"}, "dialect"),
    ("POST", "/v1/sessions/s/context", {"dialect": 5}, "dialect"),
    ("POST", "/v1/sessions/s/context", {"at_turn": -1}, "at_turn"),
    ("POST", "/v1/sessions/s/context", {"at_turn": True}, "at_turn"),
    ("POST", "/v1/sessions/s/context", {"tools": [1]}, "tools[0]"),
    ("POST", "/v1/sessions/s/context", {"tools": "x"}, "tools"),
    ("POST", "/v1/sessions/s/context", {"model": 5}, "model"),
    ("POST", "/v1/sessions/s/context", {"agent": {}}, "agent"),
    ("POST", "/v1/sessions/s/context", {"agent": "nobody"}, "agent"),
    ("POST", "/v1/sessions/s/context", {"explain": "yes"}, "explain"),
    ("POST", "/v1/sessions/s/context", {"system_messages": 5}, "system_messages"),
    ("GET", "/v1/sessions?limit=0", None, "limit"),
    ("GET", "/v1/sessions?limit=1001", None, "limit"),
    ("GET", "/v1/sessions?limit=ten", None, "limit"),
    ("GET", "/v1/sessions?limit=" + "9" * 5000, None, "limit"),
    ("GET", "/v1/sessions?limit=%C2%B2", None, "limit"),
    ("GET", "/v1/sessions?order=up", None, "order"),
    ("GET", "/v1/sessions?status=lost", None, "status"),
    ("GET", "/v1/sessions/s/messages?limit=0", None, "limit"),
    ("GET", "/v1/sessions/s/messages?after=x", None, "after"),
    ("GET", "/v1/sessions/s/messages?after=-1", None, "after"),
    ("GET", "/v1/sessions/s/messages?retired=maybe", None, "retired"),
    ("GET", "/v1/sessions/s/history?view=upside", None, "view"),
]


@pytest.mark.parametrize(("method", "url", "body", "param"), WRONG, ids=lambda value: str(value)[:50])
async def test_wrong_values_name_the_parameter(method: str, url: str, body: Any, param: str | None) -> None:
    """A 400 with the parameter; the session is unchanged."""
    async with gateway([]) as (served, _):
        await create_session_s(served)
        before = (await served.http.get("/v1/sessions/s")).json()
        error = assert_error(await served.http.request(method, url, json=body), 400)
        assert error["param"] == param
        assert (await served.http.get("/v1/sessions/s")).json() == before
        assert len((await served.http.get("/v1/sessions")).json()["data"]) == 1


NOT_THERE = [
    ("GET", "/v1/sessions/t", None),
    ("PATCH", "/v1/sessions/t", {}),
    ("DELETE", "/v1/sessions/t", None),
    ("GET", "/v1/sessions/t/messages", None),
    ("POST", "/v1/sessions/t/messages", {"messages": [HI]}),
    ("PATCH", "/v1/sessions/t/messages/0", {}),
    ("DELETE", "/v1/sessions/t/messages/0", None),
    ("PATCH", "/v1/sessions/s/messages/7", {"pinned": True}),
    ("DELETE", "/v1/sessions/s/messages/7", None),
    ("PATCH", f"/v1/sessions/s/messages/{10**18 - 1}", {"pinned": True}),
    ("POST", "/v1/sessions/t/context", {}),
    ("GET", "/v1/sessions/t/history", None),
    ("GET", "/sessions/t", None),
    ("DELETE", "/sessions/t", None),
    ("GET", "/v1/sessions?after=t", None),
    ("GET", "/v1/nothing", None),
    ("POST", "/v1/embeddings", {}),
    ("GET", "/v1", None),
    ("GET", "/v1/sessions/s/", None),
    ("GET", "/v1//sessions", None),
    ("GET", "/V1/sessions", None),
    ("GET", "/v1/sessions/s/messages/0/x", None),
    ("GET", "/favicon.ico", None),
    ("GET", "/v1/%0A", None),
    ("OPTIONS", "/v1/nothing", None),
]


@pytest.mark.parametrize(("method", "url", "body"), NOT_THERE)
async def test_missing_objects_are_a_404(method: str, url: str, body: Any) -> None:
    """Sessions, messages and routes, in the same shape."""
    async with gateway([]) as (served, _):
        await create_session_s(served)
        error = assert_error(await served.http.request(method, url, json=body), 404)
        assert error["code"] in {"not_found", "session_not_found", "message_not_found"}


@pytest.mark.parametrize(
    ("method", "url", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/sessions", "GET, POST"),
        ("POST", "/v1/sessions/s", "DELETE, GET, PATCH, PUT"),
        ("PUT", "/v1/sessions/s/messages", "GET, POST"),
        ("GET", "/v1/sessions/s/messages/0", "DELETE, PATCH, PUT"),
        ("GET", "/v1/sessions/s/context", "POST"),
        ("POST", "/v1/sessions/s/history", "GET"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/healthz", "GET"),
        ("TRACE", "/metrics", "GET"),
    ],
)
async def test_wrong_method_is_a_405(method: str, url: str, allowed: str) -> None:
    """With the allowed methods in `Allow`."""
    async with gateway([]) as (served, _):
        await create_session_s(served)
        response = await served.http.request(method, url)
        assert assert_error(response, 405)["code"] == "method_not_allowed"
        assert response.headers["allow"] == allowed


async def test_empty_body_has_its_own_error() -> None:
    """Not a JSON parser's message: the client learns that the body is missing."""
    async with gateway([]) as (served, _):
        await create_session_s(served)
        for body in (b"", b" \n"):
            error = assert_error(await served.http.post("/v1/sessions/s/interrupt", content=body), 400)
            assert error["message"] == "the body is empty: it must be JSON"


async def test_head_is_get_without_a_body() -> None:
    """For health checks."""
    async with gateway([]) as (served, _):
        for url in ("/healthz", "/v1/models", "/openapi.json"):
            response = await served.http.head(url)
            assert (response.status_code, response.content) == (200, b"")


async def test_path_that_is_not_utf8_is_a_400() -> None:
    """An invalid escape never becomes another session's id."""
    async with gateway([]) as (served, _):
        assert_error(await served.http.get("/v1/sessions/%FF"), 400)
        assert_error(await served.http.get("/v1/sessions/%ED%A0%80"), 400)
        assert (await served.http.get("/v1/sessions/%")).status_code == 404


async def test_invalid_if_match_is_a_400() -> None:
    """Nothing is written."""
    async with gateway([]) as (served, _):
        await create_session_s(served)
        for value in ("abc", "-1", "1.0", "9" * 30):
            body = {"messages": [HI]}
            response = await served.http.post("/v1/sessions/s/messages", json=body, headers={"If-Match": value})
            assert assert_error(response, 400)["param"] == "If-Match"
        assert len(await served.log()) == 1


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


async def test_message_with_special_characters_survives() -> None:
    """NUL, emoji, bidirectional marks and markup; nothing is interpreted."""
    text = "\x00 🧀 \u202e <script>alert(1)</script> '; DROP TABLE sessions; -- <|endoftext|> \r\ndata: x\n\n"
    async with gateway([text]) as (served, upstream):
        answer = await served.chat(text, text[:40])
        assert answer["choices"][0]["message"]["content"] == text
        assert await served.log(text[:40]) == [("user", text), ("assistant", text)]
        assert upstream.requests[0].body["messages"][0]["content"] == text


async def test_malformed_http_is_refused() -> None:
    """A 4xx or a closed connection; the server continues."""
    async with gateway([]) as (served, _):
        host = f"Host: 127.0.0.1:{served.port}\r\n".encode()
        for request in (
            b"nonsense\r\n\r\n",
            b"GET /v1/sessions/k\xc3\xa4se HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\n" + host + b"X-Session-Id: a\x00b\r\nConnection: close\r\n\r\n",
            b"POST /v1/sessions HTTP/1.1\r\n" + host + b"Content-Length: nine\r\n\r\n",
        ):
            answer = await send_raw(served, request)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
        assert (await served.http.get("/healthz")).status_code == 200


async def test_headers_cannot_be_injected() -> None:
    """Line ends in a session id are escaped in the header."""
    async with gateway(["ok"]) as (served, _):
        answer = await served.chat("hi", "a\r\nSet-Cookie: b=c")
        assert answer["status"] == 200
        assert "set-cookie" not in answer["headers"]
        assert answer["headers"]["x-session-id"] == "a%0D%0ASet-Cookie:%20b=c"


async def test_unknown_query_parameter_is_refused() -> None:
    """Otherwise a misspelt `version` would delete all versions."""
    async with gateway([]) as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s"})
        await served.http.put("/v1/sessions/s/artifacts/a.txt", content=b"x")
        for path, hint in (
            ("/v1/sessions/s/artifacts/a.txt?versoin=1", "version"),
            ("/v1/sessions/s?user=ada", "user_id"),
        ):
            response = await served.http.delete(path)
            assert response.status_code == 400
            assert f"did you mean {hint}?" in response.json()["error"]["message"]
        assert (await served.http.get("/v1/sessions/s/artifacts/a.txt")).content == b"x"
        for path in ("/v1/sessions/s/explain?text=flight", "/v1/search?query=flight"):
            response = await served.http.get(path)
            assert response.status_code == 400
            assert "did you mean q?" in response.json()["error"]["message"]
        assert (await served.http.get("/v1/sessions?stauts=closed")).status_code == 400
        assert (await served.http.get("/healthz?probe=1")).status_code == 200
