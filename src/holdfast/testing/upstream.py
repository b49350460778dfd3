"""Run a scripted upstream: a real Chat Completions server on the loopback interface, for tests of code that calls models.

``` async with ScriptedUpstream(["Hello.", Reply(status=429, headers={"retry-after": "1"})]) as upstream:
    model = OpenAIModel(upstream.url, "any-key") … assert upstream.requests[0].body["messages"][-1]["content"] == "Hi"
```

Nothing here sleeps: a reply that should be late waits for a `Gate`, and a test waits with `upstream.until(…)`.

With a `Tokenizer`, it counts like a provider: it reports the tokens of each prompt by its own count, and rejects prompts that exceed its
window, in the words of a chosen provider.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from holdfast.models.collect import to_chunks
from holdfast.testing.gates import Bell, Gate
from holdfast.testing.refusals import REFUSALS
from holdfast.tokens import get_counter
from holdfast.wire.openai import parse_message

if TYPE_CHECKING:
    from types import TracebackType

    from aiohttp import web

MAX_BODY_BYTES: Final = 256 * 1024 * 1024
PRIMING: Final = 3
"""Tokens that start the reply, part of every prompt."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer of the upstream. Plain text is `Reply(text=…)`; the other fields vary it."""

    text: str | None = None
    """Text of the assistant, streamed word by word."""
    tool_calls: Sequence[tuple[str, Any] | dict[str, Any]] = ()
    """Tool calls: `(name, arguments)` gets an id, a dict is sent unchanged."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the assistant message, for example `reasoning_content`."""
    finish_reason: str | None = None
    """Default: `stop`, or `tool_calls` if there are any."""
    usage: Mapping[str, Any] | None = None
    """Token counts. Default: 10 and 5; empty: none."""
    chunks: Sequence[dict[str, Any]] | None = None
    """Chunks in place of everything above."""
    status: int = 200
    """A status other than 200 answers with `error`."""
    error: Any = None
    """JSON of a failure; a text becomes OpenAI's error object. With status 200 it is sent during the stream, at its end or after
    `cut_after` chunks.
    """
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: Sequence[bytes] | None = None
    """Body in pieces, in place of everything above."""
    content_type: str | None = None
    stream: bool | None = None
    """Stream the reply. Default: as requested."""
    hold: Gate | None = None
    """Gate to wait for after `hold_after` chunks."""
    hold_after: int = 0
    cut_after: int | None = None
    """Number of chunks after which the connection is cut, or `error` is sent."""
    reset: bool = False
    """Reset the connection where it is cut, instead of closing it, so that data in transit may be lost."""
    endless: bytes = b""
    """Bytes to send repeatedly after the pieces, as long as the client reads."""
    end: bytes = b"data: [DONE]\n\n"
    """End of a stream."""


# -- counting like a provider ------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Counting and limits of the upstream."""

    window: int | None = None
    """Maximum tokens of prompt and reply together; None: no limit."""
    ratio: float = 1.0
    """The upstream's tokens per token that Holdfast counts for the request's model."""
    refusal: str = "openai"
    """A key of `holdfast.testing.refusals.REFUSALS`."""
    in_stream: bool = False
    """Send refusals with status 200, after an empty first chunk."""
    reports: bool = True
    """Include `usage` in answers."""

    def count_prompt_tokens(self, body: Mapping[str, Any]) -> int:
        """Return the tokens of a request's prompt by its own count."""
        count = get_counter(str(body.get("model")))
        messages = sum(count.message(parse_message(message)) for message in body.get("messages") or ())
        return round(self.ratio * (PRIMING + messages + count.tools(body.get("tools") or ())))

    def reply(self, body: Mapping[str, Any], reply: Reply) -> Reply:
        """Return `reply` with the tokens of the prompt, or a refusal in its place."""
        prompt, wanted = (
            self.count_prompt_tokens(body),
            body.get("max_completion_tokens") or body.get("max_tokens") or 0,
        )
        if self.window is not None and prompt + wanted > self.window:
            numbers = {"limit": self.window, "prompt": prompt, "reply": wanted, "total": prompt + wanted}
            refusal = REFUSALS[self.refusal]
            error = refusal.make_error(over=prompt + wanted - self.window, **numbers)
            if self.in_stream:
                return Reply(text="never said", error=error, cut_after=1, stream=True)
            return Reply(status=refusal.status, error=error)
        if not self.reports:
            return replace(reply, usage={})
        usage = {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}
        return replace(reply, usage=usage) if reply.usage is None else reply


# -- the server ------------------------------------------------------------------


@dataclass(kw_only=True)
class Received:
    """A request as received by the upstream."""

    path: str
    headers: dict[str, str]
    """Names are in lower case."""
    raw: bytes
    body: dict[str, Any]
    disconnected: bool = False
    """True if the client disconnected before the answer was complete."""
    answered: bool = False
    """True if the reply was sent to its end, or to where the script cuts it."""
    refused: bool = False
    """True if the prompt exceeded the window."""


