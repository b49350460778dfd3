"""The gateway: `POST /v1/chat/completions`, OpenAI's own, with the session's memory in it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args
from urllib.parse import quote

import anyio
import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Message as Event
from starlette.types import Receive, Scope, Send

from holdfast import errors
from holdfast.calling import PROGRESS
from holdfast.holdfast import Holdfast
from holdfast.media.store import taken_apart
from holdfast.messages import Message
from holdfast.models import Collector, closing
from holdfast.prompting import Turn, TurnRequest
from holdfast.queueing import checked_mode
from holdfast.reconcile import Mode
from holdfast.secrets import Guard
from holdfast.server.addressing import MATCHES, Asked, Matching, addressed
from holdfast.server.http import Call, Reply, error_body, failure, respond, without_secrets
from holdfast.server.intake import Intake
from holdfast.session import Session
from holdfast.stores.checks import check_id
from holdfast.tooling import Progress
from holdfast.turn import respond as answer
from holdfast.wire.openai import messages_from, split_system

OWN_FIELDS = frozenset({"session_id", "session_mode", "session_match", "session_queue", "agent"})
"""Fields of the body that are Holdfast's own and do not travel upstream."""
MODES: tuple[str, ...] = get_args(Mode)
MAX_CHOICES = 128
ENDING = "the server is ending; what arrived of the reply is in the session"
_encoder = msgspec.json.Encoder()


class Chat:
    """The ASGI app of the route. Raw, because the reply is a stream that ends when whoever asked has gone."""

    def __init__(self, hf: Callable[[], Holdfast], intake: Intake, matching: Matching) -> None:
        self._hf = hf
        self._intake = intake
        self._matching = matching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            call = Call(scope, receive, self._hf(), self._intake)
            try:
                body = await call.body()
                turn, session = await opened(call, body, self._matching)
            finally:
                call.release()
        except ClientDisconnect:
            return
        except Exception as exc:  # noqa: BLE001 - the last place before the wire: whatever happened becomes a reply
            await respond(failure(exc, self._hf().guard))(scope, receive, send)
            return
        scope.setdefault("state", {})["session_id"] = session.id
        client = _Client(scope, receive, send, session, self._hf().guard)
        work = _streamed if body.get("stream") else _collected
        try:
            await _while_connected(receive, lambda: work(client, turn, body))
        except asyncio.CancelledError:
            # The server ends, and its grace is over. What arrived is being written; whoever waits is told.
            await client.cut()


async def opened(call: Call, body: dict[str, Any], matching: Matching) -> tuple[Turn, Session]:
    """The turn that a request asks for, and its session, made if there is none yet."""
    check(body)
    hf = call.hf
    messages = messages_from(body.get("messages"))
    _check_said(messages)
    system, incoming = split_system(messages)
    handed = call.handed
    key = call.header("idempotency-key") or None
    if key is not None:
        check_id(key, "Idempotency-Key")
    said = await without_secrets(hf, body, messages, hashed=key is not None)
    fingerprint = _fingerprint(said) if key else b""
    apart, media = await taken_apart(incoming, plain=hf.guard is None)
    body["messages"] = ()
    del messages, incoming, said  # a reply takes long, and they may be large
    session, is_fork = await addressed(
        call, body, Asked(system, apart, key, body.get("session_mode") or "auto", _queue(hf, body)), matching
    )
    voice = hf.voice(session, agent=body.get("agent"), model=body.get("model"))
    request = TurnRequest(
        ref=session.ref,
        voice=voice,
        incoming=apart,
        media=media,
        system=system,
        mode=body.get("session_mode") or "auto",
        forked=is_fork,
        queue=checked_mode(body.get("session_queue")),
        body={name: value for name, value in body.items() if name not in OWN_FIELDS and name != "messages"},
        idempotency_key=key,
        fingerprint=fingerprint,
        headers=handed,
    )
    return Turn(hf.engine, request), session


def _check_said(messages: Sequence[Message]) -> None:
    """Refuse a user's message that says nothing: no provider takes one, and in a log it would be sent again and again."""
    for at, message in enumerate(messages):
        if message.role == "user" and not message.text and not message.media:
            param = f"messages[{at}].content"
            raise errors.InvalidMessage(f"{param} is empty: a user's message has text, or media", param=param)


def _queue(hf: Holdfast, body: Mapping[str, Any]) -> str:
    """What a request wants done while a turn of its session runs."""
    return checked_mode(body.get("session_queue")) or hf.queueing.mode


def check(body: Mapping[str, Any]) -> None:
    """Refuse what cannot be right before a session is made for it. Raises `InvalidRequest` with the parameter."""
    kinds: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
        ("model", str, "a string"),
        ("stream", bool, "true or false"),
        ("user", str, "a string"),
        ("session_id", str, "a string"),
        ("agent", str, "a string"),
        ("tools", list, "a list of tools"),
        ("stream_options", dict, "an object"),
    )
    for name, kind, words in kinds:
        if body.get(name) is not None and not isinstance(body[name], kind):
            raise errors.InvalidRequest(f"{name} must be {words}", param=name)
    for name, low, high in (("max_tokens", 1, 2**31), ("max_completion_tokens", 1, 2**31), ("n", 1, MAX_CHOICES)):
        value = body.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high):
            raise errors.InvalidRequest(f"{name} must be a whole number from {low} to {high}", param=name)
    if body.get("session_mode") not in (None, *MODES):
        raise errors.InvalidRequest(f"session_mode must be one of {', '.join(MODES)}", param="session_mode")
    checked_mode(body.get("session_queue"))
    if body.get("session_match") not in (None, *MATCHES):
        raise errors.InvalidRequest(f"session_match must be {' or '.join(MATCHES)}", param="session_match")
    if not body.get("messages"):
        raise errors.InvalidRequest("messages is missing or empty; send at least the new message", param="messages")


