"""What a door is: somebody's API for asking a model, read into the terms of a turn and told in its own shape.

Inside there is one form alone, Chat Completions: a request's fields, `Message`s, and chunks. A door translates; it decides
nothing about sessions, turns or failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from holdfast.context.dialects import Dialect
from holdfast.domain.messages import Message
from holdfast.server.replies import Reply
from holdfast.turns.reply_assembler import Progress


class Said(NamedTuple):
    """A request in the terms of a turn."""

    body: dict[str, Any]
    """Its fields as Chat Completions has them, Holdfast's own among them (`session_id`, …); `messages` is not one of them.
    What Chat Completions has no field for stands under its own name, for a model that knows it."""
    messages: list[Message]
    """Leading system messages first."""
    own: tuple[Mapping[str, Any], ...] = ()
    """What voice records say of each of `messages`; see `holdfast.wire.exports.record_fields`."""
    api: Dialect = "openai"
    """Whose API the fields were written for: whoever speaks another one is sent those alone that mean the same there."""


class Telling(Protocol):
    """One streamed reply in the making. Each method gives the bytes to send, which may be none."""

    def chunk(self, chunk: Mapping[str, Any], session: Mapping[str, Any] | None) -> bytes:
        """A chunk of the reply.

        Args:
            chunk: a `chat.completion.chunk`.
            session: `session_id` and `session`, for chunks behind the reply's last word, when it is in the log; else None.
        """

    def progress(self, progress: Progress) -> bytes:
        """What a tool of the turn is doing."""

    def waiting(self) -> bytes:
        """Nothing has come for a while: what keeps the connection from being taken for dead. Any client passes it over."""

    def cut_short(self, session: Mapping[str, Any]) -> bytes:
        """The end of a reply that another turn interrupted, of a kind that every client knows."""

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """An error behind the first chunk; `error` is the body that `failure` makes, in OpenAI's shape."""

    def end(self) -> bytes:
        """What ends every stream."""


class Door(Protocol):
    """One API."""

    path: str
    """Its route."""

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> Said:
        """A request's JSON object in the terms of a turn.

        Args:
            body: the object.
            headers: the request's.

        Raises:
            InvalidRequest: it is not what this API takes; names the parameter.
        """

    def reply(self, completion: dict[str, Any], session: Mapping[str, Any]) -> Any:
        """A whole reply, given as a `chat.completion`, with `session_id` and `session` in it."""

    def telling(self, body: Mapping[str, Any]) -> Telling:
        """A streamed reply to a request with these fields, `Said.body`."""

    def failed(self, reply: Reply) -> Reply:
        """A failure before the first chunk in this API's shape; given in OpenAI's."""
