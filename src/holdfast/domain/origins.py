"""Find entries of several sessions that are copies of one entry.

A fork has its own rows. The places from which they were copied are stored as a few ranges per session, regardless of the
length of its log. An entry's origin is the identity of the session in which it was first written, and its `seq` there. Copies of
copies keep the first origin. Sessions that share nothing have no ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec


class Origin(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The origin of the entries from `first` up to the `first` of the session's next range."""

    first: int
    """`seq` of the first entry of the range."""
    source: str
    """Identity of the session in which the entries were first written; for entries that are not copies, that of the session
    itself."""
    source_first: int
    """`seq` of the first entry of the range in that session."""


class EntryOrigin(NamedTuple):
    """The original entry. It is equal for an entry and all its copies."""

    source: str
    seq: int


def get_ranges(origins: Sequence[Origin], identity: str) -> Sequence[Origin]:
    """Return the ranges of a session. If it has none, return a single range for the session's own entries."""
    return origins or (Origin(0, identity, 0),)


def find_origin(origins: Sequence[Origin], seq: int) -> EntryOrigin:
    """Return the origin of the entry `seq` of a session with these ranges; the first one begins at 0."""
    found = max((one for one in origins if one.first <= seq), key=lambda one: one.first)
    return EntryOrigin(found.source, found.source_first + seq - found.first)


def find_copies(origins: Sequence[Origin], origin: EntryOrigin) -> list[int]:
    """Return the positions of all entries with this origin in a session with these ranges. The last range has no end."""
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
        origins: the ranges of the session from which entries are copied.
        seqs: the positions of the copied entries in that session, in order.
        identity: the identity of the new session, to which all later entries belong.
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
    """Return True if these can be the ranges of a session: they are in order, and the first one begins at 0."""
    firsts = [one.first for one in origins]
    in_order = not firsts or (firsts[0] == 0 and all(one < other for one, other in pairwise(firsts)))
    return in_order and all(one.source and one.source_first >= 0 for one in origins)
