"""Parse an upstream's response, which is an event stream or one JSON object, into deltas. This module does no I/O."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import ModelProtocolError, ModelReplyTooLarge
from holdfast.limits import MODEL_EVENT_BYTES
from holdfast.log.items import Text, Usage
from holdfast.models.codecs.chat import ChatDecoder
from holdfast.models.failures import find_error_object, is_error, make_upstream_error, scrub
from holdfast.models.sse import Event, EventReader, EventTooLong
from holdfast.wire.strict_json import decode_repaired

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.log.items import Delta

SHOWN_CHARS: Final = 120
"""Maximum number of characters of unexpected input that an error quotes."""
_decode_json = msgspec.json.Decoder().decode
_KINDS: Final[dict[str, Any]] = {"content": str | list | None, "tool_calls": list | None}
"""Allowed types of the message fields that other modules read."""


class AnswerReader:
    """Parse the body of a successful response: an event stream, or one JSON object from an upstream that ignored `stream`.

    The reader detects from the first bytes which of the two it is, because content types are often wrong. Call `feed` with each piece of
    data until `done` is true. Call `end` if the data ends before that. Each event becomes a list of deltas.

    Args:
        where: Address of the upstream, for error messages.
        secrets: Credentials to remove from error messages.
        limit: Maximum size in bytes of one event, or of a JSON answer.
    """

    def __init__(self, where: str, secrets: Iterable[str] = (), limit: int = MODEL_EVENT_BYTES) -> None:
        self._where = where
        self._secrets = tuple(secrets)
        self._limit = limit
        self._events: EventReader | None = None
        self._head = b""
        self._json: list[bytes] = []
        self._size = 0
        self._finished: dict[int, bool] = {}
        self._decoder = ChatDecoder()
        self.done = False
        """True once the answer is complete. Data after that is ignored."""

    def feed(self, data: bytes) -> Iterable[list[Delta]]:
        """Parse a piece of the response, and return the deltas of each event that it completes.

        The events are decoded while the result is iterated, so that an error comes after the deltas before it.

        Raises:
            ModelError: The upstream reported an error in its stream. The subclass depends on that error.
            ModelProtocolError: The data is not a valid answer.
        """
        if self._json:
            self._buffer_json(data)
            return ()
        if self._events is None:
            data = self._sniff(data)
            if self._events is None:
                return ()
        try:
            events = self._events.feed(data)
        except EventTooLong as exc:
            raise ModelReplyTooLarge(f"{self._where} sent too much at once: {exc}") from exc
        return chain.from_iterable(map(self._read_event, events))

    def end(self) -> Iterator[list[Delta]]:
        """Parse the end of the response, and yield the remaining deltas. Call it also if the connection was lost.

        Raises:
            ModelProtocolError: The answer is incomplete.
        """
        if self._json:
            yield from self._read_json(b"".join(self._json))
            return
        if self._events is None:
            raise ModelProtocolError(f"{self._where} answered with an empty body")
        yield from chain.from_iterable(map(self._read_event, self._events.end()))
        if self.done:
            return
        if not self._finished or not all(self._finished.values()):
            raise ModelProtocolError(f"{self._where} ended its stream in the middle of the answer")
        self.done = True

    def _sniff(self, data: bytes) -> bytes:
        """Detect from the first character if the response is an event stream or a JSON object, and return the data received so far.

        For an event stream, `_events` is set, and the caller passes the data to it. A JSON object is buffered.

        Raises:
            ModelProtocolError: The response is an HTML page.
        """
        data = self._head + data
        start = data.lstrip().removeprefix(b"\xef\xbb\xbf").lstrip()
        if len(start) < 3 and b"\xef\xbb\xbf".startswith(start):
            self._head = data
        elif start[:1] in (b"{", b"["):
            self._buffer_json(start)
        elif start[:1] == b"<":
            raise ModelProtocolError(
                f"{self._where} answered with an HTML page instead of a completion: {_quote_bytes(start)}"
            )
        else:
            self._events = EventReader(self._limit)
        return start

    def _buffer_json(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            raise ModelReplyTooLarge(f"{self._where} sent an answer longer than {self._limit:,} bytes")
        self._json.append(data)

    def _read_json(self, data: bytes) -> Iterator[list[Delta]]:
        completion = self._decode(data)
        if not isinstance(completion, dict) or is_error(completion):
            raise self._make_error(completion)
        choices = completion.get("choices")
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
            raise ModelProtocolError(f"{self._where} answered with JSON that has no choices: {_quote_bytes(data)}")
        self._check_chunk(completion)
        deltas = self._decoder.decode(completion)
        usage: list[Delta] = [
            delta for delta in deltas if isinstance(delta, Usage)
        ]  # clients expect it in an event of its own
        rest: list[Delta] = [delta for delta in deltas if not isinstance(delta, Usage)]
        rest += [delta for index, ended in self._finished.items() if not ended for delta in self._decoder.finish(index)]
        yield from filter(None, (rest, usage))
        self.done = True

    def _read_event(self, event: Event) -> Iterable[list[Delta]]:
        """Return the deltas of an event: usually one list. Events after the end of the answer have none."""
        if self.done:
            return ()
        if event.data.strip() == b"[DONE]":
            if not self._finished:
                raise ModelProtocolError(f"{self._where} ended its stream without an answer in it")
            self.done = True
            unfinished = [index for index, ended in self._finished.items() if not ended]
            return [self._decoder.finish(index) for index in unfinished]  # some proxies never send a reason
        try:
            chunk = _decode_json(event.data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            chunk = self._decode(event.data)
        if event.name == "error" or not isinstance(chunk, dict):
            raise self._make_error(chunk)
        deltas = self._decoder.decode(chunk)
        if len(deltas) == 1 and isinstance(text := deltas[0], Text):  # nearly all chunks: there is nothing to check
            self._finished.setdefault(text.choice, False)
        elif is_error(chunk):
            raise self._make_error(chunk)
        else:
            self._check_chunk(chunk)
        return (deltas,)

    def _check_chunk(self, chunk: dict[str, Any]) -> None:
        """Record which choices have started and finished.

        A stream that ends without `[DONE]` is complete if all have finished.

        Raises:
            ModelProtocolError: A choice could be neither forwarded nor stored.
        """
        choices = chunk.get("choices") or ()
        if not isinstance(choices, list | tuple) or not all(isinstance(choice, dict) for choice in choices):
            raise ModelProtocolError(f"{self._where} sent a chunk whose choices are not a list of objects")
        for choice in choices:
            self._check_choice(choice)
            index = choice.get("index")
            index = index if isinstance(index, int) else 0
            self._finished[index] = self._finished.get(index, False) or choice.get("finish_reason") is not None

    def _check_choice(self, choice: dict[str, Any]) -> None:
        """Raise `ModelProtocolError` for a choice that could be neither forwarded nor stored, before any part of the choice is forwarded."""
        for key in ("delta", "message"):
            message = choice.get(key)
            if not isinstance(message, dict | None):
                raise ModelProtocolError(f"{self._where} answered with a {key} that is not an object")
            for name, kinds in _KINDS.items():
                if message is not None and not isinstance(message.get(name), kinds):
                    raise ModelProtocolError(f"{self._where} answered with {name} of an unexpected type")

    def _decode(self, data: bytes) -> Any:
        return decode_answer(data, self._where, self._secrets)

    def _make_error(self, data: Any) -> Exception:
        return make_upstream_error(None, find_error_object(scrub(data, self._secrets)), where=self._where)


def decode_answer(data: bytes, where: str, secrets: Iterable[str]) -> Any:
    """Return the JSON value that an upstream sent.

    Raises:
        ModelProtocolError: The data is not JSON.
    """
    try:
        return decode_repaired(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise ModelProtocolError(f"{where} sent invalid JSON: {scrub(_quote_bytes(data), secrets)}") from exc


def _quote_bytes(data: bytes) -> str:
    text = " ".join(data[: 4 * SHOWN_CHARS].decode("utf-8", "replace").split())
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…")
