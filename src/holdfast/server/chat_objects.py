"""What the gateway's own routes take and answer: requests for a reply, replies and errors, described."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, UnsetType

from holdfast.server.context import Overhead, Recalled
from holdfast.server.routes import BODY, JSON, KEY, Route, gives, header
from holdfast.server.schema import Schema
from holdfast.wire.objects import Answer, Count, JsonObject, NonEmpty, OpenObject, json_schema, same_as
from holdfast.wire.sessions import ChatMessage, Message

# -- errors ----------------------------------------------------------------------


class ErrorDetails(Answer):
    """What is wrong."""

    message: str
    """In words: what is wrong, and what would be right."""
    type: str
    """`invalid_request_error`, `rate_limit_error` or `server_error`."""
    param: str | None
    """The field, parameter or header that is meant."""
    code: str | None
    """A word for programs."""


class Error(Answer):
    """Every error has this shape."""

    error: ErrorDetails


class AnthropicErrorCode(Answer):
    """For programs."""

    error_code: str | None
    """A word."""


class AnthropicErrorDetails(Answer):
    """What is wrong."""

    type: str
    """`invalid_request_error`, `not_found_error`, `overloaded_error`, …, by the status."""
    message: str
    """In words: what is wrong, and what would be right."""
    param: str | None
    """The field, parameter or header that is meant."""
    details: AnthropicErrorCode


class AnthropicError(Answer, kw_only=True):
    """Every error has this shape, where Anthropic's API is spoken."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetails
    request_id: str | None
    """As in the header `request-id`."""


# -- what was done to the session -------------------------------------------------


class WorkingSetSize(Answer):
    """What the model was sent."""

    tokens: Count
    """Of the conversation: what a strategy's budget limits."""
    total_tokens: Count
    """Of all that is sent."""
    budget: Count
    """Tokens that the conversation could use."""
    messages: Count
    """How many."""
    kept: dict[str, Count]
    """Tokens by decision."""


class TurnWarningObject(Answer, kw_only=True):
    """What went through, and is probably not what the client meant."""

    code: str
    """A word for programs."""
    message: str
    """What happened, and what to do about it."""
    param: str | UnsetType = UNSET
    """The field or header that is meant."""


class SavedArtifact(Answer):
    """An artifact that the reply is about: its turn saved it, or it names it."""

    name: str
    """Its name."""
    version: int
    """From 0."""


class ReplyFailure(Answer):
    """Where no model answered, and the agent's failure message is in place of a reply."""

    code: str
    """Of the error."""
    message: str
    """What happened."""


class FailedModel(Answer):
    """A model that did not answer."""

    model: str
    """Its name here."""
    code: str
    """Of the error; `passed_over`: it was not asked, since it failed lately."""
    status: Count | None
    """That its provider gave."""


class OtherUpstream(Answer, kw_only=True):
    """Where another model was asked to answer."""

    model: str | UnsetType = UNSET
    """Whose answer it is, by its name here."""
    failed: list[FailedModel]


class TurnSummary(Answer, kw_only=True):
    """What the request did to the session."""

    turn: int
    """Of the session, from 0."""
    version: Count
    """The session's."""
    agent: str | UnsetType = UNSET
    """Who answered, where an agent did: the one that was asked, or one below it."""
    reconciled: (
        Literal["new", "continued", "edited", "regenerated", "delta", "replayed", "replaced", "forked"] | UnsetType
    ) = UNSET
    """What the messages were to the log."""
    edited_at: Count | UnsetType = UNSET
    """Seq of the first message that was replaced or taken back."""
    interrupted: bool | UnsetType = UNSET
    """In a stream: another turn ended this reply before its end."""
    working_set: WorkingSetSize | UnsetType = UNSET
    overhead: Overhead | UnsetType = UNSET
    recalled: Recalled | UnsetType = UNSET
    warnings: list[TurnWarningObject] | UnsetType = UNSET
    artifacts: list[SavedArtifact] | UnsetType = UNSET
    failure: ReplyFailure | UnsetType = UNSET
    upstream: OtherUpstream | UnsetType = UNSET


# -- requests --------------------------------------------------------------------


def _one_of(*words: Any) -> Any:
    return json_schema(enum=[*words, None])


