"""Schemas of the gateway's routes: chat requests, replies and errors."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, UnsetType

from holdfast.context.explain import Overhead, Recalled
from holdfast.domain.calibration import MeasuredCount
from holdfast.domain.objects import Answer, Count, JsonObject, OpenObject, json_schema, same_as
from holdfast.server.routes import BODY, JSON, KEY, Route, describe_header, describe_headers
from holdfast.server.schema import Schema
from holdfast.sessions.contexts import PromptSize
from holdfast.turns.turn import TurnWarning
from holdfast.wire.sessions import ChatMessage, Message

# -- errors ----------------------------------------------------------------------


class ErrorDetails(Answer):
    """Details of an error."""

    message: str
    """The mistake, and how to fix it."""
    type: str
    """`invalid_request_error`, `rate_limit_error` or `server_error`."""
    param: str | None
    """Name of the field, parameter or header with the error."""
    code: str | None
    """Error code for programs."""


class Error(Answer):
    """An error response."""

    error: ErrorDetails


class AnthropicErrorCode(Answer):
    """The error code for programs."""

    error_code: str | None
    """Error code, as in errors of `POST /v1/chat/completions`."""


class AnthropicErrorDetails(Answer):
    """Details of an error."""

    type: str
    """`invalid_request_error`, `not_found_error`, `overloaded_error`, …, depending on the status."""
    message: str
    """The mistake, and how to fix it."""
    param: str | None
    """Name of the field, parameter or header with the error."""
    details: AnthropicErrorCode


class AnthropicError(Answer, kw_only=True):
    """An error response in Anthropic's format."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetails
    request_id: str | None
    """Id of the request, as in the header `request-id`."""


# -- effects on the session -------------------------------------------------------


class WorkingSetSize(PromptSize, frozen=True, kw_only=True):
    """Size of the prompt that was sent to the model."""

    messages: Count
    """Number of messages in the prompt."""
    tokens_by_decision: dict[str, Count]
    """Tokens of the messages in the log, added up by decision, such as `kept`, `compacted` or `evicted`."""


class SavedArtifact(Answer):
    """An artifact that the turn saved, or that the reply names."""

    name: str
    """Name of the artifact."""
    version: int
    """Version number, from 0."""


class ReplyFailure(Answer):
    """Error of a request for which all models failed. The reply is then the agent's failure message."""

    code: str
    """Error code."""
    message: str
    """Description of the event."""


class FailedModel(Answer):
    """A model that failed."""

    model: str
    """Name of the model in the configuration."""
    code: str
    """Error code. `passed_over`: the model was not called, because it failed recently."""
    status: Count | None
    """HTTP status of the provider's response."""


class OtherUpstream(Answer, kw_only=True):
    """Information about a failover: another model answered, because the first one failed."""

    model: str | UnsetType = UNSET
    """Name in the configuration of the model that answered."""
    failed: list[FailedModel]


class TurnSummary(Answer, kw_only=True):
    """Effects of a request on its session: its turn, the new version, and the relation of its messages to the log."""

    turn: int
    """Number of the turn in the session, from 0."""
    version: Count
    """Version of the session."""
    agent: str | UnsetType = UNSET
    """Name of the agent that answered: the requested agent, or another agent to which it delegated."""
    reconciled: (
        Literal["new", "continued", "edited", "regenerated", "delta", "replayed", "replaced", "forked", "unplaced"]
        | UnsetType
    ) = UNSET
    """Relation of the request's messages to the session's log: for example `continued` if they were added at the end, or `replayed` if none
    of them was new. For a request without messages it is `replayed` too, although the model is called again."""
    edited_at: Count | UnsetType = UNSET
    """Number (`seq`) of the first message in the log that was replaced or removed."""
    interrupted: bool | UnsetType = UNSET
    """In a stream, true if another turn interrupted this reply."""
    working_set: WorkingSetSize | UnsetType = UNSET
    overhead: Overhead | UnsetType = UNSET
    recalled: Recalled | UnsetType = UNSET
    warnings: list[TurnWarning] | UnsetType = UNSET
    artifacts: list[SavedArtifact] | UnsetType = UNSET
    failure: ReplyFailure | UnsetType = UNSET
    upstream: OtherUpstream | UnsetType = UNSET