Script = Sequence[Reply | str] | Callable[[dict[str, Any]], Reply | str]


class ScriptedUpstream:
    """Answers `POST /v1/chat/completions`, streamed or not, and `GET /v1/models`, from a script.

    Use it with `async with`, in the loop of the test; or with `with upstream.in_thread():`, in its own loop.

    Args:
        script: replies in order, one per request (a text is `Reply(text=…)`), or a function from the request's body to the reply. A request
            beyond the end of the list gets a 418, which no client retries.
        models: ids listed by `/v1/models`.
        tokenizer: counting and limits; None: every prompt has 10 tokens. A refused prompt uses up no reply of a list.
        counts: answer of the count endpoints (Anthropic's, Gemini's, OpenAI's) to a request's body: tokens, or a reply; None: the endpoints
            do not exist.
    """

    PATH: ClassVar[str] = "/chat/completions"
    """Path of its answers, after `/v1`."""

    def __init__(
        self,
        script: Script = (),
        *,
        models: Sequence[str] = ("scripted",),
        tokenizer: Tokenizer | None = None,
        counts: Callable[[dict[str, Any]], int | Reply] | None = None,
    ) -> None:
        self.requests: list[Received] = []
        """Requests to `/chat/completions`, oldest first."""
        self.counted: list[Received] = []
        """Requests to the count endpoints, oldest first."""
        self.tokenizer = tokenizer
        self._counts = counts
        self.url = ""
        """Base URL, `http://127.0.0.1:PORT/v1`; known once it runs."""
        self._script = script
        self._models = models
        self._bell = Bell()
        self._runner: web.AppRunner | None = None
        self._stopping = False

    async def until(self, ready: Callable[[], object]) -> None:
        """Wait until `ready()` is true: `await upstream.until(lambda: upstream.requests[0].disconnected)`."""
        await self._bell.until(ready)

    @property
    def disconnects(self) -> int:
        """Number of clients that disconnected before their answer was complete."""
        return sum(received.disconnected for received in self.requests)

    async def __aenter__(self) -> Self:
        from aiohttp import web

        application = web.Application(client_max_size=MAX_BODY_BYTES)
        for prefix in ("/v1", ""):
            application.router.add_post(f"{prefix}{self.PATH}", self._complete)
            application.router.add_get(f"{prefix}/models", self._list_models)
        for path in ("/v1/messages/count_tokens", "/v1/responses/input_tokens", "/v1/models/{model}:countTokens"):
            application.router.add_post(path, self._count_tokens)
        # A handler learns by cancellation that its client has disconnected. The timeout is for replies that are still held when the
        # server stops; 0 would mean to wait forever.
        self._runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        if self._runner is not None:
            await self._runner.cleanup()

    @contextmanager
    def in_thread(self) -> Iterator[Self]:
        """Run in a thread with its own event loop, for tests that are not asynchronous."""
        started = threading.Event()
        stop = Gate()
        failure: list[BaseException] = []

        async def run() -> None:
            async with self:
                started.set()
                await stop.wait()

        def main() -> None:
            try:
                asyncio.run(run())
            except BaseException as exc:  # noqa: BLE001  (raised in the waiting thread)
                failure.append(exc)
            finally:
                started.set()

        thread = threading.Thread(target=main, name="scripted-upstream", daemon=True)
        thread.start()
        started.wait()
        try:
            if not failure:
                yield self
        finally:
            stop.open()
            thread.join()
        if failure:
            raise failure[0]

    # -- answering -----------------------------------------------------------

    async def _list_models(self, request: web.Request) -> web.Response:
        from aiohttp import web

        data = [{"id": name, "object": "model", "created": 0, "owned_by": "script"} for name in self._models]
        return web.json_response({"object": "list", "data": data})

    async def _count_tokens(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        received = await _read_request(request)
        self.counted.append(received)
        self._bell.ring()
        counted = Reply(status=404, error="no such place") if self._counts is None else self._counts(received.body)
        if isinstance(counted, Reply):
            return await self._send(request, counted, [_format_error(counted.error)], "application/json")
        return web.json_response({"input_tokens": counted, "totalTokens": counted})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        received = await _read_request(request)
        self.requests.append(received)
        self._bell.ring()
        try:
            response = await self._answer(request, received)
            received.answered = not received.disconnected
            return response
        except (asyncio.CancelledError, ConnectionResetError):
            received.disconnected = not self._stopping
            raise
        finally:
            self._bell.ring()

    async def _answer(self, request: web.Request, received: Received) -> web.StreamResponse:
        reply = self._choose_reply(received)
        number = len(self.requests)
        wanted = bool(received.body.get("stream")) if reply.stream is None else reply.stream
        if reply.raw is not None:
            return await self._send(request, reply, reply.raw, reply.content_type or "text/event-stream")
        if reply.status != 200 or (not wanted and reply.error is not None):
            failure = self.format_failure(reply)
            return await self._send(request, reply, [failure], reply.content_type or "application/json")
        if not wanted:
            body = self.format_reply(reply, received.body, number)
            return await self._send(request, reply, [body], reply.content_type or "application/json")
        pieces = self.format_events(reply, received.body, number)
        return await self._send(request, reply, pieces, reply.content_type or "text/event-stream")

    # -- formats, which subclasses for other providers override --------------------

    def format_failure(self, reply: Reply) -> bytes:
        """Return the JSON of a failure."""
        return _format_error(reply.error)

    def format_reply(self, reply: Reply, body: dict[str, Any], number: int) -> bytes:
        """Return the answer to the `number`th request as one body."""
        return json.dumps(_make_completion(reply, body, number)).encode()

    def format_events(self, reply: Reply, body: dict[str, Any], number: int) -> list[bytes]:
        """Return the answer as an event stream, one event per piece."""
        return _make_events(reply, _make_completion(reply, body, number), body)

    def find_refusal(self, received: Received) -> Reply | None:
        """Return an answer that replaces the script's, or None."""
        del received
        return None

    def to_chat(self, body: dict[str, Any]) -> Mapping[str, Any]:
        """Convert the request to Chat Completions, for counting its prompt."""
        return body

    def _choose_reply(self, received: Received) -> Reply:
        """Return the reply to a request, or the refusal of its prompt."""
        if (refusal := self.find_refusal(received)) is not None:
            return refusal
        if self.tokenizer is None:
            return self._get_scripted_reply(received.body, len(self.requests))
        chat = self.to_chat(received.body)
        judged = self.tokenizer.reply(chat, Reply())
        received.refused = judged.error is not None
        if received.refused:
            return judged
        number = sum(not earlier.refused for earlier in self.requests)
        return self.tokenizer.reply(chat, self._get_scripted_reply(received.body, number))

    def _get_scripted_reply(self, body: dict[str, Any], number: int) -> Reply:
        if callable(self._script):
            reply = self._script(body)
        elif number <= len(self._script):
            reply = self._script[number - 1]
        else:
            reply = Reply(status=418, error=f"the script has {len(self._script)} replies, this is request {number}")
        return Reply(text=reply) if isinstance(reply, str) else reply

    async def _send(
        self, request: web.Request, reply: Reply, pieces: Sequence[bytes], content_type: str
    ) -> web.StreamResponse:
        from aiohttp import web

        response = web.StreamResponse(status=reply.status, headers={"content-type": content_type, **reply.headers})
        if reply.hold is not None and reply.hold_after == 0:
            await reply.hold.wait()
        await response.prepare(request)
        for at, piece in enumerate(pieces):
            if reply.hold is not None and reply.hold_after == at:
                await reply.hold.wait()
            if reply.cut_after == at and reply.error is None:
                return _cut_connection(request, response, reset=reply.reset)
            await response.write(piece)
        while reply.endless:
            await response.write(reply.endless)
            await asyncio.sleep(0)
        if reply.cut_after is not None and reply.error is None:
            return _cut_connection(request, response, reset=reply.reset)
        await response.write_eof()
        return response


async def _read_request(request: web.Request) -> Received:
    raw = await request.read()
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Received(path=request.path_qs, headers=headers, raw=raw, body=json.loads(raw))


def _cut_connection(request: web.Request, response: web.StreamResponse, *, reset: bool) -> web.StreamResponse:
    """End the connection like a crash: what was written arrives, the end of the body does not."""
    if request.transport is not None and reset:
        made: socket.socket = request.transport.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    elif request.transport is not None:
        request.transport.close()
    return response


def _format_error(error: Any) -> bytes:
    if error is None or isinstance(error, str):
        error = {"error": {"message": error or "scripted failure", "type": "scripted", "param": None, "code": None}}
    return json.dumps(error).encode()


def _make_completion(reply: Reply, body: dict[str, Any], number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, **reply.message}
    if reply.tool_calls:
        message["tool_calls"] = [
            _make_tool_call(call, f"call_{number}_{at}") for at, call in enumerate(reply.tool_calls)
        ]
    reason = reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15} if reply.usage is None else reply.usage
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model", "scripted"),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        **({"usage": dict(usage)} if usage else {}),
    }


def _make_tool_call(call: tuple[str, Any] | dict[str, Any], call_id: str) -> dict[str, Any]:
    if isinstance(call, dict):
        return call
    name, arguments = call
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _make_events(reply: Reply, completion: dict[str, Any], body: dict[str, Any]) -> list[bytes]:
    """Return the event stream, one chunk per piece."""
    options = body.get("stream_options")
    if not (isinstance(options, dict) and options.get("include_usage")):
        completion = {key: value for key, value in completion.items() if key != "usage"}
    chunks = to_chunks(completion, by_word=True) if reply.chunks is None else reply.chunks
    events = [b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" for chunk in chunks]
    if reply.error is not None:
        return [*events[: reply.cut_after], b"data: " + _format_error(reply.error) + b"\n\n"]
    return [*events, reply.end] if reply.end else events