class SessionFields(OpenObject, kw_only=True):
    """What a request for a reply may ask of sessions, in every API."""

    session_id: str | None = None
    """Also as header X-Session-Id; without one the messages say which session they continue."""
    user_id: str | None = None
    """Whose session it is, as `user` says in OpenAI's form; they must not differ."""
    session_user: NonEmpty | None = None
    """With a session_id: whose session it is, where that is another user's in which the key's user takes part."""
    session_mode: Literal["auto", "transcript", "delta"] | None = None
    """How the messages relate to the log."""
    on_disconnect: Literal["cut", "finish"] | None = None
    """What happens to the reply when the client goes before its end; unset: `gateway.on_disconnect`."""
    session_queue: Literal["queue", "reject", "interrupt"] | None = None
    """While another turn of the session runs: wait, be refused with 409, or end that one."""
    strategy: str | None = None
    """How this request's working set is made; one of `gateway.allowed_strategies`, or the agent's own."""
    budget: Annotated[int | None, json_schema(minimum=1)] = None
    """Most tokens of the conversation in this request's prompt; only less than the agent's or key's."""
    recall: Annotated[Any, _one_of("auto", "on", "off", True, False)] = None
    """Whether this request's prompt recalls what its session no longer shows."""
    interrupt: JsonObject | None = None
    """Of the last reply, what was heard: `content`, `chars`, or `ms` and `total_ms`; `timestamp`, `turn_id`."""
    session_match: Literal["on", "off"] | None = None
    """Off: without a session_id a session is made, whatever was said before."""
    agent: str | None = None
    """An agent of the configuration."""


class ChatRequest(SessionFields, kw_only=True):
    """OpenAI's Chat Completions request, with fields of Holdfast's own; all others travel to the model unchanged."""

    model: str | None = None
    """An agent, an llm, or a model's name."""
    messages: list[Annotated[Any, same_as(ChatMessage)]] | UnsetType = UNSET
    """With a session_id it may be empty: what was said last is answered."""
    contents: list[Annotated[Any, same_as(ChatMessage)]] | UnsetType = UNSET
    """The same list, as voice records name it."""
    stream: bool | None = None
    """Answer as server-sent events."""
    stream_options: JsonObject | None = None
    """`include_usage`: usage in the last chunk."""
    tools: list[JsonObject] | None = None
    """Tools' schemas, as the model takes them."""
    n: Annotated[int | None, json_schema(minimum=1, maximum=128)] = None
    """Choices; the first one is stored."""
    max_tokens: Annotated[int | None, json_schema(minimum=1)] = None
    """Of the reply."""
    max_completion_tokens: Annotated[int | None, json_schema(minimum=1)] = None
    """Of the reply."""
    user: str | None = None
    """Whose session it is."""
    safety_identifier: str | None = None
    """Whose session it is, where `user` does not say."""


class AnthropicBlock(OpenObject):
    """A content block: text, image, document, tool_use, tool_result, thinking and others."""

    type: str


class AnthropicRequestMessage(OpenObject):
    """A message of the conversation; a voice record has `timestamp`, `turn_id` and `metadata`, too."""

    role: Literal["user", "assistant", "system"]
    content: str | list[AnthropicBlock]
    """Text, or blocks; a block of an unknown type is kept as it is."""


class CountRequest(OpenObject, kw_only=True):
    """Anthropic's request to count tokens: what a prompt with just these messages would have."""

    model: str | None = None
    """An agent, an llm, or a model's name."""
    messages: list[AnthropicRequestMessage] | UnsetType = UNSET
    """With a session_id it may be empty: what was said last is answered."""
    contents: list[AnthropicRequestMessage] | UnsetType = UNSET
    """The same list, as voice records name it."""
    system: str | list[AnthropicBlock] | None = None
    """The system prompt: text, or text blocks."""
    tools: list[JsonObject] | None = None
    """Tools with `name` and `input_schema`, or ones that Anthropic knows by their `type`."""
    tool_choice: JsonObject | None = None
    """`{type: auto | any | none}`, or `{type: tool, name}`."""
    max_tokens: Annotated[int | None, json_schema(minimum=1)] = None
    """Of the reply; unset: the model's own limit."""
    agent: str | None = None
    """An agent of the configuration."""


class MessagesRequest(SessionFields, kw_only=True):
    """Anthropic's request, with fields of Holdfast's own; all others travel to an Anthropic model unchanged."""

    model: str | None = None
    """An agent, an llm, or a model's name."""
    messages: list[AnthropicRequestMessage] | UnsetType = UNSET
    """With a session_id it may be empty: what was said last is answered."""
    contents: list[AnthropicRequestMessage] | UnsetType = UNSET
    """The same list, as voice records name it."""
    system: str | list[AnthropicBlock] | None = None
    """The system prompt: text, or text blocks."""
    tools: list[JsonObject] | None = None
    """Tools with `name` and `input_schema`, or ones that Anthropic knows by their `type`."""
    tool_choice: JsonObject | None = None
    """`{type: auto | any | none}`, or `{type: tool, name}`."""
    max_tokens: Annotated[int | None, json_schema(minimum=1)] = None
    """Of the reply; unset: the model's own limit."""
    stream: bool | None = None
    """Answer as server-sent events."""
    stop_sequences: list[str] | None = None
    metadata: JsonObject | None = None
    """`user_id`: whose session; unset: `default`."""


class TokenCount(Answer):
    """Tokens of what the request holds; nothing of a session."""

    input_tokens: Count
    counted: JsonObject
    """The same, `how` it is known, and the `margin` that is kept free for it."""


# -- replies ---------------------------------------------------------------------


