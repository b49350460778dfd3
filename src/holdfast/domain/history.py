"""Install entries that come from an existing log, such as an export, including retired and erased entries.

An entry is retired if an edit or a rewind replaced it; it is live until then. Pure functions. An export is not trusted:
units, running totals and digests are computed again, and retirements that are impossible are rejected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace as evolve

from holdfast.domain.log import erase_content as erased_message
from holdfast.domain.log import extend_by_one
from holdfast.domain.session import EndReason, Entry, ModelCall, NewEntry, Tail, Usage
from holdfast.errors import InvalidMessage


class OldEntry(NewEntry, frozen=True, gc=False, kw_only=True):
    """An entry of an existing log that is about to be installed in another log."""

    retired_by: int | None = None
    """Index of the entry that retired this one, counted among the entries that are installed together.

    The index equals the number of these entries if a rewind retired this entry and no entry was written afterwards.
    None: this entry is live.
    """
    stands_for: bytes | None = None
    """Digest of the erased content; None if this entry is not erased."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """Times, status and model calls of a session that is installed from an existing one."""

    created_at: int
    updated_at: int
    """Milliseconds since the epoch."""
    ended_at: int | None = None
    """Milliseconds since the epoch at which the session was closed; None: it is active."""
    end_reason: EndReason | None = None
    usage: Usage = Usage()
    calls: tuple[ModelCall, ...] = ()
    """Model calls to store, oldest first. `usage` already includes their tokens."""


class LivePath:
    """Tracks which entries of a log are live, while the log is read in order.

    The live entries are kept in a stack. An entry is removed when the entry that retires it is read. Entries that are
    retired together share one item, so the depth of the stack depends on the nesting of rewinds, not on the length of the log.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[float, Tail, int]] = [(math.inf, Tail(), 0)]
        """For each group of entries: the `seq` of the entry that retires them (infinity: none), the log's tail after
        them, and the number of live entries up to and including them."""

    @property
    def tail(self) -> Tail:
        """The log's tail after the last live entry."""
        return self._stack[-1][1]

    @property
    def live(self) -> int:
        """Number of live entries."""
        return self._stack[-1][2]

    def retire_until(self, seq: float) -> None:
        """Remove the entries that the entry `seq`, or an entry before it, retires."""
        while len(self._stack) > 1 and self._stack[-1][0] <= seq and self._stack[-1][0] != math.inf:
            self._stack.pop()

    def can_retire_at(self, at: float) -> bool:
        """Return True if the next entry can be retired by the entry `at`.

        An entry cannot stay live longer than the live entry before it. So `at` must not come after the entry that retires that one.
        """
        return at <= self._stack[-1][0]

    def append(self, tail: Tail, leaves: float) -> None:
        """Add an entry.

        Args:
            tail: the log's tail after the entry.
            leaves: `seq` of the entry that will retire it; infinity if none will.
        """
        until, _, live = self._stack[-1]
        if leaves == until:
            self._stack.pop()
        self._stack.append((leaves, tail, live + 1))


def to_old_entry(entry: Entry, *, retired: bool = True) -> OldEntry:
    """Convert an entry so that it can be installed in another log.

    Args:
        entry: the entry.
        retired: False to make a retired entry live in the other log.
    """
    return OldEntry(
        **_copy_fields(entry),
        retired_by=entry.replaced_by if retired else None,
        stands_for=entry.digest if entry.erased else None,
    )


def to_new_entry(entry: Entry) -> NewEntry:
    """Convert an entry so that it can be appended to its own log again. Erased entries stay erased."""
    if entry.erased:
        return to_old_entry(entry, retired=False)
    return NewEntry(**_copy_fields(entry))


def _copy_fields(entry: Entry) -> dict[str, Any]:
    """Return the fields of an entry that do not depend on its position."""
    names = ("message", "tokens", "timestamp", "metadata", "agent", "importance", "pinned", "turn_id")
    return {name: getattr(entry, name) for name in names}


