"""The gateway's ASGI app in the test's process, a model controlled by the test, and a client that may disconnect.

There is no socket: it handles thousands of requests in seconds, and a client disconnects at exactly the message that a test names.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.config.gateway import Gateway as Settings
from holdfast.domain.session import Entry, SessionRef
from holdfast.errors import ModelUnavailable
from holdfast.holdfast import Holdfast
from holdfast.models.codecs.chat import ChatDecoder
from holdfast.models.collect import Collector, to_chunks
from holdfast.server.app import make_app

Data = dict[str, Any]
CHAT = "/v1/chat/completions"


class Speaker:
    """A model that answers with the message that `say` makes of the request, word by word.

    If `breaks` is a number, the next answer breaks off after that many chunks, once.
    """

    name = "speaker"

    def __init__(self, say: Callable[[Data], Data | str]) -> None:
        self.say = say
        self.prompts: list[list[Data]] = []
        """What was sent upstream, oldest first."""
        self.breaks: int | None = None

    async def stream(self, request: Data, *, headers: Mapping[str, str] | None = None) -> AsyncIterator[Data]:
        """See `Model.stream`."""
        self.prompts.append(request["messages"])
        said = self.say(request)
        message = {"role": "assistant", "content": said} if isinstance(said, str) else {"role": "assistant", **said}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        breaks, self.breaks = self.breaks, None
        for at, chunk in enumerate(to_chunks({"id": "x", "model": "speaker", "choices": [choice]}, by_word=True)):
            if at == breaks:
                raise ModelUnavailable("the model went away")
            yield chunk

    async def close(self) -> None:
        """See `Model.close`."""


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
    def events(self) -> list[Data]:
        """The events of a stream, including errors."""
        lines = [line.removeprefix(b"data: ") for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def last(self) -> Data:
        """The completion, or the last event, which names the session."""
        said: Data = self.events[-1] if self.streamed else self.json
        return said

    @property
    def session_id(self) -> str:
        return self.headers["x-session-id"]

    @property
    def session(self) -> Data:
        """The field `session`."""
        return dict(self.last["session"])

    @property
    def message(self) -> Data:
        """The assistant's message, as a client collects it."""
        if not self.streamed:
            return dict(self.json["choices"][0]["message"])
        collector, decoder = Collector(), ChatDecoder()
        for event in self.events:
            if "error" not in event:
                collector.add(decoder.decode(event))
        completion = collector.build_completion()
        return dict(completion["choices"][0]["message"]) if completion["choices"] else {}


def make_scope(method: str, path: str, query: str, content: bytes, headers: Mapping[str, str]) -> Data:
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


class Gateway:
    """A `Holdfast`, the app in front of it and its model.

    With `single_user=False`, requests that name no user may come from anyone.
    """

    def __init__(self, hf: Holdfast, speaker: Speaker, *, single_user: bool | None = None) -> None:
        self.hf = hf
        self.speaker = speaker
        self.app = make_app(hf, Settings(single_user=single_user), close=False)

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        hang_up: int | None = None,
        leave: asyncio.Event | None = None,
    ) -> Answer:
        """Send a request; with `hang_up` the client disconnects after that many messages of the answer, or when `leave` is set."""
        answer, gone, sent = Answer(), leave or asyncio.Event(), 0
        path, _, query = path.partition("?")
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        scope = make_scope(method, path, query, content, headers or {})
        pending = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> Data:
            if pending:
                return pending.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal sent
            if gone.is_set():
                return
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")
            sent += 1
            if sent == hang_up:
                gone.set()
                await asyncio.sleep(0)

        others = asyncio.all_tasks()
        await self.app(scope, receive, send)
        if hang_up is not None and (left := asyncio.all_tasks() - others):
            await asyncio.wait(left)  # the rest of the turn, which nobody waits for
        return answer

    async def chat(self, messages: Sequence[Data], *, headers: Mapping[str, str] | None = None, **body: Any) -> Answer:
        """Send a chat request to the gateway."""
        return await self("POST", CHAT, {"model": "m", "messages": list(messages), **body}, headers)

    async def log(self, session_id: str, user: str = "default", *, retired: bool = False) -> tuple[Entry, ...]:
        """Return a session's entries: the live path, or all."""
        return await self.hf.store.entries(SessionRef(user, session_id), retired=retired)
