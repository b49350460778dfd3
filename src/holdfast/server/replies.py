"""Responses that handlers return, and errors in OpenAI's format."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import AsyncGenerator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from holdfast import errors
from holdfast.accounting import run_cpu
from holdfast.errors.base import ADDRESS, CAUSE
from holdfast.limits import ERROR_CHARS
from holdfast.secrets.guard import Guard
from holdfast.server.body_streams import ChunkedResponse, LargeResponse
from holdfast.server.limits import ANSWER_BYTES
from holdfast.server.permissions import Refused

_log = logging.getLogger("holdfast.server")
_PARAM_CHARS = 200
"""Maximum number of characters of `param` in an error."""
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Id of the current request."""
_encoder = msgspec.json.Encoder()
_FEW: Final = 20
"""Maximum length of lists that are encoded on the event loop. Longer lists are encoded in a thread."""


class Reply(msgspec.Struct, frozen=True):
    """A response: a body with a status and headers.

    The body is JSON-compatible data, bytes, a generator of chunks, or None. A Starlette response as the body is sent as it is.
    """

    body: Any
    status: int = 200
    headers: Mapping[str, str] = {}


def respond(reply: Reply) -> Response:
    """Convert a `Reply` to a Starlette response. Bytes and chunks are sent unchanged, None as an empty body, and other data as JSON."""
    headers = dict(reply.headers)
    if isinstance(reply.body, Response):
        return reply.body
    if reply.body is None:
        return Response(status_code=reply.status, headers=headers)
    if isinstance(reply.body, AsyncGenerator):
        return ChunkedResponse(reply.body, reply.status, headers)
    if isinstance(reply.body, bytes):
        kind = LargeResponse if len(reply.body) > ANSWER_BYTES else Response
        return kind(reply.body, reply.status, headers)
    return Response(_encoder.encode(reply.body), reply.status, headers, media_type="application/json")


async def encode_json(reply: Reply, *, large: bool) -> Reply:
    """Encode the body of a reply as JSON, and return the reply with the encoded body. Errors, bytes, chunks and None stay unchanged.

    Args:
        reply: the reply.
        large: True: encode the body in a thread. A body with a long list is always encoded in a thread.
    """
    body = reply.body
    if body is None or isinstance(body, bytes | AsyncGenerator | Response) or reply.status >= 400:
        return reply
    named = msgspec.structs.asdict(body) if isinstance(body, msgspec.Struct) else body
    long = large or (
        isinstance(named, dict) and any(isinstance(one, list) and len(one) > _FEW for one in named.values())
    )
    encoded = await run_cpu(_encoder.encode, body, long=long)
    return Reply(encoded, reply.status, {**reply.headers, "content-type": "application/json"})


def to_response(reply: Reply, scope: Scope) -> Response:
    """Convert a reply to a Starlette response. Errors have the API format that the client uses."""
    shape = scope.get("state", {}).get("shaped")
    return respond(reply if shape is None else shape(reply))


# -- errors ------------------------------------------------------------------


def make_error_body(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's format. A long message and a long `param` are cut."""
    if len(message) > ERROR_CHARS:
        message = message[:ERROR_CHARS] + "…"
    param = param[:_PARAM_CHARS] if param else param
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def make_failure_reply(exc: Exception, guard: Guard | None = None) -> Reply:
    """Return the error response for an exception. Secrets in the message are masked.

    An unexpected exception is logged with its traceback. The client gets no details about it.
    """
    reply = _convert_failure(exc)
    return reply if guard is None else msgspec.structs.replace(reply, body=guard.mask_value(reply.body))


def _convert_failure(exc: Exception) -> Reply:
    if isinstance(exc, errors.ModelError):
        return _convert_model_failure(exc)
    if isinstance(exc, Refused):
        kind = "server_error" if exc.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if exc.status == _TOO_MANY else kind
        return Reply(make_error_body(str(exc), kind=kind, code=exc.code), exc.status, exc.headers)
    if isinstance(exc, errors.HoldfastError) and exc.http_status is not None:
        if exc.http_status >= 500:  # not the caller's fault, so the operator needs to know
            _log.error("%s: %s", exc.code, exc)
        kind = "server_error" if exc.http_status >= 500 else "invalid_request_error"
        body = make_error_body(exc.public_message, kind=kind, code=exc.code, param=getattr(exc, "param", None))
        return Reply(body, exc.http_status, _make_retry_headers(exc))
    _log.error("a request failed unexpectedly", exc_info=exc)
    return Reply(
        make_error_body("internal error; see the server's log", kind="server_error", code="internal_error"), 500
    )


def _make_retry_headers(exc: errors.HoldfastError) -> dict[str, str]:
    """Return the response headers that tell a client whether and when to retry.

    An interrupted turn must not be retried, because it would interrupt the turn that interrupted it.
    """
    if isinstance(exc, errors.SessionBusy):
        return {"retry-after": "1"}
    if isinstance(exc, errors.TurnInterrupted | errors.TurnLost):
        return {"x-should-retry": "false"}
    return {}


_TOO_MANY = 429


def _convert_model_failure(exc: errors.ModelError) -> Reply:
    """Return the error response for a failed model call.

    If the caller can fix the request, the response has the upstream's status and message. Otherwise an upstream status of 429, 503 or 504
    is kept, and any other becomes 502.
    """
    details = exc.body.get("error", exc.body) if exc.body else {}
    param = details.get("param") if isinstance(details, dict) else None
    code = details.get("code") if isinstance(details, dict) else None
    headers = {"retry-after": str(math.ceil(exc.retry_after))} if exc.retry_after is not None else {}
    mine = (407,) if exc.handed else (401, 403, 407)
    if isinstance(exc, errors.ModelRejected) and exc.status not in mine:
        kind, code = "invalid_request_error", _get_text(code) or exc.code
        body = make_error_body(exc.public_message, kind=kind, code=code, param=_get_text(param))
        return Reply(body, exc.status or exc.http_status, headers)
    status = {429: 429, 503: 503, 504: 504}.get(exc.status or 0, errors.ModelError.http_status)
    kind = "rate_limit_error" if status == 429 else "server_error"
    if (place := _PLACE.match(str(exc))) is not None:
        _log.warning("%s: %s", exc.code, place[0])
    return Reply(make_error_body(exc.public_message, kind=kind, code=exc.code), status, headers)


_PLACE: Final = re.compile(f"{ADDRESS.pattern}(?:{CAUSE.pattern})?", re.DOTALL)
"""The beginning of an error message, with address and cause. It is logged, but not returned to the client.

The rest of the message is the upstream's own text. It is not logged, because it may quote messages.
"""


def _get_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
