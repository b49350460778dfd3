"""How bodies come in: of a kind that is understood, in time, and never more of them at once than fits into memory."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import anyio
import msgspec
from starlette.requests import Request

from holdfast.domain.media.checks import check_media, without_data
from holdfast.errors import HoldfastError, TooLarge
from holdfast.limits import BODIES, MESSAGE_BYTES, Limits
from holdfast.off_loop import off_loop
from holdfast.server.refused import Refused
from holdfast.wire.strict import decoded

_SMALL: Final = 64 * 1024
"""Bytes of a body that needs nobody's leave."""
_THREAD_BYTES: Final = 256 * 1024
"""A body from here on is decoded in a thread, so that the others need not wait."""
_encode = msgspec.json.Encoder().encode
_JSON: Final = re.compile(r"\s*application/(?:[\w.-]+\+)?json\s*(?:;(.*))?", re.IGNORECASE | re.DOTALL)
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([^\s;\"]+)", re.IGNORECASE)


class Room:
    """Bytes that the bodies of all requests share; who comes first is served first."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: deque[tuple[int, anyio.Event]] = deque()

    async def take(self, size: int) -> None:
        """Return when `size` bytes are yours; give them back in the end."""
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        place = (size, anyio.Event())
        self._waiting.append(place)
        try:
            await place[1].wait()
        except BaseException:
            if place[1].is_set():  # given and cancelled in the same moment
                self.give(size)
            else:
                self._waiting.remove(place)
                self.give(0)
            raise

    def grow(self, size: int) -> None:
        """Have so much more, or less: what is taken stays taken, and is missing when it is given back."""
        self.give(size)

    def give(self, size: int) -> None:
        """Hand back `size` bytes, and wake whom they suffice for."""
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            needed, event = self._waiting.popleft()
            self._free -= needed
            event.set()


class Intake:
    """What all requests of one server share for reading bodies."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._room = Room(limits.body * BODIES)

    def take(self, limits: Limits) -> None:
        """Have other limits from the next request on."""
        self._room.grow((limits.body - self.limits.body) * BODIES)
        self.limits = limits

    async def read(self, request: Request, held: Held) -> Any:
        """The JSON in a request's body; its room is `held` until whoever reads it lets go.

        Raises:
            InvalidRequest, TooLarge: see `decoded`; or more bytes than `Limits.body`.
            Refused: it is not JSON by its own headers, came too slowly, or there is no room for it.
        """
        _check_kind(request.headers)
        body = await self._bytes(request, held)
        held.keep(len(body))
        try:
            return await off_loop(_understood, body, self.limits, long=len(body) >= _THREAD_BYTES)
        except HoldfastError as exc:
            # The frames of its traceback hold the body, and a thread's error holds them until the collector comes.
            exc.__context__ = exc.__cause__ = None
            raise exc.with_traceback(None)  # noqa: B904  # there is none to be had
        finally:
            del body

    async def _bytes(self, request: Request, held: Held) -> bytes:
        said = declared(request.headers)
        if said is not None and said > self.limits.body:
            raise self._too_large()
        expected = self.limits.body if said is None else said
        pieces: list[bytes] = []
        size = 0
        try:
            with anyio.fail_after(self.limits.body_timeout):
                async for piece in request.stream():
                    size += len(piece)
                    if size > self.limits.body:
                        raise self._too_large()
                    if size > _SMALL and not held.size:
                        await held.take(self._room, expected)
                    pieces.append(piece)
        except TimeoutError as exc:
            raise self._too_slow(full=size > _SMALL and not held.size) from exc
        return b"".join(pieces)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self.limits.body} bytes, the server's gateway.max_body")

    def _too_slow(self, *, full: bool) -> Refused:
        seconds = f"{self.limits.body_timeout:g} s"
        if full:
            message = f"the server is busy with other large bodies, for {seconds} already; try again"
            return Refused(503, "busy", message, retry_after="1", connection="close")
        message = f"the body did not arrive within {seconds}, the server's gateway.body_timeout"
        return Refused(408, "request_timeout", message, connection="close")


class Held:
    """Room that one request holds."""

    def __init__(self) -> None:
        self.size = 0
        self._room: Room | None = None

    async def take(self, room: Room, size: int) -> None:
        """Take `size` bytes of `room`."""
        await room.take(size)
        self._room, self.size = room, size

    def keep(self, size: int) -> None:
        """Give back all but `size` bytes, where that is less."""
        if self._room is not None and size < self.size:
            self._room.give(self.size - size)
            self.size = size

    def release(self) -> None:
        """Give back what is held. Twice is fine."""
        self.keep(0)


def declared(headers: Mapping[str, str]) -> int | None:
    """How many bytes a body has by its own word."""
    text = headers.get("content-length", "")
    return int(text[:20]) if text.isascii() and text.isdigit() else None


def check_encoding(headers: Mapping[str, str]) -> None:
    """Refuse a compressed body: a few bytes of it stand for any number."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = f"Content-Encoding {encoding[:40]!r} is not taken; send the body as it is, without compression"
        raise Refused(415, "unsupported_encoding", message, accept_encoding="identity")


def _check_kind(headers: Mapping[str, str]) -> None:
    """Refuse what is not JSON by its own word. Nothing said is fine."""
    check_encoding(headers)
    kind = headers.get("content-type")
    if kind is None:
        return
    found = _JSON.fullmatch(kind)
    if found is None:
        message = f"Content-Type {kind[:80]!r} is not taken; send JSON, with Content-Type: application/json"
        raise Refused(415, "unsupported_media_type", message, accept="application/json")
    charset = _CHARSET.search(found[1] or "")
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise Refused(415, "unsupported_media_type", f"the charset {charset[1][:40]!r} is not taken; JSON is UTF-8")


# -- what stands in a body ---------------------------------------------------


def _understood(body: bytes, limits: Limits) -> Any:
    """The JSON in a body, nothing in it larger or more than is taken."""
    data = decoded(body)
    if isinstance(data, dict):
        _check_counts(data, limits)
        check_media(data, limits)
        if len(body) > limits.message:
            _check_sizes(data, min(limits.message, MESSAGE_BYTES))
    return data


def _check_counts(body: Mapping[str, Any], limits: Limits) -> None:
    for name, most, key in (("messages", limits.messages, "max_messages"), ("tools", limits.tools, "max_tools")):
        _at_most(body.get(name), most, name, key)
    for name in ("messages", "system_messages"):
        for at, message in enumerate(_list(body.get(name))):
            if isinstance(message, dict):
                place = f"{name}[{at}]"
                _at_most(message.get("content"), limits.parts, f"{place}.content", "max_parts")
                _at_most(message.get("tool_calls"), limits.tool_calls, f"{place}.tool_calls", "max_tool_calls")


def _at_most(value: Any, most: int, param: str, key: str) -> None:
    if isinstance(value, list) and len(value) > most:
        raise TooLarge(f"{param} has {len(value)} items; the server's gateway.{key} is {most}", param=param)


def _check_sizes(body: Mapping[str, Any], most: int) -> None:
    for name in ("messages", "system_messages"):
        for at, message in enumerate(_list(body.get(name))):
            size = len(_encode(without_data(message) if isinstance(message, dict) else message))
            if size > most:
                place = f"{name}[{at}]"
                raise TooLarge(f"{place} has {size} bytes; the server's gateway.max_message is {most}", param=place)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
