"""Run a scripted upstream: a real Chat Completions server on the loopback interface, for tests of code that calls models.

    async with ScriptedUpstream(["Hello.", Reply(status=429, headers={"retry-after": "1"})]) as upstream:
        model = OpenAIModel(upstream.url, "any-key")
        …
        assert upstream.requests[0].body["messages"][-1]["content"] == "Hi"

The server never sleeps. A reply that must be late waits for a `Gate`, and a test waits for the server with `upstream.until(…)`.

With a `Tokenizer`, the server counts tokens like a provider. It reports the tokens of each prompt, and rejects prompts that exceed its context
window with the error message of a chosen provider.
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
"""Tokens in every prompt that start the reply."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer of the upstream. `Reply(text=…)` answers with a text. The other fields change the answer."""

    text: str | None = None
    """Text of the assistant. It is streamed word by word."""
    tool_calls: Sequence[tuple[str, Any] | dict[str, Any]] = ()
    """Tool calls. A tuple `(name, arguments)` gets an id. A dictionary is sent unchanged."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the assistant message, for example `reasoning_content`."""
    finish_reason: str | None = None
    """Finish reason. None: `tool_calls` if there are tool calls, otherwise `stop`."""
    usage: Mapping[str, Any] | None = None
    """Token usage. None: 10 tokens of the prompt and 5 of the reply. Empty: the answer contains no usage."""
    chunks: Sequence[dict[str, Any]] | None = None
    """Chunks of the stream. They replace all fields above."""
    status: int = 200
    """Status of the response. With a status other than 200, the body is `error`."""
    error: Any = None
    """Body of a failed response. A text becomes the message of an error object like OpenAI's. With status 200, the error is sent in the
    stream, after `cut_after` chunks or at the end.
    """
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: Sequence[bytes] | None = None
    """Body of the response in pieces. It replaces the answer that the fields above describe."""
    content_type: str | None = None
    stream: bool | None = None
    """True to stream the reply. None: it is streamed if the request asks for a stream."""
    hold: Gate | None = None
    """Gate at which the answer waits after `hold_after` chunks."""
    hold_after: int = 0
    cut_after: int | None = None
    """Number of chunks after which the connection is cut, or after which `error` is sent."""
    reset: bool = False
    """True to reset the connection when it is cut, so that data in transit may be lost. False: the connection is closed."""
    endless: bytes = b""
    """Bytes that are sent repeatedly at the end of the body, as long as the client reads."""
    end: bytes = b"data: [DONE]\n\n"
    """Bytes at the end of a stream."""


