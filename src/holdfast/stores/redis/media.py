"""Media of a session in Redis: contents that entries refer to, in a hash by SHA-256.

A second hash counts the references. It has two kinds of fields. If the field is the `seq` of an entry, its value lists the
SHA-256 of each content that the entry refers to. If the field is a SHA-256, its value contains the number of entries that refer
to the content, and the size of the content.
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
"""By SHA-256 of a content: the number of entries that refer to it, and its size in bytes."""
_decode_use = msgspec.msgpack.Decoder(tuple[int, int]).decode


async def load_media_uses(
    tx: Transaction, new: Sequence[NewEntry], brought: Mapping[bytes, bytes], *, install: bool = False
) -> Uses:
    """Return the stored uses of the contents to which new entries refer.

    Args:
        tx: the write.
        new: the new entries.
        brought: contents that are part of the write, by SHA-256.
        install: True if the session is new and has no contents yet.

    Raises:
        InvalidMessage: an entry refers to a content that is neither stored nor in `brought`.
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
    """Store new contents, and the references of the written entries.

    Args:
        tx: the write.
        new: the entries that the caller passed.
        written: the same entries as they were written.
        uses: the uses before the write, from `load_media_uses`.
        brought: contents that are part of the write, by SHA-256.
    """
    after = dict(uses)
    for new_entry, entry in zip(new, written, strict=True):
        named = list(dict.fromkeys(list_media(new_entry)))
        for sha256 in named:
            if sha256 not in after:
                tx.queue("HSET", tx.keys.media, sha256, brought[sha256])
            count, size = after.get(sha256, (0, len(brought.get(sha256, b""))))
            after[sha256] = (count + 1, size)
        if named:
            tx.queue("HSET", tx.keys.media_uses, entry.seq, b"".join(named))
    for sha256, use in after.items():
        tx.queue("HSET", tx.keys.media_uses, sha256, pack(use))


async def read_uses(tx: Transaction, seq: int) -> Uses:
    """Return the uses of the contents to which an entry refers."""
    (named,) = await tx.read((b"HGET", tx.keys.media_uses, seq))
    if not named:
        return {}
    hashes = [named[at : at + _HASH_BYTES] for at in range(0, len(named), _HASH_BYTES)]
    found = await tx.read_fields(tx.keys.media_uses, hashes)
    return {sha256: _decode_use(use) for sha256, use in found.items()}


def release_uses(tx: Transaction, seq: int, uses: Uses) -> None:
    """Delete an entry's references, and the contents to which no other entry refers.

    Args:
        tx: the write.
        seq: the entry.
        uses: the uses before the write, from `read_uses`.
    """
    if uses:
        tx.queue("HDEL", tx.keys.media_uses, seq)
    for sha256, (count, size) in uses.items():
        if count > 1:
            tx.queue("HSET", tx.keys.media_uses, sha256, pack((count - 1, size)))
        else:
            tx.queue("HDEL", tx.keys.media, sha256)
            tx.queue("HDEL", tx.keys.media_uses, sha256)


def compute_totals(flat: Sequence[bytes]) -> tuple[int, int]:
    """Return the number of a session's contents and their total bytes. `flat` is the whole hash of references."""
    uses = [_decode_use(use) for field, use in zip(flat[::2], flat[1::2], strict=True) if len(field) == _HASH_BYTES]
    return len(uses), sum(size for _, size in uses)
