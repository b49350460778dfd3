"""Call routes of the REST API from pages, with the rights of the page's caller.

So a page can do exactly what its caller may do over REST, with the same checks, limits and errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from starlette.types import ASGIApp, Message, Scope

from holdfast.accounting import run_cpu
from holdfast.server.http import Call
from holdfast.server.limits import ANSWER_BYTES
from holdfast.server.permissions import Refused

_WAITING = 16
"""Pieces of a response that wait for the reader. The route then waits."""


class RestAnswer(NamedTuple):
    """The response of a route."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncGenerator[bytes, None]
    """The body, piece by piece. Close it if it is not read to its end: this ends the request."""

    async def read(self) -> bytes:
        """Return the whole body."""
        async with aclosing(self.chunks) as chunks:
            return b"".join([chunk async for chunk in chunks])


async def call_rest(
    call: Call,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    body: Any = None,
    version: str = "",
) -> tuple[int, Any]:
    """Call a route and return its status and its decoded body, which is None if the body is empty.

    Args:
        call: the page's request.
        method: HTTP method.
        path: path of the route, with encoded parameters; see `make_path`.
        query: query parameters.
        body: JSON-compatible body; None: the request has no body.
        version: version that the data must have, for `If-Match`; empty: any.
    """
    answer = await open_rest(call, method, path, query=query, body=body, version=version)
    data = await answer.read()
    if not data:
        return answer.status, None
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return answer.status, data
    return answer.status, await run_cpu(msgspec.json.decode, data, long=len(data) > ANSWER_BYTES)


async def read_rest(call: Call, path: str, **query: Any) -> Any:
    """Return the decoded body of a GET route. Parameters that are None are left out. Raise `Refused` if the route answers with an error."""
    given = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in query.items()
        if value is not None
    }
    status, answer = await call_rest(call, "GET", path, query=given)
    if status >= 400:
        raise Refused(status, answer["error"]["code"] or "error", answer["error"]["message"])
    return answer


async def open_rest(
    call: Call,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    body: Any = None,
    version: str = "",
) -> RestAnswer:
    """Call a route and return its response as soon as it begins. The arguments are those of `call_rest`."""
    content = b"" if body is None else msgspec.json.encode(body)
    headers = [(name, value) for name, value in call.request.scope["headers"] if name in (b"host", b"user-agent")]
    headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    if version:
        headers.append((b"if-match", version.encode(errors="replace")))
    scope = {
        **{name: value for name, value in call.request.scope.items() if name not in ("path_params", "endpoint")},
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": urlencode(query or {}).encode(),
        "headers": headers,
        "state": {"caller": call.caller},
    }
    return await _Exchange(content).start(call.request.app.router, scope)


def make_path(template: str, /, **parameters: str) -> str:
    """Return the path of a route with these parameters, which are encoded."""
    return template.format(**{name: quote(value, safe="") for name, value in parameters.items()})


class _Exchange:
    """One request to a route, which runs in a task of its own."""

    _running: ClassVar[set[asyncio.Task[None]]] = set()
    """Tasks of all requests. The event loop itself keeps no strong reference to a task."""

    def __init__(self, content: bytes) -> None:
        self._content: bytes | None = content
        self._closed = asyncio.Event()
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(_WAITING)

    async def start(self, app: ASGIApp, scope: Scope) -> RestAnswer:
        """Send the request, and return the response when its headers have arrived."""
        task = asyncio.ensure_future(self._run(app, scope))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            first = await self._messages.get()
        except asyncio.CancelledError:
            self._closed.set()  # the browser disconnected before the response began
            raise
        if first is None:
            await task  # raises its error
            raise AssertionError("every route sends a response")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in first["headers"]}
        return RestAnswer(first["status"], headers, self._read(task))

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            await self._send(None)

    async def _receive(self) -> Message:
        if self._content is not None:
            content, self._content = self._content, None
            return {"type": "http.request", "body": content, "more_body": False}
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message | None) -> None:
        if not self._closed.is_set():
            await self._messages.put(message)

    async def _read(self, task: asyncio.Task[None]) -> AsyncGenerator[bytes, None]:
        try:
            while (message := await self._messages.get()) is not None:
                if message.get("body"):
                    yield message["body"]
            await task
        finally:
            # The route ends as if its client had disconnected; it may finish a reply first.
            self._closed.set()
            while not self._messages.empty():
                self._messages.get_nowait()