def rebuild_log(new: Sequence[NewEntry]) -> tuple[list[Entry], Tail, int]:
    """Return the entries of the log that `new` forms, the log's tail, and the number of live entries.

    Raises:
        InvalidMessage: the turn number of an entry is negative or lower than that of the previous live entry, or its `retired_by` is impossible.
    """
    path, entries = LivePath(), []
    for seq, item in enumerate(new):
        path.retire_until(seq)
        leaves = _check_retirement(item, seq, len(new), path)
        base = path.tail
        entry, tail = extend_by_one(evolve(base, next_seq=seq), item)
        if entry.is_note:
            entries.append(_install_note(entry, item, leaves))
            continue
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
    """Return the entries that result from appending `new` to the log that ends with `tail`, and the log's new tail.

    Raises:
        InvalidMessage: the turn number of an entry is negative or lower than that of the previous entry.
    """
    entries: list[Entry] = []
    for at, item in enumerate(new):
        base = tail
        entry, tail = extend_by_one(base, item)
        if entry.is_note:
            entries.append(_install_note(entry, item))
            continue
        if entry.turn_id < base.turn_id or entry.turn_id < 0:
            check_turn(entry.turn_id, base.turn_id, f"messages[{at}]")
        if isinstance(item, OldEntry) and item.stands_for is not None:
            entry, tail = _make_erased(entry, item.stands_for, base, tail)
        entries.append(entry)
    return entries, tail


def check_turn(turn_id: int, last: int, where: str) -> None:
    """Check that the turn number of a new entry is not lower than that of the log's last entry.

    Args:
        turn_id: turn number of the new entry.
        last: turn number of the log's last entry.
        where: position of the new entry in the request, for the error message.

    Raises:
        InvalidMessage: `turn_id` is lower than `last`, or negative.
    """
    if turn_id < max(last, 0):
        param = f"{where}.turn_id"
        raise InvalidMessage(f"{param} is {turn_id}, after a message of turn {max(last, 0)}", param=param)


def _check_retirement(item: NewEntry, seq: int, count: int, path: LivePath) -> float:
    """Return the `seq` of the entry that retires `item`; infinity if none does.

    Raises:
        InvalidMessage: the entry that `item.retired_by` names cannot retire it, or is not named although `item` cannot stay live.
    """
    by = item.retired_by if isinstance(item, OldEntry) else None
    leaves = math.inf if by is None else by
    if (by is None or seq < by <= count) and path.can_retire_at(leaves):
        return leaves
    param = f"messages[{seq}].retired_by"
    if by is None:
        message = f"{param} is missing: the message before it on its path is retired, so this one must be too"
    else:
        message = (
            f"{param} is {by}: a message is retired by a later one, at most {count}, and not after the one before it"
        )
    raise InvalidMessage(message, param=param)


def _install_note(entry: Entry, item: NewEntry, leaves: float = math.inf) -> Entry:
    """Return the entry of a note. It is retired and erased if `item` is.

    Args:
        entry: the entry.
        item: the note as it was in the existing log.
        leaves: `seq` of the entry that retires the note; infinity if none does.
    """
    if leaves != math.inf:
        entry = evolve(entry, retired_by=int(leaves))
    if isinstance(item, OldEntry) and item.stands_for is not None:
        entry = evolve(entry, message=erased_message(entry.message), metadata=None, erased=True)
    return entry


def _make_erased(entry: Entry, stands_for: bytes, base: Tail, tail: Tail) -> tuple[Entry, Tail]:
    """Return the entry with its content erased, and the tail after it. Later digests are chained to `stands_for`."""
    message = erased_message(entry.message)
    digest = stands_for if message.visible else base.digest
    entry = evolve(entry, message=message, metadata=None, digest=stands_for, erased=True, alias=None)
    return entry, evolve(tail, digest=digest)
