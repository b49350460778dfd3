"""Several users in one session: its participants, and the author of each message. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.domain.session import PARENT
from holdfast.errors import InvalidRequest
from holdfast.limits import ID_BYTES, PARTICIPANTS

TAKING_PART: Final = "participants"
"""Key of a session's `metadata`: ids of users other than the owner who may read it and write to it."""
SHARED: Final = "shared"
"""Key in `metadata.parent` of the session of an agent's call: the calling session has several participants."""
SPEAKER: Final = "user"
"""Key of a message's `metadata`: id of its author."""


def read_participants(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Return the participants of a session with this metadata, without its owner; empty if the value is not a list of ids."""
    named = metadata.get(TAKING_PART)
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        return frozenset()
    return frozenset(named)


def is_shared(metadata: Mapping[str, Any]) -> bool:
    """Return True if other users can read the session with this metadata, or the session that it was called from."""
    parent = metadata.get(PARENT)
    return bool(read_participants(metadata)) or (isinstance(parent, Mapping) and parent.get(SHARED) is True)


def check_participants(metadata: Mapping[str, Any]) -> None:
    """Check the participants in a session's metadata. Raises `InvalidRequest`."""
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
    """Return the metadata of a message with this user as its author."""
    return {**(metadata or {}), SPEAKER: user_id}
