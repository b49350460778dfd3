"""The part of the store contract about the journal of deletions: what was deleted, when and by whom, but not whose data it was.

A deletion contains no id of a user or session, only keyed hashes of them. The store does not interpret the hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.domain.session import Receipt

DeletionKind = Literal["session", "user", "prune", "retention"]
"""Why data was deleted: on request, one session, all data of a user, or sessions that were unchanged for long; or after the
retention time.
"""


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """A deletion as the journal keeps it."""

    id: str
    """Identifies the deletion. It is random, except for a beginning that is in order of time."""
    deleted_at: int
    """Milliseconds since the epoch."""
    kind: DeletionKind
    user_hash: bytes = b""
    """Keyed hash of the user; empty if none was named."""
    session_hash: bytes = b""
    """Keyed hash of the user and session; empty if no single session was deleted."""
    key_id: str | None = None
    """Id of the API key or other credential of the request; None: a program, the command line, or a server that needs no key."""
    counts: Mapping[str, int] = {}
    """The numbers of the receipt that are not 0."""


JobKind = Literal["erase", "user"]
"""A removal in several transactions: the erasure of a message with its copies, or the deletion of all data of a user."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A removal that was begun. Its steps may be repeated, so that it can be continued after a crash."""

    id: int = 0
    kind: JobKind
    user_id: str
    session_id: str = ""
    """The session of the erased message, with its identity and the `seq` of the message."""
    identity: str = ""
    seq: int = 0
    tokens: int | None = None
    """Token count of the erased message; None: the count stays unchanged."""
    key_id: str | None = None
    """As in `Deletion`."""
    receipt: Receipt = Receipt()
    """What the steps have deleted so far. The numbers of a step that a crash has interrupted may be missing."""
