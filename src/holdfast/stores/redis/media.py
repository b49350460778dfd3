"""Media of a session: contents by SHA-256, and which entries name which.

The hash of uses has, under the `seq` of an entry, the SHA-256 of each content that it names, one after the other; under each
SHA-256 how many entries name it, and its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.domain.session import Entry, NewEntry
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.records import pack
from holdfast.stores.session_changes import list_media, refuse_missing_media

_HASH_BYTES: Final = 32
Uses = dict[bytes, tuple[int, int]]
"""How many entries name a content, and its size."""
_decode_use = msgspec.msgpack.Decoder(tuple[int, int]).decode


async def load_media_uses(
    tx: Transaction, new: Sequence[NewEntry], brought: Mapping[bytes, bytes], *, install: bool = False
) -> Uses:
    """Return the uses of what the entries name, before the write.

    Args:
        tx: the write.
        new: entries that name contents.
        brought: contents that come with them.
        install: the session is new: it has none yet.

    Raises:
        InvalidMessage: an entry names what is neither there nor brought.
    """
    named = sorted({sha256 for entry in new for sha256 in list_media(entry)})
    if not named:
        return {}
    found = {} if install else await tx.read_fields(tx.keys.media_uses, named)
    uses = {sha256: _decode_use(use) for sha256, use in found.items()}
    refuse_missing_media(new, uses.keys() | brought.keys())
    return uses


def store_media(
    tx: Transaction, new: Sequence[NewEntry], written: Sequence[Entry], uses: Uses, brought: Mapping[bytes, bytes]
) -> None:
    """Keep contents that are new, and note which entries name which; `uses` is what `load_media_uses` returned."""
    after = dict(uses)
    for came, entry in zip(new, written, strict=True):
        named = list(dict.fromkeys(list_media(came)))
        for sha256 in named:
            if sha256 not in after:
                tx.queue("HSET", tx.keys.media, sha256, brought[sha256])
            count, size = after.get(sha256, (0, len(brought.get(sha256, b""))))
            after[sha256] = (count + 1, size)
        if named:
            tx.queue("HSET", tx.keys.media_uses, entry.seq, b"".join(named))
    for sha256, known in after.items():
        tx.queue("HSET", tx.keys.media_uses, sha256, pack(known))


async def read_uses(tx: Transaction, seq: int) -> Uses:
    """Return the uses of what an entry names."""
    (named,) = await tx.read((b"HGET", tx.keys.media_uses, seq))
    if not named:
        return {}
    hashes = [named[at : at + _HASH_BYTES] for at in range(0, len(named), _HASH_BYTES)]
    found = await tx.read_fields(tx.keys.media_uses, hashes)
    return {sha256: _decode_use(use) for sha256, use in found.items()}


def release_uses(tx: Transaction, seq: int, uses: Uses) -> None:
    """Let an entry name nothing any more, and delete what no other entry names; `uses` is what `read_uses` returned."""
    if uses:
        tx.queue("HDEL", tx.keys.media_uses, seq)
    for sha256, (count, size) in uses.items():
        if count > 1:
            tx.queue("HSET", tx.keys.media_uses, sha256, pack((count - 1, size)))
        else:
            tx.queue("HDEL", tx.keys.media, sha256)
            tx.queue("HDEL", tx.keys.media_uses, sha256)


def compute_totals(flat: Sequence[bytes]) -> tuple[int, int]:
    """Return how many contents a session has and their bytes, from its whole hash of uses."""
    known = [_decode_use(use) for field, use in zip(flat[::2], flat[1::2], strict=True) if len(field) == _HASH_BYTES]
    return len(known), sum(size for _, size in known)
