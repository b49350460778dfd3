"""Client for OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.context.fitting import fit_messages
from holdfast.errors import ModelProtocolError
from holdfast.limits import MODEL_EVENT_BYTES
from holdfast.log.items import Delta, Text, Usage
from holdfast.models.answer import AnswerReader
from holdfast.models.base import ModelRequest
from holdfast.models.client import PreparedRequest
from holdfast.models.codecs.responses.decoder import ResponseDecoder
from holdfast.models.codecs.responses.requests import encode_request
from holdfast.models.failures import find_error_object, is_error, make_upstream_error, scrub
from holdfast.models.openai import OpenAIModel

if TYPE_CHECKING:
    from holdfast.models.sse import Event

THREAD_MESSAGES: Final = 100
"""Minimum number of messages of a request that is built in a thread."""
_STATUSES: Final[Mapping[str, int]] = {"rate_limit_exceeded": 429, "server_error": 500, "context_length_exceeded": 400}
"""HTTP status for each code of an error that ends a stream."""


class ResponsesModel(OpenAIModel):
    """A model of OpenAI, or of any other upstream that offers OpenAI's Responses API.

    The upstream stores nothing: each request contains the whole prompt. docs/upstreams.md describes how the fields are converted.

    The arguments are those of `OpenAIModel`.
    """

    _path = "/responses"

    async def _prepare_request(self, request: ModelRequest, headers: Mapping[str, str]) -> PreparedRequest:
        long = len(request.messages) >= THREAD_MESSAGES
        return await run_cpu(self._build_request, request, headers, long=long)

    def _build_request(self, request: ModelRequest, headers: Mapping[str, str]) -> PreparedRequest:
        messages = [message for message, _ in fit_messages(request.messages, None, request.fields.get("model"))]
        body = encode_request(messages, request.fields, self._where)
        if self._model is not None:
            body["model"] = self._model
        return PreparedRequest.from_body(body, self._make_headers(headers))

    def _create_reader(self, call: PreparedRequest) -> AnswerReader:
        return ResponseReader(self._where, call.secrets, self._max_event_bytes)


class ResponseReader(AnswerReader):
    """Parse the body of a successful response: an event stream, or one Response object from an upstream that ignored `stream`.

    Args:
        where: Address of the upstream.
        secrets: Credentials to remove from error messages.
        limit: Maximum size in bytes of one event, or of a JSON answer.
    """

    def __init__(self, where: str, secrets: Iterable[str] = (), limit: int = MODEL_EVENT_BYTES) -> None:
        super().__init__(where, secrets, limit)
        self._reply = ResponseDecoder(where)
        self._finished[0] = False

    def _read_event(self, event: Event) -> Iterable[list[Delta]]:
        if self.done or event.data.strip() == b"[DONE]":
            return ()
        return self._convert_event(self._decode(event.data))

    def _convert_event(self, event: Any) -> Iterator[list[Delta]]:
        kind = event.get("type") if isinstance(event, dict) else None
        if kind in ("error", "response.failed") or (kind is None and isinstance(event, dict) and is_error(event)):
            raise self._make_failure(event)
        if not isinstance(kind, str):
            raise ModelProtocolError(f"{self._where} sent an event that is not part of OpenAI's Responses API")
        deltas = self._list_deltas(self._reply.decode(event), kind)
        begin = 0
        for at, delta in enumerate(deltas):
            if at and isinstance(delta, Text | Usage):  # a text begins after what completes the one before it
                yield deltas[begin:at]
                begin = at
        yield from [deltas[begin:]] if deltas else []

    def _list_deltas(self, decoded: Iterator[Delta], what: str) -> list[Delta]:
        try:
            deltas = list(decoded)
        except (AttributeError, KeyError, TypeError, msgspec.MsgspecError, ValueError) as exc:
            raise ModelProtocolError(f"{self._where} sent a malformed {what}") from exc
        self.done = self._finished[0] = self._reply.finished
        return deltas

    def _read_json(self, data: bytes) -> Iterator[list[Delta]]:
        response = self._decode(data)
        if not isinstance(response, dict) or is_error(response) or response.get("status") == "failed":
            raise self._make_failure({"response": response})
        if response.get("object") != "response" or not isinstance(response.get("output"), list):
            raise ModelProtocolError(f"{self._where} answered with JSON that is not a Response object")
        for delta in self._list_deltas(self._reply.decode_whole(response), "response"):
            yield [delta]

    def _make_failure(self, event: Mapping[str, Any]) -> Exception:
        """Return the error for an event that ends a stream without an answer."""
        inner = event.get("response")
        error = find_error_object(scrub(inner if isinstance(inner, dict) else event, self._secrets))
        if error is None and event.get("type") == "error":
            error = {name: event.get(name) for name in ("code", "message", "param")}
        code = (error or {}).get("code")
        return make_upstream_error(_STATUSES.get(code) if isinstance(code, str) else None, error, where=self._where)
