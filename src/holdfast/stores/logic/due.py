"""Store what is still to be done after a write, in the transaction of the write, so that no crash loses it.

There are two kinds:

- A **removal** is data that was erased or deleted and may still be in a search index, which is usually in another file. Each index that a
  process has used is registered, and gets a row for each removal. A process with this index applies the removals and then finishes them.
  An index that no process has used for `INDEX_WHOLE_WALK` is dropped with its removals; a full backfill then compares it with the store.
- A **job** is an erasure or the deletion of a user. It is recorded first, consists of idempotent steps, and is finished last. If a process
  dies in between, the next sweep of any process does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, cast

import msgspec
from msgspec.structs import replace as evolve

from holdfast.domain.record import RecordOwner
from holdfast.domain.session import Receipt, SessionRef, is_searchable
from holdfast.limits import INDEX_WHOLE_WALK
from holdfast.recall.base import Space, SpaceKind
from holdfast.stores import checks
from holdfast.stores.deletions import Job
from holdfast.stores.logic.handle import Handle, reads, writes
from holdfast.stores.logic.rows import ENDLESS, decode_text
from holdfast.stores.logic.steps import Many, Query, Row, Steps

_JOBS: Final = ""
"""The target of jobs, in the place of an index's name."""
_INDEX: Final = "index"
"""The kind of items that are the search indexes in use; `at` is when each was last in use."""
_SEEN: Final = INDEX_WHOLE_WALK // 7
"""Milliseconds after which an index is registered again as in use."""


class Removal(NamedTuple):
    """Data that was removed from the store and may still be in an index."""

    id: int
    space: Space
    source: str
    """The source of the index. If its session, its records or its memories were removed as a whole, `seq` is None."""
    seq: int | None
    """The `seq` of the document that was removed."""


def note_removals(tenant: str, space: Space, source: str, seqs: Iterable[int | None] = (None,)) -> Steps[None]:
    """Record for each registered index that documents of a source were removed, or with None the source as a whole."""
    indexes = yield from _read_indexes(tenant)
    rows = [(tenant, name, *space, source, seq, b"") for name in indexes for seq in seqs]
    if rows:
        yield Many("due_insert", rows)


def note_removed_session(tenant: str, ref: SessionRef, seq: int | None = None) -> Steps[None]:
    """Record that a session was removed, or replaced by another one with the same name; or that one of its entries was erased."""
    if not ref.withdrawn and is_searchable(ref):
        yield from note_removals(tenant, Space("talk", ref.user_id), ref.id, [seq])


def note_removed_records(tenant: str, owner: RecordOwner, numbers: Iterable[int | None] = (None,)) -> Steps[None]:
    """Record that records of an owner were removed: some numbers, or with None all."""
    session = owner if isinstance(owner, SessionRef) else None
    if session is None or not session.withdrawn:
        space = Space("record", getattr(owner, "user_id", ""))
        yield from note_removals(tenant, space, session.id if session else "", numbers)


class DueStore(Handle):
    """Store what is still to be done after writes. The module docstring describes what all methods promise."""

    @reads(single=True)
    def has_index(self, name: str) -> Steps[bool]:
        """Return True if removals are recorded for an index."""
        return bool((yield Query("item_get", (self.tenant, _INDEX, name))))

    async def register_index(self, name: str, *, now: int) -> None:
        """Record from now on what is removed, for an index that is in use. Drop indexes that were not in use for long.

        Args:
            name: the random name of the index.
            now: milliseconds since the epoch.
        """
        known = await self._read(lambda: _read_indexes(self.tenant), single=True)
        if now - known.get(name, now - _SEEN) < _SEEN:
            return

        def steps() -> Steps[None]:
            yield Query("item_put", (self.tenant, _INDEX, name, now, "", b""))
            for other, seen_at in known.items():
                if other != name and now - seen_at > INDEX_WHOLE_WALK:
                    yield from _forget_index(self.tenant, other)

        await self._write(steps)

    @writes()
    def forget_index(self, name: str) -> Steps[None]:
        """Record no more removals for an index that is gone."""
        yield from _forget_index(self.tenant, name)

    async def removals(self, index: str, *, limit: int = 100) -> Sequence[Removal]:
        """Return removals that were not applied to an index yet, the oldest first."""
        return await self._select(_decode_removal, "due_first", index, limit)

    async def finish_due(self, ids: Sequence[int], *, scrub: bool = False) -> None:
        """Drop removals that were applied to their index, or jobs whose steps are done.

        If `scrub` is True, the files of the database do not have their ids any more either.
        """

        def steps() -> Steps[None]:
            yield Many("due_delete", [(self.tenant, id_) for id_ in ids])

        await self._write(steps, scrub=scrub)

    @writes()
    def start_job(self, job: Job) -> Steps[Job]:
        """Record a job before its first step, and return it with its id. If the same job was started before, return that one."""
        checks.check_id(job.user_id, "user_id")
        checks.check_int(job.seq, "seq")
        place = (self.tenant, _JOBS, job.kind, job.user_id, job.session_id, job.seq)
        rows = yield Query("due_same", place)
        if not rows:
            yield Query("due_insert", (*place, msgspec.json.encode(job)))
            rows = yield Query("due_same", place)
        return _decode_job(rows[0])

    async def jobs(self, *, limit: int = 100) -> Sequence[Job]:
        """Return jobs that are not finished, the oldest first."""
        return await self._select(_decode_job, "due_first", _JOBS, limit)

    @writes()
    def add_to_job(self, job: Job, receipt: Receipt) -> Steps[Job]:
        """Add to a job's receipt what a step has deleted, and return the job."""
        rows = yield Query("due_get", (self.tenant, job.id))
        now = _decode_job(rows[0]) if rows else job  # another process may have finished the job
        now = evolve(now, receipt=now.receipt + receipt)
        if rows:
            yield Query("due_put", (job.id, msgspec.json.encode(now)))
        return now


def _read_indexes(tenant: str) -> Steps[dict[str, int]]:
    """Return the search indexes of a tenant, and when each was last in use."""
    rows = yield Query("items_until", (tenant, _INDEX, ENDLESS, ENDLESS))
    return {decode_text(name): seen_at for _, seen_at, name in rows}


def _forget_index(tenant: str, name: str) -> Steps[None]:
    yield Query("item_delete", (tenant, _INDEX, name))
    yield Query("due_clear", (tenant, name))


def _decode_removal(row: Row) -> Removal:
    id_, kind, name, source, seq, _ = row
    space = Space(cast(SpaceKind, decode_text(kind)), decode_text(name))
    return Removal(id_, space, decode_text(source), seq)


def _decode_job(row: Row) -> Job:
    return evolve(msgspec.json.decode(row[-1], type=Job), id=row[0])
