"""The part of the store contract about matching: find the sessions that contain a message, and those that share entries.

**Digests.** Every visible entry has a digest, and some have a second one, `Entry.alias`. `sightings` finds entries by either in the
sessions of a user, including retired entries. Withdrawn sessions are left out. Erasing an entry removes its alias, but not its
digest.

**Origins** record which entries of a session are copies of another session's entries, see `holdfast.domain.origins`. If a
session is created as a copy, `NewSession.origins` contains its origins. If copied entries are appended, `Append.origins`
adds their origins.
`remove` and `replace` delete the origins of a session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from holdfast.domain.origins import Origin
from holdfast.domain.session import SessionRef

_SIZE = 8
"""Number of bytes of a key, the size that a B-tree handles best. Different digests can have the same key, so queries also
compare the user of the session.
"""


class Sighting(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An entry of a log that has one of the digests searched for."""

    ref: SessionRef
    identity: str
    mark: int
    """Index of the digest that was found, in the `marks` that were searched for."""
    seq: int
    digest: bytes
    """The entry's digest, which depends on all visible messages up to and including the entry."""
    live: bool
    """True if the entry is not retired."""
    last: bool
    """True if the entry is the last visible message that is not retired."""
    updated_at: int
    """`updated_at` of the session, in milliseconds since the epoch."""


class MatchingStore(Protocol):
    """Find messages and their copies in the sessions of a user. The module docstring describes what all methods promise."""

    async def sightings(
        self,
        user_id: str,
        marks: Sequence[bytes],
        *,
        alias: bool = False,
        session: SessionRef | None = None,
        limit: int = 16,
        ends: bool = False,
    ) -> tuple[Sighting, ...]:
        """Return the entries with the last one of `marks` that occurs in any log; empty if none of the digests occurs.

        All returned entries have the same digest. Entries of the newest sessions come first, and within a session the newest
        entries. The cost depends on the number of marks and results, not on the number of sessions or entries.

        Args:
            user_id: search the logs of this user's sessions.
            marks: digests, the preferred one last; at most `MARKS`, else `TooLarge`.
            alias: if True, search for aliases (`Entry.alias`) instead of digests of visible entries.
            session: search only this session of the user. If it does not exist, the result is empty.
            limit: maximum number of results, 1 to `SIGHTINGS`.
            ends: if True, find only sessions whose last visible, not retired message has the digest. The most recently used sessions
                come first. Sessions that contain the digest earlier do not count towards `limit`. Not allowed with `alias` or
                `session`.
        """
        ...

    async def share(self, ref: SessionRef, identity: str) -> None:
        """Record that copies of a session are about to be made, so that `sharing` also finds this session.

        Changes neither the session's version nor its times. Does nothing if the session already has origins.

        Args:
            ref: the session.
            identity: the identity that the session must have.

        Raises:
            SessionNotFound: no such session, or it has another identity.
        """
        ...

    async def origins(self, user_id: str, sessions: Collection[str]) -> Mapping[str, Sequence[Origin]]:
        """Return the origins of the given sessions of a user by session id, in order of `first`. Sessions without origins are left out."""
        ...

    async def sharing(self, user_id: str, source: str) -> Mapping[str, Sequence[Origin]]:
        """Return the origins of each session that contains entries first written in `source`, by session id.

        `source` is the identity of a session. The search covers all sessions of the user, except withdrawn ones. The cost depends on what
        is returned, not on the number of other sessions.
        """
        ...


@lru_cache(4096)
def make_scope(tenant: str, user_id: str) -> bytes:
    """Return a value that is combined with each digest of a user, so that equal digests of different users have different keys.

    So a search never reads the logs of other users.
    """
    data = msgspec.json.encode([tenant, user_id])
    return hashlib.blake2b(data, digest_size=32, person=b"marks").digest()


def make_key(scope: bytes, mark: bytes) -> int:
    """Return the key under which a digest is indexed: a signed 64-bit number."""
    return int.from_bytes(hashlib.blake2b(mark, digest_size=_SIZE, key=scope).digest(), signed=True)
