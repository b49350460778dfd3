"""Send a reply to the client, in one piece or as a stream.

Data goes into the buffer of the connection (`holdfast.server.protocol`). So a turn waits for its client only while the buffer is full.
After the last token the turn never waits for its client, because the session's next turn must not depend on a client.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, NamedTuple, cast, get_args
from urllib.parse import quote

import anyio
import msgspec
from starlette.types import Receive, Scope, Send

from holdfast import errors, faults
from holdfast.log.items import Delta, Progress
from holdfast.secrets import Guard
from holdfast.server.apis.api_format import ApiFormat, BackgroundEncoder, ParsedRequest, ReplyEncoder
from holdfast.server.replies import Reply, make_error_body, make_failure_reply, respond
from holdfast.turns.respond import collect_reply
from holdfast.turns.respond import respond as answer
from holdfast.turns.turn import Turn

OnDisconnect = Literal["cut", "finish"]
ON_DISCONNECT: Final[tuple[str, ...]] = get_args(OnDisconnect)
ENDING: Final = "the server is shutting down; the part of the reply that arrived is in the session"
TIMEOUTS: Final = frozenset({b"x-stainless-read-timeout", b"x-stainless-timeout"})
"""Headers in which the official SDKs of OpenAI and Anthropic send their timeout in seconds. After the timeout they retry."""
_TIMEOUT_SHARE: Final = 0.9
"""A disconnect is treated as a timeout if at least this fraction of the client's timeout has passed. It is below 1, because the client
began to measure earlier than the server."""
LAST_WORD_SECONDS: Final = 1.0
"""Seconds to wait, at shutdown, for a client that does not read."""
_encoder = msgspec.json.Encoder()


class ReplyStreams:
    """Settings for sending replies, and counters of replies.

    Args:
        keep_alive: seconds of silence after which a stream sends a keep-alive; 0: never.
        on_disconnect: what to do with a reply if its client disconnects and the request does not specify it.

    Attributes:
        streams: number of open streams.
        left: number of replies whose client disconnected early, by outcome: `cut` or `finished`.
        keep_alives: number of keep-alives that were sent.
    """

    def __init__(self, keep_alive: float = 15.0, on_disconnect: OnDisconnect = "cut") -> None:
        self.keep_alive = keep_alive
        self.on_disconnect = on_disconnect
        self.streams = 0
        self.left: Counter[str] = Counter(cut=0, finished=0)
        self.keep_alives = 0


class ClientConnection(NamedTuple):
    """The connection to a client, with the API format and the fields of its request."""

    scope: Scope
    receive: Receive
    send: Send
    guard: Guard | None
    api_format: ApiFormat
    parsed: ParsedRequest
    """The parsed request. Its list of messages is empty, to release its memory."""
    arrived: float
    """Arrival time of the request in seconds, by the event loop's clock."""


