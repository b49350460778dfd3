"""Read request bodies: their type, size, time and contents are limited. Large requests of one tenant take turns."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs
from weakref import WeakValueDictionary

import anyio
import msgspec
from starlette.requests import Request

from holdfast import limits
from holdfast.accounting import run_cpu
from holdfast.domain.media.checks import check_media, remove_data
from holdfast.errors import HoldfastError, InvalidRequest, TooLarge
from holdfast.server.limits import BODY_SECONDS, FORM_FIELDS, LARGE_REQUESTS_OF_TENANT
from holdfast.server.permissions import Refused
from holdfast.wire.strict_json import decode_json

_THREAD_BYTES: Final = 256 * 1024
"""Minimum size in bytes of bodies that are decoded in a thread, so that other requests do not wait."""
_BYTES_OF_TIME: Final = 16 * limits.MIB
"""Declared bytes of a body for which it has another `BODY_SECONDS` to arrive."""
_encode = msgspec.json.Encoder().encode
_JSON: Final = re.compile(r"\s*application/(?:[\w.-]+\+)?json\s*(?:;(.*))?", re.IGNORECASE | re.DOTALL)
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([^\s;\"]+)", re.IGNORECASE)


class BodyLimits:
    """Limits of the request bodies and the large requests of one server.

    Attributes:
        body: maximum size of a body in bytes. A reload of the configuration can change this and `media`.
        media: maximum size in bytes of an image, recording, video or file in a message.
    """

    def __init__(self, body: int = limits.BODY_BYTES, media: int = limits.MEDIA_BYTES) -> None:
        self.body = body
        self.media = media
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()

    async def take_turn(self, tenant: str) -> asyncio.Semaphore:
        """Wait until a tenant may have another large request or response. The caller releases the returned semaphore at its end.

        Raises:
            Refused: the tenant had too many others for too long.
        """
        turns = self._turns.setdefault(tenant, asyncio.Semaphore(LARGE_REQUESTS_OF_TENANT))
        with anyio.move_on_after(BODY_SECONDS) as waiting:
            await turns.acquire()
        if waiting.cancelled_caught:
            message = f"{LARGE_REQUESTS_OF_TENANT} other large requests or responses are in progress; try again"
            raise Refused(503, "busy", message, retry_after="1", connection="close")
        return turns


async def read_bytes(request: Request, most: int, what: str) -> bytes:
    """Return the body of a request.

    Args:
        request: the request.
        most: maximum size in bytes.
        what: name of the size limit, for the error message.

    Raises:
        TooLarge: the declared or the actual size is over the limit.
        Refused: the body did not arrive in time. A body has more time the larger its declared size is.
    """
    declared = get_declared_size(request.headers) or 0
    if declared > most:
        raise TooLarge(f"the body is larger than {most} bytes, {what}")
    pieces, size = list[bytes](), 0
    seconds = BODY_SECONDS * (1 + declared / _BYTES_OF_TIME)
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise TooLarge(f"the body is larger than {most} bytes, {what}")
                pieces.append(piece)
    except TimeoutError:
        message = f"the body did not arrive within {seconds:.3g} s"
        raise Refused(408, "request_timeout", message, connection="close") from None
    return b"".join(pieces)


async def decode_body(body: bytes, media: int, repaired: list[str]) -> Any:
    """Return the decoded JSON in a body, and check the limits on its contents.

    Args:
        body: the body.
        media: maximum size in bytes of an image, recording, video or file in a message.
        repaired: receives the fields and messages in which half of a surrogate pair was replaced.

    Raises:
        InvalidRequest: the body is not valid JSON.
        TooLarge: its contents exceed a limit.
    """
    try:
        return await run_cpu(_parse_body, body, media, repaired, long=len(body) >= _THREAD_BYTES)
    except HoldfastError as exc:
        # The traceback's frames hold the body; an error from a thread would keep them until garbage collection.
        exc.__context__ = exc.__cause__ = None
        raise exc.with_traceback(None)  # noqa: B904  # the cause is dropped on purpose


def parse_form(body: bytes) -> dict[str, list[str]]:
    """Return the fields of a form, each with its values, in order."""
    try:
        return parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS)
    except UnicodeDecodeError as exc:
        raise InvalidRequest("the form is not percent-encoded UTF-8") from exc
    except ValueError as exc:
        raise InvalidRequest(f"the form has more than {FORM_FIELDS} fields") from exc


# -- headers -----------------------------------------------------------------


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


def check_json(headers: Mapping[str, str]) -> None:
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


def check_form(headers: Mapping[str, str]) -> None:
    """Raise `Refused` if a body is not a form as browsers send it."""
    check_encoding(headers)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        message = f"Content-Type {kind[:80]!r} is not supported: send application/x-www-form-urlencoded"
        raise Refused(415, "unsupported_media_type", message)


# -- contents ----------------------------------------------------------------


_MESSAGE_LISTS: Final = ("messages", "system_messages", "input", "items")
"""Fields of bodies that are lists of messages, or of items of the Responses API."""


def _parse_body(body: bytes, media: int, repaired: list[str]) -> Any:
    data = decode_json(body, repaired=repaired)
    if isinstance(data, dict):
        _check_counts(data)
        check_media(data, media)
        if len(body) > limits.REQUEST_MESSAGE_BYTES:
            _check_sizes(data, limits.REQUEST_MESSAGE_BYTES)
    return data


def _check_counts(body: Mapping[str, Any]) -> None:
    _check_tools(body.get("tools"), limits.REQUEST_TOOLS)
    for name in _MESSAGE_LISTS:
        messages = body.get(name)
        if not isinstance(messages, list):
            continue
        _check_length(messages, limits.REQUEST_MESSAGES, name)
        if name != "messages":
            _check_calls(messages, limits.MESSAGE_CALLS, name)
        for at, message in enumerate(messages):
            if isinstance(message, dict):
                _check_length(message.get("content"), limits.MESSAGE_PARTS, f"{name}[{at}].content")
                _check_length(message.get("tool_calls"), limits.MESSAGE_CALLS, f"{name}[{at}].tool_calls")


def _check_tools(tools: Any, most: int) -> None:
    """Check the number of tools, including those in namespaces of the Responses API, which become tools of their own."""
    count, waiting = 0, [tools]
    while waiting:
        found = _to_list(waiting.pop())
        count += len(found)
        waiting += [tool.get("tools") for tool in found if isinstance(tool, dict) and tool.get("type") == "namespace"]
    if count > most:
        raise TooLarge(f"tools has {count} items; the server accepts at most {most}", param="tools")


def _check_calls(items: list[Any], most: int, name: str) -> None:
    """Check the number of consecutive items of the Responses API that become one message with calls."""
    count = 0
    for item in items:
        kind = item.get("type") if isinstance(item, dict) else None
        count = count + 1 if kind in ("function_call", "custom_tool_call") else 0
        if count > most:
            raise TooLarge(f"{name} has {count} calls in a row; the server accepts at most {most}", param=name)


def _check_length(value: Any, most: int, param: str) -> None:
    if isinstance(value, list) and len(value) > most:
        raise TooLarge(f"{param} has {len(value)} items; the server accepts at most {most}", param=param)


def _check_sizes(body: Mapping[str, Any], most: int) -> None:
    for name in _MESSAGE_LISTS:
        for at, message in enumerate(_to_list(body.get(name))):
            size = len(_encode(remove_data(message) if isinstance(message, dict) else message))
            if size > most:
                place = f"{name}[{at}]"
                raise TooLarge(f"{place} has {size} bytes; the server accepts at most {most}", param=place)


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
