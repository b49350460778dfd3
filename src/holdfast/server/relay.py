"""A reply on its way to whoever asked: whole, or as a stream while it is being made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple
from urllib.parse import quote

import anyio
import msgspec
from starlette.types import Message as Event
from starlette.types import Receive, Scope, Send

from holdfast import errors
from holdfast.models import Collector, closing
from holdfast.prompting import Turn
from holdfast.secrets import Guard
from holdfast.server.doors.base import Door, Telling
from holdfast.server.http import Reply, error_body, failure, respond
from holdfast.session import Session
from holdfast.tooling import Progress
from holdfast.turn import respond as answer

ENDING = "the server is ending; what arrived of the reply is in the session"
_encoder = msgspec.json.Encoder()


async def while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` until it is done or the client has gone; then it is cancelled, and writes down what it has."""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        await work()
        group.cancel_scope.cancel()


class Client(NamedTuple):
    """Who asked, by which door, and for which session."""

    scope: Scope
    receive: Receive
    send: Send
    session: Session
    guard: Guard | None
    door: Door
    telling: Telling

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
            await self.send(_part(self.telling.failed(body)))
            await self.send({"type": "http.response.body", "body": self.telling.end()})
            return
        await self._respond(Reply(body, 503, {"retry-after": "1"}))

    async def refuse(self, exc: Exception) -> None:
        """Tell of an error with the session's id: the user's message is in its log."""
        await self._respond(failure(exc, self.guard))

    async def _respond(self, reply: Reply) -> None:
        reply = self.door.failed(reply)
        headers = {**reply.headers, "x-session-id": _header(self.session.id).decode()}
        await respond(msgspec.structs.replace(reply, headers=headers))(self.scope, self.receive, self.send)

    def told(self, turn: Turn, **more: Any) -> dict[str, Any]:
        """The session as it is now, and what `more` there is to say of it."""
        return {"session_id": self.session.id, "session": {**turn.summary(), **more}}


async def collected(client: Client, turn: Turn) -> None:
    """The reply in one piece."""
    collector = Collector()
    try:
        async with closing(answer(turn)) as chunks:
            async for chunk in chunks:
                collector.add(chunk)
        completion = client.door.reply(collector.completion(), client.told(turn))
    except Exception as exc:  # noqa: BLE001 - the last place before the wire: whatever happened becomes a reply
        await client.refuse(exc)
        return
    # With its length said, the body needs no chunked encoding, which not every small client reads.
    content = _encoder.encode(completion)
    await client.begin(b"application/json", (b"content-length", str(len(content)).encode()))
    await client.send({"type": "http.response.body", "body": content})


async def streamed(client: Client, turn: Turn) -> None:
    """Server-sent events. Until the first chunk there is time for a proper error; after it, an error is an event.

    A reply that another turn interrupts ends as any other does; only `session` tells.
    """
    started, turn.progress, telling = False, True, client.telling
    try:
        async with aclosing(_events(client, turn)) as events:
            async for event in events:
                if not started:
                    started = True
                    await client.begin(b"text/event-stream; charset=utf-8")
                await _passed_on(client, turn, event)
    except errors.TurnInterrupted as exc:
        if not started:
            await client.refuse(exc)
            return
        await client.send(_part(telling.cut_short(client.told(turn, interrupted=True))))
    except Exception as exc:  # noqa: BLE001 - the last place before the wire: whatever happened becomes an event
        if not started:
            await client.refuse(exc)
            return
        await client.send(_part(telling.failed(failure(exc, client.guard).body)))
    await client.send({"type": "http.response.body", "body": telling.end()})


async def _events(client: Client, turn: Turn) -> AsyncGenerator[bytes, None]:
    """The reply as the client is sent it: chunks behind its last word say what the session is now."""
    async with closing(answer(turn)) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, Progress):
                event = client.telling.progress(chunk)
            else:
                event = client.telling.chunk(chunk, client.told(turn) if turn.closed else None)
            if event:
                yield event


async def _passed_on(client: Client, turn: Turn, event: bytes) -> None:
    """Send a part of the reply; a client that does not read keeps nobody from interrupting it."""
    if turn.closed:
        await client.send(_part(event))
    else:
        await turn.hold.interruptible(lambda: client.send(_part(event)))


def _part(body: bytes) -> Event:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _header(value: str) -> bytes:
    """A header can carry printable ASCII only; any other id is percent-encoded in it, and stands whole in the body."""
    return quote(value, safe=_PLAIN_IN_HEADER).encode()


_PLAIN_IN_HEADER = "!#$&'()*+,/:;=?@[]~"
