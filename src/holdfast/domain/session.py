"""Sessions and their parts: log entries, claims, model calls, compactions, endings. `holdfast.domain.log` appends to logs."""

from __future__ import annotations

from sys import getsizeof
from typing import Any, Final, Literal

import msgspec

from holdfast.domain.messages import GENESIS, SYSTEM_ROLES, Message
from holdfast.errors import StoreCorrupt

Kind = Literal["system", "user", "assistant", "calls", "result"]
"""Role of an entry in its log: `calls` is an assistant message with tool calls, `result` a tool message, `system` includes
`developer`."""
CompactionKind = Literal["summary", "digest"]
"""A summary is written by a model; a digest is made without a model."""
CompactionStatus = Literal["live", "superseded", "dropped", "dead", "failed"]
"""`live`: used by its view; `superseded`: included in a later one; `dropped`: removed on request; `dead`: an entry of its range
was retired or erased; `failed`: an attempt without a result."""
EndReason = Literal["ttl", "cap", "delete", "close", "shutdown"]
"""Why a session ended: idle for too long, too many active sessions, deleted, closed on request, or the server stopped."""
ERASED = "[erased]"
"""The content of an erased entry."""
HAND_OVER: Final = "hand_over"
"""The call that ends an agent's text in a workflow that other agents continue. No model made this call, and no client sees it."""
STEP: Final = "step"
"""Key of the `metadata` of entries of such an agent: the agent's name. The client received none of these entries."""
BRANCH: Final = "branch"
"""Key of the `metadata` of entries written in parallel with others: workflows and agents down to the author, joined by dots."""
JOINED: Final = "joined"
"""Key of the `metadata` of entries in a branch: true if their text becomes part of a reply that joins several branches. Outside
the branch, that reply is shown instead. Each unit has this key, not only the last one, because a view decides about a unit once,
see `holdfast.context.agent_view`."""
CHILD: Final = "child"
"""Key of the `metadata` of the result of an agent that was called like a tool: id of the session in which it worked."""
PARENT: Final = "parent"
"""Key of the `metadata` of such a session: the place of the call (`session_id`, `seq` of the calling message, `call_id`)."""
_CHILD_MARK: Final = "~call"
TRANSFER: Final = "transfer_to_agent"
"""The tool with which a model transfers the conversation to another agent."""
TRANSFERRED: Final = "transfer"
"""Key of the `metadata` of the result of a successful `TRANSFER`: the agent that answers from there on."""
DEFAULT_USER: Final = "default"
"""The user of requests that do not name one."""


class SessionRef(msgspec.Struct, frozen=True, gc=False):
    """The user and id of a session. The tenant is that of the store handle."""

    user_id: str
    id: str
    withdrawn: str = ""
    """Id of the ending for which the session gave up its name. The session is deleted after its hooks were notified. Empty: it
    still has its name."""


def make_child_id(name: str) -> str:
    """Return an id for the session of an agent that is called like a tool."""
    return name + _CHILD_MARK


def is_child(ref: SessionRef) -> bool:
    """Return True if the id is that of such a session. Requests without a session id are never matched with one."""
    return ref.id.endswith(_CHILD_MARK)


class Entry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message in the log, with values that were computed when it was written."""

    seq: int
    """Position in the log: from 0, without gaps, assigned by the store."""
    turn_id: int
    """The turn of the entry, counted from 0."""
    unit: int
    """`seq` of the first entry of its unit: its own `seq`, or that of the assistant message whose call it answers."""
    timestamp: int
    """Milliseconds since the epoch; never used for ordering."""
    tokens: int
    """Tokens of the message, o200k."""
    total: int
    """Tokens of the live path up to and including this entry."""
    digest: bytes
    """Digest, chained to the last visible message before the entry; see `holdfast.domain.log.extend`."""
    message: Message
    metadata: dict[str, Any] | None = None
    agent: str | None = None
    importance: float | None = None
    pinned: bool = False
    retired_by: int | None = None
    """`seq` of the entry that replaced it; None while it is live."""
    erased: bool = False
    """True if its content was erased on request; the digest remains."""
    alias: bytes | None = None
    """See `holdfast.domain.messages.make_alias`. Only set when an entry is written; stores do not return it."""

    @property
    def kind(self) -> Kind:
        """Role of the entry in its log."""
        return get_kind(self.message)


class NewEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message that is about to be appended."""

    message: Message
    tokens: int
    """o200k tokens, counted by the caller; a store does not count."""
    timestamp: int
    metadata: dict[str, Any] | None = None
    agent: str | None = None
    importance: float | None = None
    pinned: bool = False
    turn_id: int | None = None
    """None: computed; a user message begins the next turn, unless it follows another user message."""
    media: tuple[bytes, ...] = ()
    """SHA-256 of each content that the message refers to, in order; see `holdfast.stores.log`."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The right to run a turn of a session, held by a turn on any server."""

    holder: str
    """A unique identifier."""
    until: int
    """End in milliseconds since the epoch. After it another holder may take the claim, unless it was renewed."""
    wanted: bool = False
    """True if the holder was asked to stop."""