class Client:
    """The client that receives a reply.

    Attributes:
        encoder: encodes the stream in the client's API format.
        gone: True if the client disconnected before the end of the reply.
        end: parts of a stream that follow the last token. They are sent when the turn has released its session.
        streamed: True if the reply is sent as a stream.
        finish: True if the reply is finished when the client disconnects.
        is_background: True if the response is sent when the turn has begun, and the reply is made afterwards.
    """

    def __init__(self, connection: ClientConnection, turn: Turn, relays: ReplyStreams) -> None:
        self._turn = turn
        self.encoder: ReplyEncoder = connection.api_format.create_encoder(connection.parsed, turn)
        self.gone = False
        self.end: list[bytes] = []
        self.streamed = bool(connection.parsed.body.get("stream"))
        self.is_background = connection.parsed.background
        self.finish = (connection.parsed.body.get("on_disconnect") or relays.on_disconnect) == "finish"
        self._connection = connection
        self._relays = relays
        self._begun = self._ended = self._sent = self._sending = False
        self._now = asyncio.get_running_loop().time
        self._last = self._now()

    @property
    def has_begun(self) -> bool:
        """True if the head of a successful response has been sent. Errors can then only be sent as events."""
        return self._begun

    # -- sending ---------------------------------------------------------------

    def encode(self, deltas: list[Delta]) -> bytes:
        """Encode a part of the reply. The parts after the last token have the session fields."""
        if isinstance(deltas[0], Progress):
            return self.encoder.encode_progress(deltas[0])
        return self.encoder.encode(deltas, self.build_session_fields() if self._turn.closed else None)

    async def send(self, deltas: list[Delta]) -> None:
        """Send a part of the reply, or add it to `end` if it follows the last token."""
        if self._turn.closed or isinstance(deltas[0], Progress):
            event = self.encode(deltas)
        else:
            event = self.encoder.encode(deltas, None)  # nearly all parts
        if self._turn.closed:
            self.end.append(event)
        elif not event or self.gone or self._ended:
            return
        elif not self._begun or faults.active:
            await self.write(event)
        else:
            self._sending = True
            await self._connection.send({"type": "http.response.body", "body": event, "more_body": True})
            self._sending, self._last = False, self._now()

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Send a part of a stream. Do nothing if the client has disconnected or the stream has ended.

        Args:
            body: the part.
            more: False for the last part.
        """
        if self.gone or self._ended:
            return
        self._ended, self._sending = not more, True
        try:
            if not self._begun:
                await self._begin(b"text/event-stream; charset=utf-8")
            if faults.active:
                await faults.hit("before-chunk-sent" if more else "before-reply-sent")
            await self._connection.send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self._sending = False
        self._last, self._sent = self._now(), not more

    async def send_whole(self, content: bytes) -> None:
        """Send a complete reply in one piece."""
        self._ended = True
        await faults.hit("before-reply-sent")
        # With a content length no chunked encoding is needed, which small clients may not support.
        await self._begin(b"application/json", (b"content-length", str(len(content)).encode()))
        await self._connection.send({"type": "http.response.body", "body": content})
        self._sent = True

    async def _begin(self, kind: bytes, *more: tuple[bytes, bytes]) -> None:
        self._begun = True
        headers = [
            (b"content-type", kind),
            (b"cache-control", b"no-cache"),
            (b"x-session-id", _encode_header(self._turn.request.ref.id)),
            *([] if self._turn.agent is None else [(b"x-session-agent", _encode_header(self._turn.agent))]),
            *more,
        ]
        await self._connection.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def cut(self) -> None:
        """End the reply early, because the server shuts down. If the reply has begun, send an error event; if not, send status 503."""
        body = make_error_body(ENDING, kind="server_error", code="server_ending")
        if self._ended or self.gone:
            return
        with anyio.move_on_after(LAST_WORD_SECONDS):
            if self._begun:
                await self.write(self.encoder.encode_error(body) + self.encoder.encode_end(), more=False)
            else:
                await self._respond(Reply(body, 503, {"retry-after": "1"}))

    async def refuse(self, exc: Exception) -> None:
        """Send an error response. It includes the session id, because the user's message is in the session's log."""
        await self._respond(make_failure_reply(exc, self._connection.guard))

    async def _respond(self, reply: Reply) -> None:
        connection, self._ended = self._connection, True
        reply = connection.api_format.to_error(reply)
        headers = {**reply.headers, "x-session-id": _encode_header(self._turn.request.ref.id).decode()}
        await respond(msgspec.structs.replace(reply, headers=headers))(
            connection.scope, connection.receive, connection.send
        )
        self._sent = True

    def encode_error(self, exc: Exception) -> bytes:
        """Encode an error as an event of the stream."""
        return self.encoder.encode_error(make_failure_reply(exc, self._connection.guard).body)

    def convert_reply(self, completion: dict[str, Any]) -> Any:
        """Convert a complete reply to the client's API format."""
        return self.encoder.convert_reply(completion, self.build_session_fields())

    def build_session_fields(self, **more: Any) -> dict[str, Any]:
        """Return the session fields of a reply: the session id, and a summary of the turn with the fields in `more`."""
        return {"session_id": self._turn.request.ref.id, "session": {**self._turn.summarize(), **more}}

    def expects_retry(self) -> bool:
        """Return True if the client disconnected because its own timeout has passed. The official SDKs then retry."""
        limits = [_parse_seconds(value) for name, value in self._connection.scope["headers"] if name in TIMEOUTS]
        return not self._begun and any(
            self._now() - self._connection.arrived >= _TIMEOUT_SHARE * limit for limit in limits
        )

    def note_attempt(self) -> None:
        """Release the session, and record how this attempt ended, so that a retry of the request can use it."""
        placement = self._turn.placement
        if placement is None:
            return
        placement.release()
        if placement.attempt is not None and not self.gone:
            placement.attempt.is_connected = False
            placement.attempt.was_answered = self._turn.closed and self._sent

    def _note_leaving(self) -> None:
        """Record at once that the client has disconnected, so that a retry that arrives soon is matched to this attempt."""
        self.gone = not self._sent  # not set earlier: the client may disconnect while the last part is sent
        placement = self._turn.placement
        if self.gone and placement is not None and placement.attempt is not None:
            placement.attempt.is_connected = placement.attempt.was_answered = False

    # -- connection --------------------------------------------------------------

    async def wait_for_disconnect(self) -> None:
        """Wait until the client has disconnected. In a stream, send a keep-alive whenever nothing was sent for a while."""
        every = self._relays.keep_alive if self.streamed else 0
        while True:
            with anyio.CancelScope(deadline=self._last + every if every else math.inf):
                while (await self._connection.receive())["type"] != "http.disconnect":
                    pass
                self._note_leaving()
                return
            if self._now() >= self._last + every:
                await self._keep_alive()

    async def _keep_alive(self) -> None:
        self._last = self._now()
        if self._sending or self._ended:  # the client has unread data already
            return
        self._relays.keep_alives += 1
        await self.write(self.encoder.encode_keep_alive())


