"""Sessions and their parts: log entries, claims, model calls, compactions, endings.

`holdfast.domain.log` appends entries to logs.
"""

from __future__ import annotations

import re
from sys import getsizeof
from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast.domain.messages import GENESIS, NOTE, SYSTEM_ROLES, Message
from holdfast.domain.objects import Count, Id, JsonObject, Time, json_schema
from holdfast.errors import StoreCorrupt
from holdfast.limits import METADATA_BYTES, STATE_BYTES

State = Annotated[JsonObject, json_schema(description=f"free, at most {STATE_BYTES} bytes")]
Metadata = Annotated[JsonObject, json_schema(description=f"free, at most {METADATA_BYTES} bytes")]
Ttl = Annotated[
    int | None,
    json_schema(
        description="milliseconds of idleness after which the session ends; 0: never; null: the server's setting",
        minimum=0,
    ),
]
Kind = Literal["system", "user", "assistant", "calls", "result", "note"]
"""Kind of an entry: `calls` is an assistant message with tool calls, `result` is a tool message, `system` includes
the role `developer`, and `note` is an entry that is not a message."""
CompactionKind = Literal["summary", "digest"]
"""A model writes a summary. A digest is made without a model."""
CompactionStatus = Literal["live", "superseded", "dropped", "dead", "failed"]
"""Status of a compaction:

- `live`: its view uses it.
- `superseded`: a later compaction includes it.
- `dropped`: it was removed on request.
- `dead`: an entry of its range was retired or erased.
- `failed`: the attempt had no result.
"""
EndReason = Literal["ttl", "cap", "delete", "close", "shutdown"]
"""Reason why a session ended:

- `ttl`: it was idle for too long.
- `cap`: there were too many active sessions.
- `delete`: it was deleted.
- `close`: it was closed on request.
- `shutdown`: the server stopped.
"""
ERASED = "[erased]"
"""Content that replaces the content of an erased entry."""
HAND_OVER: Final = "hand_over"
"""Tool name in a call that Holdfast adds after an agent's text in a workflow, if another agent takes over after it.

No model made this call, and no client sees it.
"""
STEP: Final = "step"
"""Key in the `metadata` of entries of an agent whose text other agents of a workflow continue: the agent's name. The
client received none of these entries."""
BRANCH: Final = "branch"
"""Key in the `metadata` of entries that were written in parallel with others: the names of the workflows and agents
down to the author, joined by dots."""
JOINED: Final = "joined"
"""Key in the `metadata` of entries in a branch: true if their text becomes part of a reply that joins several branches.

Agents outside the branch see that reply instead. Every unit of the branch has this key, not only the last one, because
a view decides about each unit separately; see `holdfast.context.agent_view`.
"""
UNPLACED: Final = "unplaced_"
"""Beginning of the ids of unplaced sessions. Statements of the stores have it, too."""
SCOPE: Final = "scope"
"""Key in the `metadata` of a session: the id that a program gave all the requests among which this session's were."""
UNDELIVERED: Final = "undelivered"
"""Key in the `metadata` of a reply: true if it could not be sent to its end, because its client had disconnected."""
CHILD: Final = "child"
"""Key in the `metadata` of the result of an agent that was called like a tool: id of the session in which the agent
worked."""
PARENT: Final = "parent"
"""Key in the `metadata` of the session in which a called agent works: the position of the call, as `session_id`, `seq`
of the calling message, and `call_id`."""
_CHILD_MARK: Final = "~call"
_CONVERSATION: Final = re.compile("conv_[0-9a-f]{32}")
TRANSFER: Final = "transfer_to_agent"
"""Name of the tool with which a model transfers the conversation to another agent."""
TRANSFERRED: Final = "transfer"
"""Key in the `metadata` of the result of a successful `TRANSFER`: the agent that answers from there on."""
SPEAKER: Final = "user"
"""Key in a message's metadata: id of its author, if this is not the session's user."""
DEFAULT_USER: Final = "default"
"""The user of requests that do not name one."""


class SessionRef(msgspec.Struct, frozen=True, gc=False):
    """The user and id of a session. The store handle determines the tenant."""

    user_id: str
    id: str
    withdrawn: str = ""
    """Id of the session's `Ending`, if the session is withdrawn: a new session may use its id. Empty: it is not withdrawn.

    A withdrawn session is deleted after the hooks were notified.
    """


