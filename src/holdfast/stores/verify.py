"""Verify a session's log in any store, by recomputing order, running totals, units and digest chain from the messages."""

from __future__ import annotations

import math

import msgspec

from holdfast.domain.history import LivePath
from holdfast.domain.log import extend
from holdfast.domain.session import Entry, NewEntry, Session, SessionRef, Tail
from holdfast.errors import StoreCorrupt
from holdfast.limits import PAGE
from holdfast.stores.base import Store


async def verify(store: Store, ref: SessionRef, *, page: int = PAGE) -> int:
    """Recompute order, totals, units and digest chain of a session's log from its messages, and compare them with the stored values.

    Returns:
        The number of entries read.

    Raises:
        StoreCorrupt: a stored value differs, or the log has a gap; the message names the session and the entry.
        SessionNotFound: no such session.
    """
    while True:
        session = (await store.get(ref)).require_intact()
        try:
            path, end = _LogReplay(session), session.tail.next_seq
            for start in range(0, end, page):
                for entry in await store.entries(session.ref, start=start, stop=min(start + page, end), retired=True):
                    path.grow(entry)
            path.finish()
            return path.read
        except TypeError as exc:  # SQLite returns whatever a damaged row holds, of any type
            raise StoreCorrupt(f"session {ref.id!r}: a row is damaged: {exc}") from exc
        except StoreCorrupt:
            # Pages may not fit together if another client wrote to the session in between.
            if (await store.get(ref)).version == session.version:
                raise


class _LogReplay:
    """Recomputes a log entry by entry, and compares each entry with the stored one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._path = LivePath()
        self.read = 0

    def grow(self, entry: Entry) -> None:
        """Check the next entry of the log, and add it to the replayed log."""
        leaves = math.inf if entry.retired_by is None else entry.retired_by
        self._check(entry.seq == self.read, "is missing")
        self._path.retire_until(entry.seq)
        if entry.is_note:
            self._check_note(entry)
            return
        self._check(entry.seq < leaves and self._path.can_retire_at(leaves), "is retired by the wrong entry")
        self._check(leaves == math.inf or leaves <= self._session.tail.next_seq, "is retired by the future")
        self._path.append(self._derive_tail(self._path.tail, entry), leaves)
        self.read += 1

    def _check_note(self, entry: Entry) -> None:
        """Check a note against the entries of the live path before it. A note changes nothing else."""
        tail, by = self._path.tail, entry.retired_by
        self._check(
            by is not None and entry.seq <= by <= self._session.tail.next_seq, "is a note, but is not stored as one"
        )
        self._check(entry.turn_id == max(tail.turn_id, 0), "is a note of a wrong turn")
        self._check(entry.tokens == 0 and entry.total == tail.total, "has a wrong running total")
        self._check(entry.digest == tail.digest, "has a wrong digest: it or one before it was changed")
        self.read += 1

    def finish(self) -> None:
        """Compare the counters of the session with the replayed log, after the last entry."""
        self._check(self.read == self._session.tail.next_seq, "is missing")
        self._path.retire_until(math.inf)
        tail = msgspec.structs.replace(self._path.tail, next_seq=self.read)
        if tail != self._session.tail or self._path.live != self._session.messages:
            raise StoreCorrupt(f"session {self._session.id!r}: its counters do not match its log")

    def _derive_tail(self, tail: Tail, entry: Entry) -> Tail:
        """Recompute an entry and compare it with the stored one; return the tail of the log after it.

        Args:
            tail: the tail of the log before the entry.
            entry: the stored entry.
        """
        self._check(entry.turn_id >= max(tail.turn_id, 0), "is in an earlier turn than the message before it")
        new = NewEntry(
            message=entry.message,
            tokens=entry.tokens,
            timestamp=entry.timestamp,
            metadata=entry.metadata,
            turn_id=entry.turn_id,
        )
        (again,), after = extend(msgspec.structs.replace(tail, next_seq=entry.seq), [new])
        self._check(again.total == entry.total, "has a wrong running total")
        self._check(again.unit == entry.unit, "is in a wrong unit")
        if entry.erased:  # its stored digest is that of its original content
            return msgspec.structs.replace(after, digest=entry.digest if entry.message.visible else tail.digest)
        self._check(again.digest == entry.digest, "has a wrong digest: it or one before it was changed")
        return after

    def _check(self, holds: bool, complaint: str) -> None:  # noqa: FBT001  # reads as a sentence
        if not holds:
            raise StoreCorrupt(f"session {self._session.id!r}: message {self.read} {complaint}")
