"""Sessions, and what belongs to them: entries of the log, claims, model calls, compactions, ends. How a log grows: `holdfast.domain.log`."""

from __future__ import annotations

from sys import getsizeof
from typing import Any, Final, Literal

import msgspec

from holdfast.domain.messages import GENESIS, SYSTEM_ROLES, Message
from holdfast.errors import StoreCorrupt

Kind = Literal["system", "user", "assistant", "calls", "result"]
"""What an entry is to its log: `calls` is an assistant message with tool calls, `result` a tool message, `system` a developer's as well."""
CompactionKind = Literal["summary", "digest"]
"""A summary is made by a model, a digest without one."""
CompactionStatus = Literal["live", "superseded", "dropped", "dead", "failed"]
"""`live`: the one its view sends; `superseded`: a later one includes it; `dropped`: taken away on request; `dead`: an entry
of its range was retired or erased; `failed`: never was one."""
EndReason = Literal["ttl", "cap", "delete", "close", "shutdown"]
"""Why a session ended: idle for too long, more than may be active, removed, closed on request, or the server stopped."""
ERASED = "[erased]"
"""The content of an erased entry."""
HAND_OVER: Final = "hand_over"
"""The call with which the text of an agent ends that speaks in a workflow before others do: no model made it, no client sees it."""
STEP: Final = "step"
"""`metadata` of what such an agent writes: its name. The client was sent nothing of it."""
BRANCH: Final = "branch"
"""`metadata` of what is written side by side with others: the workflows and their agents down to whoever wrote it, by dots."""
JOINED: Final = "joined"
"""`metadata` of what is written in a branch, true where its text comes to stand in a reply that joins several: outside of
the branch that reply is seen in its place. Each unit has it, not the last one alone: what a view sees of a unit is settled with
that unit, see `holdfast.context.agent_view`."""
CHILD: Final = "child"
"""`metadata` of the result of an agent that was called like a tool: id of the session in which it did what was asked."""
PARENT: Final = "parent"
"""`metadata` of such a session: where it was called from, `session_id`, `seq` of the message that calls, and `call_id`."""
_CHILD_MARK: Final = "~call"
TRANSFER: Final = "transfer_to_agent"
"""The tool by which a model hands the conversation over to another agent."""
TRANSFERRED: Final = "transfer"
"""`metadata` of the result of a `TRANSFER` that took place: the agent who speaks from there on."""
DEFAULT_USER: Final = "default"
"""Whose sessions and memories are meant where nobody says."""


class SessionRef(msgspec.Struct, frozen=True, gc=False):
    """Which session: owner and name. The tenant is the store handle's own."""

    user_id: str
    id: str
    withdrawn: str = ""
    """Id of the ending for which the session gave up its name: it waits to be told of, and then deleted. Empty: it has it."""


def make_child_id(name: str) -> str:
    """An id for the session of an agent that is called like a tool."""
    return name + _CHILD_MARK


def is_child(ref: SessionRef) -> bool:
    """Whether it is such a session, by its id: no transcript that names no session is taken for one of it."""
    return ref.id.endswith(_CHILD_MARK)


class Entry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One message in the log, with what was worked out once, when it was written."""

    seq: int
    """Place in the log: from 0, gapless, given by the store."""
    turn_id: int
    """Which turn it belongs to, from 0."""
    unit: int
    """`seq` of the first entry of its unit: its own, or that of the assistant message whose call it answers."""
    timestamp: int
    """Milliseconds since the epoch; never used for order."""
    tokens: int
    """The message's tokens, o200k."""
    total: int
    """Tokens of the live path up to and with this entry."""
    digest: bytes
    """Chained to the last visible message before it; see `holdfast.domain.log.extend`."""
    message: Message
    metadata: dict[str, Any] | None = None
    agent: str | None = None
    importance: float | None = None
    pinned: bool = False
    retired_by: int | None = None
    """`seq` of the entry that took its place; None while it is live."""
    erased: bool = False
    """Its content was erased on request; the digest stands for it."""
    alias: bytes | None = None
    """See `holdfast.domain.messages.make_alias`; for whoever writes it: not read back."""

    @property
    def kind(self) -> Kind:
        """What the entry is to its log."""
        return get_kind(self.message)


class NewEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message about to be appended."""

    message: Message
    tokens: int
    """o200k tokens, counted by the caller: a store counts nothing."""
    timestamp: int
    metadata: dict[str, Any] | None = None
    agent: str | None = None
    importance: float | None = None
    pinned: bool = False
    turn_id: int | None = None
    """None: derived; a user message after anything but a user message opens the next turn."""
    media: tuple[bytes, ...] = ()
    """SHA-256 of each content that the message refers to, in order; see `holdfast.stores.log`."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Who has a turn of a session open, on whichever server."""

    holder: str
    """An identifier that nobody else uses."""
    until: int
    """Milliseconds since the epoch: then it is anybody's, whose holder did not renew it."""
    wanted: bool = False
    """Whether somebody asked the holder to stop."""


class ModelCall(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What one call of a model was sent, and what it used, as the provider reported it."""

    model: str
    timestamp: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Part of `prompt_tokens` that the provider read from its cache."""
    turn_id: int = 0
    """The turn it was made in."""
    through: int = -1
    """`seq` of the last entry that its prompt was built from; -1: none."""
    view: str = ""
    """Key of the view that built its prompt; empty: none did."""
    hash: bytes = b""
    """Of the exact messages sent, 16 bytes; empty: not known."""
    build: bytes = b""
    """How its prompt was built: budget arithmetic, policy, prefix report. Opaque to a store; holds no content of messages."""


class CompactionFields(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a compaction, whether it is about to be stored or was."""

    view: str
    """Key of the view that it belongs to."""
    first: int
    last: int
    """`seq` of the first and the last entry of its range; `last` is on the live path when it is laid. Includes the range of
    the one it follows."""
    kind: CompactionKind
    text: str
    """What is told of the range; of an attempt that failed, what came of it, mostly nothing. Emptied, as `report` is, when an
    entry of the range is erased."""
    tokens: int
    """Of the text."""
    source_tokens: int
    """Of what it was made from."""
    total: int
    """Running total of the live path through entry `last`."""
    model: str | None = None
    """What made it; None: no model."""
    created_at: int
    """Milliseconds since the epoch."""
    through: int
    """`seq` of the log's last entry when it was laid."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """What making it took of the model."""
    report: dict[str, Any] | None = None
    """What is known of its quality. May quote content: it goes where the text goes."""
    error: str | None = None
    """Why there is none, in short, without secrets: then it is a failed attempt."""


class NewCompaction(CompactionFields, frozen=True, kw_only=True):
    """A compaction about to be laid over a range of the log; or, with `error`, an attempt at one that failed."""

    built_at: int | None = None
    """The session's version when what it was made from was read; see `holdfast.stores.base`. None: it is made in the
    write that lays it. Not read back."""


class StoredCompaction(CompactionFields, frozen=True, kw_only=True):
    """A compaction as a store has it."""

    id: int
    """Per session, from 1, gapless as they are given; never given again."""
    status: CompactionStatus


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Sums over a session's model calls."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def add(self, call: ModelCall) -> Usage:
        """These sums with `call` added."""
        return Usage(
            self.calls + 1,
            self.prompt_tokens + call.prompt_tokens,
            self.completion_tokens + call.completion_tokens,
            self.cached_tokens + call.cached_tokens,
        )


class Tail(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """All that appending needs to know of the log before it."""

    next_seq: int = 0
    turn_id: int = -1
    total: int = 0
    digest: bytes = GENESIS
    """The chain up to the last live visible message."""
    last_seq: int = -1
    """The last live entry; -1 when there is none."""
    last_kind: Kind | None = None
    unit: int = -1
    """The unit that may still get results: the last assistant message with tool calls; -1 when there is none."""
    open_calls: tuple[str, ...] = ()
    """Ids of that unit's calls without a result yet; an id may stand more than once."""
    anchor: int | None = None
    """`seq` of the first live user message: the task anchor."""


class Session(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A session without its log: what a store keeps in one row."""

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
    """Milliseconds since the epoch: when it was written to last, or used without a write. Idleness counts from here."""
    status: Literal["active", "closed"] = "active"
    ended_at: int | None = None
    """When it was closed, milliseconds since the epoch."""
    end_reason: EndReason | None = None
    system_messages: tuple[Message, ...] = ()
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    state_turns: dict[str, int] = msgspec.field(default_factory=dict)
    """For each key of the state the turn in which its value was written last, -1: before the first; only keys of which it is known."""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    ttl: int | None = None
    """Milliseconds of idleness after which the session ends; 0: never; None: the server's setting."""
    withdrawn: str = ""
    """See `SessionRef.withdrawn`."""
    identity: str = ""
    """Given when it was made: another session of its name, made when this one was gone, has another one."""
    reshaped: int = 0
    """The version at which entries that were there were last retired, erased or pinned; since then others only came."""
    claim: Claim | None = None
    """Who has a turn of it open; it may have expired."""
    messages: int = 0
    """Live entries."""
    bytes: int = 0
    """Payload bytes of all entries, retired ones too."""
    usage: Usage = Usage()
    tail: Tail
    damaged: tuple[str, ...] = ()
    """Names of fields that could not be decoded; they are empty here. Such a session is listed, ended and deleted, and a write that
    replaces these fields repairs it; all else raises `StoreCorrupt`."""

    @property
    def ref(self) -> SessionRef:
        """Which session this is."""
        return SessionRef(self.user_id, self.id, self.withdrawn)

    def require_intact(self) -> Session:
        """Return the session itself. Raises `StoreCorrupt` if one of its fields could not be decoded."""
        if self.damaged:
            fields = ", ".join(self.damaged)
            raise StoreCorrupt(f"{fields} damaged: cannot be decoded").naming(self.user_id, self.id)
        return self

    def is_expired(self, now: int, ttl: int | None) -> bool:
        """Whether it is active by its row, and has been idle for too long all the same.

        Args:
            now: milliseconds since the epoch.
            ttl: milliseconds for a session without one of its own; None or 0: such a session never expires.
        """
        own = ttl if self.ttl is None else self.ttl
        return self.status == "active" and bool(own) and now - self.accessed_at >= (own or 0)

    def get_state_at(self, turn: int) -> dict[str, Any]:
        """Return the state as of the end of a turn, without the keys that were written later: their earlier values are not kept."""
        if turn >= self.tail.turn_id:
            return self.state
        return {key: value for key, value in self.state.items() if self.state_turns.get(key, turn + 1) <= turn}

    @property
    def turns(self) -> int:
        """Turns of the live log, those of before an edit included."""
        return self.tail.turn_id + 1

    @property
    def tokens(self) -> int:
        """Tokens of the live path, o200k."""
        return self.tail.total


class RemovalCounts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What went with a session, counted in the transaction that took it away."""

    messages: int
    """On the live path."""
    retired: int
    """Messages that had left it."""
    bytes: int
    """Payload bytes of all of them."""
    compactions: int
    """Whatever had become of them; with them go their texts."""
    views: int
    model_calls: int
    idempotency_keys: int
    state_keys: int
    artifacts: int
    """Versions; their contents are found by `blobs_in_use`."""
    artifact_bytes: int
    media: int = 0
    media_bytes: int = 0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a session, of which hooks are to be told."""

    id: str
    """Names the delivery: the same however often it is tried."""
    user_id: str
    session_id: str
    identity: str = ""
    """Of the session that ended, as `Session.identity`; noted by the store when the end is recorded."""
    withdrawn: bool
    """Whether the session gave up its name with it, and goes when all hooks were told."""
    reason: EndReason
    ended_at: int
    """Milliseconds since the epoch."""
    due_at: int
    """When it is to be tried next."""
    attempts: int = 0
    """Times that a hook failed."""
    hooks: tuple[str, ...] = ()
    """Those that were not told yet, in order."""
    error: str | None = None
    """Why the last try failed."""

    @property
    def ref(self) -> SessionRef:
        """Which session ended: where it is now."""
        return SessionRef(self.user_id, self.session_id, self.id if self.withdrawn else "")


def get_kind(message: Message) -> Kind:
    """What `message` is to a log."""
    if message.role == "tool":
        return "result"
    if message.tool_calls:
        return "calls"
    return "system" if message.role in SYSTEM_ROLES else message.role  # type: ignore[return-value]  # user, assistant


# -- what things take in memory, estimated; checked by `make bench ARGS="footprint"` ----

_MESSAGE_BYTES: Final = 210
"""A message without its text, with its digest and its place in an index."""
_PART_BYTES: Final = 200
_CALL_BYTES: Final = 350
_ITEM_BYTES: Final = 100
"""A key of an object, or its place in a list, and a small value."""
_SESSION_BYTES: Final = 2_000


def estimate_text_bytes(text: str) -> int:
    """Return the bytes of a text. One that is not ASCII is held a second time as UTF-8, as soon as it was written as JSON."""
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
    """Return the bytes of a session without its log."""
    size = _SESSION_BYTES + sum(estimate_message_bytes(one) for one in session.system_messages)
    for fields in (session.state, session.state_turns, session.metadata):
        if fields:
            size += estimate_value_bytes(fields)
    return size
