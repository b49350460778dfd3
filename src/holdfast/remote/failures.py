"""Convert error answers of a server to the errors that the library raises."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError, ServerError, ServerUnavailable
from holdfast.models.failures import parse_retry_after, scrub

UNAVAILABLE: Final = frozenset({429, 502, 503, 504})
"""Statuses after which the same request may succeed soon."""


def make_error(
    status: int, data: bytes, headers: Mapping[str, str], *, where: str, api_key: str | None
) -> HoldfastError:
    """Return the error that an answer with a status other than 2xx describes.

    Args:
        status: the status.
        data: the body.
        headers: headers of the answer, in any case.
        where: address of the server, for the message.
        api_key: the key, which is removed from the message.
    """
    error = _read_error_object(data)
    retry_after = parse_retry_after(headers)
    if error is None:
        return make_foreign_error(status, headers, where=where, retry_after=retry_after)
    message = scrub(str(error.get("message") or f"{where} answered {status}"), [api_key] if api_key else [])
    code, param = error.get("code"), error.get("param")
    kind = _KINDS.get(code) if isinstance(code, str) else None
    if kind is None:
        unknown = ServerUnavailable if status in UNAVAILABLE else ServerError
        code = code if isinstance(code, str) else None
        return unknown(message, code=code, status=status, retry_after=retry_after)
    made = _make(kind, message)
    if isinstance(made, errors.InvalidRequest):
        made.param = param if isinstance(param, str) else None
    return made


def make_foreign_error(
    status: int, headers: Mapping[str, str], *, where: str, retry_after: float | None = None
) -> ServerError:
    """Return the error for an answer that is not one of Holdfast, such as the HTML page of a proxy."""
    kind = ServerUnavailable if status in UNAVAILABLE else ServerError
    media_type = (headers.get("content-type") or "no content type").partition(";")[0][:80]
    what = (
        "a redirect, which is not followed" if 300 <= status < 400 else f"{media_type} instead of an answer of Holdfast"
    )
    hint = "" if status in UNAVAILABLE else "; check the address, and the proxy before the server if there is one"
    return kind(f"{where} answered {status} with {what}{hint}", status=status, retry_after=retry_after)


def _read_error_object(data: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else None


def _make(kind: type[HoldfastError], message: str) -> HoldfastError:
    """Return an error of a class with the server's message. Attributes that the answer does not contain are None."""
    made = kind.__new__(kind)
    Exception.__init__(made, message)
    for name in inspect.signature(kind.__init__).parameters:  # a class without its own initializer has no signature
        if name not in ("self", "message", "args", "kwargs"):
            vars(made)[name] = None
    return made


_CLASSES: Final[tuple[type[HoldfastError], ...]] = tuple(getattr(errors, name) for name in errors.__all__)
_KINDS: Final = {kind.code: kind for kind in _CLASSES if not issubclass(kind, ServerError)}
