"""The interface of API formats: classes that parse requests and encode replies.

Holdfast uses one format internally. It consists of the request fields of Chat Completions, of `Message` objects, and of the deltas in
`holdfast.log.items`. An API format only converts from and to this internal format. It decides nothing about sessions, turns or failures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.context.dialects import Dialect
from holdfast.domain.compaction import CompactionOrder
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, Session
from holdfast.log.items import Delta, Progress
from holdfast.models.collect import Collector
from holdfast.server.replies import Reply
from holdfast.turns.turn import Turn, TurnWarning


class Predecessor(NamedTuple):
    """The message that a request continues after, because the client named a response that ends with it.

    Only one request can continue after a message in its session. Another one gets a fork.
    """

    session: Session
    seq: int
    """`seq` of the message, or of the last result of a tool of Holdfast that belongs to it."""
    turn_id: int
    """The turn of the message."""
    find_again: Callable[[], Awaitable[Predecessor]]
    """Function that finds the message again after the session has changed, or raises `Refused`."""
    is_forked: bool = False
    """True: the request gets a fork that ends with the message."""
    branch: Sequence[Entry] = ()
    """Entries of a retired branch that ends with the message; empty if the message is live."""


class ParsedRequest(NamedTuple):
    """A chat request in the internal format."""

    body: dict[str, Any]
    """Fields of the request, without `messages`. They have the names of Chat Completions; Holdfast's own fields (`session_id`, …) are
    included. A field without an equivalent keeps its name, for models that know it."""
    messages: list[Message]
    """Messages of the request, with the leading system messages first."""
    own: tuple[Mapping[str, Any], ...] = ()
    """For each message, its voice record fields; see `holdfast.wire.exports.parse_record_fields`. Empty: no message has any."""
    api: Dialect = "openai"
    """API format of `body`. A model with another API format gets only the fields that have the same meaning there."""
    given: Any = None
    """The messages as the client sent them; None if the request has no messages."""
    context: Any = None
    """Data of the request that the format needs to encode the reply."""
    clearing: Mapping[str, Any] | None = None
    """Options of `clear_tool_results` that apply to this request; None: those of the agent."""
    compaction: CompactionOrder | None = None
    """When the request wants its session to be compacted; None: never."""
    background: bool = False
    """True: the response is sent when the turn has begun, and the reply is made afterwards. The encoder is a `BackgroundEncoder`."""
    instructions: int = 0
    """Number of leading messages that are only for this request. A new session stores the system messages after them, so that later requests
    need not send these."""
    logs_system: bool = False
    """True: the system messages after the instructions are appended to the log like all other messages."""
    hosted_tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that run at the provider, in the format of the Responses API."""
    is_whole: bool = False
    """True: the prompt must have the whole conversation, or the request is rejected."""
    cache_key: str | None = None
    """The client's own key for prompts in a provider's cache."""
    predecessor: Predecessor | None = None
    """The message that the request continues after; None: it names none."""
    warnings: tuple[TurnWarning, ...] = ()
    """Warnings about the request."""
    note: Any = None
    """Payload of a note to write after the request's messages; None: no note."""


class EventEncoder(Protocol):
    """Encodes one reply, as a whole or as a stream. The methods for streams return the bytes to send, which may be empty."""

    def convert_reply(self, reply: Collector, session: Mapping[str, Any]) -> Any:
        """Convert a complete reply to this format, and add the session fields.

        Args:
            reply: the reply.
            session: the fields `session_id` and `session`.
        """

    def encode(self, deltas: list[Delta], session: Mapping[str, Any] | None) -> bytes:
        """Encode the next part of the reply.

        Args:
            deltas: the part.
            session: after the last token, when the reply is in the log: the fields `session_id` and `session`; None before.
        """

    def encode_progress(self, progress: Progress) -> bytes:
        """Encode the progress of a tool or an agent, as a comment."""
        return b": " + progress.comment.encode() + b"\n\n"

    def encode_keep_alive(self) -> bytes:
        """Encode a keep-alive, which every client ignores."""
        return b": waiting\n\n"

    def encode_cut(self, session: Mapping[str, Any]) -> bytes:
        """Encode the end of an interrupted reply as a normal end, which every client understands."""

    def encode_error(self, error: Mapping[str, Any]) -> bytes:
        """Encode an error after the first chunk. `error` is the body of a failure reply, in OpenAI's format."""

    def encode_end(self) -> bytes:
        """Encode the end of the stream."""

    def close(self) -> None:
        """Release what the encoder holds. Called once, after the reply."""
        return  # most hold nothing


class BackgroundEncoder(EventEncoder, Protocol):
    """Encodes a reply that is made in the background."""

    def begin(self) -> Any:
        """Return the body of the response, when the request is in the log and the reply is not there yet."""


class ApiFormat(Protocol):
    """One API format of the gateway."""

    path: str
    """Path of the format's route."""

    def parse(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        """Convert a request to the internal format.

        Args:
            body: JSON object in the body of the request.
            headers: headers of the request.

        Raises:
            InvalidRequest: the request is not valid in this format. The error names the parameter.
        """

    def create_encoder(self, parsed: ParsedRequest, turn: Turn) -> EventEncoder:
        """Create the encoder of the reply to a request. The turn has not begun yet."""

    def to_error(self, reply: Reply) -> Reply:
        """Convert an error response from OpenAI's format to this format. Used for errors that occur before the first chunk is sent."""
