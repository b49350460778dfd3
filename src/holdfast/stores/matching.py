"""The part of the store contract by which a transcript that names no session is recognised: digests in the logs of a user."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

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
    """What a store knows of who said what where; see `holdfast.stores.base`, **Matching**."""

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
        """Where the last one of `marks` stands that stands anywhere; nothing where none does.

        The places of that one mark alone, those in the sessions that were made last first, and in a session the newest. Costs
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


def scope_of(tenant: str, user_id: str) -> bytes:
    """What makes the keys of one user different from those of all others, so that no look-up goes through another's logs."""
    said = msgspec.json.encode([tenant, user_id])
    return hashlib.blake2b(said, digest_size=32, person=b"marks").digest()


def end_key_of(scope: bytes, digest: bytes) -> int:
    """Return the key under which a session is indexed by the last visible message of its live path."""
    return key_of(scope, b"end" + digest)


def key_of(scope: bytes, mark: bytes) -> int:
    """A digest as it is indexed: a signed number of 64 bits."""
    return int.from_bytes(hashlib.blake2b(mark, digest_size=_SIZE, key=scope).digest(), signed=True)
