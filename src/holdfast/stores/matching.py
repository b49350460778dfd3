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
from functools import lru_cache

import msgspec

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
