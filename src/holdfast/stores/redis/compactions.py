"""Compactions of a session in Redis. They are in one hash by id. A write that may change one of them reads the whole hash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

from msgspec.structs import replace as evolve

from holdfast.domain.session import ERASED, CompactionStatus, NewCompaction, SessionRef, StoredCompaction
from holdfast.errors import CompactionNotFound
from holdfast.limits import COMPACTIONS_KEPT, FAILURES_KEPT
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import Handle, read_transaction, resolve_session_keys, write_transaction
from holdfast.stores.redis.records import check_int64, decode_compaction, decode_entry_head, pack
from holdfast.stores.session_changes import is_late, make_stored_compaction

_IN_USE: Final = ("live", "superseded")
_HISTORY: Final = ("superseded", "dropped", "dead")


class CompactionMethods(Handle):
    """The methods of `holdfast.stores.log.LogStore` that concern compactions."""

    @write_transaction(resolve_session_keys)
    async def drop_compaction(self, tx: Transaction, ref: SessionRef, id: int, *, timestamp: int) -> StoredCompaction:  # noqa: A002 - its name
        session, _ = await tx.read_session()
        session.require_intact()
        changes = await CompactionChanges.load(tx, needed=True)
        if id not in changes.all or changes.all[id].status not in _IN_USE:
            raise CompactionNotFound(session.id, id)
        version = session.version + 1
        tx.save_session(evolve(session, version=version, updated_at=timestamp, accessed_at=timestamp, reshaped=version))
        changes.set_status("dropped", [id])
        changes.revive()
        # A compaction that is being created right now may be based on this one.
        tx.update_record(compactions_from=version)
        tx.queue("UNLINK", tx.keys.views)
        changes.save()
        return changes.all[id]

    @read_transaction(resolve_session_keys)
    async def compactions(
        self, tx: Transaction, ref: SessionRef, *, view: str | None = None, live: bool = False
    ) -> tuple[StoredCompaction, ...]:
        _, (found,) = await tx.read_session((b"HVALS", tx.keys.compactions))
        stored = sorted((decode_compaction(data)[1] for data in found), key=lambda one: one.id)
        return tuple(one for one in stored if (view is None or one.view == view) and (not live or one.status == "live"))


class CompactionChanges:
    """Collects the changes that a write makes to a session's compactions.

    Attributes:
        all: the compactions by id, with the changes made so far.
    """

    def __init__(self, tx: Transaction, is_live: Callable[[int], bool | None]) -> None:
        self._tx = tx
        self._is_live = is_live
        self.all: dict[int, StoredCompaction] = {}
        self._laid_at: dict[int, int] = {}
        self._stored: dict[int, StoredCompaction] = {}
        self._live_entries: set[int] = set()

    @classmethod
    async def load(
        cls,
        tx: Transaction,
        new: Sequence[NewCompaction] = (),
        is_live: Callable[[int], bool | None] = lambda _: None,
        *,
        needed: bool,
    ) -> Self:
        """Read the stored compactions, if the write needs them.

        Args:
            tx: the write.
            new: compactions that the write records.
            is_live: returns True if the write appends an entry as live, False if it retires the entry, and None if it does
                neither.
            needed: True if the write may change stored compactions.
        """
        changes = cls(tx, is_live)
        assert tx.record is not None
        lasts = [one.last for one in new if is_live(one.last) is None]
        if (needed or new) and (tx.record.next_compaction > 1 or lasts):
            found, entries = await tx.read(
                (b"HVALS", tx.keys.compactions), (b"at", tx.keys.log, *map(check_int64, lasts))
            )
            for laid_at, one in sorted(map(decode_compaction, found), key=lambda both: both[1].id):
                changes._laid_at[one.id], changes._stored[one.id] = laid_at, one
            changes.all = dict(changes._stored)
            changes._live_entries = {decode_entry_head(data)[0] for data in entries}
        return changes

    # -- changes of the log --------------------------------------------------------

    def retire(self, first: int) -> None:
        """Mark compactions as dead if their range includes an entry that is being retired.

        Args:
            first: lowest `seq` that is being retired. All later entries are retired too.
        """
        self.set_status("dead", [one.id for one in self._list_in_use() if one.last >= first])
        self.revive()

    def erase(self, seq: int, shift: int, version: int) -> None:
        """Remove the texts of compactions whose range includes an erased entry. Mark them as dead if they are live or superseded.

        Args:
            seq: the erased entry.
            shift: number of tokens by which the entry's token count changes. The running totals of it and of all later entries change too.
            version: the session's version after the write.
        """
        for one in list(self.all.values()):
            if shift and one.last >= seq and one.status != "dead":
                one = self.all[one.id] = evolve(one, total=one.total + shift)  # noqa: PLW2901 - the new value is needed below
            if one.first <= seq <= one.last:
                self.all[one.id] = evolve(one, text="", report=None, error=one.error and ERASED)
        self.set_status("dead", [one.id for one in self._list_in_use() if one.first <= seq <= one.last])
        self.revive()
        self._tx.update_record(compactions_from=version)

    def set_status(self, status: CompactionStatus, ids: Iterable[int]) -> None:
        """Set the status of the compactions with these ids."""
        for id_ in ids:
            self.all[id_] = evolve(self.all[id_], status=status)

    def revive(self) -> None:
        """For each view without a live compaction, make its newest superseded one live."""
        newest = {one.view: one for one in self._list_in_use()}
        self.set_status("live", [one.id for one in newest.values() if one.status == "superseded"])

    def _list_in_use(self) -> list[StoredCompaction]:
        return [one for one in self.all.values() if one.status in _IN_USE]

    # -- new compactions -----------------------------------------------------------

    def record(self, new: Sequence[NewCompaction], version: int) -> tuple[StoredCompaction, ...]:
        """Record new compactions and delete the oldest beyond the limits; return the new ones with their status.

        Args:
            new: the compactions.
            version: the session's version after the write.
        """
        if not new:
            return ()
        assert self._tx.record is not None
        next_id, stored = self._tx.record.next_compaction, []
        for id_, one in enumerate(new, next_id):
            stored.append(self._record_one(id_, one))
            self.all[id_], self._laid_at[id_] = stored[-1], version
        for kept, statuses in ((COMPACTIONS_KEPT, _HISTORY), (FAILURES_KEPT, ("failed",))):
            for one_id in [one.id for one in self.all.values() if one.status in statuses][:-kept]:
                del self.all[one_id]
        self._tx.update_record(next_compaction=next_id + len(new))
        return tuple(stored)

    def _record_one(self, id_: int, new: NewCompaction) -> StoredCompaction:
        assert self._tx.record is not None
        late = is_late(new, self._tx.record.compactions_from)
        one = make_stored_compaction(id_, new, late=late, holds=self._is_current(new))
        if one.status == "live":
            self.set_status("superseded", [old.id for old in self._list_live(new.view)])
        return one

    def _is_current(self, new: NewCompaction) -> bool:
        """Return True if neither the entries that `new` covers nor the view's live compaction have changed since `new` was built.

        Entries are always retired from the end of the log. So if the last covered entry is live, all covered entries are.
        """
        is_live = self._is_live(new.last)
        if not (new.last in self._live_entries if is_live is None else is_live):
            return False
        return all(
            new.first <= one.first
            and one.last <= new.last
            and (new.built_at is None or self._laid_at[one.id] <= new.built_at)
            for one in self._list_live(new.view)
        )

    def _list_live(self, view: str) -> list[StoredCompaction]:
        return [one for one in self.all.values() if one.view == view and one.status == "live"]

    # -- writing -------------------------------------------------------------------

    def save(self) -> None:
        """Queue the commands that write the changed compactions."""
        tx, keys = self._tx, self._tx.keys
        if not self._stored and not self.all:
            return
        for id_ in self._stored.keys() - self.all.keys():
            tx.queue("HDEL", keys.compactions, id_)
        for id_, one in self.all.items():
            if one is not self._stored.get(id_):
                tx.queue("HSET", keys.compactions, id_, pack((self._laid_at[id_], one)))
        assert tx.record is not None
        live = {one.view: (one.id, self._laid_at[one.id]) for one in self._list_in_use() if one.status == "live"}
        for view in tx.record.live.keys() - live.keys():
            tx.queue("HDEL", keys.lives, view)
        for view, compaction in live.items():
            if compaction != tx.record.live.get(view):
                tx.queue("HSET", keys.lives, view, compaction[0])
        if live != tx.record.live:
            tx.update_record(live=live)