# -- counting like a provider ------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Token counting and token limit of the upstream."""

    window: int | None = None
    """Maximum tokens of prompt and reply together. None: no limit."""
    ratio: float = 1.0
    """Number of tokens that the upstream counts for each token that Holdfast counts."""
    refusal: str = "openai"
    """Error with which prompts above the limit are rejected: a key of `holdfast.testing.refusals.REFUSALS`."""
    in_stream: bool = False
    """True to send this error with status 200, in the stream after its first chunk."""
    reports: bool = True
    """True to include `usage` in answers."""

    def reply(self, body: Mapping[str, Any], reply: Reply) -> Reply:
        """Return `reply` with the token usage of the request, or an error in its place if the prompt exceeds the limit."""
        count = get_counter(str(body.get("model")))
        messages = sum(count.message(parse_message(message)) for message in body.get("messages") or ())
        prompt, wanted = (
            round(self.ratio * (PRIMING + messages + count.tools(body.get("tools") or ()))),
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
    """A request that the upstream has received."""

    path: str
    headers: dict[str, str]
    """Headers by name in lower case."""
    raw: bytes
    body: dict[str, Any]
    disconnected: bool = False
    """True if the client disconnected before the answer was complete."""
    answered: bool = False
    """True if the reply was sent completely, or up to the point at which the script cuts it."""
    refused: bool = False
    """True if the prompt was rejected because it exceeds `Tokenizer.window`."""


Script = Sequence[Reply | str] | Callable[[dict[str, Any]], Reply | str]


class ScriptedUpstream:
    """A server that answers `POST /v1/chat/completions`, as a stream or as one message, and `GET /v1/models` from a script.

    `async with upstream:` runs the server in the event loop of the test. `with upstream.in_thread():` runs it in an event loop of its own.

    Args:
        script: a list with one reply for each request, in order, or a function that returns the reply for the body of a request. A text is the
            same as `Reply(text=…)`. A request after the end of the list gets the status 418, which no client retries.
        models: ids that `/v1/models` lists.
        tokenizer: token counting and token limit. A prompt that exceeds the limit does not use up a reply of the list. None: every prompt has
            10 tokens.
        counts: function that answers the token-counting endpoints of Anthropic, Gemini and OpenAI. It gets the body of a request, and returns a
            number of tokens or a reply. None: these endpoints do not exist.
    """

    PATH: ClassVar[str] = "/chat/completions"
    """Path of the endpoint that the script answers, after `/v1`."""

    def __init__(
        self,
        script: Script = (),
        *,
        models: Sequence[str] = ("scripted",),
        tokenizer: Tokenizer | None = None,
        counts: Callable[[dict[str, Any]], int | Reply] | None = None,
    ) -> None:
        self.requests: list[Received] = []
        """Requests to the endpoint `PATH`, oldest first."""
        self.counted: list[Received] = []
        """Requests to the token-counting endpoints, oldest first."""
        self.tokenizer = tokenizer
        self._counts = counts
        self.url = ""
        """Base URL of the server, `http://127.0.0.1:PORT/v1`. It is empty until the server runs."""
        self._script = script
        self._models = models
        self._bell = Bell()
        self._runner: web.AppRunner | None = None
        self._stopping = False

    async def until(self, ready: Callable[[], object]) -> None:
        """Wait until `ready()` is true, for example with `await upstream.until(lambda: upstream.requests[0].disconnected)`."""
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
        # A handler is cancelled when its client disconnects. The timeout applies to replies that still wait for a gate when the
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
        """Run the server in a thread with an event loop of its own, for tests that are not asynchronous."""
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
        """Return the body of a failed response."""
        return _format_error(reply.error)

    def format_reply(self, reply: Reply, body: dict[str, Any], number: int) -> bytes:
        """Return the body of an answer that is not streamed.

        Args:
            reply: the reply.
            body: body of the request.
            number: number of the request, from 1.
        """
        return json.dumps(make_completion(reply, body, number)).encode()

    def format_events(self, reply: Reply, body: dict[str, Any], number: int) -> list[bytes]:
        """Return the events of an answer that is streamed. The arguments are those of `format_reply`."""
        return _make_events(reply, make_completion(reply, body, number), body)

    def find_refusal(self, received: Received) -> Reply | None:
        """Return an error for a request that the upstream rejects regardless of the script, or None."""
        del received
        return None

    def to_chat(self, body: dict[str, Any]) -> Mapping[str, Any]:
        """Return a request in the format of Chat Completions, in which its prompt is counted."""
        return body

    def _choose_reply(self, received: Received) -> Reply:
        """Return the scripted reply to a request, or the error with which the request is rejected."""
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
    """Cut the connection as a crash would do. The client gets the data that was written, but not the end of the body.

    Args:
        request: the request.
        response: its response.
        reset: True to reset the connection, so that data in transit may be lost, too.
    """
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


def make_completion(reply: Reply, body: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a scripted reply as a `chat.completion`. The arguments are those of `ScriptedUpstream.format_reply`."""
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
    """Return the events of a stream, one for each chunk."""
    options = body.get("stream_options")
    if not (isinstance(options, dict) and options.get("include_usage")):
        completion = {key: value for key, value in completion.items() if key != "usage"}
    chunks = to_chunks(completion, by_word=True) if reply.chunks is None else reply.chunks
    events = [b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" for chunk in chunks]
    if reply.error is not None:
        return [*events[: reply.cut_after], b"data: " + _format_error(reply.error) + b"\n\n"]
    return [*events, reply.end] if reply.end else events