class _Reply(OpenObject, kw_only=True):
    id: str
    created: Count
    model: str
    usage: JsonObject | None | UnsetType = UNSET
    """Tokens, as the model reports them."""
    system_fingerprint: str | None | UnsetType = UNSET
    service_tier: str | None | UnsetType = UNSET


class ChatChoice(Answer, kw_only=True):
    """A reply."""

    index: Count
    finish_reason: str | None
    logprobs: JsonObject | None | UnsetType = UNSET
    """As the model gives them."""
    message: Annotated[JsonObject, same_as(Message)]


class ChunkChoice(Answer, kw_only=True):
    """A piece of a reply."""

    index: Count
    finish_reason: str | None
    logprobs: JsonObject | None | UnsetType = UNSET
    """As the model gives them."""
    delta: JsonObject
    """What is new."""


class ChatCompletion(_Reply, kw_only=True):
    """OpenAI's answer, with the session in it."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    session_id: str
    """Of a request to this gateway: the session."""
    session: TurnSummary


class ChatChunk(_Reply, kw_only=True):
    """One event of a stream. The last ones have the session in them; then `[DONE]`.

    An error after the first chunk is an event in the shape of `Error`.
    """

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    session_id: str | UnsetType = UNSET
    """The session, in the chunks after the last word."""
    session: TurnSummary | UnsetType = UNSET


class AnthropicReplyBlock(OpenObject, kw_only=True):
    """A content block of a reply."""

    type: str
    text: str | UnsetType = UNSET
    """Of text."""
    citations: list[JsonObject] | None | UnsetType = UNSET
    """Of text: what it goes back to."""
    thinking: str | UnsetType = UNSET
    """Of thinking."""
    signature: str | UnsetType = UNSET
    """Of thinking: without it Anthropic does not take it back."""
    data: str | UnsetType = UNSET
    """Of redacted_thinking: sealed."""
    id: str | UnsetType = UNSET
    """Of a call."""
    name: str | UnsetType = UNSET
    """Of a call: the tool's."""
    input: JsonObject | UnsetType = UNSET
    """Of a call: its arguments."""


class MessagesReply(OpenObject, kw_only=True):
    """Anthropic's answer, with the session in it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicReplyBlock]
    stop_reason: str
    """`end_turn`, `max_tokens`, `stop_sequence`, `tool_use`, `pause_turn`, `refusal`, …"""
    stop_sequence: str | None
    usage: JsonObject
    """Tokens: `input_tokens` without those read from a cache or written to one, `output_tokens`, …"""
    session_id: str
    """The session."""
    session: TurnSummary


class AnthropicEvent(OpenObject, kw_only=True):
    """One event of a stream, of the name that is its `type`. `message_delta` has the session in it.

    An error after the first event is an event in the shape of `AnthropicError`.
    """

    type: str
    message: JsonObject | UnsetType = UNSET
    """Of message_start: the reply without its content."""
    index: Count | UnsetType = UNSET
    """Of content_block_…: which block."""
    content_block: AnthropicReplyBlock | UnsetType = UNSET
    delta: JsonObject | UnsetType = UNSET
    """What is new: of a block, or of the message its end."""
    usage: JsonObject | UnsetType = UNSET
    """Tokens: `input_tokens` without those read from a cache or written to one, `output_tokens`, …"""
    session_id: str | UnsetType = UNSET
    """The session."""
    session: TurnSummary | UnsetType = UNSET


# -- routes ----------------------------------------------------------------------

_SUMMARY: Final = "Answer a conversation, with the session's memory in it."
_FAILS: Final = (*BODY, 404, 409, 412, 422, 429, 502, 503, 504)
_TAKES: Final = (
    header("X-Session-Id", "the session, percent-encoded; the same as `session_id` in the body"),
    header("X-Session-Mode", "`auto`, `transcript` or `delta`; the same as `session_mode` in the body"),
    header("X-Session-Match", "`on` or `off`; the same as `session_match` in the body"),
    KEY,
)
_GIVES: Final[Schema] = {
    **gives(X_Session_Id="the session, percent-encoded where it is not printable ASCII"),
    "X-Session-Agent": {
        "description": "the agent that answers, likewise; of a stream, the one that began to: `session.agent` has the last word",
        "required": False,
        "schema": {"type": "string"},
    },
}


CHAT_ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/chat/completions",
        need="write",
        tag="chat",
        handler=None,
        summary=_SUMMARY,
        body=ChatRequest,
        answer={JSON: ChatCompletion, "text/event-stream": ChatChunk},
        fails=_FAILS,
        takes=_TAKES,
        gives=_GIVES,
    ),
    Route(
        method="POST",
        path="/v1/messages",
        need="write",
        tag="chat",
        handler=None,
        summary=_SUMMARY,
        body=MessagesRequest,
        answer={JSON: MessagesReply, "text/event-stream": AnthropicEvent},
        fails=_FAILS,
        takes=(*_TAKES, header("anthropic-beta", "handed on to an Anthropic model")),
        gives=_GIVES,
        errors=(AnthropicError,),
    ),
)
"""The routes that answer with a reply of a model; an ASGI app of its own serves each."""
