"""What every route takes and answers: one table, by method and path. `holdfast.server.openapi` describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.limits import ARTIFACT_METADATA_BYTES, PAGE, WORKSPACE_HISTORY
from holdfast.server.artifact_schemas import CONTENT, NAME
from holdfast.server.dream_schemas import DIARY_PARAMETERS
from holdfast.server.explanation_schemas import EXPLANATION_PARAMETERS
from holdfast.server.memory_schemas import MEMORY_PARAMETERS, SOURCE_PARAMETERS
from holdfast.server.search_schemas import SEARCH_PARAMETERS
from holdfast.server.shapes import ID, Schema, header, query, ref, text, whole

JSON: Final = "application/json"
_BODY: Final = (400, 408, 413, 415)
_STORE: Final = (400, 503)
_OF_A_SESSION: Final = (*_STORE, 404, 409)


_USER = query("user_id", ID, "whose session; without it the user `default`'s, else the only one of that id")
_OF_USER = query("user_id", ID, "only this user's; and whose session `after` is")
_PAGING = (
    query("limit", whole(low=1, maximum=PAGE), "most items of the page; 20 unless given"),
    query("order", {"type": "string", "enum": ["asc", "desc"]}, "oldest or newest first"),
)
_LIMIT = _PAGING[0]
_OF_A_PROMPT = (
    query("agent", text(), "whose prompt; unset: the session's"),
    query("model", text(), "the same, for a model"),
    query("strategy", text(), "by this strategy, with its defaults"),
    query("budget", whole(low=1), "tokens of the conversation"),
)
_BEFORE: Final = "the `last_id` of the page before"
_FILTERS = (
    _OF_USER,
    query("agent", text(), "only with this agent"),
    query("status", {"type": "string", "enum": ["active", "closed"]}, "only these"),
    query("after", ID, "the `last_id` of the page before"),
    query("after_user", ID, "whose session `after` is, where several users have one of that id"),
)
_BETA = query("beta", text(), "what Anthropic's client adds for what is in beta; means nothing here")
_FLAG: Final[Schema] = {"type": "string", "enum": ["true", "false"]}
_KEY = header("Idempotency-Key", "1 to 512 bytes; a second request with the same key and body writes nothing again")
_MATCH = header("If-Match", "the version that the session must be at")
_SESSION_HEADER = header("X-Session-Id", "the session, percent-encoded; the same as `session_id` in the body")
_MODE_HEADER = header("X-Session-Mode", "`auto`, `transcript` or `delta`; the same as `session_mode` in the body")
_MATCH_HEADER = header("X-Session-Match", "`on` or `off`; the same as `session_match` in the body")
_ETAG: Final[Schema] = {"ETag": {"description": "the session's version", "schema": text()}}
_TOLD: Final[Schema] = {
    "X-Session-Id": {"description": "the session, percent-encoded where it is not printable ASCII", "schema": text()},
    "X-Session-Agent": {
        "description": "the agent that answers, likewise; of a stream, the one that began to: `session.agent` has the last word",
        "required": False,
        "schema": text(),
    },
}

_OF_ARTIFACT: Final[Schema] = {"ETag": {"description": "the version and its content", "schema": text()}}
_OF_CONTENT: Final[Schema] = {
    **_OF_ARTIFACT,
    "X-Artifact-Version": {"description": "the version", "schema": whole()},
    "Content-Disposition": {"description": "the name, to save it under", "schema": text()},
    "Repr-Digest": {"description": "SHA-256 of the whole content, as RFC 9530 has it", "schema": text()},
}
_VERSION = query("version", whole(), "which; the newest unless given")
_CONDITIONS = (
    header("Range", "one range of bytes; several are answered with the whole"),
    header("If-Range", "the ETag for which the range is meant"),
    header("If-None-Match", "ETags of what is there already"),
)


class Operation(msgspec.Struct, frozen=True):
    """What a method on a path takes and answers."""

    answer: str | Schema
    """A component, or the whole content by media type."""
    tag: str = "sessions"
    body: str | Schema | None = None
    """A component, or the whole content by media type."""
    parameters: tuple[Schema, ...] = ()
    failures: tuple[int, ...] = ()
    """Statuses beside those that every route may answer."""
    status: int = 200
    headers: Schema = {}
    """Of the good answer."""
    errors: tuple[str, ...] = ("Error",)
    """Components: the shapes that its errors may have."""
    others: Mapping[int, str] = {}
    """Good answers beside that; 200 and 206 have the same kind of body, one without content has none."""


CHAT: Final = ("POST", "/v1/chat/completions")
MESSAGES: Final = ("POST", "/v1/messages")
DOORS: Final = (CHAT, MESSAGES)
"""Where a reply is asked for."""
_ASKED: Final = (*_BODY, 404, 409, 412, 422, 429, 502, 503, 504)
_SESSIONS: Final = "/v1/sessions"
_ONE: Final = "/v1/sessions/{session_id}"
_MESSAGES: Final = f"{_ONE}/messages"
_MESSAGE: Final = f"{_MESSAGES}/{{seq}}"
_COMPACTIONS: Final = f"{_ONE}/compactions"
_COMPACTION: Final = f"{_COMPACTIONS}/{{compaction_id}}"
_ARTIFACTS: Final = f"{_ONE}/artifacts"
_ARTIFACT: Final = f"{_ARTIFACTS}/{{name}}"
_MEMORIES: Final = "/v1/memories"
_MEMORY: Final = f"{_MEMORIES}/{{memory_id}}"
_OF_MEMORY: Final[Schema] = {"ETag": {"description": "the memory's version", "schema": text()}}
_MERGED: Final = "It was remembered already."
_PAGE: Final[Schema] = {"text/html": {"schema": text()}}

_SCOPE_MATCH = header("If-Match", "the version that the state must be at")
_SCOPE_ETAG: Final[Schema] = {"ETag": {"description": "the version of the state", "schema": text()}}


def _scope_operations(further: tuple[int, ...]) -> Mapping[str, Operation]:
    """What is possible with the state of a scope, by method.

    Args:
        further: statuses that it may answer beside those of any scope.
    """
    writes = (*_BODY, *_STORE, *further, 412, 422)
    return {
        "GET": Operation("State", "state", failures=(*_STORE, *further), headers=_SCOPE_ETAG),
        "PATCH": Operation("State", "state", "State", (_SCOPE_MATCH,), writes, headers=_SCOPE_ETAG),
        "POST": Operation("StateChanged", "state", "StateOperations", (_SCOPE_MATCH,), writes, headers=_SCOPE_ETAG),
        "DELETE": Operation("DeletedState", "state", parameters=(_SCOPE_MATCH,), failures=(*_STORE, *further, 412)),
    }


OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    CHAT: Operation(
        {JSON: {"schema": ref("ChatCompletion")}, "text/event-stream": {"schema": ref("ChatChunk")}},
        "chat",
        "ChatRequest",
        (_SESSION_HEADER, _MODE_HEADER, _MATCH_HEADER, _KEY),
        _ASKED,
        headers=_TOLD,
    ),
    MESSAGES: Operation(
        {JSON: {"schema": ref("MessagesReply")}, "text/event-stream": {"schema": ref("AnthropicEvent")}},
        "chat",
        "MessagesRequest",
        (
            _SESSION_HEADER,
            _MODE_HEADER,
            _MATCH_HEADER,
            _KEY,
            header("anthropic-beta", "handed on to an Anthropic model"),
        ),
        _ASKED,
        headers=_TOLD,
        errors=("AnthropicError",),
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "TokenCount", "chat", "CountRequest", (_BETA,), (*_BODY, 422), errors=("AnthropicError",)
    ),
    ("GET", "/v1/models"): Operation(
        {JSON: {"schema": {"anyOf": [ref("ModelList"), ref("AnthropicModelList")]}}},
        "chat",
        parameters=(
            header("anthropic-version", "answer in the shape of Anthropic's API; the parameters are for that alone"),
            _BETA,
            query("limit", whole(low=1, maximum=PAGE), "most models of the page; 20 unless given"),
            query("after_id", text(), "the `last_id` of the page before"),
            query("before_id", text(), "the `first_id` of the page behind"),
        ),
        failures=(400,),
        errors=("Error", "AnthropicError"),
    ),
    ("GET", _SESSIONS): Operation("SessionList", parameters=(*_PAGING, *_FILTERS), failures=_OF_A_SESSION),
    ("POST", _SESSIONS): Operation("Session", body="NewSession", failures=(*_BODY, 404, 409, 422, 503), status=201),
    ("GET", _ONE): Operation(
        "SessionExport",
        parameters=(
            _USER,
            query("retired", _FLAG, "with the messages that left the live path"),
            query("calls", _FLAG, "with the model calls; needs `retired` too"),
            query("digests", _FLAG, "with what stands for erased messages: by it a guess of one can be confirmed"),
        ),
        failures=_OF_A_SESSION,
    ),
    ("POST", f"{_ONE}/close"): Operation("Session", parameters=(_USER,), failures=_OF_A_SESSION),
    ("POST", f"{_ONE}/fork"): Operation(
        "Session", body="ForkRequest", parameters=(_USER,), failures=(*_BODY, *_OF_A_SESSION), status=201
    ),
    ("POST", f"{_ONE}/move"): Operation(
        "Session", body="MoveRequest", parameters=(_USER,), failures=(*_BODY, *_OF_A_SESSION)
    ),
    ("POST", f"{_ONE}/rewind"): Operation(
        "RewoundSession",
        body="RewindRequest",
        parameters=(_USER, _MATCH),
        failures=(*_BODY, *_OF_A_SESSION, 412),
        headers=_ETAG,
    ),
    ("DELETE", "/v1/users/{user_id}"): Operation("DeletedUser", failures=(*_STORE, 404)),
    **{
        (method, path): operation
        for path, further in (("/v1/users/{user_id}/state", (404,)), ("/v1/state", ()))
        for method, operation in _scope_operations(further).items()
    },
    ("GET", f"{_ONE}/state"): Operation("State", "state", parameters=(_USER,), failures=_OF_A_SESSION, headers=_ETAG),
    ("PATCH", f"{_ONE}/state"): Operation(
        "State", "state", "State", (_USER, _MATCH), (*_BODY, *_OF_A_SESSION, 412, 422), headers=_ETAG
    ),
    ("POST", f"{_ONE}/state"): Operation(
        "StateChanged", "state", "StateOperations", (_USER, _MATCH), (*_BODY, *_OF_A_SESSION, 412, 422), headers=_ETAG
    ),
    ("PUT", _ONE): Operation(
        "ImportedSession", body="SessionImport", parameters=(_USER,), failures=(*_BODY, 404, 422, 503)
    ),
    ("PATCH", _ONE): Operation(
        "Session", body="SessionChanges", parameters=(_USER, _MATCH), failures=(*_BODY, *_OF_A_SESSION, 412, 422)
    ),
    ("DELETE", _ONE): Operation("Deleted", parameters=(_USER,), failures=_OF_A_SESSION),
    ("GET", _MESSAGES): Operation(
        "EntryList",
        "messages",
        parameters=(
            _USER,
            *_PAGING,
            query("after", whole(), "the `last_id` of the page before"),
            query("retired", _FLAG, "with retired entries"),
        ),
        failures=_OF_A_SESSION,
    ),
    ("POST", _MESSAGES): Operation(
        "EntryList",
        "messages",
        "NewMessages",
        (_USER, _KEY, _MATCH),
        (*_BODY, *_OF_A_SESSION, 412, 422),
        headers=_ETAG,
    ),
    ("PATCH", _MESSAGE): Operation("Entry", "messages", "Annotation", (_USER,), (*_BODY, *_OF_A_SESSION)),
    ("DELETE", _MESSAGE): Operation("ErasedEntry", "messages", parameters=(_USER,), failures=_OF_A_SESSION),
    ("POST", f"{_ONE}/context"): Operation("Context", "messages", "ContextRequest", (_USER,), (*_BODY, *_OF_A_SESSION)),
    ("GET", f"{_ONE}/explain"): Operation(
        "Explanation", "messages", parameters=(_USER, *EXPLANATION_PARAMETERS), failures=_OF_A_SESSION
    ),
    ("GET", f"{_ONE}/facts"): Operation("FactList", "facts", parameters=(_USER, *_OF_A_PROMPT), failures=_OF_A_SESSION),
    ("PATCH", f"{_ONE}/facts/{{fact_id}}"): Operation(
        "ChosenFact", "facts", "FactChange", (_USER,), (*_BODY, *_OF_A_SESSION, 413)
    ),
    ("GET", f"{_ONE}/history"): Operation(
        "History",
        "voice",
        parameters=(_USER, query("view", {"type": "string", "enum": ["voice", "plain"]}, "which form")),
        failures=_OF_A_SESSION,
    ),
    ("POST", f"{_ONE}/interrupt"): Operation(
        "Interruption", "voice", "InterruptRequest", (_USER,), (*_BODY, *_OF_A_SESSION, 422), headers=_ETAG
    ),
    ("POST", f"{_ONE}/speak"): Operation(
        "Spoken", "voice", "SpeakRequest", (_USER,), (*_BODY, *_OF_A_SESSION, 422), headers=_ETAG
    ),
    ("POST", _COMPACTIONS): Operation(
        {JSON: {"schema": {"anyOf": [ref("Compaction"), ref("PendingCompaction")]}}},
        "compactions",
        "CompactionRequest",
        (_USER,),
        (*_BODY, *_OF_A_SESSION),
    ),
    ("GET", _COMPACTIONS): Operation(
        "CompactionList",
        "compactions",
        parameters=(_USER, *_PAGING, query("after", whole(), "the `last_id` of the page before")),
        failures=_OF_A_SESSION,
    ),
    ("GET", _COMPACTION): Operation("Compaction", "compactions", parameters=(_USER,), failures=_OF_A_SESSION),
    ("DELETE", _COMPACTION): Operation("DroppedCompaction", "compactions", parameters=(_USER,), failures=_OF_A_SESSION),
    ("GET", _ARTIFACTS): Operation(
        "ArtifactList", "artifacts", parameters=(_USER, _LIMIT, query("after", NAME, _BEFORE)), failures=_OF_A_SESSION
    ),
    ("GET", _ARTIFACT): Operation(
        CONTENT,
        "artifacts",
        parameters=(_USER, _VERSION, *_CONDITIONS),
        failures=(*_OF_A_SESSION, 416),
        headers=_OF_CONTENT,
        others={206: "The range that was asked for.", 304: "It is the one that `If-None-Match` names."},
    ),
    ("PUT", _ARTIFACT): Operation(
        "Artifact",
        "artifacts",
        CONTENT,
        (
            _USER,
            query("metadata", text(), f"a JSON object, at most {ARTIFACT_METADATA_BYTES} bytes"),
            query("author", ID, "who saves it"),
            header("If-Match", "the newest version there must be, or its ETag; `*`: any"),
            header("If-None-Match", "`*`: there must be none of that name"),
        ),
        (*_BODY, *_OF_A_SESSION, 412),
        status=201,
        headers=_OF_ARTIFACT,
    ),
    ("DELETE", _ARTIFACT): Operation(
        "DeletedArtifact", "artifacts", parameters=(_USER, _VERSION), failures=_OF_A_SESSION
    ),
    ("GET", f"{_ARTIFACT}/versions"): Operation(
        "ArtifactVersions",
        "artifacts",
        parameters=(_USER, _LIMIT, query("after", whole(), _BEFORE)),
        failures=_OF_A_SESSION,
    ),
    ("GET", "/v1/search"): Operation(
        "SearchResults", "search", parameters=SEARCH_PARAMETERS, failures=(*_STORE, 404, 502)
    ),
    ("GET", "/v1/index"): Operation("Index", "search", failures=_STORE),
    ("GET", _MEMORIES): Operation("MemoryList", "memories", parameters=MEMORY_PARAMETERS, failures=(*_STORE, 404)),
    ("POST", _MEMORIES): Operation(
        "RememberedMemory", "memories", "NewMemory", (), (*_BODY, 404, 422, 503), 201, _OF_MEMORY, others={200: _MERGED}
    ),
    ("DELETE", _MEMORIES): Operation(
        "ForgottenMemories", "memories", parameters=SOURCE_PARAMETERS, failures=(*_STORE, 404)
    ),
    ("POST", f"{_MEMORIES}/dream"): Operation("Dream", "memories", "DreamRequest", (), (*_BODY, 404, 412, 503)),
    ("GET", f"{_MEMORIES}/diary"): Operation("Diary", "memories", parameters=DIARY_PARAMETERS, failures=(*_STORE, 404)),
    ("GET", _MEMORY): Operation("Memory", "memories", failures=(*_STORE, 404), headers=_OF_MEMORY),
    ("PATCH", _MEMORY): Operation(
        "RememberedMemory",
        "memories",
        "MemoryChanges",
        (header("If-Match", "the version that the memory must be at"),),
        (*_BODY, 404, 412, 422, 503),
        headers=_OF_MEMORY,
    ),
    ("DELETE", _MEMORY): Operation("ForgottenMemories", "memories", failures=(*_STORE, 404)),
    ("POST", f"{_MEMORY}/review"): Operation(
        "Memory", "memories", "MemoryReview", (), (*_BODY, 404, 503), headers=_OF_MEMORY
    ),
    ("GET", "/v1/workspaces/{agent}/history"): Operation(
        "WorkspaceHistory",
        "workspaces",
        parameters=(
            query("limit", whole(low=1, maximum=WORKSPACE_HISTORY), "most commits; 10 unless given"),
            query("diff", _FLAG, "with what changed from the oldest of them to the newest"),
        ),
        failures=(*_STORE, 404),
    ),
    ("POST", "/v1/workspaces/{agent}/checkpoint"): Operation(
        "Checkpoint", "workspaces", "CheckpointRequest", failures=(*_BODY, 404, 422, 503)
    ),
    ("GET", "/sessions"): Operation(
        "ShortSessions", "short form", parameters=(*_PAGING, *_FILTERS), failures=_OF_A_SESSION
    ),
    ("GET", "/sessions/{session_id}"): Operation(
        "ShortSessionWhole", "short form", parameters=(_USER,), failures=_OF_A_SESSION
    ),
    ("DELETE", "/sessions/{session_id}"): Operation(
        "Deleted", "short form", parameters=(_USER,), failures=_OF_A_SESSION
    ),
    ("GET", "/healthz"): Operation("Health", "server"),
    ("GET", "/readyz"): Operation("Health", "server", failures=(503,)),
    ("GET", "/metrics"): Operation({"text/plain": {"schema": text()}}, "server"),
    ("GET", "/openapi.json"): Operation({JSON: {"schema": {"type": "object", "additionalProperties": True}}}, "server"),
    ("GET", "/docs"): Operation(_PAGE, "server"),
    ("GET", "/"): Operation({JSON: {"schema": ref("Home")}, **_PAGE}, "server"),
}


def parameters_of(path: str) -> Mapping[str, frozenset[str]]:
    """The names of the query parameters that a path of the API takes, by method; of a page or a probe nothing is said."""
    if not path.startswith(("/v1/", "/sessions")):
        return {}
    return {
        method: frozenset(one["name"] for one in operation.parameters if one["in"] == "query")
        for (method, of), operation in OPERATIONS.items()
        if of == path and (method, of) not in DOORS
    }
