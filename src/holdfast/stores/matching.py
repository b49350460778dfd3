"""The part of the store contract about matching: which sessions have a message, and which share entries.

**Digests.** `sightings` finds the digest of every visible entry, and every `Entry.alias`, including those of retired entries, in the
sessions of a user; withdrawn sessions are left out. Erasing an entry removes its alias, but not its digest.

**Origins** say which entries of a session are copies of another session's, see `holdfast.domain.origins`. `NewSession.origins` has those
of a copy. `remove` and `replace` delete the origins of a session.
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
"""Bytes of a key, the size that a B-tree handles best. Where keys collide, the owner of the session tells places apart."""


class Sighting(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A place of a digest in a log."""

    ref: SessionRef
    identity: str
    mark: int
    """Index, among the digests that were searched for, of the one found."""
    seq: int
    digest: bytes
    """The entry's own digest: of the chain up to and including it."""
    live: bool
    """True if the entry is on the live path."""
    last: bool
    """True if it is the last visible message of the live path."""
    updated_at: int
    """The session's, in milliseconds since the epoch."""


class MatchingStore(Protocol):
    """Find messages, and copies of them, in the sessions of a user. The module describes what all methods promise."""

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
        """Return all places of one of `marks`: the last one in the list that is in any log; empty if none is.

        All places are of that one mark: those in the newest sessions first, and in a session the newest entries first. The cost depends on what
        is searched for, not on the number of sessions, places or entries.

        Args:
            user_id: search the logs of this user's sessions.
            marks: digests, the most wanted one last; at most `MARKS`, else `TooLarge`.
            alias: search for `Entry.alias` instead of the digests of visible entries.
            session: search only this session of the user; a session that does not exist has no places.
            limit: 1 to `SIGHTINGS`.
            ends: find only sessions whose live path ends with the digest, the most recently used first, however many other
                sessions contain it before their end. Not with `alias` or `session`.
        """
        ...

    async def share(self, ref: SessionRef, identity: str) -> None:
        """Record that copies of a session are about to be made, so that `sharing` finds it as well.

        Changes neither the session's version nor its times. A session that has origins is left unchanged. Raises `SessionNotFound`.

        Args:
            ref: the session.
            identity: the identity that the session must have, else `SessionNotFound`.
        """
        ...

    async def origins(self, user_id: str, sessions: Collection[str]) -> Mapping[str, Sequence[Origin]]:
        """Return the origins of some sessions of a user by id, in order of `first`, without sessions that share nothing."""
        ...

    async def sharing(self, user_id: str, source: str) -> Mapping[str, Sequence[Origin]]:
        """Return, by id, the origins of all sessions of a user that have entries of the session with the identity `source`.

        The cost depends on what is returned, not on the number of other sessions. Withdrawn sessions are left out.
        """
        ...


@lru_cache(4096)
def make_scope(tenant: str, user_id: str) -> bytes:
    """Return the value that makes a user's keys differ from all other users', so that a look-up never reads their logs."""
    data = msgspec.json.encode([tenant, user_id])
    return hashlib.blake2b(data, digest_size=32, person=b"marks").digest()


def make_end_key(scope: bytes, digest: bytes) -> int:
    """Return the key under which a session is indexed by the last visible message of its live path."""
    return make_key(scope, b"end" + digest)


def make_key(scope: bytes, mark: bytes) -> int:
    """Return the key under which a digest is indexed: a signed 64-bit number."""
    return int.from_bytes(hashlib.blake2b(mark, digest_size=_SIZE, key=scope).digest(), signed=True)
