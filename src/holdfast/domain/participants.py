"""Sessions with several users: who takes part in them, and who wrote each message. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.domain.session import PARENT
from holdfast.errors import InvalidRequest
from holdfast.limits import ID_BYTES, PARTICIPANTS

TAKING_PART: Final = "participants"
"""Key in a session's `metadata`: ids of the users who may read and write the session, apart from its owner."""
SHARED: Final = "shared"
"""Key in `metadata.parent` of a session in which a called agent works: true if the calling session has several
participants."""
SPEAKER: Final = "user"
"""Key in a message's `metadata`: id of its author."""


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


def with_speaker(metadata: Mapping[str, Any] | None, user_id: str) -> dict[str, Any]:
    """Return the metadata of a message with the user as its author."""
    return {**(metadata or {}), SPEAKER: user_id}
