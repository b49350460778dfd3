"""Find entries of several sessions that are copies of one entry.

A fork stores its own copies of entries. A few ranges per session describe where the entries were copied from,
regardless of the length of the log. The origin of an entry is the identity of the session in which it was first
written, and its `seq` there. Copies of copies keep the first origin. A session without copies has no ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec


class Origin(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A range of entries that were copied together. It ends before the entry with which the session's next range begins."""

    first: int
    """`seq` of the first entry of the range in this session."""
    source: str
    """Identity of the session in which the entries were first written; this session's own identity if they are not
    copies."""
    source_first: int
    """`seq` of the range's first entry in the session `source`."""


class EntryOrigin(NamedTuple):
    """The session and `seq` at which an entry was first written. An entry and all its copies have the same origin."""

    source: str
    seq: int


def get_ranges(origins: Sequence[Origin], identity: str) -> Sequence[Origin]:
    """Return the ranges of a session; if it has none, a single range for the session's own entries."""
    return origins or (Origin(0, identity, 0),)


def find_origin(origins: Sequence[Origin], seq: int) -> EntryOrigin:
    """Return the origin of an entry.

    Args:
        origins: the ranges of its session, of which the first begins at 0.
        seq: the entry's `seq` in this session.
    """
    found = max((one for one in origins if one.first <= seq), key=lambda one: one.first)
    return EntryOrigin(found.source, found.source_first + seq - found.first)


def find_copies(origins: Sequence[Origin], origin: EntryOrigin) -> list[int]:
    """Return the `seq` of every entry with the origin `origin`, in a session with the ranges `origins`.

    The last range has no end, so the log may be too short to contain the last `seq`.
    """
    found = []
    for at, one in enumerate(origins):
        seq = one.first + origin.seq - one.source_first
        is_before_end = at + 1 == len(origins) or seq < origins[at + 1].first
        if one.source == origin.source and one.first <= seq and is_before_end:
            found.append(seq)
    return found


def copy_origins(origins: Sequence[Origin], seqs: Sequence[int], identity: str) -> tuple[Origin, ...]:
    """Return the ranges of a new session that begins with copies of some entries.

    Args:
        origins: the ranges of the session from which the entries are copied.
        seqs: the `seq` of each copied entry in that session, in order.
        identity: the identity of the new session. All entries after the copies have it as their source.
    """
    if not seqs:
        return ()
    return _join_ranges([*(find_origin(origins, seq) for seq in seqs), EntryOrigin(identity, len(seqs))], 0)


def copy_prefix_origins(origins: Sequence[Origin], count: int, identity: str) -> tuple[Origin, ...]:
    """Return the ranges of a new session that begins with copies of the first `count` entries, without gaps. See `copy_origins`."""
    return (*(one for one in origins if one.first < count), Origin(count, identity, count))


def repeat_origins(
    origins: Sequence[Origin], seqs: Sequence[int | None], identity: str, first: int
) -> tuple[Origin, ...]:
    """Return the ranges that a session gets when it appends copies of its own entries again.

    Args:
        origins: the ranges that the session has so far.
        seqs: the `seq` of each entry that is appended again, in order; None for an entry that is no copy.
        identity: the session's identity. All entries after the copies have it as their source.
        first: the `seq` of the first copy.
    """
    if not seqs:
        return ()
    found = [
        EntryOrigin(identity, at) if seq is None else find_origin(origins, seq) for at, seq in enumerate(seqs, first)
    ]
    return _join_ranges([*found, EntryOrigin(identity, first + len(seqs))], first)


def _join_ranges(found: Sequence[EntryOrigin], first: int) -> tuple[Origin, ...]:
    """Return the ranges of consecutive entries.

    Args:
        found: the origin of each entry, in order.
        first: `seq` of the first entry.
    """
    ranges = [Origin(first, *found[0])]
    for at, (last, one) in enumerate(pairwise(found), first + 1):
        if one != (last.source, last.seq + 1):
            ranges.append(Origin(at, *one))
    return tuple(ranges)


def is_valid_ranges(origins: Sequence[Origin], *, start: int = 0) -> bool:
    """Return True if a session can have these ranges: they are in order, and the first one begins at `start`."""
    firsts = [one.first for one in origins]
    in_order = not firsts or (firsts[0] == start and all(one < other for one, other in pairwise(firsts)))
    return in_order and all(one.source and one.source_first >= 0 for one in origins)
