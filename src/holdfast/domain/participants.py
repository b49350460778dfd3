"""Sessions with several users: who takes part in them, what participants may do, and who wrote each message. Pure functions.

`PARTICIPANT_RIGHTS` decides what participants may read and write. Every API and the prompts of turns follow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.domain.artifact import NAMED_ARTIFACTS
from holdfast.domain.fact_choices import STANDING_FACTS
from holdfast.domain.messages import Message
from holdfast.domain.session import PARENT, Entry, Session
from holdfast.domain.state import get_scope
from holdfast.errors import InvalidRequest
from holdfast.limits import ID_BYTES, PARTICIPANTS

Part = Literal[
    "conversation",
    "retired messages",
    "notes",
    "origins",
    "state",
    "artifacts",
    "records",
    "memories",
    "facts",
    "compactions",
    "explain",
    "administration",
]
"""A part of what belongs to a session or its owner:

- `conversation`: the messages that are in force, the system messages, `metadata`, times, counts and usage.
- `retired messages`: messages that an edit, an interruption or a rewind took out of the conversation; also the hashes of erased messages.
- `origins`: payloads of messages; also the record of which messages are copies of another session's.
- `state`: the session's own state, and the state that all of the owner's sessions share.
- `explain`: prompts, explanations of prompts, and the records of model calls.
- `administration`: everything that concerns the session as a whole, for example changing, forking, moving or deleting it.
"""

TAKING_PART: Final = "participants"
"""Key in a session's `metadata`: ids of the users who may read and write the session, apart from its owner."""
SHARED: Final = "shared"
"""Key in `metadata.parent` of a session in which a called agent works: true if the calling session has several
participants."""
SPEAKER: Final = "user"
"""Key in a message's `metadata`: id of its author."""


class Rights(NamedTuple):
    """The rights of a participant to a part of a session."""

    read: bool = False
    write: bool = False


PARTICIPANT_RIGHTS: Final[Mapping[Part, Rights]] = {
    "conversation": Rights(read=True, write=True),  # they may only append messages with the role `user`
    "retired messages": Rights(),
    "notes": Rights(),
    "origins": Rights(),
    "state": Rights(),
    "artifacts": Rights(),
    "records": Rights(),
    "memories": Rights(),
    "facts": Rights(),
    "compactions": Rights(),
    "explain": Rights(),
    "administration": Rights(),
}
"""The rights of participants in another user's session. The owner, and programs that name no user, may do everything."""
_METADATA_PARTS: Final[Mapping[str, Part]] = {NAMED_ARTIFACTS: "artifacts", STANDING_FACTS: "facts"}
"""Keys in the metadata of entries that belong to another part than the conversation."""


def may_read(part: Part, *, guest: bool) -> bool:
    """Return True if a caller may read a part of a session.

    Args:
        part: the part.
        guest: True if the caller is a participant in another user's session.
    """
    return not guest or PARTICIPANT_RIGHTS[part].read


def may_read_state(key: str, *, guest: bool) -> bool:
    """Return True if a caller may read a state key. Keys of the tenant (`app:`) and of the turn (`temp:`) are not the owner's."""
    return get_scope(key) in ("app", "temp") or may_read("state", guest=guest)


def view_session(session: Session, *, guest: bool) -> Session:
    """Return a session as a caller may read it: without the state, if the caller is a guest."""
    return session if may_read("state", guest=guest) else msgspec.structs.replace(session, state={}, state_turns={})


def view_entries(entries: Sequence[Entry], *, guest: bool) -> Sequence[Entry]:
    """Return entries of a log as a caller may read them.

    A guest gets neither notes nor retired messages. The other messages come without origins, and without the keys of their metadata that
    belong to the owner.
    """
    if not guest:
        return entries
    return [_view_entry(one) for one in entries if _may_read_entry(one)]


def _may_read_entry(entry: Entry) -> bool:
    if entry.is_note:
        return may_read("notes", guest=True)
    return entry.retired_by is None or may_read("retired messages", guest=True)


def _view_entry(entry: Entry) -> Entry:
    message, metadata = entry.message, entry.metadata
    if message.origin is not None and not may_read("origins", guest=True):
        message = message.evolve(origin=None, origin_held=())
    if metadata is not None:
        kept = {key: value for key, value in metadata.items() if _may_read_metadata(key)}
        metadata = (kept or None) if len(kept) < len(metadata) else metadata
    if message is entry.message and metadata is entry.metadata:
        return entry
    return msgspec.structs.replace(entry, message=message, metadata=metadata)


def _may_read_metadata(key: str) -> bool:
    part = _METADATA_PARTS.get(key)
    return part is None or may_read(part, guest=True)


def read_participants(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Return the participants in a session's metadata, without the owner; empty if the value is not a list of ids."""
    named = metadata.get(TAKING_PART)
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        return frozenset()
    return frozenset(named)


def is_shared(metadata: Mapping[str, Any]) -> bool:
    """Return True if users other than the owner can read a session or the session that called it.

    Args:
        metadata: the metadata of the session.
    """
    parent = metadata.get(PARENT)
    return bool(read_participants(metadata)) or (isinstance(parent, Mapping) and parent.get(SHARED) is True)


def check_participants(metadata: Mapping[str, Any]) -> None:
    """Check the list of participants in a session's metadata.

    Raises:
        InvalidRequest: the list or one of its ids is invalid, or the list is too long.
    """
    named = metadata.get(TAKING_PART)
    if named is None:
        return
    where = f"metadata.{TAKING_PART}"
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        raise InvalidRequest(f"{where} must be a list of user ids", param=where)
    if len(named) > PARTICIPANTS:
        raise InvalidRequest(f"{where} has {len(named)} users; at most {PARTICIPANTS} are allowed", param=where)
    for at, one in enumerate(named):
        if not one or len(one.encode(errors="replace")) > ID_BYTES:
            raise InvalidRequest(f"{where}[{at}] must be a user id of 1 to {ID_BYTES} bytes", param=where)


def check_guest_messages(messages: Sequence[Message]) -> None:
    """Check the messages that a participant's request adds to another user's session.

    Raises:
        InvalidRequest: one of them is not a user's message or the result of a call, or it has an origin, which an API or an adapter could
            restore as a message with another role.
    """
    for message in messages:
        if message.role not in ("user", "tool"):
            reason = (
                f"the request adds a message with the role {message.role!r}: participants in another user's session may only add"
                " user messages and results of calls"
            )
            raise InvalidRequest(reason, param="messages")
        if message.origin is not None:
            reason = "participants in another user's session may only add items that are messages or results of calls, without other fields"
            raise InvalidRequest(reason, param="input")


def check_compaction_rights(*, guest: bool) -> None:
    """Raise `InvalidRequest` if the caller may not compact the session, because they are a participant in another user's session."""
    if guest and not PARTICIPANT_RIGHTS["compactions"].write:
        reason = "only the owner of a session can compact it: leave out context_management, compaction and items of a compaction"
        raise InvalidRequest(reason, param="session_user")


def is_by_owner(metadata: Mapping[str, Any] | None, owner: str) -> bool:
    """Return True if the metadata of a message names the session's owner as its author, or nobody."""
    return bool((metadata or {}).get(SPEAKER, owner) == owner)


def with_speaker(metadata: Mapping[str, Any] | None, user_id: str) -> dict[str, Any]:
    """Return the metadata of a message with the user as its author."""
    return {**(metadata or {}), SPEAKER: user_id}