def make_child_id(name: str) -> str:
    """Return an id for the session of an agent that is called like a tool. The id begins with `name`."""
    return name + _CHILD_MARK


def is_child(ref: SessionRef) -> bool:
    """Return True if the id shows that the session belongs to an agent that is called like a tool."""
    return ref.id.endswith(_CHILD_MARK)


def is_unplaced(ref: SessionRef) -> bool:
    """Return True if the id shows that nobody can be said to have begun the session; see docs/placing.md.

    Such a session is in no list unless asked for, is never searched or matched, and is deleted soon after its last use.
    """
    return ref.id.startswith(UNPLACED)


def is_searchable(ref: SessionRef) -> bool:
    """Return True if the messages of the session are indexed."""
    return not (is_child(ref) or is_unplaced(ref))


def is_always_named(ref: SessionRef) -> bool:
    """Return True if only requests that name the session belong to it: its messages are not compared with those of other requests.

    This applies to sessions of agents that are called like tools, to unplaced ones, and to conversations of OpenAI's Conversations API. A client that sends
    the items of its conversation without naming it writes the reply to the conversation itself.
    """
    return not is_searchable(ref) or _CONVERSATION.fullmatch(ref.id) is not None


class Entry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message in the log, with values that were computed when the message was written."""

    seq: int
    """Position in the log. The store assigns positions from 0, without gaps."""
    turn_id: int
    """The turn of the entry, counted from 0."""
    unit: int
    """`seq` of the first entry of its unit, which is an assistant message with its tool results, or any other message
    alone."""
    timestamp: int
    """Milliseconds since the epoch. Never used for ordering."""
    tokens: int
    """Tokens of the message, counted with o200k."""
    total: int
    """Tokens of all live entries up to and including this entry."""
    digest: bytes
    """Digest that is chained to the last visible message before the entry; see `holdfast.domain.log.extend`."""
    message: Message
    metadata: dict[str, Any] | None = None
    agent: str | None = None
    importance: float | None = None
    pinned: bool = False
    retired_by: int | None = None
    """`seq` of the entry that replaced this one; None while this entry is live. For a note that is not retired, the value is the
    note's own `seq`. So a note is never live, and code that reads live entries does not read notes."""
    erased: bool = False
    """True if the content was erased on request. The digest of the content is kept."""
    alias: bytes | None = None
    """A second digest of the message; see `holdfast.domain.messages.make_alias`. Only set when an entry is written;
    stores do not return it."""

    @property
    def kind(self) -> Kind:
        """Kind of the entry's message."""
        return get_kind(self.message)

    @property
    def is_note(self) -> bool:
        """True for a note, which is in the log but is not a message."""
        return self.message.role == NOTE

    @property
    def replaced_by(self) -> int | None:
        """`seq` of the entry that replaced this one; None for a live message, and for a note that is not retired."""
        return None if self.retired_by == self.seq else self.retired_by


class NewEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message that is about to be appended."""

    message: Message
    tokens: int
    """Tokens of the message, counted with o200k by the caller. A store does not count tokens."""
    timestamp: int
    metadata: dict[str, Any] | None = None
    agent: str | None = None
    importance: float | None = None
    pinned: bool = False
    turn_id: int | None = None
    """The turn of the entry. None: it is computed. A user message begins the next turn, unless it follows another user
    message."""
    media: tuple[bytes, ...] = ()
    """SHA-256 of all detached media data of the message, in order; see `holdfast.stores.log`."""
    is_brought: bool = False
    """True for an assistant's message that a client brought along: it is no reply of the session, which is never found by it."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The right to run a turn of a session. A session has at most one claim, which a turn on any server can hold."""

    holder: str
    """Unique identifier of the holder."""
    until: int
    """Milliseconds since the epoch at which the claim ends, unless it is renewed. From then on, another holder may take
    it."""
    wanted: bool = False
    """True if the holder was asked to stop."""


