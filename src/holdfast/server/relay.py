"""A reply on its way to whoever asked: whole, or as a stream while it is being made.

What is sent goes into the connection's own buffer (see `holdfast.server.protocol`), so a turn waits for its client only where
that is full. Behind a reply's last word it does not even then: the session's next turn need not wait for a client.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import quote

import anyio
import msgspec
from anyio.lowlevel import checkpoint_if_cancelled
from starlette.types import Receive, Scope, Send

from holdfast import errors
from holdfast.models import Collector, closing
from holdfast.secrets import Guard
from holdfast.server.doors.base import Door, Telling
from holdfast.server.replies import Reply, error_body, failure, respond
from holdfast.turns.reply_assembler import Progress
from holdfast.turns.respond import respond as answer
from holdfast.turns.turn import Turn

OnDisconnect = Literal["cut", "finish"]
ON_DISCONNECT: Final[tuple[str, ...]] = get_args(OnDisconnect)
ENDING: Final = "the server is ending; what arrived of the reply is in the session"
TIMEOUTS: Final = frozenset({b"x-stainless-read-timeout", b"x-stainless-timeout"})
"""Headers in which the official SDKs of OpenAI and Anthropic say after how many seconds they give up and send the request again."""
_PASSED: Final = 0.9
"""Share of a client's own time limit after which its leaving counts as a timeout: the client began to count before the server did."""
LAST_WORD_SECONDS: Final = 1.0
"""How long a client that does not read is waited for when the server ends."""
_encoder = msgspec.json.Encoder()


class Relays:
    """How the replies of a server are sent, and what became of them.

    Args:
        keep_alive: seconds without anything sent, after which a stream says that it is still there; 0: it never does.
        on_disconnect: what becomes of a reply whose client has gone, where the request does not say.

    Attributes:
        streams: how many are open.
        left: replies whose clients had gone before their end, by what became of them: `cut` or `finished`.
        keep_alives: how many were sent.
    """

    def __init__(self, keep_alive: float = 15.0, on_disconnect: OnDisconnect = "cut") -> None:
        self.keep_alive = keep_alive
        self.on_disconnect = on_disconnect
        self.streams = 0
        self.left: Counter[str] = Counter(cut=0, finished=0)
        self.keep_alives = 0


class Asker(NamedTuple):
    """Who asked, and by which door."""

    scope: Scope
    receive: Receive
    send: Send
    guard: Guard | None
    door: Door
    body: Mapping[str, Any]
    """The request's fields, see `Said`."""
    arrived: float
    """When the request came, by the event loop's clock."""


