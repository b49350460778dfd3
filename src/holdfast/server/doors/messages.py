"""`POST /v1/messages`: Anthropic's Messages API, read into Chat Completions' terms and told in its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.domain.messages import Message as ChatMessage
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.server.doors.base import Said
from holdfast.server.replies import Reply, request_id
from holdfast.turns.reply_assembler import Progress
from holdfast.wire.anthropic import message_groups, system_from
from holdfast.wire.anthropic_replies import Event, ReplyEvents, message_of
from holdfast.wire.anthropic_requests import fields_from
from holdfast.wire.exports import record_fields
from holdfast.wire.voice import find_records

PATH: Final = "/v1/messages"
_MODELS: Final = "/v1/models"
_BETAS: Final = "anthropic-beta"
_KINDS: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The `type` of an error by its status; of others `invalid_request_error`, or, from 500 on, `api_error`."""
_encoder = msgspec.json.Encoder()
_GROWN: Final = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}\n\n'
)
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class Messages:
    """See `Door`."""

    path = PATH

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> Said:
        """See `Door.read`. Without `max_tokens` the model's own limit holds: there is no need to insist."""
        given, name = find_records(body)
        system = system_from(body.get("system"))
        groups = message_groups(given, name) if given else []
        _check_said(given or (), name)
        own = _record_fields(given or (), name, groups)
        fields = fields_from(body)
        if betas := [name.strip() for name in headers.get(_BETAS, "").split(",") if name.strip()]:
            fields["betas"] = betas
        messages = [message for group in groups for message in group]
        return Said(fields, [*system, *messages], ({},) * len(system) + own if own else (), api="anthropic")

    def reply(self, completion: dict[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
        """See `Door.reply`."""
        return {**message_of(completion), **session}

    def telling(self, body: Mapping[str, Any]) -> MessageEvents:
        """See `Door.telling`."""
        return MessageEvents()

    def failed(self, reply: Reply) -> Reply:
        """See `Door.failed`."""
        return shaped(reply)


def _record_fields(
    given: Sequence[Any], name: str, groups: Sequence[Sequence[ChatMessage]]
) -> tuple[Mapping[str, Any], ...]:
    """Return what voice records say of each message; of results of tools in a user's message they give the time and the turn alone."""
    fields = record_fields(given, name)
    return tuple(
        {key: value for key, value in own.items() if key != "metadata" or message.role != "tool"}
        for own, group in zip(fields, groups, strict=False)
        for message in group
    )


def _check_said(given: Iterable[Any], name: str) -> None:
    """Refuse a message of the user that says nothing, by its place in the request."""
    for at, message in enumerate(given):
        if isinstance(message, Mapping) and message.get("role") == "user" and message.get("content") in ("", []):
            param = f"{name}[{at}].content"
            raise InvalidMessage(
                f"{param} is empty: a user's message has text, media, or results of tools", param=param
            )


class MessageEvents:
    """See `Telling`: events by name, and no mark behind the last one."""

    def __init__(self) -> None:
        self._events = ReplyEvents()
        self._session: Mapping[str, Any] = {}
        self._failed = False

    def chunk(self, chunk: Mapping[str, Any], session: Mapping[str, Any] | None) -> bytes:
        """See `Telling.chunk`."""
        if (words := self._events.words(chunk)) is not None:
            return _GROWN % (self._events.index, _encoder.encode(words))
        self._session = session or self._session
        return _told(self._events.add(chunk))

    def progress(self, progress: Progress) -> bytes:
        """See `Telling.progress`: a comment for people, as the other door has it."""
        return b": " + progress.comment.encode() + b"\n\n"

    def waiting(self) -> bytes:
        """See `Telling.waiting`."""
        return _PING

    def cut_short(self, session: Mapping[str, Any]) -> bytes:
        """See `Telling.cut_short`: the end of its turn; `end` tells it."""
        self._session = session
        self._events.cut()
        return b""

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """See `Telling.failed`."""
        self._failed = True
        kind = error["error"].get("type")
        status = {"rate_limit_error": 429, "invalid_request_error": 400}.get(kind, 500)
        return _told([_error(error, status)])

    def end(self) -> bytes:
        """See `Telling.end`: what the reply used, why it ended, and what the session is now."""
        return b"" if self._failed else _told(self._events.end(self._session))


def _told(events: list[Event]) -> bytes:
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + _encoder.encode(event) + b"\n\n" for event in events
    )


# -- errors ------------------------------------------------------------------


def shaped(reply: Reply) -> Reply:
    """A failure in Anthropic's shape; given in OpenAI's. What is none stays as it is."""
    body = reply.body
    if reply.status < 400 or not isinstance(body, Mapping) or "error" not in body:
        return reply
    return msgspec.structs.replace(reply, body=_error(body, reply.status))


def _error(body: Mapping[str, Any], status: int) -> dict[str, Any]:
    """An error object; the word for programs stands in `details`, where Anthropic's client looks for it."""
    given = body["error"]
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": given.get("message"), "param": given.get("param")}
    error["details"] = {"error_code": given.get("code")}
    return {"type": "error", "error": error, "request_id": request_id.get()}


class Spoken:
    """ASGI middleware: whoever speaks Anthropic's API is answered in it, also by those who know no door.

    That is whoever calls `/v1/messages` or what is below it, or names an `anthropic-version`, as the official clients do in
    every request. They look for a request's id in the header `request-id`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _speaks(scope):
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["shaped"] = shaped

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = [value for name, value in message["headers"] if name == b"x-request-id"]
                message = {**message, "headers": [*message["headers"], *((b"request-id", value) for value in found)]}
            await send(message)

        await self._app(scope, receive, named)


def _speaks(scope: Scope) -> bool:
    path: str = scope["path"]
    if path == PATH or path.startswith(f"{PATH}/"):
        return True
    return path.startswith(_MODELS) and speaks(dict(scope["headers"]))


def speaks(headers: Mapping[bytes, bytes]) -> bool:
    """Whether headers are those of a client of Anthropic's API."""
    return b"anthropic-version" in headers


# -- models ------------------------------------------------------------------


def model_list(
    names: Iterable[tuple[str, str]], *, limit: int, after: str | None, before: str | None
) -> dict[str, Any]:
    """A page of models as Anthropic's `GET /v1/models` has them.

    Args:
        names: of each model the name that a request gives, and what it is called upstream.
        limit: how many.
        after: the name behind which the page begins.
        before: the name before which it ends.

    Raises:
        InvalidRequest: there is no model of that name.
    """
    known = list(names)
    order = [name for name, _ in known]
    for cursor, param in ((after, "after_id"), (before, "before_id")):
        if cursor is not None and cursor not in order:
            raise InvalidRequest(f"there is no model {cursor[:80]!r}", param=param)
    first = order.index(after) + 1 if after is not None else 0
    last = order.index(before) if before is not None else len(order)
    part = known[first:last]
    page = part[-limit:] if before is not None and after is None else part[:limit]
    return {
        "data": [_model(name, shown) for name, shown in page],
        "has_more": len(part) > len(page),
        "first_id": page[0][0] if page else None,
        "last_id": page[-1][0] if page else None,
    }


def _model(name: str, shown: str) -> dict[str, Any]:
    about = {"created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
    return {"type": "model", "id": name, "display_name": shown, **about}
