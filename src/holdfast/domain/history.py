"""Logs that have a past: entries that stood in a log before, what was retired and erased included, put up again.

Pure. What an export says of a log is not believed: units, running totals and digests are worked out anew, and who retired
whom has to be possible.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace as evolve

from holdfast.domain.log import erase_content as erased_message
from holdfast.domain.log import extend_by_one
from holdfast.domain.session import EndReason, Entry, ModelCall, NewEntry, Tail, Usage
from holdfast.errors import InvalidMessage


class OldEntry(NewEntry, frozen=True, gc=False, kw_only=True):
    """An entry that stood in a log before, about to be installed in another one."""

    retired_by: int | None = None
    """Place, among those it is installed with, of the entry that took its place; their number: the log went back, and nothing
    came after. None: it is live."""
    stands_for: bytes | None = None
    """Of an erased one: the digest of what it said. None: it is not erased."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What a session has behind it when it is installed."""

    created_at: int
    updated_at: int
    """Milliseconds since the epoch."""
    ended_at: int | None = None
    """When it was closed, milliseconds since the epoch; None: it is active."""
    end_reason: EndReason | None = None
    usage: Usage = Usage()
    calls: tuple[ModelCall, ...] = ()
    """Model calls to be kept, oldest first; they are part of `usage` already."""


class LivePath:
    """The live path as it was at each entry of a log, read in order.

    An entry was live until the one that retired it. So a stack tells what each entry came after: entries that leave
    together stand in it as one, hence it is as deep as rewinds are nested, not as the log is long.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[float, Tail, int]] = [(math.inf, Tail(), 0)]
        """When it leaves, the tail there, and how many entries are live up to there."""

    @property
    def tail(self) -> Tail:
        """The tail behind the last entry that is live now."""
        return self._stack[-1][1]

    @property
    def live(self) -> int:
        """How many entries are live now."""
        return self._stack[-1][2]

    def retire_until(self, seq: float) -> None:
        """Take away what the entry `seq`, or one before it, retired."""
        while len(self._stack) > 1 and self._stack[-1][0] <= seq and self._stack[-1][0] != math.inf:
            self._stack.pop()

    def can_retire_at(self, at: float) -> bool:
        """Whether the next entry may be retired by the entry `at`: not after the entry that it stands behind."""
        return at <= self._stack[-1][0]

    def append(self, tail: Tail, leaves: float) -> None:
        """One more entry, behind which the log's tail is `tail`, live until the entry `leaves`."""
        until, _, live = self._stack[-1]
        if leaves == until:
            self._stack.pop()
        self._stack.append((leaves, tail, live + 1))


def to_old_entry(entry: Entry, *, retired: bool = True) -> OldEntry:
    """`entry` as it can be installed elsewhere; without `retired`, as one that is live."""
    return OldEntry(
        **_copy_fields(entry),
        retired_by=entry.retired_by if retired else None,
        stands_for=entry.digest if entry.erased else None,
    )


def to_new_entry(entry: Entry) -> NewEntry:
    """`entry`, to be written once more at the end of its own log. What was erased stays erased."""
    if entry.erased:
        return to_old_entry(entry, retired=False)
    return NewEntry(**_copy_fields(entry))


def _copy_fields(entry: Entry) -> dict[str, Any]:
    """What `NewEntry` says of an entry, wherever it stands."""
    names = ("message", "tokens", "timestamp", "metadata", "agent", "importance", "pinned", "turn_id")
    return {name: getattr(entry, name) for name in names}


def rebuild_log(new: Sequence[NewEntry]) -> tuple[list[Entry], Tail, int]:
    """The log that `new` becomes, from its first entry on: its entries, its tail, and how many of them are live.

    Raises:
        InvalidMessage: a turn before the one before it, or an entry that cannot have been retired by the one it names.
    """
    path, entries = LivePath(), []
    for seq, item in enumerate(new):
        path.retire_until(seq)
        leaves = _check_retirement(item, seq, len(new), path)
        base = path.tail
        entry, tail = extend_by_one(evolve(base, next_seq=seq), item)
        check_turn(entry.turn_id, base.turn_id, f"messages[{seq}]")
        if isinstance(item, OldEntry) and item.stands_for is not None:
            entry, tail = _make_erased(entry, item.stands_for, base, tail)
        if leaves != math.inf:
            entry = evolve(entry, retired_by=int(leaves))
        path.append(tail, leaves)
        entries.append(entry)
    path.retire_until(len(new))
    return entries, evolve(path.tail, next_seq=len(new)), path.live


def continue_log(tail: Tail, new: Sequence[NewEntry]) -> tuple[list[Entry], Tail]:
    """The entries that `new` becomes behind a log's `tail`, and the tail after them. What was erased before stays so.

    Raises:
        InvalidMessage: a turn before the one before it.
    """
    entries: list[Entry] = []
    for at, item in enumerate(new):
        base = tail
        entry, tail = extend_by_one(base, item)
        if entry.turn_id < base.turn_id or entry.turn_id < 0:
            check_turn(entry.turn_id, base.turn_id, f"messages[{at}]")
        if isinstance(item, OldEntry) and item.stands_for is not None:
            entry, tail = _make_erased(entry, item.stands_for, base, tail)
        entries.append(entry)
    return entries, tail


def check_turn(turn_id: int, last: int, where: str) -> None:
    """Refuse an entry of a turn before that of the log's `last` one. Raises `InvalidMessage`."""
    if turn_id < max(last, 0):
        param = f"{where}.turn_id"
        raise InvalidMessage(f"{param} is {turn_id}, after a message of turn {max(last, 0)}", param=param)


def _check_retirement(item: NewEntry, seq: int, count: int, path: LivePath) -> float:
    """Which entry retires `item`; infinity: none."""
    by = item.retired_by if isinstance(item, OldEntry) else None
    leaves = math.inf if by is None else by
    if (by is None or seq < by <= count) and path.can_retire_at(leaves):
        return leaves
    param = f"messages[{seq}].retired_by"
    if by is None:
        said = f"{param} is missing: the message before it on its path is retired, so it is too"
    else:
        said = f"{param} is {by}: a message is retired by a later one, at most {count}, and not after the one before it"
    raise InvalidMessage(said, param=param)


def _make_erased(entry: Entry, stands_for: bytes, base: Tail, tail: Tail) -> tuple[Entry, Tail]:
    """An erased entry: its digest stands for what it said, and what comes after is chained to that."""
    message = erased_message(entry.message)
    digest = stands_for if message.visible else base.digest
    entry = evolve(entry, message=message, metadata=None, digest=stands_for, erased=True, alias=None)
    return entry, evolve(tail, digest=digest)


def __getattr__(name: str) -> Any:
    """Return `continue_log` for its name of 0.1, `continued`, which stores outside of this package import. Removed in 0.3."""
    if name == "continued":
        warnings.warn("holdfast.domain.history.continued is now called continue_log", DeprecationWarning, stacklevel=2)
        return continue_log
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