class Client:
    """Where a reply is sent to.

    Attributes:
        telling: how a stream is told to it.
        gone: whether it went before the reply's end.
    """

    def __init__(self, asker: Asker, turn: Turn, relays: Relays) -> None:
        self._turn = turn
        self.telling: Telling = asker.door.telling(asker.body)
        self.gone = False
        self.streamed = bool(asker.body.get("stream"))
        self.finish = (asker.body.get("on_disconnect") or relays.on_disconnect) == "finish"
        self._asker = asker
        self._relays = relays
        self._begun = self._ended = self._sent = self._sending = False
        self._now = asyncio.get_running_loop().time
        self._last = self._now()

    @property
    def begun(self) -> bool:
        """Whether the head of a good response was sent: from then on, a failure can only be an event."""
        return self._begun

    # -- sending ---------------------------------------------------------------

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Send a part of a stream, the last one where there is no `more`. Nobody is there to read it: then it is none."""
        await self.noticed()
        if self.gone or self._ended:
            return
        self._ended, self._sending = not more, True
        try:
            if not self._begun:
                await self._begin(b"text/event-stream; charset=utf-8")
            await self._asker.send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self._sending = False
        self._last, self._sent = self._now(), not more

    async def whole(self, content: bytes) -> None:
        """Send a reply in one piece."""
        self._ended = True
        # With its length said, the body needs no chunked encoding, which not every small client reads.
        await self._begin(b"application/json", (b"content-length", str(len(content)).encode()))
        await self._asker.send({"type": "http.response.body", "body": content})
        self._sent = True

    async def _begin(self, kind: bytes, *more: tuple[bytes, bytes]) -> None:
        self._begun = True
        headers = [
            (b"content-type", kind),
            (b"cache-control", b"no-cache"),
            (b"x-session-id", _header(self._turn.request.ref.id)),
            *([] if self._turn.agent is None else [(b"x-session-agent", _header(self._turn.agent))]),
            *more,
        ]
        await self._asker.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def cut(self) -> None:
        """End the reply before its end: as an event where it has begun, else as a 503."""
        body = error_body(ENDING, kind="server_error", code="server_ending")
        if self._ended or self.gone:
            return
        with anyio.move_on_after(LAST_WORD_SECONDS):
            if self._begun:
                await self.write(self.telling.failed(body) + self.telling.end(), more=False)
            else:
                await self._respond(Reply(body, 503, {"retry-after": "1"}))

    async def refuse(self, exc: Exception) -> None:
        """Tell of an error with the session's id: the user's message is in its log."""
        await self._respond(failure(exc, self._asker.guard))

    async def _respond(self, reply: Reply) -> None:
        asker, self._ended = self._asker, True
        reply = asker.door.failed(reply)
        headers = {**reply.headers, "x-session-id": _header(self._turn.request.ref.id).decode()}
        await respond(msgspec.structs.replace(reply, headers=headers))(asker.scope, asker.receive, asker.send)
        self._sent = True

    def error(self, exc: Exception) -> bytes:
        """An error behind the head of a stream."""
        return self.telling.failed(failure(exc, self._asker.guard).body)

    def reply(self, completion: dict[str, Any], turn: Turn) -> Any:
        """A whole reply as its door has it."""
        return self._asker.door.reply(completion, self.told(turn))

    def told(self, turn: Turn, **more: Any) -> dict[str, Any]:
        """The session as it is now, and what `more` there is to say of it."""
        return {"session_id": self._turn.request.ref.id, "session": {**turn.summary(), **more}}

    def sends_again(self) -> bool:
        """Return True if the client has left because of its own time limit: an official SDK then sends the request again."""
        limits = [_seconds(value) for name, value in self._asker.scope["headers"] if name in TIMEOUTS]
        return not self._begun and any(self._now() - self._asker.arrived >= _PASSED * limit for limit in limits)

    def note_attempt(self) -> None:
        """Note what became of the request, in case it is sent again, and let others be given its session."""
        placement = self._turn.placement
        if placement is None:
            return
        placement.release()
        if placement.attempt is not None and not self.gone:
            placement.attempt.is_connected = False
            placement.attempt.was_answered = self._turn.closed and self._sent

    def _note_leaving(self) -> None:
        """Note at once that the client waits no longer: of equal requests, a retry repeats one that no client waits for."""
        self.gone = not self._sent  # not before: the last word may wait for a client that goes
        placement = self._turn.placement
        if self.gone and placement is not None and placement.attempt is not None:
            placement.attempt.is_connected = placement.attempt.was_answered = False

    # -- being there -------------------------------------------------------------

    async def leaves(self) -> None:
        """Return when it has gone; a stream in which nothing comes for a while is kept alive until then."""
        every = self._relays.keep_alive if self.streamed else 0
        while True:
            with anyio.CancelScope(deadline=self._last + every if every else math.inf):
                while (await self._asker.receive())["type"] != "http.disconnect":
                    pass
                self._note_leaving()
                return
            if self._now() >= self._last + every:
                await self._keep_alive()

    async def noticed(self) -> None:
        """Let the task that answers be cancelled, if it is to be."""
        # anyio cancels a task where it finds it waiting. While a model sends faster than it is read, there is always more.
        if self.gone:
            await checkpoint_if_cancelled()

    async def _keep_alive(self) -> None:
        self._last = self._now()
        if self._sending or self._ended:  # it has something to read already
            return
        self._relays.keep_alives += 1
        await self.write(self.telling.waiting())


async def relayed(client: Client, turn: Turn, relays: Relays) -> None:
    """Answer the turn and send the reply, as long as there is anybody to send it to, or to its end: see `on_disconnect`."""
    relays.streams += client.streamed
    try:
        await _while_there(client, turn, lambda: (_streamed if client.streamed else _collected)(client, turn))
    finally:
        relays.streams -= client.streamed
        if client.gone:
            _left(turn, relays)


def _left(turn: Turn, relays: Relays) -> None:
    """Note what became of a reply whose client had gone before its end."""
    relays.left["finished" if turn.closed else "cut"] += 1
    attempt = turn.placement.attempt if turn.placement else None
    is_awaited = attempt is not None and attempt.is_connected  # by the same request, sent again
    if turn.closed and turn.answered is None and not is_awaited:
        turn.engine.unheard.note(turn.session, turn.request.incoming, turn.request.idempotency_key)


async def _while_there(client: Client, turn: Turn, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work`. When the client goes it is cancelled, and writes down what it has; or goes on, if it has begun by then."""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            await client.leaves()
            if turn.lock.task is None or not (client.finish or client.sends_again()):
                group.cancel_scope.cancel()

        group.start_soon(watch)
        await work()
        group.cancel_scope.cancel()


