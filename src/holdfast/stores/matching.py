"""The part of the store contract about matching: which sessions have a message, and which share entries.

**Digests.** `sightings` finds the digest of every visible entry, and every `Entry.alias`, those of retired entries too, in the
sessions of a user; withdrawn sessions are left out. Erasing an entry removes its alias, and leaves its digest.

**Origins** say which entries of a session are copies of another session's, see `holdfast.domain.origins`. `NewSession.origins`
brings those of a copy. They go with their session, by `remove` and `replace`.
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
"""Bytes of a key: what a B-tree holds best. Places whose keys meet by chance are told apart by the owner of their session."""


class Sighting(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A place in a log at which a digest stands."""

    ref: SessionRef
    identity: str
    mark: int
    """Which of the digests that were looked for, by its index."""
    seq: int
    digest: bytes
    """The entry's own: the chain up to and with it."""
    live: bool
    """Whether the entry is on the live path."""
    last: bool
    """Whether it is the last visible message of the live path."""
    updated_at: int
    """The session's, milliseconds since the epoch."""


class MatchingStore(Protocol):
    """Find messages and copies of them in the sessions of a user. The module says what all methods promise."""

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
        """Return the places of the last one of `marks` that is in any log; nothing when none is.

        The places are of that one mark alone: those in the newest sessions first, and in a session the newest entries first. Costs
        what is looked for, whatever the number of sessions, of places and of entries.

        Args:
            user_id: in the logs of whose sessions.
            marks: digests, from the least wanted to the most; at most `MARKS`, else `TooLarge`.
            alias: look for `Entry.alias`, not for the digest of visible entries.
            session: in this one alone, which is the user's; one that is not there has nothing.
            limit: 1 to `SIGHTINGS`.
            ends: find only sessions whose live path ends with the digest, most recently used first, however many other
                sessions have it somewhere before their end. Not with `alias` or `session`.
        """
        ...

    async def share(self, ref: SessionRef, identity: str) -> None:
        """Record that copies of a session are about to be made, so that `sharing` finds it as well.

        Changes neither the session's version nor its times; one that has origins is left unchanged. Raises `SessionNotFound`.

        Args:
            ref: which session.
            identity: its identity; another one of its name is `SessionNotFound`.
        """
        ...

    async def origins(self, user_id: str, sessions: Collection[str]) -> Mapping[str, Sequence[Origin]]:
        """Return the origins of some sessions of a user by id, in order of `first`. Those that share nothing are left out."""
        ...

    async def sharing(self, user_id: str, source: str) -> Mapping[str, Sequence[Origin]]:
        """Return the origins of all sessions of a user that have entries of the session with the identity `source`, by id.

        Costs what is returned, whatever the number of other sessions. Withdrawn sessions are left out.
        """
        ...


@lru_cache(4096)
def make_scope(tenant: str, user_id: str) -> bytes:
    """What makes the keys of one user different from those of all others, so that no look-up goes through another's logs."""
    said = msgspec.json.encode([tenant, user_id])
    return hashlib.blake2b(said, digest_size=32, person=b"marks").digest()


def make_end_key(scope: bytes, digest: bytes) -> int:
    """Return the key under which a session is indexed by the last visible message of its live path."""
    return make_key(scope, b"end" + digest)


def make_key(scope: bytes, mark: bytes) -> int:
    """A digest as it is indexed: a signed number of 64 bits."""
    return int.from_bytes(hashlib.blake2b(mark, digest_size=_SIZE, key=scope).digest(), signed=True)
