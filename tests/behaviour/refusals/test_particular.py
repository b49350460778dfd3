"""Refusals that no schema says: relations between fields, names that are not there, limits in bytes, and what a message suggests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.behaviour.kit import Served, gateway, user

HI = user("hi")


def error_of(answer: Any, *statuses: int) -> dict[str, Any]:
    assert answer.status_code in statuses, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


async def put_session(served: Served) -> None:
    await served.http.put("/v1/sessions/s", json={"messages": [HI]})


NOT_ALLOWED: list[dict[str, Any]] = [
    {"budget": 2001},
    {"budget": True},
    {"budget": 9000, "strategy": "digest"},
    {"strategy": "none"},
    {"strategy": "summary_buffer"},
    {"strategy": "digets"},
]
"""Beyond what the configuration allows; the first field is named."""
WRONG: list[tuple[str, str, Any, str]] = [
    ("POST", "/v1/sessions", {"id": "x" * 600}, "session_id"),
    ("POST", "/v1/sessions", {"user_id": "é" * 300}, "user_id"),
    ("POST", "/v1/sessions", {"agent": "nobody"}, "agent"),
    ("POST", "/v1/sessions", {"ttl": 2**60}, "ttl"),
    ("POST", "/v1/sessions", {"system_messages": [HI]}, "system_messages[0].role"),
    ("POST", "/v1/sessions", {"system_messages": [5]}, "system_messages[0]"),
    ("PUT", "/v1/sessions/s", {"messages": [HI, {"role": "user"}]}, "messages[1].content"),
    ("PUT", "/v1/sessions/s", {"messages": [{**HI, "turn_id": 3}, {**HI, "turn_id": 1}]}, "messages[1].turn_id"),
    ("POST", "/v1/chat/completions", {"session_id": "s", "messages": [HI], "model": ""}, "model"),
    ("POST", "/v1/chat/completions", {"session_id": "new", "messages": [HI], "model": ""}, "model"),
    ("POST", "/v1/sessions/s/context", {"model": ""}, "model"),
    ("PATCH", "/v1/sessions/s", {"agent": "nobody"}, "agent"),
    ("POST", "/v1/sessions/s/messages", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ("POST", "/v1/sessions/s/messages", {"messages": [{**HI, "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    ("POST", "/v1/sessions/s/messages", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("POST", "/v1/sessions/s/messages", {"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
    ("POST", "/v1/sessions/s/context", {"strategy": "magic"}, "strategy"),
    ("POST", "/v1/sessions/s/context", {"strategy": "token_window", "budgett": 5}, "budgett"),
    ("POST", "/v1/sessions/s/context", {"strategy": "token_window", "budget": 0}, "budget"),
    ("POST", "/v1/sessions/s/context", {"strategy": "token_window", "budget": "x"}, "budget"),
    ("POST", "/v1/sessions/s/context", {"strategy": "token_window", "target": 1}, "target"),
    ("POST", "/v1/sessions/s/context", {"tools": [1]}, "tools[0]"),
    ("POST", "/v1/sessions/s/context", {"agent": "nobody"}, "agent"),
    (
        "PUT",
        "/v1/sessions/s",
        {"messages": [{"role": "system", "content": "x"}, {**HI, "turn_id": 3}, {**HI, "turn_id": 1}]},
        "messages[2].turn_id",
    ),
    ("POST", "/v1/conversations", {"items": [7]}, "items[0]"),
    *[
        ("POST", "/v1/chat/completions", {"messages": [HI], "session_id": name, **fields}, next(iter(fields)))
        for name in ("s", "new")
        for fields in NOT_ALLOWED
    ],
]


async def test_values_that_fit_their_type_and_nothing_else() -> None:
    """The error names the field, and nothing is written."""
    async with gateway([], "context: {strategy: token_window, budget: 2000}") as served:
        await put_session(served)
        before = (await served.http.get("/v1/sessions/s")).json()
        wrong = []
        for method, url, body, param in WRONG:
            error = error_of(await served.http.request(method, url, json=body), 400)
            if error["param"] != param:
                wrong.append((method, url, body, error))
        assert wrong == []
        assert (await served.http.get("/v1/sessions/s")).json() == before
        assert len((await served.http.get("/v1/sessions")).json()["data"]) == 1
        assert served.upstream.requests == []


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
    ("GET", "/v1", None),
    ("GET", "/v1/sessions/s/", None),
    ("GET", "/v1//sessions", None),
    ("GET", "/V1/sessions", None),
    ("GET", "/v1/sessions/s/messages/0/x", None),
    ("GET", "/favicon.ico", None),
    ("GET", "/v1/%0A", None),
    ("OPTIONS", "/v1/nothing", None),
]


async def test_what_is_not_there_is_a_404() -> None:
    """Sessions, messages and routes, in the same shape."""
    async with gateway() as served:
        await put_session(served)
        for method, url, body in NOT_THERE:
            error = error_of(await served.http.request(method, url, json=body), 404)
            assert error["code"] in {"not_found", "session_not_found", "message_not_found"}, (method, url)


async def test_an_empty_body_has_an_error_of_its_own() -> None:
    """Not a parser's message: the client learns that the body is missing."""
    async with gateway() as served:
        await put_session(served)
        for content in (b"", b" \n"):
            error = error_of(await served.http.post("/v1/sessions/s/interrupt", content=content), 400)
            assert error["message"] == "the body is empty: it must be JSON"


