"""`POST /v1/responses`: OpenAI's Responses API."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.log.items import Delta, Progress, Usage
from holdfast.models.codecs.responses.encoder import Event, ResponseEvents, ResponseHead, decode_completion
from holdfast.models.codecs.responses.ids import Place
from holdfast.models.codecs.responses.notes import parse_note
from holdfast.models.codecs.responses.requests import CompactionWish, ResponsesRequest, decode_request
from holdfast.server.apis.api_format import ParsedRequest
from holdfast.server.replies import Reply
from holdfast.server.response_recordings import Recordings
from holdfast.turns.compaction import CompactionOrder
from holdfast.turns.turn import Turn

PATH: Final = "/v1/responses"
_encoder = msgspec.json.Encoder()
_TEXT_EVENT: Final = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","sequence_number":%d,"item_id":"%b","output_index":%d,"content_index":%d,"delta":%b,'
    b'"logprobs":[]}\n\n'
)


class Responses:
    """The API format of OpenAI's Responses API."""

    path = PATH

    def parse(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        request = decode_request(body)
        given = body.get("input")
        if given is None and (request.previous or request.conversation):
            given = []
        return ParsedRequest(
            request.fields,
            request.messages,
            given=given,
            context=request,
            compaction=_make_order(request.compaction),
            instructions=request.instructions,
            logs_system=bool(request.previous or request.conversation),
            cache_key=request.cache_key,
            is_whole=request.is_whole,
            hosted_tools=tuple(request.tools.hosted),
        )

    def create_encoder(self, parsed: ParsedRequest, turn: Turn) -> ResponseEncoder:
        return ResponseEncoder(parsed.context, turn)

    def to_error(self, reply: Reply) -> Reply:
        return to_responses_error(reply)


def _make_order(wish: CompactionWish | None) -> CompactionOrder | None:
    return None if wish is None else CompactionOrder(threshold=wish.threshold, is_alone=wish.at_once)


def make_secret() -> str:
    """Return the random part of the id of a new response."""
    return secrets.token_hex(6)


def to_responses_error(reply: Reply) -> Reply:
    """Convert an error response to the codes that clients of the Responses API act on. Return other responses unchanged."""
    body = reply.body
    if reply.status < 400 or not isinstance(body, Mapping) or "error" not in body:
        return reply
    error, status = dict(body["error"]), reply.status
    if error.get("code") == "session_busy":  # clients retry only this code, and only with this status
        error["code"], status = "conversation_locked", 400
    elif error.get("code") == "budget_too_small":
        error["code"], status = "context_length_exceeded", 400
    elif error.get("code") == "previous_response_not_found":
        error["param"] = "previous_response_id"
    elif status == 429:
        error["code"] = "rate_limit_exceeded"
    if str(error.get("param") or "").startswith("messages"):  # this API has no field of that name
        error["param"] = "input"
        error["message"] = str(error.get("message")).replace("messages is empty", "input is empty", 1)
    return msgspec.structs.replace(reply, status=status, body={**body, "error": error})


class RecordedRequest(NamedTuple):
    """A background request, whose reply is recorded."""

    request: ResponsesRequest
    recordings: Recordings


class ResponseEncoder:
    """Encodes a reply as a Response object, or as named events.

    Args:
        context: the request. The events of a `RecordedRequest` are recorded.
        turn: the turn of the request.

    Raises:
        Refused: the caller has too many background responses that are not finished.
    """

    def __init__(self, context: ResponsesRequest | RecordedRequest, turn: Turn) -> None:
        self._recordings = context.recordings if isinstance(context, RecordedRequest) else None
        self._request = context.request if isinstance(context, RecordedRequest) else context
        self._recording = None if self._recordings is None else self._recordings.open()
        self._turn = turn
        model = str(self._request.fields.get("model") or "")
        self._events = ResponseEvents(self._make_head, self._now, model, self._get_compaction)
        self._created_at = self._now()
        self._session: Mapping[str, Any] = {}
        self._failed = self._is_cut = False

    def _now(self) -> int:
        return self._turn.engine.clock() // 1000

    def _make_head(self) -> ResponseHead:
        """Return the fields of the response. Its id contains the position of its note, so the request must be in the log."""
        turn, request = self._turn, self._request
        note = None if turn.note is None else parse_note(turn.note.message.origin)
        if turn.note is None or note is None:  # the response is not stored
            place = Place(turn.request.ref.id, 0, make_secret())
            return ResponseHead(place, self._created_at, request.echo, request.tools.names, request.conversation)
        place = Place(turn.request.ref.id, turn.note.seq, note.secret)
        head = ResponseHead(place, note.created_at, request.echo, request.tools.names, request.conversation)
        if self._recordings is not None and self._recording is not None:
            self._recording.version = turn.session.version
            self._recordings.keep(head.id, self._recording)
        return head

    def _get_compaction(self) -> str | None:
        return None if self._turn.compacted is None else self._turn.compacted.reference

    def begin(self) -> dict[str, Any]:
        """Record the first events, and return the Response object in progress."""
        self._encode(self._events.begin())
        return self._events.started

    def close(self) -> None:
        """Record that no more events follow."""
        if self._recordings is not None and self._recording is not None:
            self._recordings.close(self._recording)

    def _encode(self, events: Sequence[Event]) -> bytes:
        return self._record(encode_events(events))

    def _record(self, data: bytes) -> bytes:
        if self._recording is not None:
            self._recording.add(data)
        return data

    def convert_reply(self, completion: dict[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
        for deltas in decode_completion(completion):
            self._add(deltas)
        response: dict[str, Any] = self._events.end(session)[-1]["response"]
        return response

    def encode(self, deltas: list[Delta], session: Mapping[str, Any] | None) -> bytes:
        if (text := self._events.get_appended_text(deltas)) is not None:
            return self._record(_TEXT_EVENT % self._note_text(text))
        self._session = session or self._session
        return self._encode(self._add(deltas))

    def _add(self, deltas: list[Delta]) -> list[Event]:
        """Return the events for deltas. A response that is only a compaction has the usage of the summary."""
        done = self._turn.compacted
        is_alone = done is not None and self._turn.is_answered_by_compaction
        return self._events.add([*deltas, Usage(done.usage)] if done is not None and is_alone else deltas)

    def _note_text(self, text: str) -> tuple[int, bytes, int, int, bytes]:
        part, number = self._events.note_text(text)
        return number, part.id.encode(), part.index, part.at or 0, _encoder.encode(text)

    def encode_progress(self, progress: Progress) -> bytes:
        """Encode progress as an SSE comment."""
        return b": " + progress.comment.encode() + b"\n\n"

    def encode_keep_alive(self) -> bytes:
        return b": waiting\n\n"

    def encode_cut(self, session: Mapping[str, Any]) -> bytes:
        """Record that the reply was interrupted, and return no bytes. `encode_end` then encodes the last events."""
        self._session, self._is_cut = session, True
        return b""

    def encode_error(self, error: Mapping[str, Any]) -> bytes:
        self._failed = True
        given = to_responses_error(Reply(error, _STATUS.get(error["error"].get("type"), 500))).body["error"]
        failure = {"code": given.get("code") or "server_error", "message": given["message"]}
        return self._encode(self._events.fail(failure))

    def encode_end(self) -> bytes:
        """Encode the last events, with the whole response. After an error, return no bytes."""
        if self._failed:
            return b""
        return self._encode(self._events.cut(self._session) if self._is_cut else self._events.end(self._session))


_STATUS: Final = {"rate_limit_error": 429, "invalid_request_error": 400}


def encode_events(events: Sequence[Event]) -> bytes:
    """Encode events as server-sent events."""
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + _encoder.encode(event) + b"\n\n" for event in events
    )
