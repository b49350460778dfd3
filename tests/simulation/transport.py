"""A request to an ASGI app without sockets, whose client may leave at any message of the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from tests.service.simulator.gateway import Answer, make_scope


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
