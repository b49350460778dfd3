"""Send a reply to the client, in one piece or as a stream.

Data goes into the buffer of the connection (`holdfast.server.protocol`). So a turn waits for its client only while the buffer is full.
After the last token the turn never waits for its client, because the session's next turn must not depend on a client.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any, Final, Literal, cast, get_args
from urllib.parse import quote

import anyio
import msgspec
from starlette.types import Send

from holdfast import errors, faults
from holdfast.log.items import Delta, Progress
from holdfast.server.apis.api_format import ApiFormat, BackgroundEncoder, EventEncoder, ParsedRequest
from holdfast.server.http import Call
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


class Client:
    """The client that receives a reply, and its connection.

    Attributes:
        encoder: encodes the reply in the client's API format.
        gone: True if the client disconnected before the end of the reply.

    Args:
        call: the request.
        send: ASGI function that sends a part of the response.
        api_format: the client's API format.
        parsed: the parsed request. Its list of messages is empty, to release its memory.
        turn: the turn of the request.
        arrived: arrival time of the request in seconds, by the event loop's clock.
    """

    def __init__(
        self, call: Call, send: Send, api_format: ApiFormat, parsed: ParsedRequest, turn: Turn, *, arrived: float
    ) -> None:
        self.encoder: EventEncoder = api_format.create_encoder(parsed, turn)
        self.gone = False
        self._turn = turn
        self._request = call.request
        self._guard = call.server_hf.guard
        self._streams: ReplyStreams = call.request.app.state.relays
        self._send = send
        self._send_body: Send = call.request.scope["state"].get("send_body", send)
        self._api_format = api_format
        self._arrived = arrived
        self._is_streamed = bool(parsed.body.get("stream"))
        self._is_background = parsed.background
        self._finishes = (parsed.body.get("on_disconnect") or self._streams.on_disconnect) == "finish"
        self._end: list[bytes] = []
        """Parts of a stream that follow the last token. They are sent when the turn has released its session."""
        self._begun = self._ended = self._sent = self._sending = False
        self._now = asyncio.get_running_loop().time
        self._last = self._now()

    async def relay(self) -> None:
        """Run the turn and send its reply.

        If the client disconnects early, the turn is cancelled, unless the reply should be finished; see `on_disconnect`.
        """
        if self._is_background:
            await self._relay_begun()
            return
        streams, turn = self._streams, self._turn
        streams.streams += self._is_streamed
        try:
            with anyio.CancelScope() as scope:
                watching = asyncio.ensure_future(self._watch(scope))
                try:
                    await (self._relay_stream() if self._is_streamed else self._relay_whole())
                finally:
                    watching.cancel()
        finally:
            streams.streams -= self._is_streamed
            if self.gone:
                streams.left["finished" if turn.closed else "cut"] += 1

    async def _relay_whole(self) -> None:
        try:
            reply = await collect_reply(self._turn)
            content = _encoder.encode(self.encoder.convert_reply(reply, self._build_session_fields()))
        except Exception as exc:  # noqa: BLE001 - the last place before the response: every error becomes a response
            await self._refuse(exc)
            return
        await self._send_whole(content)

    async def _relay_begun(self) -> None:
        """Send the response as soon as the turn has begun, then make the reply. The encoder records it for later requests."""
        encoder, turn = cast("BackgroundEncoder", self.encoder), self._turn
        begun, failures, release = anyio.Event(), [], turn.on_open

        def note_begun() -> None:
            if release is not None:
                release()
            begun.set()

        async def record(deltas: list[Delta]) -> None:
            self._encode(deltas)

        async def make_reply() -> None:
            turn.on_open = note_begun
            try:
                await answer(turn, record)
                encoder.encode_end()
            except errors.TurnInterrupted:
                encoder.encode_cut(self._build_session_fields(interrupted=True))
                encoder.encode_end()
            except Exception as exc:  # noqa: BLE001 - the last place before the response: every error becomes a response
                failures.append(exc)
                if begun.is_set():
                    self._encode_error(exc)
            begun.set()

        async with anyio.create_task_group() as group:
            group.start_soon(make_reply)
            await begun.wait()
            if failures and turn.note is None:
                await self._refuse(failures[0])
            else:
                await self._send_whole(_encoder.encode(encoder.begin()))

    async def _relay_stream(self) -> None:
        """Run the turn, and send its reply as server-sent events.

        An error before the first event is sent as a response with an error status. A later error is sent as an event. If another turn
        interrupts the reply, the stream ends normally, and only `session` shows the interruption.
        """
        try:
            await answer(self._turn, self._send_part)
        except Exception as exc:  # noqa: BLE001 - the last place before the response: every error becomes an event
            if not self._begun:
                await self._refuse(exc)
                return
            if isinstance(exc, errors.TurnInterrupted):
                self._end.append(self.encoder.encode_cut(self._build_session_fields(interrupted=True)))
            else:
                self._end.append(self._encode_error(exc))
        await self._write(b"".join(self._end) + self.encoder.encode_end(), more=False)

    # -- sending ---------------------------------------------------------------

    def _encode(self, deltas: list[Delta]) -> bytes:
        """Encode a part of the reply. The parts after the last token have the session fields."""
        if isinstance(deltas[0], Progress):
            return self.encoder.encode_progress(deltas[0])
        return self.encoder.encode(deltas, self._build_session_fields() if self._turn.closed else None)

    async def _send_part(self, deltas: list[Delta]) -> None:
        """Send a part of the reply, or keep it for the end of the stream if it follows the last token."""
        if self._turn.closed or isinstance(deltas[0], Progress):
            event = self._encode(deltas)
        else:
            event = self.encoder.encode(deltas, None)  # nearly all parts
        if self._turn.closed:
            self._end.append(event)
        elif not event or self.gone or self._ended:
            return
        elif not self._begun or faults.active:
            await self._write(event)
        else:
            self._sending = True
            await self._send_body({"type": "http.response.body", "body": event, "more_body": True})
            self._sending, self._last = False, self._now()

    async def _write(self, body: bytes, *, more: bool = True) -> None:
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
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self._sending = False
        self._last, self._sent = self._now(), not more

    async def _send_whole(self, content: bytes) -> None:
        """Send a complete reply in one piece."""
        self._ended = True
        await faults.hit("before-reply-sent")
        # With a content length no chunked encoding is needed, which small clients may not support.
        await self._begin(b"application/json", (b"content-length", str(len(content)).encode()))
        await self._send({"type": "http.response.body", "body": content})
        self._sent = True

    async def _begin(self, kind: bytes, *more: tuple[bytes, bytes]) -> None:
        self._begun, place = True, self._turn.place
        is_found = place is not None and (place.kind in ("matched", "keyed") or place.follows is not None)
        may_move = is_found and self._turn.plan is None
        headers = [
            (b"content-type", kind),
            (b"cache-control", b"no-cache"),
            *([] if may_move else [(b"x-session-id", _encode_header(self._turn.request.ref.id))]),
            *([] if self._turn.agent is None else [(b"x-session-agent", _encode_header(self._turn.agent))]),
            *more,
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def cut(self) -> None:
        """End the reply early, because the server shuts down. If the reply has begun, send an error event; if not, send status 503."""
        body = make_error_body(ENDING, kind="server_error", code="server_ending")
        if self._ended or self.gone:
            return
        with anyio.move_on_after(LAST_WORD_SECONDS):
            if self._begun:
                await self._write(self.encoder.encode_error(body) + self.encoder.encode_end(), more=False)
            else:
                await self._respond(Reply(body, 503, {"retry-after": "1"}))

    async def _refuse(self, exc: Exception) -> None:
        """Send an error response. It includes the session id, because the user's message is in the session's log."""
        await self._respond(make_failure_reply(exc, self._guard))

    async def _respond(self, reply: Reply) -> None:
        self._ended, reply = True, self._api_format.to_error(reply)
        headers = {**reply.headers, "x-session-id": _encode_header(self._turn.request.ref.id).decode()}
        response = respond(msgspec.structs.replace(reply, headers=headers))
        await response(self._request.scope, self._request.receive, self._send)
        self._sent = True

    def _encode_error(self, exc: Exception) -> bytes:
        """Encode an error as an event of the stream."""
        return self.encoder.encode_error(make_failure_reply(exc, self._guard).body)

    def _build_session_fields(self, **more: Any) -> dict[str, Any]:
        """Return the session fields of a reply: the session id, and a summary of the turn with the fields in `more`."""
        return {"session_id": self._turn.request.ref.id, "session": {**self._turn.summarize(), **more}}

    def _expects_retry(self) -> bool:
        """Return True if the client disconnected because its own timeout has passed. The official SDKs then retry."""
        limits = [_parse_seconds(value) for name, value in self._request.scope["headers"] if name in TIMEOUTS]
        return not self._begun and any(self._now() - self._arrived >= _TIMEOUT_SHARE * limit for limit in limits)

    # -- connection --------------------------------------------------------------

    async def _watch(self, scope: anyio.CancelScope) -> None:
        """Wait until the client has disconnected. Then cancel the turn, unless its reply should be finished or the client will retry."""
        await self._wait_for_disconnect()
        self.gone = not self._sent  # not set earlier: the client may disconnect while the last part is sent
        turn = self._turn
        turn.is_undelivered = self.gone
        if turn.lock.owner is None or not (self._finishes or self._expects_retry()):
            scope.cancel()

    async def _wait_for_disconnect(self) -> None:
        """Wait until the client has disconnected. In a stream, send a keep-alive whenever nothing was sent for a while."""
        every = self._streams.keep_alive if self._is_streamed else 0
        while not every:
            if (await self._request.receive())["type"] == "http.disconnect":
                return
        while True:
            with anyio.CancelScope(deadline=self._last + every):
                while (await self._request.receive())["type"] != "http.disconnect":
                    pass
                return
            if self._now() < self._last + every:
                continue
            self._last = self._now()
            if not (self._sending or self._ended):  # else the client has unread data already
                self._streams.keep_alives += 1
                await self._write(self.encoder.encode_keep_alive())


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
