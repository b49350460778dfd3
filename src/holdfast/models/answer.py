"""An upstream's answer, from bytes to chunks, whatever form it takes. Decisions only; no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import ModelProtocolError, ModelReplyTooLarge
from holdfast.limits import MODEL_EVENT_BYTES
from holdfast.models.collect import as_chunks
from holdfast.models.failures import error_object, is_error, make_upstream_error, scrub
from holdfast.models.sse import Event, EventReader, EventTooLong

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHOWN_CHARS: Final = 120
"""Characters of something unexpected that an error quotes."""
_KINDS: Final[dict[str, Any]] = {"content": str | list | None, "tool_calls": list | None}
"""Fields of a message that all that follows relies on."""


class AnswerReader:
    """Reads the body of a good response: an event stream, or one JSON object where streaming was asked in vain.

    The form is told from the first bytes, because content types are often wrong. Feed it what arrives until it is
    `done`; tell it the `end` if that comes first. Chunks come out as they were sent.

    Args:
        where: who answers, for errors.
        secrets: credentials to blot out of errors.
        limit: longest event, or longest JSON answer, in bytes.
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
        self._named: set[tuple[int, int]] = set()
        self.done = False
        """The answer is whole; what follows is of no interest."""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The chunks that `data` completes.

        Raises:
            ModelError: the upstream reported an error in its stream; of the kind that fits.
            ModelProtocolError: this is no answer.
        """
        if self._json:
            self._keep(data)
            return
        if self._events is None:
            data = self._sniff(data)
            if self._events is None:
                return
        try:
            events = self._events.feed(data)
        except EventTooLong as exc:
            raise ModelReplyTooLarge(f"{self._where} sent too much at once: {exc}") from exc
        yield from self._chunks(events)

    def end(self) -> Iterator[dict[str, Any]]:
        """The chunks that the end of the bytes completes, were it regular or not.

        Raises:
            ModelProtocolError: the answer is not whole.
        """
        if self._json:
            yield from self._whole(b"".join(self._json))
            return
        if self._events is None:
            raise ModelProtocolError(f"{self._where} answered with an empty body")
        yield from self._chunks(self._events.end())
        if self.done:
            return
        if not self._finished or not all(self._finished.values()):
            raise ModelProtocolError(f"{self._where} ended its stream in the middle of the answer")
        self.done = True

    def _sniff(self, data: bytes) -> bytes:
        """Decide by the first character that is there; returns what is for the event reader."""
        data = self._head + data
        start = data.lstrip().removeprefix(b"\xef\xbb\xbf").lstrip()
        if len(start) < 3 and b"\xef\xbb\xbf".startswith(start):
            self._head = data
        elif start[:1] in (b"{", b"["):
            self._keep(start)
        elif start[:1] == b"<":
            raise ModelProtocolError(
                f"{self._where} answered with a page for people, not with an answer: {_shown(start)}"
            )
        else:
            self._events = EventReader(self._limit)
        return start

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            raise ModelReplyTooLarge(f"{self._where} sent an answer longer than {self._limit:,} bytes")
        self._json.append(data)

    def _whole(self, data: bytes) -> Iterator[dict[str, Any]]:
        completion = self._decoded(data)
        if not isinstance(completion, dict) or is_error(completion):
            raise self._reported(completion)
        choices = completion.get("choices")
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
            raise ModelProtocolError(f"{self._where} answered with JSON that holds no choices: {_shown(data)}")
        for at, choice in enumerate(choices):
            self._check(choice)
            self._name_calls(at, choice)
        self.done = True
        yield from as_chunks(completion)

    def _chunks(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        for event in events:
            if event.data.strip() == b"[DONE]":
                if not self._finished:
                    raise ModelProtocolError(f"{self._where} ended its stream without an answer in it")
                self.done = True
                return
            chunk = self._decoded(event.data)
            if event.name == "error" or not isinstance(chunk, dict) or is_error(chunk):
                raise self._reported(chunk)
            self._note(chunk)
            yield chunk

    def _note(self, chunk: dict[str, Any]) -> None:
        """Remember which choices have begun and which have ended: a stream without `[DONE]` is judged by that."""
        choices = chunk.get("choices") or ()
        if not isinstance(choices, list | tuple) or not all(isinstance(choice, dict) for choice in choices):
            raise ModelProtocolError(f"{self._where} sent a chunk whose choices are no list of objects")
        for choice in choices:
            self._check(choice)
            index = choice.get("index")
            index = index if isinstance(index, int) else 0
            self._name_calls(index, choice)
            self._finished[index] = self._finished.get(index, False) or choice.get("finish_reason") is not None

    def _check(self, choice: dict[str, Any]) -> None:
        """Refuse what could neither be sent on nor stored, while nobody has seen it."""
        for key in ("delta", "message"):
            said = choice.get(key)
            if not isinstance(said, dict | None):
                raise ModelProtocolError(f"{self._where} answered with a {key} that is no object")
            for name, kinds in _KINDS.items():
                if said is not None and not isinstance(said.get(name), kinds):
                    raise ModelProtocolError(f"{self._where} answered with {name} of a type that it never has")

    def _name_calls(self, index: int, choice: dict[str, Any]) -> None:
        """Give calls that came without an id one: who is to answer them needs it, and the log has to have the same."""
        for key in ("delta", "message"):
            for at, call in enumerate((choice.get(key) or {}).get("tool_calls") or ()):
                tool = call.get("function") if isinstance(call, dict) else None
                if not isinstance(tool, dict) or not tool.get("name"):
                    continue
                position = call.get("index")
                place = (index, position if isinstance(position, int) else at)
                if not call.get("id") and place not in self._named:
                    call["id"] = f"call_{len(self._named)}"
                self._named.add(place)

    def _decoded(self, data: bytes) -> Any:
        try:
            return msgspec.json.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
            shown = scrub(_shown(data), self._secrets)
            raise ModelProtocolError(f"{self._where} sent something that is no JSON: {shown}") from exc

    def _reported(self, data: Any) -> Exception:
        return make_upstream_error(None, error_object(scrub(data, self._secrets)), where=self._where)


def _shown(data: bytes) -> str:
    text = " ".join(data[: 4 * SHOWN_CHARS].decode("utf-8", "replace").split())
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…")