async def relay_reply(client: Client, turn: Turn, relays: ReplyStreams) -> None:
    """Run a turn and send its reply to the client.

    If the client disconnects early, the turn is cancelled, unless the reply should be finished; see `on_disconnect`.
    """
    if client.is_background:
        await _send_begun(client, turn)
        return
    relays.streams += client.streamed
    try:
        await _run_while_connected(
            client, turn, lambda: (_send_stream if client.streamed else _send_whole)(client, turn)
        )
    finally:
        relays.streams -= client.streamed
        if client.gone:
            _record_disconnect(turn, relays)


def _record_disconnect(turn: Turn, relays: ReplyStreams) -> None:
    """Count a reply whose client disconnected early. If the reply was finished and no retry waits for it, record it as undelivered."""
    relays.left["finished" if turn.closed else "cut"] += 1
    attempt = turn.placement.attempt if turn.placement else None
    is_awaited = attempt is not None and attempt.is_connected  # a retry of the request waits for it
    if turn.closed and turn.answered is None and not is_awaited:
        turn.engine.undelivered.note(turn.session, turn.request.incoming, turn.request.idempotency_key)


async def _run_while_connected(client: Client, turn: Turn, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`, and cancel it when the client disconnects, unless the reply should be finished or the client will retry."""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            await client.wait_for_disconnect()
            if turn.lock.owner is None or not (client.finish or client.expects_retry()):
                group.cancel_scope.cancel()

        group.start_soon(watch)
        await work()
        group.cancel_scope.cancel()


async def _send_whole(client: Client, turn: Turn) -> None:
    try:
        content = _encoder.encode(client.convert_reply(await collect_reply(turn)))
    except Exception as exc:  # noqa: BLE001 - the last place before the response: every error becomes a response
        await client.refuse(exc)
        return
    await client.send_whole(content)


async def _send_begun(client: Client, turn: Turn) -> None:
    """Send the response as soon as the turn has begun, then make the reply. The encoder records it for later requests."""
    encoder = cast("BackgroundEncoder", client.encoder)
    begun, failures, release = anyio.Event(), [], turn.on_open

    def note_begun() -> None:
        if release is not None:
            release()
        begun.set()

    async def record(deltas: list[Delta]) -> None:
        client.encode(deltas)

    async def make_reply() -> None:
        turn.on_open = note_begun
        try:
            await answer(turn, record)
            encoder.encode_end()
        except errors.TurnInterrupted:
            encoder.encode_cut(client.build_session_fields(interrupted=True))
            encoder.encode_end()
        except Exception as exc:  # noqa: BLE001 - the last place before the response: every error becomes a response
            failures.append(exc)
            if begun.is_set():
                client.encode_error(exc)
        begun.set()

    async with anyio.create_task_group() as group:
        group.start_soon(make_reply)
        await begun.wait()
        if failures and turn.note is None:
            await client.refuse(failures[0])
        else:
            await client.send_whole(_encoder.encode(encoder.begin()))


async def _send_stream(client: Client, turn: Turn) -> None:
    """Run the turn, and send its reply as server-sent events.

    An error before the first event is sent as a response with an error status. A later error is sent as an event. If another turn
    interrupts the reply, the stream ends normally, and only `session` shows the interruption. Events after the last token are sent after
    the turn has released its session.
    """
    try:
        await answer(turn, client.send)
    except Exception as exc:  # noqa: BLE001 - the last place before the response: every error becomes an event
        if not client.has_begun:
            await client.refuse(exc)
            return
        if isinstance(exc, errors.TurnInterrupted):
            client.end.append(client.encoder.encode_cut(client.build_session_fields(interrupted=True)))
        else:
            client.end.append(client.encode_error(exc))
    await client.write(b"".join(client.end) + client.encoder.encode_end(), more=False)


def _parse_seconds(value: bytes) -> float:
    """Return the number in a header, or infinity if it is not a number."""
    try:
        return float(value)
    except ValueError:
        return math.inf


def _encode_header(value: str) -> bytes:
    """Encode an id for a header: printable ASCII stays unchanged, and other characters are percent-encoded."""
    return quote(value, safe=_PLAIN_IN_HEADER).encode()


_PLAIN_IN_HEADER = "!#$&'()*+,/:;=?@[]~"
