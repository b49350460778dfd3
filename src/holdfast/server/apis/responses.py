"""`POST /v1/responses`: OpenAI's Responses API."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.domain.compaction import CompactionOrder
from holdfast.log.items import Delta, Usage
from holdfast.models.codecs.responses.encoder import Event, ResponseEvents, ResponseHead, decode_reply, encode_events
from holdfast.models.codecs.responses.ids import Place
from holdfast.models.codecs.responses.notes import parse_note
from holdfast.models.codecs.responses.requests import ResponsesRequest, decode_request
from holdfast.models.collect import Collector
from holdfast.server.apis.api_format import BackgroundEncoder, ParsedRequest
from holdfast.server.replies import Reply
from holdfast.server.response_recordings import Recordings
from holdfast.turns.turn import Turn

PATH: Final = "/v1/responses"


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
            compaction=_make_order(request),
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


def _make_order(request: ResponsesRequest) -> CompactionOrder | None:
    if request.threshold is None and not request.compacts_now:
        return None
    return CompactionOrder(threshold=request.threshold, is_alone=request.compacts_now)


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


class ResponseEncoder(BackgroundEncoder):
    """Encodes a reply as a Response object, or as named events.

    Args:
        context: the request. The events of a `RecordedRequest` are recorded.
        turn: the turn of the request.

    Raises:
        Refused: the caller has too many background responses that are not finished.
    """

    def __init__(self, context: ResponsesRequest | RecordedRequest, turn: Turn) -> None:
        request, recordings = context if isinstance(context, RecordedRequest) else (context, None)
        self._recording = None if recordings is None else recordings.open()
        self._request = request
        self._turn = turn
        self._events = ResponseEvents(self._make_head, self._now, str(self._request.fields.get("model") or ""))
        self._created_at = self._now()
        self._session: Mapping[str, Any] = {}
        self._failed = self._is_cut = False

    def _now(self) -> int:
        return self._turn.engine.clock() // 1000

    def _make_head(self) -> ResponseHead:
        """Return the fields of the response. Its id contains the position of its note, so the request must be in the log."""
        turn, request = self._turn, self._request
        note = None if turn.note is None else parse_note(turn.note.message.origin)
        place, created_at = Place(turn.request.ref.id, 0, make_secret()), self._created_at
        if turn.note is not None and note is not None:  # the response is stored
            place, created_at = Place(turn.request.ref.id, turn.note.seq, note.secret), note.created_at
            if self._recording is not None:
                self._recording.keep(place.make_id("resp"), turn.session.version)
        return ResponseHead(place, created_at, request.echo, request.tools.names, request.conversation)

    def begin(self) -> dict[str, Any]:
        """Record the first events, and return the Response object in progress."""
        self._record(encode_events(self._events.begin()))
        return self._events.started

    def close(self) -> None:
        """Record that no more events follow."""
        if self._recording is not None:
            self._recording.close()

    def _record(self, data: bytes) -> bytes:
        if self._recording is not None:
            self._recording.add(data)
        return data

    def convert_reply(self, reply: Collector, session: Mapping[str, Any]) -> dict[str, Any]:
        for deltas in decode_reply(reply):
            self._add(deltas)
        response: dict[str, Any] = self._events.end(session)[-1]["response"]
        return response

    def encode(self, deltas: list[Delta], session: Mapping[str, Any] | None) -> bytes:
        if (data := self._events.encode_appended_text(deltas)) is not None:
            return data if self._recording is None else self._record(data)
        self._session = session or self._session
        return self._record(encode_events(self._add(deltas)))

    def _add(self, deltas: list[Delta]) -> list[Event]:
        """Return the events for deltas. A response that is only a compaction has the usage of the summary."""
        done = self._turn.compacted
        if done is None:
            return self._events.add(deltas)
        usage = [Usage(done.usage)] if self._turn.is_answered_by_compaction else []
        return self._events.add([*deltas, *usage], done.reference)

    def encode_cut(self, session: Mapping[str, Any]) -> bytes:
        """Record that the reply was interrupted, and return no bytes. `encode_end` then encodes the last events."""
        self._session, self._is_cut = session, True
        return b""

    def encode_error(self, error: Mapping[str, Any]) -> bytes:
        self._failed = True
        given = to_responses_error(Reply(error, _STATUS.get(error["error"].get("type"), 500))).body["error"]
        failure = {"code": given.get("code") or "server_error", "message": given["message"]}
        return self._record(encode_events(self._events.fail(failure)))

    def encode_end(self) -> bytes:
        """Encode the last events, with the whole response. After an error, return no bytes."""
        if self._failed:
            return b""
        return self._record(encode_events(self._events.end(self._session, is_cut=self._is_cut)))


_STATUS: Final = {"rate_limit_error": 429, "invalid_request_error": 400}
