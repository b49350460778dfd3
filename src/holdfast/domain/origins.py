"""Origins: which entries of several sessions are copies of one entry.

A fork has rows of its own. What it was copied from is kept as ranges, a few per session, whatever the length of its log: an
entry's origin is the identity of the session in which it was written first, and its `seq` there. Copies of copies keep the first
origin. Sessions that share nothing have no ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec


class Origin(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where the entries from `first` on come from, up to the `first` of the next range of the same session."""

    first: int
    """`seq` of the first entry of the range."""
    source: str
    """Identity of the session in which they were written first; the session's own for what it did not copy."""
    source_first: int
    """`seq` of the range's first entry in that session."""


class EntryOrigin(NamedTuple):
    """The entry that was written first: equal for an entry and all its copies."""

    source: str
    seq: int


def get_ranges(origins: Sequence[Origin], identity: str) -> Sequence[Origin]:
    """Return the ranges of a session; of one that has none, the one range that says that all is its own."""
    return origins or (Origin(0, identity, 0),)


def find_origin(origins: Sequence[Origin], seq: int) -> EntryOrigin:
    """Return the origin of the entry `seq` of a session with these ranges; the first one begins at 0."""
    found = max((one for one in origins if one.first <= seq), key=lambda one: one.first)
    return EntryOrigin(found.source, found.source_first + seq - found.first)


def find_copies(origins: Sequence[Origin], origin: EntryOrigin) -> list[int]:
    """Return the places in a session with these ranges whose entries have this origin. The last range has no end."""
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
        origins: of the session that is copied from.
        seqs: the places there of what is copied, in order.
        identity: of the new session, whose own is all that comes after.
    """
    if not seqs:
        return ()
    found = [*(find_origin(origins, seq) for seq in seqs), EntryOrigin(identity, len(seqs))]
    ranges = [Origin(0, *found[0])]
    for at, (last, one) in enumerate(pairwise(found), 1):
        if one != (last.source, last.seq + 1):
            ranges.append(Origin(at, *one))
    return tuple(ranges)


def is_valid_ranges(origins: Sequence[Origin]) -> bool:
    """Return True if these can be the ranges of a session: the first begins at 0, and each after the one before it."""
    firsts = [one.first for one in origins]
    in_order = not firsts or (firsts[0] == 0 and all(one < other for one, other in pairwise(firsts)))
    return in_order and all(one.source and one.source_first >= 0 for one in origins)