# -- requests --------------------------------------------------------------------


def _make_enum(*words: Any) -> Any:
    return json_schema(enum=[*words, None])


class SessionFields(OpenObject, kw_only=True):
    """The fields of a chat request that every API format has: Holdfast's own, and two others."""

    model: str | None = None
    """Name of an agent, of an llm, or of a model."""
    stream: bool | None = None
    """Send the reply as server-sent events."""
    session_id: str | None = None
    """Session id; same as the header X-Session-Id. Without a session id, the request goes to the session that its messages continue."""
    user_id: str | None = None
    """User of the session. If OpenAI's `user` is set too, both must be equal."""
    session_mode: Literal["auto", "transcript", "delta"] | None = None
    """Content of `messages`. `delta`: only new messages; `transcript`: the whole conversation; `auto`: Holdfast compares the messages
    with the session's log to decide."""
    on_disconnect: Literal["cut", "finish"] | None = None
    """Action if the client disconnects early: `cut` the reply, or `finish` it. Default: `gateway.on_disconnect`."""
    memory: Literal["client", "server"] | None = None
    """Place where Anthropic's memory tool runs. Unset: the agent's setting."""
    session_queue: Literal["queue", "reject", "interrupt"] | None = None
    """Action if another turn of the session is running. `queue`: wait for it; `reject`: fail with 409; `interrupt`: interrupt it."""
    strategy: str | None = None
    """Strategy for this prompt: one of `gateway.allowed_strategies`, or the agent's own."""
    budget: Annotated[int | None, json_schema(minimum=1)] = None
    """Token budget of the conversation in this prompt. It cannot exceed the budget of the agent or of the key."""
    recall: Annotated[Any, _make_enum("auto", "on", "off", True, False)] = None
    """Search the session for messages that are no longer in the prompt, and add those that match."""
    interrupt: JsonObject | None = None
    """The part of the last reply that the user heard, as `content`, as `chars`, or as `ms` with `total_ms`. Optional: `timestamp` and
    `turn_id`."""
    session_match: Literal["on", "off"] | None = None
    """`off`: a request without `session_id` always starts a new session."""
    agent: str | None = None
    """Name of an agent of the configuration."""


class ChatRequest(SessionFields, kw_only=True):
    """OpenAI's Chat Completions request with Holdfast's fields. Other fields are sent to the model unchanged."""

    messages: list[Annotated[Any, same_as(ChatMessage)]] | UnsetType = UNSET
    """Messages of the request. With `session_id` the list may be empty; then the last message of the session is answered."""
    contents: list[Annotated[Any, same_as(ChatMessage)]] | UnsetType | None = UNSET
    """Alias of `messages` that voice records use."""
    stream_options: JsonObject | None = None
    """Options of the stream. `include_usage`: report the token usage in the last chunk."""
    tools: list[JsonObject] | None = None
    """Schemas of the tools."""
    n: Annotated[int | None, json_schema(minimum=1, maximum=128)] = None
    """Number of replies to generate. Only the first one is stored."""
    max_tokens: Annotated[int | None, json_schema(minimum=1)] = None
    """Maximum number of tokens in the reply."""
    max_completion_tokens: Annotated[int | None, json_schema(minimum=1)] = None
    """Maximum number of tokens in the reply."""
    user: str | None = None
    """User of the session."""
    safety_identifier: str | None = None
    """User of the session, if `user` is not set."""


class AnthropicBlock(OpenObject):
    """A content block of Anthropic's API: text, image, document, tool_use, tool_result, thinking or another type."""

    type: str


class AnthropicRequestMessage(OpenObject):
    """A message of the conversation; voice records also have `timestamp`, `turn_id` and `metadata`."""

    role: Literal["user", "assistant", "system"]
    content: str | list[AnthropicBlock]
    """Text, or content blocks. Blocks of unknown types are kept unchanged."""


