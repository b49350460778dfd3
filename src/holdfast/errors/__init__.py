"""Define all errors that Holdfast raises. They are grouped by the reaction that they allow.

HoldfastError
├── UsageError                 wrong input of the caller; the same call will fail again
│   ├── InvalidRequest         a parameter is not valid; `param` names it
│   │   ├── InvalidMessage     a message, entry or transcript is not valid; `param` names the part
│   │   │   └── InvalidMetadata    voice fields of a message are not valid: source, interrupted, interrupt_timestamp, original
│   │   ├── HeardMismatch      the text reported as heard is not the beginning of the spoken text
│   │   ├── MissingState       an agent's template needs state or an artifact that does not exist; names key and agent
│   │   ├── TooLarge           a limit was exceeded; names the limit and its value
│   │   ├── SecretBlocked      a message contains a secret, and `secret_guard` blocks it; names rule and place
│   │   └── UnsupportedType    the content does not have its media type
│   ├── ConfigError            the configuration has mistakes; lists all of them with their places
│   ├── WrongEventLoop         a `Holdfast` is used in another event loop than the one that opened it
│   └── MissingExtra           a library of an optional extra is not installed; names the extra
├── NotFound                   the id does not exist for this tenant and user
│   ├── SessionNotFound
│   ├── EntryNotFound
│   ├── FactNotFound
│   ├── EndingNotFound
│   ├── CompactionNotFound
│   ├── CallNotFound
│   ├── ArtifactNotFound
│   ├── MemoryNotFound
│   ├── RecordNotFound
│   ├── WorkspaceNotFound
│   ├── UserNotFound
│   └── KeyNotFound
├── Conflict                   the state is not the one that the call expected; read it again, then decide
│   ├── SessionExists
│   ├── AmbiguousSession       several users have a session with that id; name the user
│   ├── StaleSession           the session is not at the expected version
│   ├── SessionExpired         the session was idle longer than its ttl, but has not been ended yet; only stores raise it
│   ├── SessionBusy            another turn of the session is running; `until` is the time at which its claim expires
│   ├── TurnInterrupted        a newer turn interrupted this one; the part of the reply that had arrived is in the log
│   ├── TurnLost               another server took over the session; the rest of this turn is not in the log
│   ├── NoReply                there is no reply to interrupt, or the last reply belongs to another turn
│   ├── CallsOpen              results of tool calls are missing, and must be sent first
│   ├── StaleArtifact          the newest version of an artifact is not the expected one
│   ├── StaleMemories          another write has changed the owner's memories
│   ├── StaleRecord            a record does not have the version that the write expected
│   ├── StaleState             a state value, or the version of a scope, is not the one that the write expected
│   ├── TurnGone               the turn of an idempotency key is no longer part of the conversation
│   ├── ResultExists           a tool call has another result already
│   └── IdempotencyConflict    the idempotency key was used before with different content
├── BudgetTooSmall             no valid prompt fits the token budget; says how many tokens are needed
├── ModelError                 a call of the upstream model failed; the user's message stays in the log
│   ├── ModelUnavailable       the upstream refused the connection, timed out or answered 5xx; try again later
│   │   └── ModelBusy          the maximum number of calls of this model is running; try again soon
│   ├── ModelRejected          the upstream rejected the request (4xx); its error object is in `body`
│   │   └── ContextTooLong     the prompt exceeds the model's context window; send less; says the limit if known
│   └── ModelProtocolError     the upstream's response is not a valid answer
│       └── ModelReplyTooLarge the upstream's reply is too large
├── EmbeddingFailed            the embedding model returned no vectors; says if trying again may help, and for which texts it will not
├── RerankFailed               the reranker returned no scores; the search keeps its own order
├── HookFailed                 a hook failed; it will be called again
├── PythonUnavailable          the process of the tool `python` cannot be started or sandboxed on this machine
├── WorkspaceUnavailable       an agent's workspace cannot be used; try again later
│   └── WorkspaceUnusable      an agent's workspace cannot be used until someone repairs it
│       └── GitMissing         the git program is missing or too old
├── ServerError                the server of `holdfast.connect` refused a call, or its answer is not one of Holdfast
│   └── ServerUnavailable      the server cannot be reached, or did not answer in time; try again later
├── ToolFailed                 a tool of another server failed; the model gets the message, and the turn continues
└── StoreError                 the store failed
    ├── StoreUnavailable       the store cannot be opened or reached, its disk is full, or it is read-only
    ├── StoreCorrupt           stored data is damaged
    └── StoreClosed            the store was used before it was opened, or after it was closed
"""

