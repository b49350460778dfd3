"""`POST /v1/messages`: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from starlette.types import Scope

from holdfast.domain.messages import Message as ChatMessage
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.log.items import Delta, Progress
from holdfast.models.codecs.chat import ChatDecoder
from holdfast.server.apis.api_format import ParsedRequest
from holdfast.server.replies import Reply, request_id
from holdfast.turns.turn import Turn
from holdfast.wire.anthropic import parse_message_groups, parse_system
from holdfast.wire.anthropic_betas import HEADER, check_refused_fields, parse_betas
from holdfast.wire.anthropic_compaction import COMPACTION, CompactionWish, make_block, make_iterations, parse_summarize
from holdfast.wire.anthropic_edits import FIELD, Edits, parse_edits, report_edits
from holdfast.wire.anthropic_replies import Event, ReplyEvents, fold_events, format_usage
from holdfast.wire.anthropic_requests import parse_fields
from holdfast.wire.anthropic_tool_changes import apply_tool_changes, separate_tool_changes
from holdfast.wire.exports import parse_record_fields
from holdfast.wire.voice import find_records

PATH: Final = "/v1/messages"
_MODELS: Final = "/v1/models"
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
"""Error types by HTTP status. Other statuses have `invalid_request_error` below 500, and `api_error` from 500 on."""
_encoder = msgspec.json.Encoder()
_TEXT_EVENT: Final = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}\n\n'
)
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessagesContext(NamedTuple):
    """What a request wants to be done with its conversation before a model gets it."""

    compaction: CompactionWish | None = None
    """When the conversation is to be compacted; None: never."""
    thinking: int | None = None
    """Number of newest turns whose reasoning stays; None: all."""
    has_edits: bool = False
    """True if the request has `context_management`."""


class Messages:
    """The API format of Anthropic's Messages API."""

    path = PATH

    def parse(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        """Parse a request. Unlike in Anthropic's API, `max_tokens` is optional; the default is the model's own limit."""
        given, name = find_records(body)
        check_refused_fields(body)
        if isinstance(given, list):
            given, changes = separate_tool_changes(given, name)
            if changes:
                body = {**body, "tools": apply_tool_changes(body.get("tools"), changes)}
        system = parse_system(body.get("system"))
        groups = parse_message_groups(given, name) if given else []
        _check_messages(given or (), name)
        own = _parse_record_fields(given or (), name, groups)
        fields = parse_fields(body)
        if betas := parse_betas(headers.get(HEADER, ""), fields.pop("betas", None)):
            fields["betas"] = betas
        edits = parse_edits(managed := fields.pop(FIELD, None))
        context = MessagesContext(_get_compaction(fields, edits), edits.thinking, has_edits=managed is not None)
        if edits.others:
            fields[FIELD] = {"edits": edits.others}
        messages = [message for group in groups for message in group]
        own = ({},) * len(system) + own if own else ()
        return ParsedRequest(
            fields, [*system, *messages], own, api="anthropic", given=given, context=context, clearing=edits.clearing
        )

    def create_encoder(self, parsed: ParsedRequest, turn: Turn) -> MessageEvents:
        return MessageEvents(turn, clears=parsed.context.has_edits and not parsed.body.get(FIELD))

    def to_error(self, reply: Reply) -> Reply:
        return to_anthropic_error(reply)


def _get_compaction(fields: Mapping[str, Any], edits: Edits) -> CompactionWish | None:
    """Return when a request wants its conversation to be compacted, by its field `compaction` or by an edit."""
    summarize = parse_summarize(fields.get(COMPACTION))
    if summarize is not None and (edits.compaction is not None or edits.clearing is not None or edits.others):
        message = f"{COMPACTION} and {FIELD} cannot be sent together: send one of them"
        raise InvalidRequest(message, param=COMPACTION)
    return summarize or edits.compaction


def _parse_record_fields(
    given: Sequence[Any], name: str, groups: Sequence[Sequence[ChatMessage]]
) -> tuple[Mapping[str, Any], ...]:
    """Return the voice record fields of each parsed message. Messages with tool results do not get the field `metadata`.

    Args:
        given: messages of the request.
        name: name of the list of messages, for errors.
        groups: for each message in `given`, the messages that it was parsed into.
    """
    fields = parse_record_fields(given, name)
    return tuple(
        {key: value for key, value in own.items() if key != "metadata" or message.role != "tool"}
        for own, group in zip(fields, groups, strict=False)
        for message in group
    )


def _check_messages(given: Iterable[Any], name: str) -> None:
    """Raise `InvalidMessage` if a user message is empty."""
    for at, message in enumerate(given):
        if isinstance(message, Mapping) and message.get("role") == "user" and message.get("content") in ("", []):
            param = f"{name}[{at}].content"
            raise InvalidMessage(f"{param} is empty: a user message needs text, media or tool results", param=param)


class MessageEvents:
    """Encodes a reply as Anthropic's named events.

    Args:
        turn: the turn.
        clears: True if the reply reports what was cleared in its prompt.
    """

    def __init__(self, turn: Turn, *, clears: bool = False) -> None:
        self._turn = turn
        self._clears = clears
        self._events = ReplyEvents()
        self._session: Mapping[str, Any] = {}
        self._failed = False

    def convert_reply(self, completion: dict[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
        self._session = session
        return fold_events([*self._add(ChatDecoder().decode(completion)), *self._end()])

    def _report_stop(self) -> dict[str, Any]:
        return {"stop_reason": COMPACTION} if self._turn.is_answered_by_compaction else {}

    def _report_iterations(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of `usage` that lists the compaction, if there was one."""
        done = self._turn.compacted
        if done is None:
            return {}
        own = None if self._turn.is_answered_by_compaction else usage
        return {"iterations": make_iterations(format_usage(done.usage), own)}

    def _report_edits(self) -> dict[str, Any]:
        if not self._clears:
            return {}
        built = self._turn.working_set
        return {FIELD: report_edits(None if built is None else built.window)}

    def encode(self, deltas: list[Delta], session: Mapping[str, Any] | None) -> bytes:
        if (words := self._events.get_appended_text(deltas)) is not None:
            return _TEXT_EVENT % (self._events.index, _encoder.encode(words))
        self._session = session or self._session
        return _encode_events(self._add(deltas))

    def _add(self, deltas: Sequence[Delta]) -> list[Event]:
        done = None if self._events.has_begun else self._turn.compacted
        return self._events.add(deltas, None if done is None else make_block(done.text, done.reference))

    def encode_progress(self, progress: Progress) -> bytes:
        """Encode progress as an SSE comment, as `ChunkEvents` does."""
        return b": " + progress.comment.encode() + b"\n\n"

    def encode_keep_alive(self) -> bytes:
        return _PING

    def encode_cut(self, session: Mapping[str, Any]) -> bytes:
        """Record that the reply was interrupted, and return no bytes. `encode_end` then encodes the last events."""
        self._session = session
        self._events.cut()
        return b""

    def encode_error(self, error: Mapping[str, Any]) -> bytes:
        self._failed = True
        kind = error["error"].get("type")
        status = {"rate_limit_error": 429, "invalid_request_error": 400}.get(kind, 500)
        return _encode_events([_make_error(error, status)])

    def encode_end(self) -> bytes:
        """Encode the last events, with usage, stop reason and session fields. After an error, return no bytes."""
        if self._failed:
            return b""
        return _encode_events(self._end())

    def _end(self) -> list[Event]:
        more = {**self._report_edits(), **self._session}
        return self._events.end(more, self._report_stop(), self._report_iterations)

    def close(self) -> None:
        """Do nothing: the encoder holds nothing."""


def _encode_events(events: list[Event]) -> bytes:
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + _encoder.encode(event) + b"\n\n" for event in events
    )


# -- errors ------------------------------------------------------------------


def to_anthropic_error(reply: Reply) -> Reply:
    """Convert an error response from OpenAI's to Anthropic's format. Return other responses unchanged."""
    body = reply.body
    if reply.status < 400 or not isinstance(body, Mapping) or "error" not in body:
        return reply
    return msgspec.structs.replace(reply, body=_make_error(body, reply.status))


def _make_error(body: Mapping[str, Any], status: int) -> dict[str, Any]:
    """Convert OpenAI's error object to Anthropic's. The error code is in `details`, where Anthropic's client looks for it."""
    given = body["error"]
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": given.get("message"), "param": given.get("param")}
    error["details"] = {"error_code": given.get("code")}
    return {"type": "error", "error": error, "request_id": request_id.get()}


def is_anthropic_request(scope: Scope) -> bool:
    """Return True if a request is for Anthropic's API: for messages, or for models with the header that its official clients always send."""
    path: str = scope["path"]
    if path == PATH or path.startswith(f"{PATH}/"):
        return True
    return path.startswith(_MODELS) and any(name == b"anthropic-version" for name, _ in scope["headers"])