async def test_head_is_get_without_a_body() -> None:
    async with gateway() as served:
        for url in ("/healthz", "/v1/models", "/openapi.json"):
            answer = await served.http.head(url)
            assert (answer.status_code, answer.content) == (200, b"")


async def test_a_path_that_is_no_utf8_is_a_400() -> None:
    """An invalid escape never becomes another session's id."""
    async with gateway() as served:
        error_of(await served.http.get("/v1/sessions/%FF"), 400)
        error_of(await served.http.get("/v1/sessions/%ED%A0%80"), 400)
        error_of(await served.http.get("/v1/sessions/%"), 404)


async def test_a_version_that_is_no_number_is_refused() -> None:
    async with gateway() as served:
        await put_session(served)
        for value in ("abc", "-1", "1.0", "9" * 30):
            answer = await served.http.post(
                "/v1/sessions/s/messages", json={"messages": [HI]}, headers={"If-Match": value}
            )
            assert error_of(answer, 400)["param"] == "If-Match"
        assert len(await served.rest.session("s").messages()) == 1


async def test_a_text_with_special_characters_survives() -> None:
    """NUL, emoji, bidirectional marks and markup; nothing is interpreted."""
    text = "\x00 🧀 \u202e <script>alert(1)</script> '; DROP TABLE sessions; -- <|endoftext|> \r\ndata: x\n\n"
    async with gateway([text]) as served:
        answer = await served.chat(text, text[:40])
        assert answer["choices"][0]["message"]["content"] == text
        assert [one["content"] for one in await served.rest.session(text[:40]).messages()] == [text, text]
        assert served.upstream.requests[0].body["messages"][0]["content"] == text


async def test_malformed_http_is_refused() -> None:
    """By a 4xx or a closed connection; the server continues."""
    async with gateway() as served:
        port = served.url.rpartition(":")[2]
        host = f"Host: 127.0.0.1:{port}\r\n".encode()
        for request in (
            b"nonsense\r\n\r\n",
            b"GET /v1/sessions/k\xc3\xa4se HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\n" + host + b"X-Session-Id: a\x00b\r\nConnection: close\r\n\r\n",
            b"POST /v1/sessions HTTP/1.1\r\n" + host + b"Content-Length: nine\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(request)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
        assert (await served.http.get("/healthz")).status_code == 200


async def test_headers_cannot_be_injected() -> None:
    """Line ends in a session id are escaped in the header."""
    async with gateway(["ok"]) as served:
        answer = await served.chat("hi", "a\r\nSet-Cookie: b=c")
        assert answer["status"] == 200
        assert "set-cookie" not in answer["headers"]
        assert answer["headers"]["x-session-id"] == "a%0D%0ASet-Cookie:%20b=c"


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("DELETE", "/v1/sessions/s/artifacts/a.txt?versoin=1", "version"),
        ("DELETE", "/v1/sessions/s?user=ada", "user_id"),
        ("GET", "/v1/sessions/s/explain?text=flight", "q"),
        ("GET", "/v1/search?query=flight", "q"),
        ("GET", "/v1/sessions?stauts=closed", "status"),
    ],
)
async def test_a_misspelt_parameter_gets_a_hint(method: str, path: str, hint: str) -> None:
    """Otherwise a misspelt `version` would delete all versions."""
    async with gateway() as served:
        await put_session(served)
        await served.http.put("/v1/sessions/s/artifacts/a.txt", content=b"x")
        error = error_of(await served.http.request(method, path), 400)
        assert f"did you mean {hint}?" in error["message"]
        assert (await served.http.get("/v1/sessions/s/artifacts/a.txt")).content == b"x"