class ModelCall(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The prompt of one model call, and its usage as the provider reported it."""

    model: str
    timestamp: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Part of `prompt_tokens` that the provider read from its cache."""
    turn_id: int = 0
    """The turn that made the call."""
    through: int = -1
    """`seq` of the last entry that the prompt was built from; -1: none."""
    view: str = ""
    """Key of the view that built its prompt; empty: none."""
    hash: bytes = b""
    """Hash of the exact messages that were sent, 16 bytes; empty: unknown."""
    build: bytes = b""
    """How its prompt was built: budget arithmetic, policy, prefix report. Opaque to a store; contains no content of messages."""


class CompactionFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that new and stored compactions have in common."""

    view: str
    """Key of its view."""
    first: int
    last: int
    """`seq` of the first and the last entry of its range; `last` is on the live path when it is created. Includes the range of
    the previous compaction."""
    kind: CompactionKind
    text: str
    """The text that replaces the range; for a failed attempt, its output, which is usually empty. Like `report`, the text is
    removed when an entry of the range is erased.
    """
    tokens: int
    """Tokens of the text."""
    source_tokens: int
    """Tokens of its source."""
    total: int
    """Running total of the live path through entry `last`."""
    model: str | None = None
    """The model that wrote it; None: no model."""
    created_at: int
    """Milliseconds since the epoch."""
    through: int
    """`seq` of the log's last entry when the compaction was created."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Tokens that the model used for it."""
    report: dict[str, Any] | None = None
    """The quality of the text, if known. The report may quote content, so it is deleted together with the text."""
    error: str | None = None
    """A short reason, without secrets, if this is a failed attempt."""


class NewCompaction(CompactionFields, frozen=True, kw_only=True):
    """A compaction that is about to be stored for a range of the log; with `error`, a failed attempt at a compaction."""

    built_at: int | None = None
    """The session's version when the source was read; see `holdfast.stores.base`. None: the compaction is made in the write that
    stores it. Stores do not return it.
    """


class StoredCompaction(CompactionFields, frozen=True, kw_only=True):
    """A compaction in a store."""

    id: int
    """Assigned per session from 1, without gaps, and never reused."""
    status: CompactionStatus


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Sums over a session's model calls."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def add(self, call: ModelCall) -> Usage:
        """Return the sums with `call` added."""
        return Usage(
            self.calls + 1,
            self.prompt_tokens + call.prompt_tokens,
            self.completion_tokens + call.completion_tokens,
            self.cached_tokens + call.cached_tokens,
        )


class Tail(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The data about a log that appending to it needs."""

    next_seq: int = 0
    turn_id: int = -1
    total: int = 0
    digest: bytes = GENESIS
    """The chain up to the last live visible message."""
    last_seq: int = -1
    """The last live entry; -1 if there is none."""
    last_kind: Kind | None = None
    unit: int = -1
    """The unit that can still get results: the last assistant message with tool calls; -1 if there is none."""
    open_calls: tuple[str, ...] = ()
    """Ids of that unit's calls that have no result yet; an id may occur more than once."""
    anchor: int | None = None
    """`seq` of the first live user message: the task anchor."""


class Session(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A session without its log, which a store keeps in one row."""

    tenant: str
    user_id: str
    id: str
    agent: str | None = None
    version: int = 0
    """Grows by one with every write to the session."""
    created_at: int
    updated_at: int
    """Milliseconds since the epoch."""
    accessed_at: int = 0
    """When the session was last written to, or used without a write, in milliseconds since the epoch. Idle time starts then."""
    status: Literal["active", "closed"] = "active"
    ended_at: int | None = None
    """When the session was closed, in milliseconds since the epoch."""
    end_reason: EndReason | None = None
    system_messages: tuple[Message, ...] = ()
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    state_turns: dict[str, int] = msgspec.field(default_factory=dict)
    """The turn that last wrote each key of the state, -1 for before the first; keys without a known turn are missing."""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    ttl: int | None = None
    """Milliseconds of idle time after which the session ends; 0: never; None: the server's setting."""
    withdrawn: str = ""
    """As in `SessionRef.withdrawn`."""
    identity: str = ""
    """Assigned at creation. A later session with the same name has another identity."""
    reshaped: int = 0
    """The version at which existing entries were last retired, erased or pinned. Since then, entries were only appended."""
    claim: Claim | None = None
    """The claim of a running turn; it may have expired."""
    messages: int = 0
    """Number of live entries."""
    bytes: int = 0
    """Payload bytes of all entries, including retired ones."""
    usage: Usage = Usage()
    tail: Tail
    damaged: tuple[str, ...] = ()
    """Names of fields that could not be decoded and are empty here. Such a session can be listed, ended and deleted, and a write
    that replaces these fields repairs it; everything else raises `StoreCorrupt`.
    """

    @property
    def ref(self) -> SessionRef:
        """The reference to this session."""
        return SessionRef(self.user_id, self.id, self.withdrawn)

    def require_intact(self) -> Session:
        """Return the session itself. Raises `StoreCorrupt` if one of its fields could not be decoded."""
        if self.damaged:
            fields = ", ".join(self.damaged)
            raise StoreCorrupt(f"{fields} damaged: cannot be decoded").with_session(self.user_id, self.id)
        return self

    def is_expired(self, now: int, ttl: int | None) -> bool:
        """Return True if the session is stored as active, but has been idle for too long.

        Args:
            now: milliseconds since the epoch.
            ttl: milliseconds for a session without its own `ttl`; None or 0: such a session never expires.
        """
        own = ttl if self.ttl is None else self.ttl
        return self.status == "active" and bool(own) and now - self.accessed_at >= (own or 0)

    def get_state_at(self, turn: int) -> dict[str, Any]:
        """Return the state at the end of a turn, without keys that were written later: their old values are not stored."""
        if turn >= self.tail.turn_id:
            return self.state
        return {key: value for key, value in self.state.items() if self.state_turns.get(key, turn + 1) <= turn}

    @property
    def turns(self) -> int:
        """Turns of the live log, including those before an edit."""
        return self.tail.turn_id + 1

    @property
    def tokens(self) -> int:
        """Tokens of the live path, o200k."""
        return self.tail.total


class RemovalCounts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Counts of everything that was deleted with a session, taken in the same transaction."""

    messages: int
    """Messages on the live path."""
    retired: int
    """Retired messages."""
    bytes: int
    """Payload bytes of all messages."""
    compactions: int
    """Compactions of any status; their texts are deleted too."""
    views: int
    model_calls: int
    idempotency_keys: int
    state_keys: int
    artifacts: int
    """Versions of artifacts; `blobs_in_use` finds their contents."""
    artifact_bytes: int
    media: int = 0
    media_bytes: int = 0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a session that hooks must be notified of."""

    id: str
    """Identifies the delivery, and stays the same for every attempt."""
    user_id: str
    session_id: str
    identity: str = ""
    """`Session.identity` of the session that ended, recorded by the store with the ending."""
    withdrawn: bool
    """True if the session gave up its name, and is deleted once all hooks were notified."""
    reason: EndReason
    ended_at: int
    """Milliseconds since the epoch."""
    due_at: int
    """Time of the next attempt, in milliseconds since the epoch."""
    attempts: int = 0
    """How often a hook failed."""
    hooks: tuple[str, ...] = ()
    """Hooks that were not notified yet, in order."""
    error: str | None = None
    """Why the last attempt failed."""

    @property
    def ref(self) -> SessionRef:
        """The current reference to the session that ended."""
        return SessionRef(self.user_id, self.session_id, self.id if self.withdrawn else "")


def get_kind(message: Message) -> Kind:
    """Return the kind of a message in a log; see `Kind`."""
    if message.role == "tool":
        return "result"
    if message.tool_calls:
        return "calls"
    return "system" if message.role in SYSTEM_ROLES else message.role  # type: ignore[return-value]  # user, assistant


# -- estimates of memory use; checked by `make bench ARGS="footprint"` ----

_MESSAGE_BYTES: Final = 210
"""A message without its text, with its digest and its entry in an index."""
_PART_BYTES: Final = 200
_CALL_BYTES: Final = 350
_ITEM_BYTES: Final = 100
"""A key of an object, or an index of a list, and a small value."""
_SESSION_BYTES: Final = 2_000


def estimate_text_bytes(text: str) -> int:
    """Return the bytes of a text. A text that is not ASCII also caches its UTF-8 form after it was written as JSON."""
    if text.isascii():
        return 50 + len(text)
    return getsizeof(text[1:]) + len(text.encode(errors="surrogatepass"))


def estimate_value_bytes(value: Any) -> int:
    """Return the bytes of a JSON value."""
    if isinstance(value, str):
        return estimate_text_bytes(value)
    if isinstance(value, dict):
        return _ITEM_BYTES + sum(_ITEM_BYTES + len(key) + estimate_value_bytes(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return _ITEM_BYTES + sum(8 + estimate_value_bytes(one) for one in value)
    return 32


def estimate_message_bytes(message: Message) -> int:
    """Return the bytes of a message."""
    size, content = _MESSAGE_BYTES, message.content
    if isinstance(content, str):
        size += 50 + len(content) if content.isascii() else estimate_text_bytes(content)
    elif isinstance(content, tuple):
        for part in content:
            size += (
                _PART_BYTES
                + estimate_text_bytes(part.text or "")
                + (estimate_value_bytes(part.extra) if part.extra else 0)
            )
    for call in message.tool_calls:
        size += _CALL_BYTES + estimate_text_bytes(call.arguments) + len(call.id) + len(call.name)
    if message.extra:
        size += estimate_value_bytes(message.extra)
    return size


def estimate_session_bytes(session: Session) -> int:
    """Return the estimated bytes of a session, not counting its log."""
    size = _SESSION_BYTES + sum(estimate_message_bytes(one) for one in session.system_messages)
    for fields in (session.state, session.state_turns, session.metadata):
        if fields:
            size += estimate_value_bytes(fields)
    return size