def _fingerprint(body: Mapping[str, Any]) -> bytes:
    said = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    return hashlib.blake2b(msgspec.json.encode(said, order="sorted"), digest_size=16).digest()


# -- replies -----------------------------------------------------------------


async def _while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` until it is done or the client has gone; then it is cancelled, and writes down what it has."""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        await work()
        group.cancel_scope.cancel()


class _Client(NamedTuple):
    """Who asked, and for which session."""

    scope: Scope
    receive: Receive
    send: Send
    session: Session
    guard: Guard | None

    async def begin(self, kind: bytes, *more: tuple[bytes, bytes]) -> None:
        """Send the head of a good response."""
        headers = [
            (b"content-type", kind),
            (b"cache-control", b"no-cache"),
            (b"x-session-id", _header(self.session.id)),
            *more,
        ]
        self.scope["state"]["begun"] = True
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def cut(self) -> None:
        """End the reply before its end: as an event where it has begun, else as a 503."""
        body = error_body(ENDING, kind="server_error", code="server_ending")
        if self.scope["state"].get("begun"):
            await self.send(_event(body))
            await self.send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
            return
        headers = {"x-session-id": _header(self.session.id).decode(), "retry-after": "1"}
        await respond(Reply(body, 503, headers))(self.scope, self.receive, self.send)

    async def refuse(self, exc: Exception) -> None:
        """Tell of an error with the session's id: the user's message is in its log."""
        reply = failure(exc, self.guard)
        headers = {**reply.headers, "x-session-id": _header(self.session.id).decode()}
        await respond(msgspec.structs.replace(reply, headers=headers))(self.scope, self.receive, self.send)

    def named(self, said: Mapping[str, Any], turn: Turn, **more: Any) -> dict[str, Any]:
        """`said` with the session as it is now, and what `more` there is to say of it."""
        return {**said, "session_id": self.session.id, "session": {**turn.summary(), **more}}


async def _collected(client: _Client, turn: Turn, body: Mapping[str, Any]) -> None:
    collector = Collector()
    try:
        async with closing(answer(turn)) as chunks:
            async for chunk in chunks:
                collector.add(chunk)
        completion = client.named(collector.completion(), turn)
    except Exception as exc:  # noqa: BLE001 - the last place before the wire: whatever happened becomes a reply
        await client.refuse(exc)
        return
    # With its length said, the body needs no chunked encoding, which not every small client reads.
    content = _encoder.encode(completion)
    await client.begin(b"application/json", (b"content-length", str(len(content)).encode()))
    await client.send({"type": "http.response.body", "body": content})


async def _streamed(client: _Client, turn: Turn, body: Mapping[str, Any]) -> None:
    """Server-sent events. Until the first chunk there is time for a proper error; after it, an error is an event.

    A reply that another turn interrupts ends as any other does; only `session` tells.
    """
    started, turn.progress, last = False, True, dict[str, Any]()
    options = body.get("stream_options") or {}
    usage, progress = bool(options.get("include_usage")), bool(options.get(PROGRESS))
    try:
        async with closing(_told(client, turn, usage=usage)) as chunks:
            async for chunk in chunks:
                if not started:
                    started = True
                    await client.begin(b"text/event-stream; charset=utf-8")
                if isinstance(chunk, Progress):
                    await _passed_on(client, turn, _comment(chunk.comment))
                else:
                    last = chunk
                if progress or not isinstance(chunk, Progress):
                    await _passed_on(client, turn, _event(chunk))
    except errors.TurnInterrupted as exc:
        if not started:
            await client.refuse(exc)
            return
        await client.send(_event(client.named(_cut_short(last, body.get("n") or 1), turn, interrupted=True)))
    except Exception as exc:  # noqa: BLE001 - the last place before the wire: whatever happened becomes an event
        if not started:
            await client.refuse(exc)
            return
        await client.send(_event(failure(exc, client.guard).body))
    await client.send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _told(client: _Client, turn: Turn, *, usage: bool) -> AsyncGenerator[dict[str, Any], None]:
    """The reply's chunks as the client is sent them: those behind its last word say what the session is now."""
    async with closing(answer(turn)) as chunks:
        async for chunk in chunks:
            if not usage and not chunk.get("choices") and "usage" in chunk:
                continue
            yield client.named(chunk, turn) if turn.closed else chunk


async def _passed_on(client: _Client, turn: Turn, event: Event) -> None:
    """Send a part of the reply; a client that does not read keeps nobody from interrupting it."""
    if turn.closed:
        await client.send(event)
    else:
        await turn.hold.interruptible(lambda: client.send(event))


def _cut_short(last: Mapping[str, Any], choices: int) -> dict[str, Any]:
    """The end of a reply that was cut, behind its `last` chunk: of a kind that every client knows."""
    head = {name: last[name] for name in ("id", "created", "model") if name in last}
    ends = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in range(choices)]
    return {**head, "object": "chat.completion.chunk", "choices": ends}


def _event(data: Any) -> Event:
    return {"type": "http.response.body", "body": b"data: " + _encoder.encode(data) + b"\n\n", "more_body": True}


def _comment(text: str) -> Event:
    """A line that clients pass over."""
    return {"type": "http.response.body", "body": b": " + text.encode() + b"\n\n", "more_body": True}


def _header(value: str) -> bytes:
    """A header can carry printable ASCII only; any other id is percent-encoded in it, and stands whole in the body."""
    return quote(value, safe=_PLAIN_IN_HEADER).encode()


_PLAIN_IN_HEADER = "!#$&'()*+,/:;=?@[]~"