class CallFields(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The fields of a recorded model call that an export has in the same form. `prompt_tokens` include the cached ones."""

    model: str
    timestamp: Time
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count = 0
    turn_id: Count = 0
    through: Annotated[int, json_schema(minimum=-1)] = -1
    """`seq` of the last message from which the prompt was built; -1: none."""
    view: str = ""
    """Key of the cached state (the view) from which the prompt was built."""


class PromptText(msgspec.Struct, frozen=True, gc=False):
    """A text of prompts that is not a message of the log, such as a system prompt, a digest or a recalled passage.

    The prompts of a session share it. Erasing a message that it quotes deletes it.
    """

    id: int
    """Hash of `data`."""
    data: bytes
    """JSON of a message, or of one or several lines of a message."""
    source: str | None = None
    """Id of another session or of a memory that it quotes; None: it quotes nothing, or messages of its own session."""
    first: int = -1
    last: int = -1
    """The range of messages that it quotes, by `seq`; -1: none."""


class ModelCall(CallFields, frozen=True, gc=False, kw_only=True):
    """A record of one model call: its prompt, and its usage as the provider reported it. Its view is empty if it used none."""

    hash: bytes = b""
    """Hash of exactly the messages that were sent; 16 bytes. Empty: unknown."""
    build: bytes = b""
    """Encoded `PromptRecord`: the parts of the prompt, and how it was built. Opaque to a store. It contains no content of messages."""
    texts: tuple[PromptText, ...] = ()
    """For a write: texts of the prompt that may not be stored yet. A store keeps them apart, and returns calls without them."""
    built_at: int | None = None
    """For a write: version of the session from which the prompt was built. Texts that quote messages are not stored if messages were erased
    since."""


class ShownCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a compaction that are the same in the library and in the REST API."""

    kind: CompactionKind
    first: Count
    """Seq of the first message of the range."""
    last: Count
    """Seq of the last message of the range."""
    text: str
    """Text of the summary; empty if the attempt failed, or if a message of the range was erased."""
    tokens: Count
    """Tokens of the summary, counted with the tokenizer of the session's model."""
    source_tokens: Count
    """Tokens of the text that was summarized, including the previous summary; counted with o200k."""
    model: str | None = None
    """Model that wrote the summary."""
    created_at: Time
    error: str | None = None
    """Error message of a failed attempt."""


class CompactionFields(ShownCompaction, frozen=True, kw_only=True):
    """The fields that new and stored compactions have in common. A compaction replaces a range of entries by a shorter text.

    The range includes the range of the previous compaction. The entry `last` is live when the compaction is created. When an entry of the
    range is erased, the text is removed, and so is `report`.
    """

    view: str
    """Key of the view that uses the compaction."""
    total: int
    """Tokens of all live entries up to and including the entry `last`."""
    through: int
    """`seq` of the log's last entry when the compaction was created."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """`prompt_tokens` and `completion_tokens` are the tokens that the model used to write the text."""
    report: dict[str, Any] | None = None
    """Report on the quality of the text, if known. It may quote content, so it is deleted together with the text."""


class NewCompaction(CompactionFields, frozen=True, kw_only=True):
    """A compaction that is about to be stored. If `error` is set, it records a failed attempt."""

    built_at: int | None = None
    """The session's version when the content of the range was read; see `holdfast.stores.base`. None: the compaction is
    made in the write that stores it.

    Stores do not return this field.
    """


class StoredCompaction(CompactionFields, frozen=True, kw_only=True):
    """A compaction that a store returns."""

    id: int
    """Number that the store assigns, from 1 for each session, without gaps. It is never reused."""
    status: CompactionStatus


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Totals of the session's model calls."""

    calls: Count = 0
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count = 0

    def add(self, call: ModelCall) -> Usage:
        """Return the sums including `call`."""
        return Usage(
            self.calls + 1,
            self.prompt_tokens + call.prompt_tokens,
            self.completion_tokens + call.completion_tokens,
            self.cached_tokens + call.cached_tokens,
        )


class Tail(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The data about the end of a log that are needed to append to it."""

    next_seq: int = 0
    turn_id: int = -1
    total: int = 0
    digest: bytes = GENESIS
    """The digest of the log up to its last live visible message."""
    last_seq: int = -1
    """`seq` of the last live entry; -1 if there is none."""
    last_kind: Kind | None = None
    unit: int = -1
    """The unit that can still get tool results: `seq` of its assistant message; -1 if there is none."""
    open_calls: tuple[str, ...] = ()
    """Ids of the calls in `unit` that have no result yet. Several calls may have the same id."""
    anchor: int | None = None
    """`seq` of the first live user message, which states the task; None if there is none."""


class SessionFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a session that are the same in the library and in the REST API."""

    id: Id
    user_id: Id
    agent: str | None = None
    """The agent that answers; null for the default agent."""
    status: Literal["active", "closed"] = "active"
    version: Count = 0
    """Version of the session. It grows with every write."""
    created_at: Time
    updated_at: Time
    ended_at: Time | None = None
    end_reason: EndReason | None = None
    """The reason why the session was closed."""
    ttl: Ttl = None
    bytes: Count = 0
    """Size of all messages in bytes, including retired ones."""
    usage: Usage = Usage()
    state: State = msgspec.field(default_factory=dict)
    metadata: Metadata = msgspec.field(default_factory=dict)


class Session(SessionFields, frozen=True, gc=False, kw_only=True):
    """A session without its log. A store keeps it in one row."""

    tenant: str
    accessed_at: int = 0
    """Milliseconds since the epoch at which the session was last written to, or used without a write. Idle time starts
    then."""
    system_messages: tuple[Message, ...] = ()
    state_turns: dict[str, int] = msgspec.field(default_factory=dict)
    """For each key of the state: the turn that last wrote it, or -1 if it was written before the first turn. Keys whose
    turn is unknown are missing."""
    withdrawn: str = ""
    """Id of the session's `Ending`, if the session is withdrawn: a new session may use its id. Empty: it is not withdrawn."""
    identity: str = ""
    """Unique value assigned at creation. A later session with the same name has another identity."""
    reshaped: int = 0
    """The `version` at which existing entries were last retired, erased or pinned. Later writes only appended entries."""
    claim: Claim | None = None
    """The claim of a running turn. It may have expired."""
    messages: int = 0
    """Number of live entries."""
    tail: Tail
    damaged: tuple[str, ...] = ()
    """Names of fields that could not be decoded and are empty here.

    A damaged session can be listed, ended and deleted. A write that replaces the damaged fields repairs it. Everything
    else raises `StoreCorrupt`.
    """

    @property
    def log_marker(self) -> str:
        """Text that changes with every change of the log, and with no other write: not with state, summaries or fields.

        Pass it to `SessionHandle.append(expect_log=…)` to write only if nothing was appended, retired, erased or pinned since.
        """
        return f"{self.identity}.{self.tail.next_seq}.{self.reshaped}"

    @property
    def ref(self) -> SessionRef:
        """The user and id with which the session is found in the store."""
        return SessionRef(self.user_id, self.id, self.withdrawn)

    def require_intact(self) -> Session:
        """Return the session itself.

        Raises:
            StoreCorrupt: one of its fields could not be decoded.
        """
        if self.damaged:
            fields = ", ".join(self.damaged)
            raise StoreCorrupt(f"{fields} damaged: cannot be decoded").with_session(self.user_id, self.id)
        return self

    def is_expired(self, now: int, ttl: int | None) -> bool:
        """Return True if the session is still active according to the store, but has been idle for too long.

        Args:
            now: milliseconds since the epoch.
            ttl: maximum idle time in milliseconds of a session without its own `ttl`. None or 0: it never expires.
        """
        own = ttl if self.ttl is None else self.ttl
        return self.status == "active" and bool(own) and now - self.accessed_at >= (own or 0)

    def get_state_at(self, turn: int) -> dict[str, Any]:
        """Return the state at the end of a turn.

        Keys that were written later are left out, because their old values are not stored.
        """
        if turn >= self.tail.turn_id:
            return self.state
        return {key: value for key, value in self.state.items() if self.state_turns.get(key, turn + 1) <= turn}

    @property
    def turns(self) -> int:
        """Number of turns in the live log, including those before an edit."""
        return self.tail.turn_id + 1

    @property
    def tokens(self) -> int:
        """Tokens of the live entries, counted with o200k."""
        return self.tail.total


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the data that was deleted with a session or a user. A receipt contains no content."""

    sessions: int = 0
    messages: int = 0
    """Messages that were current: not replaced by an edit or a rewind."""
    retired: int = 0
    """Messages that an edit or a rewind had replaced."""
    bytes: int = 0
    """Bytes of all these messages, replaced ones included."""
    compactions: int = 0
    views: int = 0
    model_calls: int = 0
    idempotency_keys: int = 0
    state_keys: int = 0
    """Keys in the sessions' own state."""
    user_state_keys: int = 0
    """Keys in the state that a user's sessions share."""
    artifacts: int = 0
    """Versions of artifacts."""
    artifact_bytes: int = 0
    media: int = 0
    """Media of messages: images, recordings and files."""
    media_bytes: int = 0
    records: int = 0
    """Records that the sessions or the user owned."""
    record_bytes: int = 0
    """Bytes of the values of the sessions' records."""
    memories: int = 0
    """Memories of a user, and memories of agents and the app that were made only from the user's sessions.

    Their recall events and the user's diary are deleted too.
    """
    transcripts: int = 0
    """Transcript files."""
    pending_deliveries: int = 0
    """Deleted sessions whose hooks must still be notified.

    These sessions are hidden. Their data is deleted after all hooks were notified. Their views, keys, media and records are not counted.
    """

    def __add__(self, other: Receipt) -> Receipt:
        """Return a receipt with the sums of both."""
        return Receipt(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a session, of which hooks must be notified."""

    id: str
    """Identifies the notification. Every attempt has the same id."""
    user_id: str
    session_id: str
    identity: str = ""
    """`Session.identity` of the ended session, recorded by the store together with the ending."""
    withdrawn: bool
    """True if the session is withdrawn: a new session may use its id, and it is deleted when all hooks have been notified."""
    reason: EndReason
    ended_at: int
    """Milliseconds since the epoch."""
    due_at: int
    """Milliseconds since the epoch at which the next attempt is due."""
    attempts: int = 0
    """Number of attempts in which a hook failed."""
    hooks: tuple[str, ...] = ()
    """Hooks that have not been notified yet, in order."""
    error: str | None = None
    """Error of the last attempt; None if no attempt failed."""

    @property
    def ref(self) -> SessionRef:
        """The user and id with which the ended session is found now."""
        return SessionRef(self.user_id, self.session_id, self.id if self.withdrawn else "")


def get_kind(message: Message) -> Kind:
    """Return the kind of an entry with this message."""
    if message.role == "tool":
        return "result"
    if message.role == NOTE:
        return "note"
    if message.tool_calls:
        return "calls"
    return "system" if message.role in SYSTEM_ROLES else message.role  # type: ignore[return-value]  # user, assistant


# -- estimates of memory use; checked by `make bench ARGS="footprint"` ----

_MESSAGE_BYTES: Final = 210
"""Estimated bytes of a message in memory, without its text, but with its digest and its entry in an index."""
_PART_BYTES: Final = 200
_CALL_BYTES: Final = 350
_ITEM_BYTES: Final = 100
"""Estimated bytes in memory of one item of a JSON object or list with a small value: the key or index, and the value."""
_SESSION_BYTES: Final = 2_000


def estimate_text_bytes(text: str) -> int:
    """Estimate the bytes of a text in memory.

    Once a text that is not ASCII was written as JSON, it also caches its UTF-8 form.
    """
    if text.isascii():
        return 50 + len(text)
    return getsizeof(text[1:]) + len(text.encode(errors="surrogatepass"))


def estimate_value_bytes(value: Any) -> int:
    """Estimate the bytes of a JSON value in memory."""
    if isinstance(value, str):
        return estimate_text_bytes(value)
    if isinstance(value, dict):
        return _ITEM_BYTES + sum(_ITEM_BYTES + len(key) + estimate_value_bytes(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return _ITEM_BYTES + sum(8 + estimate_value_bytes(one) for one in value)
    return 32


def estimate_message_bytes(message: Message) -> int:
    """Estimate the bytes of a message in memory."""
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
    if message.origin is not None:
        size += estimate_value_bytes(message.origin)
    return size


def estimate_session_bytes(session: Session) -> int:
    """Estimate the bytes of a session in memory, without its log."""
    size = _SESSION_BYTES + sum(estimate_message_bytes(one) for one in session.system_messages)
    for fields in (session.state, session.state_turns, session.metadata):
        if fields:
            size += estimate_value_bytes(fields)
    return size