class CountRequest(OpenObject, kw_only=True):
    """Anthropic's request to count the tokens of a prompt with these messages."""

    model: str | None = None
    """Name of an agent, of an llm, or of a model."""
    messages: list[AnthropicRequestMessage] | UnsetType = UNSET
    """Messages of the prompt, at least one."""
    contents: list[AnthropicRequestMessage] | UnsetType | None = UNSET
    """Alias of `messages` that voice records use."""
    system: str | list[AnthropicBlock] | None = None
    """System prompt, as text or as text blocks."""
    tools: list[JsonObject] | None = None
    """Tools with `name` and `input_schema`, or Anthropic's own tools with `type`."""
    tool_choice: JsonObject | None = None
    """`{type: auto | any | none}`, or `{type: tool, name}`."""
    max_tokens: Annotated[int | None, json_schema(minimum=1)] = None
    """Maximum number of tokens in the reply; default: the model's limit."""
    context_management: JsonObject | None = None
    """`{edits: [...]}`: context edits, after which the prompt is counted."""
    agent: str | None = None
    """Name of an agent of the configuration."""


class MessagesRequest(SessionFields, kw_only=True):
    """Anthropic's Messages request with Holdfast's fields. Other fields are sent to Anthropic models unchanged."""

    messages: list[AnthropicRequestMessage] | UnsetType = UNSET
    """Messages of the request. With `session_id` the list may be empty; then the last message of the session is answered."""
    contents: list[AnthropicRequestMessage] | UnsetType | None = UNSET
    """Alias of `messages` that voice records use."""
    system: str | list[AnthropicBlock] | None = None
    """System prompt, as text or as text blocks."""
    tools: list[JsonObject] | None = None
    """Tools with `name` and `input_schema`, or Anthropic's own tools with `type`."""
    tool_choice: JsonObject | None = None
    """`{type: auto | any | none}`, or `{type: tool, name}`."""
    max_tokens: Annotated[int | None, json_schema(minimum=1)] = None
    """Maximum number of tokens in the reply; default: the model's limit."""
    stop_sequences: list[str] | None = None
    metadata: JsonObject | None = None
    """Anthropic's metadata. `user_id`: user of the session; default: `default`."""


class CreateResponse(SessionFields, kw_only=True):
    """OpenAI's Responses request with Holdfast's fields."""

    input: str | list[JsonObject] | UnsetType = UNSET
    """Text, or items. With `previous_response_id` or `conversation`, only new items are needed."""
    instructions: str | list[JsonObject] | None = None
    """System prompt of this call."""
    previous_response_id: str | None = None
    """Response after which the conversation continues. If it is not the last one, the conversation branches there."""
    conversation: str | JsonObject | None = None
    """Id of the conversation, or an object with it."""
    store: bool | None = None
    """False: the response has no id that can be used later."""
    tools: list[JsonObject] | None = None
    """Functions, custom tools and namespaces."""
    tool_choice: Any = None
    max_output_tokens: Annotated[int | None, json_schema(minimum=1)] = None
    text: JsonObject | None = None
    """Format of the answer, and its verbosity."""
    reasoning: JsonObject | None = None
    metadata: dict[str, str] | None = None
    """At most 16 texts, which the response repeats."""


class EditedCount(Answer):
    """The token count before context editing."""

    original_input_tokens: Count


class TokenCount(Answer):
    """Token count of a request. Tokens that a session would add are not included."""

    input_tokens: Count
    counted: MeasuredCount
    context_management: EditedCount | UnsetType = UNSET
    """If the request has `context_management`; `input_tokens` then counts the edited prompt."""


# -- replies ---------------------------------------------------------------------


class _Reply(OpenObject, kw_only=True):
    id: str
    created: Count
    model: str
    usage: JsonObject | None | UnsetType = UNSET
    """Token usage reported by the model."""


class ChatChoice(Answer, kw_only=True):
    """One choice of a reply."""

    index: Count
    finish_reason: str | None
    logprobs: JsonObject | None | UnsetType = UNSET
    """Log probabilities, unchanged from the model."""
    message: Annotated[JsonObject, same_as(Message)]


class ChunkChoice(Answer, kw_only=True):
    """A part of one choice in a stream."""

    index: Count
    finish_reason: str | None
    logprobs: JsonObject | None | UnsetType = UNSET
    """Log probabilities, unchanged from the model."""
    delta: JsonObject
    """New content of the choice."""


