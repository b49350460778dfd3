"""Read request bodies, with checks of their type, and limits on size, time and memory. Reserve memory for large responses."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from holdfast.accounting import FairLimiter, get_owner, run_cpu
from holdfast.domain.media.checks import check_media, remove_data
from holdfast.errors import HoldfastError, InvalidRequest, TooLarge
from holdfast.limits import MESSAGE_BYTES, MIB, Limits
from holdfast.server.limits import (
    ANSWER_BYTES,
    BODY_STALL_BYTES,
    BODY_STALL_SECONDS,
    FORM_BYTES,
    FORM_FIELDS,
    STORE_TRANSFERS,
    STORE_TRANSFERS_OF_TENANT,
)
from holdfast.server.memory_room import MemoryReservation, MemoryRoom
from holdfast.server.permissions import Refused
from holdfast.wire.strict_json import decode_json

_SMALL: Final = 64 * 1024
"""Number of bytes at the beginning of a body that never wait for memory."""
_THREAD_BYTES: Final = 256 * 1024
"""Minimum size in bytes of bodies that are decoded in a thread, so that other requests do not wait."""
_encode = msgspec.json.Encoder().encode
_JSON: Final = re.compile(r"\s*application/(?:[\w.-]+\+)?json\s*(?:;(.*))?", re.IGNORECASE | re.DOTALL)
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([^\s;\"]+)", re.IGNORECASE)


class BodyLimits:
    """Reads request bodies, and reserves memory for large responses, within the limits of one server.

    Attributes:
        room: memory for request bodies.
        answers: memory for responses larger than `ANSWER_BYTES`.
        transfers: limits large reads and writes of the store, because the database makes others wait for each of them.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.room = MemoryRoom(limits.body)
        self.answers = MemoryRoom(limits.body)
        self.transfers = FairLimiter(STORE_TRANSFERS, STORE_TRANSFERS_OF_TENANT, STORE_TRANSFERS_OF_TENANT)

    def take(self, limits: Limits) -> None:
        """Apply new limits from the next request on."""
        self.limits = limits
        for room in (self.room, self.answers):
            room.body = limits.body
            room.wake()

    async def reserve_answer(self, reservation: MemoryReservation, size: int) -> None:
        """Set the memory that is reserved for a response to `size` bytes. Wait until so much is available.

        The first call for a response waits. Later calls only correct the size and never wait, because the response exists already.

        Args:
            reservation: the response. It holds the memory until the caller releases it.
            size: size in bytes. Up to `ANSWER_BYTES` need no memory. Of a response that is larger than the share of one principal, only
                this share counts.

        Raises:
            Refused: the memory was not available in time.
        """
        size = min(size, self.answers.size * 3 // 4)
        if reservation.size:
            self.answers.add(reservation, size - reservation.size)
            self.answers.wake()
        elif size > ANSWER_BYTES:
            reservation.begin(self.answers, get_owner())
            try:
                with anyio.move_on_after(self.limits.body_timeout) as waiting:
                    await self.answers.take(reservation, size)
            finally:
                reservation.end_arrival()
            if waiting.cancelled_caught:
                mib = self.answers.get_held(reservation.owner) / MIB
                message = (
                    f"the server is busy with other large responses; yours that are still unread hold {mib:.1f} MiB"
                )
                raise Refused(503, "busy", message, retry_after="1")

    async def read(self, request: Request, reservation: MemoryReservation) -> Any:
        """Return the decoded JSON body of a request.

        Args:
            request: the request.
            reservation: holds the memory of the body until the caller releases it.

        Raises:
            InvalidRequest: the body is not valid JSON.
            TooLarge: the body is larger than `Limits.body`, or its contents exceed another limit.
            Refused: the headers declare another type than JSON, the body arrived too slowly, or the memory is full.
        """
        _check_kind(request.headers)
        reservation.begin(self.room, get_owner())
        try:
            body = await self._read_bytes(request, reservation)
        finally:
            reservation.end_arrival()
        try:
            return await run_cpu(_parse_body, body, self.limits, long=len(body) >= _THREAD_BYTES)
        except HoldfastError as exc:
            # The traceback's frames hold the body; an error from a thread would keep them until garbage collection.
            exc.__context__ = exc.__cause__ = None
            raise exc.with_traceback(None)  # noqa: B904  # the cause is dropped on purpose
        finally:
            del body

    async def read_form(
        self, request: Request, reservation: MemoryReservation, most: int = FORM_BYTES
    ) -> dict[str, list[str]]:
        """Return the fields of a form that a browser sent, each with its values, in order.

        Args:
            request: the request. Its body must be `application/x-www-form-urlencoded`.
            reservation: the memory that the request has reserved. It is increased by the size of the body.
            most: maximum size of the body in bytes.

        Raises:
            Refused: the body has another type, is compressed, or arrives too slowly.
            TooLarge: the body is too large.
            InvalidRequest: the body has more than `FORM_FIELDS` fields, or is not UTF-8.
        """
        check_encoding(request.headers)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            message = f"Content-Type {kind[:80]!r} is not supported: send application/x-www-form-urlencoded"
            raise Refused(415, "unsupported_media_type", message)
        reservation.begin(self.room, get_owner())
        try:
            body = await self._read_bytes(request, reservation, most)
        finally:
            reservation.end_arrival()
        return await run_cpu(parse_form, body, long=len(body) > _SMALL)

    async def _read_bytes(self, request: Request, reservation: MemoryReservation, limit: int | None = None) -> bytes:
        most = self.limits.body if limit is None else min(limit, self.limits.body)
        size_header = get_declared_size(request.headers)
        if size_header is not None and size_header > most:
            raise _make_size_error(most, self.limits.body)
        pieces: list[bytes] = []
        arrival = _Arrival(self.limits.body_timeout)
        async for piece in arrival.read_pieces(request.receive):
            if arrival.size > most:
                raise _make_size_error(most, self.limits.body)
            await self._make_room(reservation, len(piece), arrival)
            pieces.append(piece)
        return b"".join(pieces)

    async def _make_room(self, reservation: MemoryReservation, size: int, arrival: _Arrival) -> None:
        """Reserve memory for a piece that has arrived, and wait until the memory is available. The first `_SMALL` bytes never wait.

        Raises:
            Refused: the memory is full, or was not available in time.
        """
        if arrival.size <= _SMALL:
            if self.room.is_full_for(reservation.owner):
                raise self._make_busy_error(reservation, "")
            self.room.add(reservation, size)
            return
        with anyio.move_on_after(self.limits.body_timeout) as waiting, arrival.pause():
            await self.room.take(reservation, size)
        if waiting.cancelled_caught:
            raise self._make_busy_error(reservation, f", for {self.limits.body_timeout:g} s already")

    def _make_busy_error(self, reservation: MemoryReservation, since: str) -> Refused:
        mib = self.room.get_held(reservation.owner) / MIB
        message = f"the server is busy with other large bodies{since}; your requests hold {mib:.1f} MiB; try again"
        return Refused(503, "busy", message, retry_after="1", connection="close")


def parse_form(body: bytes) -> dict[str, list[str]]:
    """Return the fields of a form. A percent-encoded body of 8 MiB takes more than a second."""
    try:
        if body.count(b"&") >= FORM_FIELDS:
            raise InvalidRequest(f"the form has more than {FORM_FIELDS} fields")
        fields: dict[str, list[str]] = {}
        for field in filter(None, body.split(b"&")):
            name, _, value = field.partition(b"=")
            fields.setdefault(_decode_field(name), []).append(_decode_field(value))
    except UnicodeDecodeError as exc:
        raise InvalidRequest("the form is not percent-encoded UTF-8") from exc
    return fields


def _decode_field(text: bytes) -> str:
    """Return the text of a percent-encoded name or value, decoded piece by piece so that no step keeps other threads waiting."""
    pieces, start = [], 0
    while start < len(text):
        end = start + _SMALL
        end += 3 - (end - at) if (at := text.rfind(b"%", end - 2, end)) >= 0 else 0
        pieces.append(unquote_to_bytes(text[start:end].replace(b"+", b" ")))
        start = end
    return b"".join(pieces).decode()


class _Arrival:
    """Limits how long a body may take to arrive: at most `seconds` for the whole body, and a minimum rate for large bodies.

    Args:
        seconds: time limit for the whole body. Time in which the body waits for the server's memory is not counted.
    """

    def __init__(self, seconds: float) -> None:
        self.size = 0
        self._seconds = seconds
        self._end = anyio.current_time() + seconds
        self._begin_window()

    def _begin_window(self) -> None:
        self._window_end = anyio.current_time() + BODY_STALL_SECONDS
        self._in_window = 0

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count the time inside the block, in which the client is not the cause of the delay."""
        began = anyio.current_time()
        try:
            yield
        finally:
            waited = anyio.current_time() - began
            self._end += waited
            self._window_end += waited

    async def read_pieces(self, receive: Receive) -> AsyncIterator[bytes]:
        """Yield the pieces of a body as they arrive.

        Raises:
            Refused: they arrive too slowly.
            ClientDisconnect: the client disconnected before the end of the body.
        """
        is_complete = False
        while not is_complete:
            with anyio.CancelScope(deadline=self._compute_deadline()) as waiting:
                message = await receive()
            if waiting.cancelled_caught:
                raise self._make_timeout_error()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece, is_complete = message.get("body", b""), not message.get("more_body")
            self.size += len(piece)
            self._in_window += len(piece)
            if anyio.current_time() >= self._window_end:
                if self.size > _SMALL and self._in_window < BODY_STALL_BYTES:
                    raise self._make_timeout_error()
                self._begin_window()
            yield piece

    def _compute_deadline(self) -> float:
        # If enough bytes have arrived in this window, the next window decides.
        if self.size <= _SMALL or self._in_window >= BODY_STALL_BYTES:
            return min(self._end, self._window_end + BODY_STALL_SECONDS) if self.size > _SMALL else self._end
        return min(self._end, self._window_end)

    def _make_timeout_error(self) -> Refused:
        if anyio.current_time() >= self._end:
            message = f"the body did not arrive within {self._seconds:g} s, the server's gateway.body_timeout"
        else:
            message = f"less than {BODY_STALL_BYTES // 1024} KiB of the body arrived in {BODY_STALL_SECONDS:g} s; send it faster"
        return Refused(408, "request_timeout", message, connection="close")


def _make_size_error(most: int, configured: int) -> TooLarge:
    if most < configured:
        return TooLarge(f"the form is larger than {most // MIB} MiB, the most that a page may send")
    return TooLarge(f"the body is larger than {most} bytes, the server's gateway.max_body")


def get_declared_size(headers: Mapping[str, str]) -> int | None:
    """Return the size of a body in bytes that `Content-Length` declares, or None if the header is missing or not valid."""
    text = headers.get("content-length", "")
    return int(text[:20]) if text.isascii() and text.isdigit() else None


def check_encoding(headers: Mapping[str, str]) -> None:
    """Raise `Refused` for a compressed body, because a few bytes could decompress to any size."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = f"Content-Encoding {encoding[:40]!r} is not supported: send the body uncompressed"
        raise Refused(415, "unsupported_encoding", message, accept_encoding="identity")


def _check_kind(headers: Mapping[str, str]) -> None:
    """Raise `Refused` if `Content-Type` declares another type than JSON, or another charset than UTF-8. It may be missing."""
    check_encoding(headers)
    kind = headers.get("content-type")
    if kind is None:
        return
    found = _JSON.fullmatch(kind)
    if found is None:
        message = f"Content-Type {kind[:80]!r} is not supported: send JSON with Content-Type: application/json"
        raise Refused(415, "unsupported_media_type", message, accept="application/json")
    charset = _CHARSET.search(found[1] or "")
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise Refused(415, "unsupported_media_type", f"the charset {charset[1][:40]!r} is not supported: use UTF-8")


# -- contents ----------------------------------------------------------------


_MESSAGE_LISTS: Final = ("messages", "system_messages", "input", "items")
"""Fields of bodies that are lists of messages, or of items of the Responses API."""


def _parse_body(body: bytes, limits: Limits) -> Any:
    """Decode a JSON body and check the limits on its contents."""
    data = decode_json(body)
    if isinstance(data, dict):
        _check_counts(data, limits)
        check_media(data, limits)
        if len(body) > limits.message:
            _check_sizes(data, min(limits.message, MESSAGE_BYTES))
    return data


def _check_counts(body: Mapping[str, Any], limits: Limits) -> None:
    _check_tools(body.get("tools"), limits.tools)
    for name in _MESSAGE_LISTS:
        messages = body.get(name)
        if not isinstance(messages, list):
            continue
        _check_length(messages, limits.messages, name, "max_messages")
        if name != "messages":
            _check_calls(messages, limits.tool_calls, name)
        for at, message in enumerate(messages):
            if isinstance(message, dict):
                place = f"{name}[{at}]"
                _check_length(message.get("content"), limits.parts, f"{place}.content", "max_parts")
                _check_length(message.get("tool_calls"), limits.tool_calls, f"{place}.tool_calls", "max_tool_calls")


def _check_tools(tools: Any, most: int) -> None:
    """Check the number of tools, including those in namespaces of the Responses API, which become tools of their own."""
    count, waiting = 0, [tools]
    while waiting:
        found = _to_list(waiting.pop())
        count += len(found)
        waiting += [tool.get("tools") for tool in found if isinstance(tool, dict) and tool.get("type") == "namespace"]
    if count > most:
        raise TooLarge(f"tools has {count} items; the server's gateway.max_tools is {most}", param="tools")


def _check_calls(items: list[Any], most: int, name: str) -> None:
    """Check the number of consecutive items of the Responses API that become one message with calls."""
    count = 0
    for item in items:
        kind = item.get("type") if isinstance(item, dict) else None
        count = count + 1 if kind in ("function_call", "custom_tool_call") else 0
        if count > most:
            raise TooLarge(
                f"{name} has {count} calls in a row; the server's gateway.max_tool_calls is {most}", param=name
            )


def _check_length(value: Any, most: int, param: str, key: str) -> None:
    if isinstance(value, list) and len(value) > most:
        raise TooLarge(f"{param} has {len(value)} items; the server's gateway.{key} is {most}", param=param)


def _check_sizes(body: Mapping[str, Any], most: int) -> None:
    for name in _MESSAGE_LISTS:
        for at, message in enumerate(_to_list(body.get(name))):
            size = len(_encode(remove_data(message) if isinstance(message, dict) else message))
            if size > most:
                place = f"{name}[{at}]"
                raise TooLarge(f"{place} has {size} bytes; the server's gateway.max_message is {most}", param=place)


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
