"""The interface of API formats: they parse requests and encode replies.

Inside Holdfast there is one format, Chat Completions: fields of a request, `Message`s, and chunks. An API format only
translates; it decides nothing about sessions, turns or failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from holdfast.context.dialects import Dialect
from holdfast.domain.messages import Message
from holdfast.server.replies import Reply
from holdfast.turns.reply_assembler import Progress


class ParsedRequest(NamedTuple):
    """A chat request in the internal format."""

    body: dict[str, Any]
    """Fields named as in Chat Completions, plus Holdfast's own (`session_id`, …), without `messages`. Fields without an equivalent
    keep their own names, for models that know them."""
    messages: list[Message]
    """Messages, leading system messages first."""
    own: tuple[Mapping[str, Any], ...] = ()
    """Fields of voice records for each of `messages`; see `holdfast.wire.exports.parse_record_fields`."""
    api: Dialect = "openai"
    """API format of the fields: models with another format only get fields with the same meaning."""


class StreamEncoder(Protocol):
    """Encodes one streamed reply. Each method returns the bytes to send, which may be empty."""

    def encode_chunk(self, chunk: Mapping[str, Any], session: Mapping[str, Any] | None) -> bytes:
        """Encode a chunk of the reply.

        Args:
            chunk: a `chat.completion.chunk`.
            session: `session_id` and `session` for chunks after the last token, when the reply is in the log; else None.
        """

    def encode_progress(self, progress: Progress) -> bytes:
        """Encode the progress of a tool."""

    def encode_keep_alive(self) -> bytes:
        """Encode a keep-alive that every client ignores."""

    def encode_cut(self, session: Mapping[str, Any]) -> bytes:
        """Encode the end of an interrupted reply in a form that every client understands."""

    def encode_error(self, error: Mapping[str, Any]) -> bytes:
        """Encode an error after the first chunk. `error` is the body from `failure`, in OpenAI's format."""

    def encode_end(self) -> bytes:
        """Encode the end of the stream."""


class ApiFormat(Protocol):
    """One API format."""

    path: str
    """Path of its route."""

    def parse(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        """Parse the JSON object of a request.

        Args:
            body: the object.
            headers: the request's.

        Raises:
            InvalidRequest: it is not valid in this format; names the parameter.
        """

    def convert_reply(self, completion: dict[str, Any], session: Mapping[str, Any]) -> Any:
        """Convert a complete reply from `chat.completion` and add `session_id` and `session`."""

    def create_encoder(self, body: Mapping[str, Any]) -> StreamEncoder:
        """Create the encoder of a streamed reply to a request with these fields (`ParsedRequest.body`)."""

    def to_error(self, reply: Reply) -> Reply:
        """Convert an error response before the first chunk from OpenAI's format."""