class ChatCompletion(_Reply, kw_only=True):
    """OpenAI's completion, with Holdfast's session fields."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    session_id: str
    """Id of the session."""
    session: TurnSummary


class ChatChunk(_Reply, kw_only=True):
    """One event of a stream. The events after the content have the session fields. `[DONE]` ends the stream.

    If an error occurs after the first chunk, it is sent as an event in the format of `Error`.
    """

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    session_id: str | UnsetType = UNSET
    """Id of the session, in the chunks after the content."""
    session: TurnSummary | UnsetType = UNSET


class MessagesReply(OpenObject, kw_only=True):
    """Anthropic's reply, with Holdfast's session fields."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicBlock]
    stop_reason: str
    """`end_turn`, `max_tokens`, `stop_sequence`, `tool_use`, `pause_turn`, `refusal`, …"""
    usage: JsonObject
    """Token usage: `input_tokens`, which do not include cached tokens, `output_tokens`, …"""
    session_id: str
    """Id of the session."""
    session: TurnSummary


class AnthropicEvent(OpenObject, kw_only=True):
    """One event of a stream of Anthropic's. Its name is its `type`. The event `message_delta` has the session fields.

    If an error occurs after the first event, it is sent as an event in the format of `AnthropicError`.
    """

    type: str
    session_id: str | UnsetType = UNSET
    """Id of the session."""
    session: TurnSummary | UnsetType = UNSET


# -- routes ----------------------------------------------------------------------

_TAKES: Final = (
    describe_header("X-Session-Id", "session id, percent-encoded; same as `session_id` in the body"),
    describe_header("X-Session-Mode", "`auto`, `transcript` or `delta`; same as `session_mode` in the body"),
    describe_header("X-Session-Match", "`on` or `off`; same as `session_match` in the body"),
    describe_header("X-Memory", "`server` or `client`: who runs Anthropic's memory tool; same as `memory` in the body"),
    KEY,
)
_GIVES: Final[Schema] = {
    **describe_headers(X_Session_Id="session id, percent-encoded if it is not printable ASCII"),
    "X-Session-Agent": {
        "description": "agent that answers, percent-encoded; in a stream the one that began, `session.agent` has the final one",
        "required": False,
        "schema": {"type": "string"},
    },
}


class ResponseObject(OpenObject, kw_only=True):
    """OpenAI's Response object, with Holdfast's session fields. It repeats the fields of the request."""

    id: str
    object: Literal["response"]
    created_at: Count
    status: Literal["completed", "failed", "in_progress", "incomplete", "cancelled"]
    model: str
    output: list[JsonObject]
    """Items of the reply: reasoning, a message, calls."""
    usage: JsonObject | None
    error: JsonObject | None
    previous_response_id: str | None
    conversation: JsonObject | None
    session_id: str | UnsetType = UNSET
    """Id of the session."""
    session: TurnSummary | UnsetType = UNSET


class ResponseEvent(OpenObject, kw_only=True):
    """One event of a stream of OpenAI's Responses API. The last one has the whole response."""

    type: str
    sequence_number: Count
    response: ResponseObject | UnsetType = UNSET


def _make_route(path: str, body: type, answer: type, event: type, **more: Any) -> Route:
    """Return a route that answers with a model's reply, or with a stream of events."""
    headers = {"request_headers": _TAKES, "response_headers": _GIVES}
    return Route(
        method="POST",
        path=path,
        need="write",
        tag="chat",
        handler=None,
        summary="Answer a conversation with the memory of its session.",
        body=body,
        answer={JSON: answer, "text/event-stream": event},
        error_statuses=(*BODY, 404, 409, 412, 422, 429, 502, 503, 504),
        **{**headers, **more},
    )


CHAT_ROUTES: Final = (
    _make_route("/v1/chat/completions", ChatRequest, ChatCompletion, ChatChunk),
    _make_route(
        "/v1/messages",
        MessagesRequest,
        MessagesReply,
        AnthropicEvent,
        request_headers=(*_TAKES, describe_header("anthropic-beta", "sent on to an Anthropic model")),
        errors=(AnthropicError,),
    ),
    _make_route("/v1/responses", CreateResponse, ResponseObject, ResponseEvent),
)
"""Routes that return a model's reply. Each of these routes has its own ASGI app."""
