"""Shared helpers for tests of the REST API: short ways to create sessions, raw requests, and the shape of errors."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.edges.server import Served

HI = {"role": "user", "content": "hi"}
BODIES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/sessions"),
    ("PUT", "/v1/sessions/s"),
    ("PATCH", "/v1/sessions/s"),
    ("POST", "/v1/sessions/s/messages"),
    ("PATCH", "/v1/sessions/s/messages/0"),
    ("POST", "/v1/sessions/s/context"),
]
"""Every route that reads a body."""


async def create_session_s(served: Served) -> None:
    await served.http.put("/v1/sessions/s", json={"messages": [HI]})


def assert_error(response: Any, *statuses: int) -> dict[str, Any]:
    """Return the error after checking that it has OpenAI's shape."""
    assert response.status_code in statuses, (response.status_code, response.text)
    data = response.json()
    assert set(data) == {"error"}
    error: dict[str, Any] = data["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert isinstance(error["code"], str)
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    return error


async def send_raw(served: Served, request: bytes) -> bytes:
    """Send these bytes; return the server's answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(request)
    await writer.drain()
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def path(session_id: str, *more: str) -> str:
    """Return the session's path, with every character of its id that is not plain percent-encoded."""
    encoded = quote(session_id, safe="").replace(".", "%2E")
    return "/".join(["/v1/sessions", encoded, *more])


async def create_session(served: Served, session_id: str = "s", **fields: Any) -> dict[str, Any]:
    response = await served.http.post("/v1/sessions", json={"id": session_id, **fields})
    assert response.status_code == 201, response.text
    data: dict[str, Any] = response.json()
    return data


async def append_messages(served: Served, *messages: dict[str, Any], session_id: str = "s", **headers: str) -> Any:
    return await served.http.post(path(session_id, "messages"), json={"messages": messages}, headers=headers)


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def read_peak_memory(pid: int) -> int:
    """Return the peak memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
