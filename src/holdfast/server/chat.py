"""The gateway: `POST /v1/chat/completions`, OpenAI's own, with the session's memory in it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, get_args
from urllib.parse import quote, unquote

import anyio
import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Message as Event
from starlette.types import Receive, Scope, Send

from holdfast import errors
from holdfast.holdfast import DEFAULT_USER, Holdfast
from holdfast.messages import Message
from holdfast.models import Collector, closing
from holdfast.prompting import Turn, TurnRequest, check_body
from holdfast.reconcile import Mode
from holdfast.secrets import Guard
from holdfast.server.http import Call, Reply, error_body, failure, named_session, respond, without_secrets
from holdfast.server.intake import Intake
from holdfast.session import Session
from holdfast.stores.checks import check_id
from holdfast.turn import NOTHING
from holdfast.turn import respond as answer
from holdfast.wire.openai import messages_from, split_system

OWN_FIELDS = frozenset({"session_id", "session_mode", "session_match", "agent"})
"""Fields of the body that are Holdfast's own and do not travel upstream."""
MODES: tuple[str, ...] = get_args(Mode)
MAX_CHOICES = 128
ENDING = "the server is ending; what arrived of the reply is in the session"
_encoder = msgspec.json.Encoder()


class Chat:
    """The ASGI app of the route. Raw, because the reply is a stream that ends when whoever asked has gone."""

    def __init__(self, hf: Callable[[], Holdfast], intake: Intake) -> None:
        self._hf = hf
        self._intake = intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            call = Call(scope, receive, self._hf(), self._intake)
            try:
                body = await call.body()
                turn, session = await opened(call, body)
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


async def opened(call: Call, body: dict[str, Any]) -> tuple[Turn, Session]:
    """The turn that a request asks for, and its session, made if there is none yet."""
    check(body)
    hf = call.hf
    messages = messages_from(body.get("messages"))
    system, incoming = split_system(messages)
    key = call.header("idempotency-key") or None
    if key is not None:
        check_id(key, "Idempotency-Key")
    said = await without_secrets(hf, body, messages, hashed=key is not None)
    session = await _session(call, body, key, system, answerable=bool(incoming))
    voice = hf.voice(session, agent=body.get("agent"), model=body.get("model"))
    request = TurnRequest(
        ref=session.ref,
        voice=voice,
        incoming=tuple(incoming),
        system=system,
        mode=body.get("session_mode") or "auto",
        body={name: value for name, value in body.items() if name not in OWN_FIELDS and name != "messages"},
        idempotency_key=key,
        fingerprint=_fingerprint(said) if key else b"",
    )
    return Turn(hf.engine, request), session


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
    if body.get("session_match") not in (None, "off", "on"):
        raise errors.InvalidRequest("session_match must be on or off", param="session_match")
    if not body.get("messages"):
        raise errors.InvalidRequest("messages is missing or empty; send at least the new message", param="messages")


async def _session(
    call: Call, body: Mapping[str, Any], key: str | None, system: tuple[Message, ...], *, answerable: bool
) -> Session:
    """The session named by body or header, else a new one; one for each idempotency key, so that a retry finds it.

    A session that is made here keeps the request's system messages, for requests that bring none. What its first turn
    would refuse is refused before it is made: a request that is turned away leaves no empty session behind.
    """
    hf, user = call.hf, body.get("user") or None
    session_id = _session_id(call, body)
    if session_id is None and key is not None:
        session_id, user = _keyed_id(user or DEFAULT_USER, key), user or DEFAULT_USER
    if session_id is not None:
        try:
            return await named_session(hf, session_id, user)
        except errors.SessionNotFound:
            pass
    check_body(hf.roster.voice(agent=body.get("agent"), model=body.get("model")), body)
    if not answerable:
        raise errors.InvalidRequest(NOTHING, param="messages")
    agent = body.get("agent") or (body["model"] if body.get("model") in hf.roster.agents else None)
    return await hf.ensure(session_id, user_id=user or DEFAULT_USER, agent=agent, system_messages=system)


def _keyed_id(user: str, key: str) -> str:
    said = msgspec.json.encode([user, key])
    return "sess_" + hashlib.blake2b(said, key=b"idempotency", digest_size=16).hexdigest()


def _session_id(call: Call, body: Mapping[str, Any]) -> str | None:
    named, sent = body.get("session_id"), call.header("x-session-id")
    header = header_text(sent) if sent else None
    if named and header and named != header:
        message = "session_id and the header X-Session-Id, percent-decoded, name different sessions"
        raise errors.InvalidRequest(message, param="session_id")
    return named or header


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

    def named(self, said: Mapping[str, Any], turn: Turn) -> dict[str, Any]:
        """`said` with the session as it is now."""
        return {**said, "session_id": self.session.id, "session": turn.summary()}


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
    """Server-sent events. Until the first chunk there is time for a proper error; after it, an error is an event."""
    started = False
    usage = bool((body.get("stream_options") or {}).get("include_usage"))
    try:
        async with closing(_told(client, turn, usage=usage)) as chunks:
            async for chunk in chunks:
                if not started:
                    started = True
                    await client.begin(b"text/event-stream; charset=utf-8")
                await client.send(_event(chunk))
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


def _event(data: Any) -> Event:
    return {"type": "http.response.body", "body": b"data: " + _encoder.encode(data) + b"\n\n", "more_body": True}


def _header(value: str) -> bytes:
    """A header can carry printable ASCII only; any other id is percent-encoded in it, and stands whole in the body."""
    return quote(value, safe=_PLAIN_IN_HEADER).encode()


_PLAIN_IN_HEADER = "!#$&'()*+,/:;=?@[]~"


def header_text(value: str) -> str:
    """An id from a header: percent-encoded, as `_header` writes it, or as UTF-8. Raises `InvalidRequest` for neither."""
    try:
        return unquote(value.encode("latin-1").decode(), errors="strict")
    except UnicodeDecodeError as exc:
        raise errors.InvalidRequest("X-Session-Id is not UTF-8, percent-encoded or not", param="X-Session-Id") from exc
