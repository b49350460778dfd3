"""Define every error that Holdfast raises, grouped by what the caller can do about it.

HoldfastError
├── UsageError                 the caller's input is wrong; the same call will fail again
│   ├── InvalidRequest         a parameter is not valid (`param` names it)
│   │   ├── InvalidMessage     a message, entry or transcript is not valid (`param` says which)
│   │   │   └── InvalidMetadata    its voice fields are not valid: source, interrupted, interrupt_timestamp, original
│   │   ├── HeardMismatch      the reported heard text is not a prefix of the spoken text
│   │   ├── MissingState       an agent's template needs state or an artifact that does not exist; names key and agent
│   │   ├── TooLarge           a limit was exceeded; names the limit and its value
│   │   ├── SecretBlocked      a message contains a secret and `secret_guard` blocks it; names rule and place
│   │   └── UnsupportedType    a media type is not accepted, or the content contradicts it
│   ├── ConfigError            the configuration has mistakes; lists all, each with its place
│   ├── WrongEventLoop         a `Holdfast` is used in another event loop than the one that opened it
│   └── MissingExtra           a driver is not installed; names the extra to install
├── NotFound                   the id does not exist for this tenant and user
│   ├── SessionNotFound
│   ├── EntryNotFound
│   ├── FactNotFound
│   ├── EndingNotFound
│   ├── CompactionNotFound
│   ├── ArtifactNotFound
│   ├── MemoryNotFound
│   ├── WorkspaceNotFound
│   ├── UserNotFound
│   └── KeyNotFound
├── Conflict                   the state is not what the call assumed; read again, then decide
│   ├── SessionExists
│   ├── AmbiguousSession       several users have a session with that id; name the user
│   ├── StaleSession           `expect` is not the current version
│   ├── SessionExpired         idle longer than its ttl, and not ended yet; only stores raise it
│   ├── SessionBusy            another turn of it is running; says until when at most
│   ├── TurnInterrupted        a newer turn interrupted this one; what had arrived is in the log
│   ├── TurnLost               another server took over the session; the rest of this turn is not in the log
│   ├── NoReply                there is no reply to interrupt, or the last reply belongs to another turn
│   ├── CallsOpen              tool calls wait for their results, which must be sent first
│   ├── StaleArtifact          the newest version of an artifact is not the expected one
│   ├── StaleMemories          an owner's memories were changed in between
│   ├── StaleState             the state of a scope, or one value, is not what the write expected
│   └── IdempotencyConflict    the same key with different content
├── BudgetTooSmall             no legal working set fits; says what is needed
├── ModelError                 the upstream model; the user's message stays in the log
│   ├── ModelUnavailable       refused, unreachable, timed out, 5xx: try again later
│   │   └── ModelBusy          the maximum number of its calls is running: try again soon
│   ├── ModelRejected          the upstream rejected the request (4xx): its own message is in `body`
│   │   └── ContextTooLong     the prompt exceeds the model's window: send less; says the limit if known
│   └── ModelProtocolError     the upstream answered with something that is not a valid answer
│       └── ModelReplyTooLarge the upstream's reply is too large
├── EmbeddingFailed            no vectors: says whether to try again, and which texts will never succeed
├── RerankFailed               no scores from the reranker; a search keeps its own order
├── HookFailed                 a hook failed; it will be called again
├── PythonUnavailable          the process of the tool `python` cannot be started or sandboxed here
├── WorkspaceUnavailable       an agent's workspace cannot be used: try again later
│   └── WorkspaceUnusable      it cannot be used until someone repairs it
│       └── GitMissing         the git program is missing or too old
├── ToolFailed                 a tool of another server failed; reported to the model, and the turn continues
└── StoreError                 the store failed
    ├── StoreUnavailable       cannot be opened or reached, disk full, read-only
    ├── StoreCorrupt           stored data does not verify
    └── StoreClosed            used before it was opened, or after it was closed
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
    SessionBusy,
    SessionExists,
    SessionExpired,
    StaleArtifact,
    StaleMemories,
    StaleSession,
    StaleState,
    TurnInterrupted,
    TurnLost,
)
from holdfast.errors.environment import (
    GitMissing,
    HookFailed,
    PythonUnavailable,
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
    CompactionNotFound,
    EndingNotFound,
    EntryNotFound,
    FactNotFound,
    KeyNotFound,
    MemoryNotFound,
    NotFound,
    SessionNotFound,
    UserNotFound,
    WorkspaceNotFound,
)

__all__ = [
    "AmbiguousSession",
    "ArtifactNotFound",
    "BudgetTooSmall",
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
    "RerankFailed",
    "SecretBlocked",
    "SessionBusy",
    "SessionExists",
    "SessionExpired",
    "SessionNotFound",
    "StaleArtifact",
    "StaleMemories",
    "StaleSession",
    "StaleState",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreUnavailable",
    "TooLarge",
    "ToolFailed",
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
