"""Every error Holdfast raises, split by what the caller can do about it.

HoldfastError
├── UsageError                 the caller's input is wrong; the same call will fail again
│   ├── InvalidRequest         a parameter that is not one (`param` names it)
│   │   ├── InvalidMessage     a message, entry or transcript that is not one (`param` says which)
│   │   │   └── InvalidMetadata    its voice fields are none: source, interrupted, interrupt_timestamp, original
│   │   ├── HeardMismatch      what is said to have been heard is no beginning of what was said
│   │   ├── MissingState       an agent's template needs state or an artifact that is not there; names key and agent
│   │   ├── TooLarge           a limit was passed; names the limit and its number
│   │   ├── SecretBlocked      a message holds a secret and `secret_guard` refuses it; names rule and place
│   │   └── UnsupportedType    a media type that is not taken, or that the content contradicts
│   ├── ConfigError            configuration: every mistake at once, each with its place
│   └── MissingExtra           a driver is not installed; names the extra to install
├── NotFound                   nothing under that id for this tenant and user
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
│   ├── AmbiguousSession       several users have a session of that id; name the user
│   ├── StaleSession           `expect` is behind the log
│   ├── SessionExpired         idle for longer than its ttl, and not ended yet; only stores raise it
│   ├── SessionBusy            a turn of it is open; says until when at most
│   ├── TurnInterrupted        a newer turn took this one's place; what had arrived is in the log
│   ├── TurnLost               another server took the session over; nothing more of this turn is in the log
│   ├── NoReply                there is no reply that could be interrupted, or another one is the last
│   ├── CallsOpen              tool calls wait for their results; nothing can be said between
│   ├── StaleArtifact          the newest version of an artifact is not the expected one
│   ├── StaleMemories          an owner's memories changed in between
│   ├── StaleState             state of a scope, or one value of it, is not what the write expected
│   └── IdempotencyConflict    the same key with different content
├── BudgetTooSmall             no legal working set fits; says what is needed
├── ModelError                 the upstream model; the user's message stays in the log
│   ├── ModelUnavailable       refused, unreachable, timed out, 5xx: try again later
│   │   └── ModelBusy          as many calls of it run as are allowed: try again soon
│   ├── ModelRejected          the upstream said no (4xx): its own words in `body`
│   │   └── ContextTooLong     the prompt is over the model's window: send less; says the limit if known
│   └── ModelProtocolError     the upstream answered with something that is not an answer
│       └── ModelReplyTooLarge the upstream's reply is larger than a reply may be
├── EmbeddingFailed            no vectors: says whether to try again, and which texts are refused for good
├── RerankFailed               no scores from the reranker; a search keeps its own order
├── HookFailed                 a hook could not do its work: it is told again
├── PythonUnavailable          the process of the tool `python` cannot be started here, or not be held in
├── WorkspaceUnavailable       an agent's workspace cannot be used: try again later
│   └── WorkspaceUnusable      not before somebody changes something there
│       └── GitMissing         there is no git program, or too old a one
├── ToolFailed                 a tool that is somebody else's server failed; told to the model, and no turn ends by it
└── StoreError                 the store could not do its work
    ├── StoreUnavailable       cannot be opened or reached, disk full, read-only
    ├── StoreCorrupt           what is stored does not verify
    └── StoreClosed            used before it was opened, or after close
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
]
