"""Media of a session in Redis. The bytes of each image or file (its content) are in a hash by SHA-256. Entries refer to them.

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
    """Return the stored counts of references, for the media contents to which new entries refer.

    Args:
        tx: the write.
        new: the new entries.
        brought: media contents that the write itself contains, by SHA-256.
        install: True if the session is new, so that no contents are stored for it yet.

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
    """Store new media contents, and the references of the written entries.

    Args:
        tx: the write.
        new: the entries that the caller passed.
        written: the same entries as they were written.
        uses: the counts of references before the write, from `load_media_uses`.
        brought: media contents that the write itself contains, by SHA-256.
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
    """Return the counts of references, for the media contents to which the entry `seq` refers."""
    (named,) = await tx.read((b"HGET", tx.keys.media_uses, seq))
    if not named:
        return {}
    hashes = [named[at : at + _HASH_BYTES] for at in range(0, len(named), _HASH_BYTES)]
    found = await tx.read_fields(tx.keys.media_uses, hashes)
    return {sha256: _decode_use(use) for sha256, use in found.items()}


def release_uses(tx: Transaction, seq: int, uses: Uses) -> None:
    """Delete an entry's references, and the media contents to which no other entry refers.

    Args:
        tx: the write.
        seq: the entry.
        uses: the counts of references before the write, from `read_uses`.
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
    """Return how many media contents a session has, and their total bytes.

    Args:
        flat: the hash that counts the references, as HGETALL returns it: fields and values alternate.
    """
    uses = [_decode_use(use) for field, use in zip(flat[::2], flat[1::2], strict=True) if len(field) == _HASH_BYTES]
    return len(uses), sum(size for _, size in uses)
