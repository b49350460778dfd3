"""Find out whether a write of a turn is in the log after the store's answer to it was lost.

A store may commit a write and then fail to report it, for example because the connection broke. Writing the same messages again would
store them twice. So the turn reads the session first.

Each attempt of a turn to write has a claim of its own: the turn's name, and a time that no other attempt of the turn has. While the
session has the turn's claim, that time shows which attempt was the last one to be committed. So the claim serves as the idempotency
key of the turn's last write. It costs no statement, and nothing is stored for long. Only a claim that was released, or that expired and
was taken by another turn, does not show it; then the log's entries are compared with those of the write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.domain.session import Claim, Entry, NewEntry, Session, SessionRef
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended

CLOCK_SKEW: Final = 2_000
"""Milliseconds by which the clocks of two servers may differ. Another server may take a claim this much before it expires."""
_OTHERS: Final = 100
"""Maximum number of entries of other writers before those of the write that are read, if the write expected no version."""


class LostWrite(msgspec.Struct):
    """A write of a turn whose outcome is unknown."""

    write: Append
    """The write, with the claim of its attempt."""
    base: Session | None
    """The session as the turn last saw it before the write; None: the turn had not read it."""
    earlier: tuple[int, ...] = ()
    """The times of the claims of earlier attempts at the same write, which may have been committed instead."""
    result: Appended | None = None
    """The result of the write; None: the write is not known to be in the log."""

    @property
    def untils(self) -> tuple[int, ...]:
        """The times of the claims of all attempts at the write."""
        return self.earlier if self.write.claim is None else (*self.earlier, self.write.claim.until)

    @property
    def has_content(self) -> bool:
        """True if the write does more than claim or release the session."""
        write = self.write
        return bool(write.entries or write.state_delta or write.calls or write.retire_from is not None)


async def find_result(store: Store, ref: SessionRef, lost: LostWrite, now: int) -> Appended | None:
    """Return the result of a write whose answer was lost, or None if the write is not in the log now.

    None does not exclude that the store commits the write later, as long as the session has the version that the write expects.

    Args:
        store: the store, which is read.
        ref: the session.
        lost: the write.
        now: milliseconds since the epoch.

    Raises:
        StoreError: the store cannot be read.
        SessionNotFound: the session was deleted.
    """
    base, write = lost.base, lost.write
    if base is None:
        return None
    session = await store.get(ref)
    if session.identity != base.identity or session.version == base.version:
        return None
    is_committed = _is_committed(session, base, lost, now)
    if is_committed is False:
        return None
    start, number = base.tail.next_seq, len(write.entries)
    read = await store.entries(ref, start=start, limit=number + _OTHERS, retired=True, notes=True)
    is_next = is_committed and write.expect == base.version
    entries = read[:number] if is_next else _find_entries(read, write.entries)
    if len(entries) < number or (is_committed is None and not entries):
        return None
    version = session.version if write.expect is None else write.expect + 1
    start = entries[0].seq if entries else start
    return Appended(session, entries, version, start, reopened=base.status != session.status)


def _is_committed(session: Session, base: Session, lost: LostWrite, now: int) -> bool | None:
    """Return True if a write was committed, False if it was not, and None if the session's claim does not show it.

    Args:
        session: the session as it is now.
        base: the session before the write.
        lost: the write.
        now: milliseconds since the epoch.
    """
    write, own = lost.write, lost.write.claim
    assert own is not None, "a turn writes with a claim"
    if session.claim is not None and session.claim.holder == own.holder:
        return session.claim.until in lost.untils
    if write.release is None and now < own.until - CLOCK_SKEW:
        return False  # the write would have set a claim that no other turn could take yet
    if write.release is not None and _is_held(base.claim, own.holder, now):
        return True  # the turn had a claim that no other turn could take yet, so this write has released it
    return None


def _is_held(claim: Claim | None, holder: str, now: int) -> bool:
    return claim is not None and claim.holder == holder and now < claim.until - CLOCK_SKEW


def _find_entries(read: tuple[Entry, ...], written: Sequence[NewEntry]) -> tuple[Entry, ...]:
    """Return the entries of a log that a write has added; empty if there are none.

    Texts are not compared, because secrets in them may have been masked.
    """
    wanted = [_describe(entry) for entry in written]
    found = [_describe(entry) for entry in read]
    for at in range(len(found) - len(wanted) + 1):
        if found[at : at + len(wanted)] == wanted:
            return read[at : at + len(wanted)]
    return ()


def _describe(entry: Entry | NewEntry) -> tuple[object, ...]:
    message = entry.message
    return (entry.timestamp, entry.agent, message.role, message.tool_call_id, [call.id for call in message.tool_calls])
