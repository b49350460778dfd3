"""Several users in one session: who takes part, and whose a message is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.domain.session import PARENT
from holdfast.errors import InvalidRequest
from holdfast.limits import ID_BYTES, PARTICIPANTS

TAKING_PART: Final = "participants"
"""`metadata` of a session: ids of the users who may read it and speak in it, beside the one whose it is."""
SHARED: Final = "shared"
"""In `metadata.parent` of the session of an agent's call: several users take part in the one that it was called from."""
SPEAKER: Final = "user"
"""`metadata` of a message: id of the user whose it is."""


def read_participants(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Who takes part in the session that has this metadata, its owner left out; what is no list of ids is nobody."""
    named = metadata.get(TAKING_PART)
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        return frozenset()
    return frozenset(named)


def is_shared(metadata: Mapping[str, Any]) -> bool:
    """Whether others than its user may read what is said in the session that has this metadata, or in the one that it answers to."""
    parent = metadata.get(PARENT)
    return bool(read_participants(metadata)) or (isinstance(parent, Mapping) and parent.get(SHARED) is True)


def check_participants(metadata: Mapping[str, Any]) -> None:
    """Refuse metadata of a session whose participants are no list of ids, or too many. Raises `InvalidRequest`."""
    named = metadata.get(TAKING_PART)
    if named is None:
        return
    where = f"metadata.{TAKING_PART}"
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        raise InvalidRequest(f"{where} must be a list of user ids", param=where)
    if len(named) > PARTICIPANTS:
        raise InvalidRequest(f"{where} has {len(named)} users; there may be {PARTICIPANTS}", param=where)
    for at, one in enumerate(named):
        if not one or len(one.encode(errors="replace")) > ID_BYTES:
            raise InvalidRequest(f"{where}[{at}] must be a user id of 1 to {ID_BYTES} bytes", param=where)


def with_speaker(metadata: Mapping[str, Any] | None, user_id: str) -> dict[str, Any]:
    """`metadata` of a message that is this user's, whatever it said of that."""
    return {**(metadata or {}), SPEAKER: user_id}