async def _collected(client: Client, turn: Turn) -> None:
    """The reply in one piece."""
    collector = Collector()
    try:
        async with closing(answer(turn)) as chunks:
            async for chunk in chunks:
                collector.add(chunk)
                await client.noticed()
        content = _encoder.encode(client.reply(collector.completion(), turn))
    except Exception as exc:  # noqa: BLE001 - the last place before the wire: whatever happened becomes a reply
        await client.refuse(exc)
        return
    await client.whole(content)


async def _streamed(client: Client, turn: Turn) -> None:
    """Server-sent events. Until the head there is time for a proper error; after it, an error is an event.

    A reply that another turn interrupts ends as any other does; only `session` tells. What comes behind its last word is
    sent when the turn has let go of its session.
    """
    turn.progress, last = True, []
    try:
        async with closing(answer(turn)) as chunks:
            async for chunk in chunks:
                if not (event := _event(client, turn, chunk)):
                    continue
                if turn.closed:
                    last.append(event)
                else:
                    # A client that does not read keeps nobody from interrupting the turn.
                    await turn.lock.interruptible(partial(client.write, event))
    except Exception as exc:  # noqa: BLE001 - the last place before the wire: whatever happened becomes an event
        if not client.begun:
            await client.refuse(exc)
            return
        if isinstance(exc, errors.TurnInterrupted):
            last.append(client.telling.cut_short(client.told(turn, interrupted=True)))
        else:
            last.append(client.error(exc))
    await client.write(b"".join(last) + client.telling.end(), more=False)


def _event(client: Client, turn: Turn, chunk: dict[str, Any]) -> bytes:
    """Return a chunk as the client is sent it; chunks after the reply's last word say what the session is now."""
    if isinstance(chunk, Progress):
        return client.telling.progress(chunk)
    return client.telling.chunk(chunk, client.told(turn) if turn.closed else None)


def _seconds(value: bytes) -> float:
    """Return the number in a header; infinity if it holds none."""
    try:
        return float(value)
    except ValueError:
        return math.inf


def _header(value: str) -> bytes:
    """A header can carry printable ASCII only; any other id is percent-encoded in it, and stands whole in the body."""
    return quote(value, safe=_PLAIN_IN_HEADER).encode()


_PLAIN_IN_HEADER = "!#$&'()*+,/:;=?@[]~"
