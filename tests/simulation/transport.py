"""A request to an ASGI app without sockets, whose client may leave at any message of the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.models.codecs.chat import ChatDecoder
from holdfast.models.collect import Collector

Row = dict[str, Any]


@dataclass(kw_only=True)
class Answer:
    """What a client received."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    @property
    def events(self) -> list[Row]:
        """The events of a stream, including errors."""
        lines = [line.removeprefix(b"data: ") for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def last(self) -> Row:
        """The completion, or the last event, which names the session."""
        said: Row = self.events[-1] if self.streamed else self.json
        return said

    @property
    def session_id(self) -> str:
        return self.headers.get("x-session-id") or self.last["session_id"]

    @property
    def message(self) -> Row:
        """The assistant's message, as a client collects it."""
        if not self.streamed:
            return dict(self.json["choices"][0]["message"])
        collector, decoder = Collector(), ChatDecoder()
        for event in self.events:
            if "error" not in event:
                collector.add(decoder.decode(event))
        completion = collector.build_completion()
        return dict(completion["choices"][0]["message"]) if completion["choices"] else {}


def make_scope(method: str, path: str, query: str, content: bytes, headers: Mapping[str, str]) -> Row:
    """Return the ASGI scope of a request from this machine."""
    given = {"host": "127.0.0.1", "content-length": str(len(content)), **headers}
    if content:
        given.setdefault("content-type", "application/json")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


class Connection:
    """One request to an app. Its client may leave at any message of the answer.

    Args:
        hang_up: number of messages of the answer after which the client leaves; None: it stays to the end.

    Attributes:
        answer: what the client has received.
        is_whole: True if it has received the end.
        ended: set when the client no longer waits.
    """

    def __init__(self, hang_up: int | None = None) -> None:
        self.answer = Answer()
        self.is_whole = False
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._hang_up = hang_up
        self._sent = 0
        self._gone = asyncio.Event()

    def leave(self) -> None:
        """Close the connection, by the client or by a process that dies."""
        self._gone.set()
        self.end()

    def end(self, _: object = None) -> None:
        """Let the client wait no longer."""
        if not self.ended.done():
            self.ended.set_result(True)

    async def call(self, app: Any, path: str, body: Any, headers: Mapping[str, str]) -> None:
        """Send the request."""
        content = json.dumps(body).encode()
        scope = make_scope("POST", path, "", content, headers)
        pending = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> Any:
            if pending:
                return pending.pop()
            await self._gone.wait()
            return {"type": "http.disconnect"}

        await app(scope, receive, self._receive)

    async def _receive(self, message: Any) -> None:
        """Take a message of the answer, unless the client has left."""
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
            self.answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.answer.body += message.get("body", b"")
            self.is_whole = not message.get("more_body")
        self._sent += 1
        if self._sent == self._hang_up:
            self.leave()
        await asyncio.sleep(0)
