"""The statements about media, on a working copy.

What is known of contents lies apart from them, in a hash: under the number of an entry the SHA-256 of each that it names, one after
the other; under each SHA-256 how many entries name it, and its size.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.records import list_from, packed
from holdfast.stores.redis.work import State, Work

_HASH_BYTES: Final = 32
_hashes = msgspec.json.Decoder(list[str]).decode


def _decoded(hashes: str) -> list[bytes]:
    return [bytes.fromhex(one) for one in _hashes(hashes)]


def _known(work: Work, state: State, sha256: bytes) -> list[int] | None:
    """How many entries name a content, and its size; None for one that is not there."""
    if ("media", state, sha256) not in work.overlay:
        (found,) = work.ask((b"HGET", state.keys.media_uses, sha256))
        work.overlay["media", state, sha256] = None if found is None else list_from(found)
    known: list[int] | None = work.overlay["media", state, sha256]
    return known


def _count(work: Work, state: State, sha256: bytes, uses: int, size: int) -> None:
    work.overlay["media", state, sha256] = [uses, size]
    work.do("HSET", state.keys.media_uses, sha256, packed((uses, size)))


def _named(work: Work, state: State, seq: int) -> bytes:
    """What an entry names, as it is stored."""
    if ("named", state, seq) not in work.overlay:
        (found,) = work.ask((b"HGET", state.keys.media_uses, seq)) if seq not in state.inserted else (None,)
        work.overlay["named", state, seq] = found or b""
    named: bytes = work.overlay["named", state, seq]
    return named


def _split(named: bytes) -> list[bytes]:
    return [named[at : at + _HASH_BYTES] for at in range(0, len(named), _HASH_BYTES)]


# -- reading -----------------------------------------------------------------


def media_known(work: Work, state: State, hashes: str) -> Rows:
    """Those of some contents, whose hashes come as a JSON array, that a session has."""
    wanted = _decoded(hashes)
    work.ask(*((b"HGET", state.keys.media_uses, sha256) for sha256 in wanted))
    return [[sha256] for sha256 in wanted if _known(work, state, sha256) is not None]


def media_get(work: Work, state: State, hashes: str) -> Rows:
    """Contents, whose hashes come as a JSON array."""
    wanted = _decoded(hashes)
    found = work.ask(*((b"HGET", state.keys.media, sha256) for sha256 in wanted))
    return [(sha256, data) for sha256, data in zip(wanted, found, strict=True) if data is not None]


def media_of(work: Work, state: State, seq: int) -> Rows:
    """What an entry names."""
    return [[sha256] for sha256 in _split(_named(work, state, seq))]


def media_totals(work: Work, state: State) -> Row:
    """How many contents a session has, and their bytes."""
    flat = work.ask((b"HGETALL", state.keys.media_uses))[0]
    known = [list_from(said) for field, said in zip(flat[::2], flat[1::2], strict=True) if len(field) == _HASH_BYTES]
    return len(known), sum(size for _, size in known)


# -- writing -----------------------------------------------------------------


def media_put(work: Work, state: State, sha256: bytes, size: int, data: bytes) -> None:
    """A content that a session did not have."""
    work.do("HSET", state.keys.media, sha256, data)
    _count(work, state, sha256, 0, size)


def media_use(work: Work, state: State, seq: int, sha256: bytes) -> None:
    """An entry that names a content."""
    known = _known(work, state, sha256)
    assert known is not None
    _count(work, state, sha256, known[0] + 1, known[1])
    work.overlay["named", state, seq] = _named(work, state, seq) + sha256
    work.do("HSET", state.keys.media_uses, seq, work.overlay["named", state, seq])


def media_uses_drop(work: Work, state: State, seq: int) -> None:
    """An entry names nothing any more."""
    for sha256 in _split(_named(work, state, seq)):
        known = _known(work, state, sha256)
        assert known is not None
        _count(work, state, sha256, known[0] - 1, known[1])
    work.overlay["named", state, seq] = b""
    work.do("HDEL", state.keys.media_uses, seq)


def media_drop_unused(work: Work, state: State, sha256: bytes) -> None:
    """A content that no entry names any more."""
    known = _known(work, state, sha256)
    if known is not None and not known[0]:
        work.overlay["media", state, sha256] = None
        work.do("HDEL", state.keys.media, sha256)
        work.do("HDEL", state.keys.media_uses, sha256)


def media_uses_delete(work: Work, state: State) -> None:
    """With their session."""
    work.do("UNLINK", state.keys.media_uses)


def media_delete(work: Work, state: State) -> None:
    """With their session."""
    work.do("UNLINK", state.keys.media)
