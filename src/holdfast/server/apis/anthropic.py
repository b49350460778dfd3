"""`POST /v1/messages`: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.types import Scope

from holdfast.domain.messages import Message as ChatMessage
from holdfast.log.items import Delta
from holdfast.models.codecs.chat import ChatDecoder
from holdfast.models.codecs.messages.betas import HEADER, check_refused_fields, list_betas
from holdfast.models.codecs.messages.blocks import decode_messages, decode_system
from holdfast.models.codecs.messages.context_management import (
    COMPACTION,
    FIELD,
    decode_wishes,
    make_block,
    make_iterations,
    report_edits,
)
from holdfast.models.codecs.messages.errors import make_error
from holdfast.models.codecs.messages.events import Block, Event, fold_events
from holdfast.models.codecs.messages.reply_encoder import ReplyEncoder, encode_events, format_usage
from holdfast.models.codecs.messages.requests import decode_fields
from holdfast.models.codecs.messages.tools import apply_tool_changes
from holdfast.models.collect import Collector
from holdfast.server.apis.api_format import EventEncoder, ParsedRequest
from holdfast.server.replies import Reply, request_id
from holdfast.turns.turn import Turn
from holdfast.wire.exports import parse_record_fields
from holdfast.wire.voice import find_records

PATH: Final = "/v1/messages"
_MODELS: Final = "/v1/models"
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class Messages:
    """The API format of Anthropic's Messages API."""

    path = PATH

    def parse(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        """Parse a request. Unlike in Anthropic's API, `max_tokens` is optional; the default is the model's own limit."""
        given, name = find_records(body)
        check_refused_fields(body)
        if isinstance(given, list):
            given, tools = apply_tool_changes(given, name, body.get("tools"))
            body = {**body, "tools": tools}
        system = decode_system(body.get("system"))
        groups = decode_messages(given, name) if given else []
        own = _parse_record_fields(given or (), name, groups)
        fields = decode_fields(body)
        if betas := list_betas(headers.get(HEADER, ""), fields.pop("betas", None)):
            fields["betas"] = betas
        wishes = decode_wishes(fields)
        fields.pop(FIELD, None)
        if wishes.others:
            fields[FIELD] = {"edits": wishes.others}
        messages = [message for group in groups for message in group]
        own = ({},) * len(system) + own if own else ()
        return ParsedRequest(
            fields, [*system, *messages], own, api="anthropic", given=given, context=wishes, clearing=wishes.clearing
        )

    def create_encoder(self, parsed: ParsedRequest, turn: Turn) -> MessageEvents:
        return MessageEvents(turn, clears=parsed.context.has_edits and not parsed.body.get(FIELD))

    def to_error(self, reply: Reply) -> Reply:
        return to_anthropic_error(reply)


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


class MessageEvents(EventEncoder):
    """Encodes a reply as Anthropic's named events.

    Args:
        turn: the turn.
        clears: True if the reply reports what was cleared in its prompt.
    """

    def __init__(self, turn: Turn, *, clears: bool = False) -> None:
        self._turn = turn
        self._clears = clears
        self._reply = ReplyEncoder(self._make_compaction)
        self._session: Mapping[str, Any] = {}
        self._failed = False

    def convert_reply(self, reply: Collector, session: Mapping[str, Any]) -> dict[str, Any]:
        self._session = session
        return fold_events([*self._reply.add(ChatDecoder().decode(reply.build_completion())), *self._end()])

    def _make_compaction(self) -> Block | None:
        done = self._turn.compacted
        return None if done is None else make_block(done.text, done.reference)

    def encode(self, deltas: list[Delta], session: Mapping[str, Any] | None) -> bytes:
        self._session = session or self._session
        return self._reply.encode(deltas)

    def encode_keep_alive(self) -> bytes:
        return _PING

    def encode_cut(self, session: Mapping[str, Any]) -> bytes:
        """Record that the reply was interrupted, and return no bytes. `encode_end` then encodes the last events."""
        self._session = session
        self._reply.cut()
        return b""

    def encode_error(self, error: Mapping[str, Any]) -> bytes:
        self._failed = True
        kind = error["error"].get("type")
        status = {"rate_limit_error": 429, "invalid_request_error": 400}.get(kind, 500)
        return encode_events([_convert_error(error, status)])

    def encode_end(self) -> bytes:
        """Encode the last events, with usage, stop reason and session fields. After an error, return no bytes."""
        return b"" if self._failed else encode_events(self._end())

    def _end(self) -> list[Event]:
        more, turn = dict(self._session), self._turn
        if self._clears:
            built = turn.working_set
            more = {FIELD: report_edits(None if built is None else built.window), **more}
        stop = {"stop_reason": COMPACTION} if turn.is_answered_by_compaction else {}
        return self._reply.end(more, stop, self._report_iterations)

    def _report_iterations(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of `usage` that lists the compaction, if there was one."""
        done = self._turn.compacted
        if done is None:
            return {}
        own = None if self._turn.is_answered_by_compaction else usage
        return {"iterations": make_iterations(format_usage(done.usage), own)}


# -- errors ------------------------------------------------------------------


def to_anthropic_error(reply: Reply) -> Reply:
    """Convert an error response from OpenAI's to Anthropic's format. Return other responses unchanged."""
    body = reply.body
    if reply.status < 400 or not isinstance(body, Mapping) or "error" not in body:
        return reply
    return msgspec.structs.replace(reply, body=_convert_error(body, reply.status))


def _convert_error(body: Mapping[str, Any], status: int) -> dict[str, Any]:
    """Convert OpenAI's error object to Anthropic's. The error code is in `details`, where Anthropic's client looks for it."""
    given = body["error"]
    fields = {
        "message": given.get("message"),
        "param": given.get("param"),
        "details": {"error_code": given.get("code")},
    }
    return make_error(status, fields, request_id.get())


def is_anthropic_request(scope: Scope) -> bool:
    """Return True if a request is for Anthropic's API: for messages, or for models with the header that its official clients always send."""
    path: str = scope["path"]
    if path == PATH or path.startswith(f"{PATH}/"):
        return True
    return path.startswith(_MODELS) and any(name == b"anthropic-version" for name, _ in scope["headers"])