from __future__ import annotations

from holdfast.errors.base import HoldfastError
from holdfast.errors.caller import (
    ConfigError,
    HeardMismatch,
    InvalidMessage,
    InvalidMetadata,
    InvalidRequest,
    MissingExtra,
    MissingState,
    SecretBlocked,
    TooLarge,
    UnsupportedType,
    UsageError,
    WrongEventLoop,
)
from holdfast.errors.conflicts import (
    AmbiguousSession,
    CallsOpen,
    Conflict,
    IdempotencyConflict,
    NoReply,
    ResultExists,
    SessionBusy,
    SessionExists,
    SessionExpired,
    StaleArtifact,
    StaleMemories,
    StaleRecord,
    StaleSession,
    StaleState,
    TurnGone,
    TurnInterrupted,
    TurnLost,
)
from holdfast.errors.environment import (
    GitMissing,
    HookFailed,
    PythonUnavailable,
    ServerError,
    ServerUnavailable,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    ToolFailed,
    WorkspaceUnavailable,
    WorkspaceUnusable,
)
from holdfast.errors.models import (
    BudgetTooSmall,
    ContextTooLong,
    EmbeddingFailed,
    ModelBusy,
    ModelError,
    ModelProtocolError,
    ModelRejected,
    ModelReplyTooLarge,
    ModelUnavailable,
    RerankFailed,
)
from holdfast.errors.not_found import (
    ArtifactNotFound,
    CallNotFound,
    CompactionNotFound,
    EndingNotFound,
    EntryNotFound,
    FactNotFound,
    KeyNotFound,
    MemoryNotFound,
    NotFound,
    RecordNotFound,
    SessionNotFound,
    UserNotFound,
    WorkspaceNotFound,
)

__all__ = [
    "AmbiguousSession",
    "ArtifactNotFound",
    "BudgetTooSmall",
    "CallNotFound",
    "CallsOpen",
    "CompactionNotFound",
    "ConfigError",
    "Conflict",
    "ContextTooLong",
    "EmbeddingFailed",
    "EndingNotFound",
    "EntryNotFound",
    "FactNotFound",
    "GitMissing",
    "HeardMismatch",
    "HoldfastError",
    "HookFailed",
    "IdempotencyConflict",
    "InvalidMessage",
    "InvalidMetadata",
    "InvalidRequest",
    "KeyNotFound",
    "MemoryNotFound",
    "MissingExtra",
    "MissingState",
    "ModelBusy",
    "ModelError",
    "ModelProtocolError",
    "ModelRejected",
    "ModelReplyTooLarge",
    "ModelUnavailable",
    "NoReply",
    "NotFound",
    "PythonUnavailable",
    "RecordNotFound",
    "RerankFailed",
    "ResultExists",
    "SecretBlocked",
    "ServerError",
    "ServerUnavailable",
    "SessionBusy",
    "SessionExists",
    "SessionExpired",
    "SessionNotFound",
    "StaleArtifact",
    "StaleMemories",
    "StaleRecord",
    "StaleSession",
    "StaleState",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreUnavailable",
    "TooLarge",
    "ToolFailed",
    "TurnGone",
    "TurnInterrupted",
    "TurnLost",
    "UnsupportedType",
    "UsageError",
    "UserNotFound",
    "WorkspaceNotFound",
    "WorkspaceUnavailable",
    "WorkspaceUnusable",
    "WrongEventLoop",
]
