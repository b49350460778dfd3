"""Rebuild an index session by session while searches continue, and report on the state of an index.

Each rebuild has a number, its *epoch*. The index stores for each source (a session, or all memories of an owner) the epoch of the
last rebuild that has analysed the source. So an interrupted rebuild can continue: one lookup per source shows if the source is
finished. An index that was made by another version of the text analysis is updated by a full rebuild. `holdfast doctor` and
`GET /v1/status` show the `IndexReport`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from holdfast.domain.memory import Owner
from holdfast.domain.session import Session, SessionRef, is_child
from holdfast.errors import StoreCorrupt
from holdfast.indexes.backfill import Walker, always_continue
from holdfast.indexes.memories import bring_stored_up_to_date
from holdfast.indexes.sources import Feeder
from holdfast.recall.base import Index
from holdfast.recall.terms import VERSION
from holdfast.stores.base import Store
from holdfast.stores.walk import iterate_owners, iterate_session_pages


class LastError(msgspec.Struct, frozen=True):
    """The latest failure of work on the index, without indexed data."""

    at: int
    """Time of the failure, in milliseconds since the epoch."""
    doing: str
    """The activity that failed: `indexing`, `embedding`, `removing`, `walking` (searching for unreported changes), or `waiting`
    (the queue of sessions was full).
    """
    error: str
    """Name of the error's class."""


class Rebuilding(msgspec.Struct, frozen=True):
    """A rebuild that has started but is not finished yet."""

    epoch: int
    """The number of the rebuild."""
    user: str | None = None
    """The user whose data is rebuilt; None: all users."""
    session: str | None = None
    """The id of the session that is rebuilt; None: all sessions."""


class IndexReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a tenant's index, from the point of view of one process."""

    mode: str
    """The default search mode."""
    model: str | None = None
    """The model that makes the vectors; None: no embedder is configured."""
    sources: int
    """Number of indexed sessions, plus number of owners with indexed memories."""
    incomplete: int
    """Number of these sessions and owners that are being indexed, or whose indexing stopped when a process ended."""
    documents: int
    """Number of indexed entries, memories and records."""
    vectors: Mapping[str, int] = {}
    """Number of vectors by model."""
    vector_engine: str = ""
    """Name of the component that compares vectors."""
    pending: int = 0
    """Number of documents that have no vector yet; at most 1,000 are counted."""
    unembedded: int = 0
    """Number of texts that stay without a vector in this process, because embedding them has failed too often."""
    waiting: int = 0
    """Number of sessions in this process's queue that have writes which are not indexed yet."""
    behind: int = 0
    """Number of sessions that changed since the last backfill and are not fully indexed. At most 1,000 sessions are checked."""
    entries_behind: int = 0
    """Number of entries of the sessions in `behind` that are not indexed."""
    lag: int = 0
    """Age of the oldest change that is not indexed, in milliseconds: time since the earliest of the last writes to the sessions
    in `behind`.
    """
    walked_at: int | None = None
    """Start of the last backfill (search for unreported changes), in milliseconds since the epoch; None: there was none."""
    whole_at: int | None = None
    """Start of the last backfill that checked all sessions, in milliseconds since the epoch; None: there was none."""
    rebuilding: Rebuilding | None = None
    """The rebuild that is not finished yet; None: there is none."""
    last_error: LastError | None = None
    """The latest failure in this process; None: there was none."""


_log: Final = logging.getLogger("holdfast.indexing")
NOTE: Final = "rebuild"
_PAGE: Final = 100


class RebuildNotes(msgspec.Struct, frozen=True, kw_only=True):
    """The state of rebuilds, as stored in the index (`Index.note`)."""

    epoch: int = 0
    """The number of the last rebuild that was started."""
    running: Rebuilding | None = None
    """The rebuild that is not finished yet."""
    running_version: int = 0
    """The version of the text analysis of that rebuild."""
    version: int = 0
    """The version of the text analysis with which the whole index was made; 0: the index is new."""


class SessionName(NamedTuple):
    """The user's id and the session's id."""

    user_id: str
    id: str


class RebuildResult(msgspec.Struct, frozen=True):
    """The numbers of sessions, entries and owners that one call of `Rebuilder.rebuild` processed."""

    sessions: int = 0
    """Number of sessions that were rebuilt, or that were already finished."""
    entries: int = 0
    """Number of entries that were read."""
    owners: int = 0
    """Number of owners whose memories were rebuilt, or were already finished."""
    dropped: int = 0
    """Number of sources that were deleted because their session no longer exists."""
    resumed: bool = False
    """True if this call continued an interrupted rebuild."""
    damaged: tuple[SessionName, ...] = ()
    """Sessions that cannot be read. Their documents were not changed."""


ProgressCallback = Callable[[int, int], None]
"""Function that is called after each session with the number of finished sessions and the number of all sessions."""
_decode: Final = msgspec.json.Decoder(RebuildNotes).decode
_encode: Final = msgspec.json.encode


class Rebuilder:
    """Rebuilds a tenant's index.

    Args:
        store: the store of sessions; it must include expired sessions that are not deleted yet.
        index: the tenant's index.
        feeder: indexes sessions.
        walker: deletes sources whose session no longer exists.
    """

    def __init__(self, store: Store, index: Index, feeder: Feeder, walker: Walker) -> None:
        self.store = store
        self.index = index
        self.feeder = feeder
        self.walker = walker

    async def read_notes(self) -> RebuildNotes:
        """Read the state of rebuilds from the index."""
        data = await self.index.note(NOTE)
        return RebuildNotes() if data is None else _decode(data)

    async def check_outdated(self) -> bool:
        """Return True if the index was made with an older version of the text analysis.

        For a new index, store the current version. An index of a newer version is left to the servers that made it.
        """
        notes = await self.read_notes()
        if notes.version == 0:
            await self._write_notes(msgspec.structs.replace(notes, version=VERSION))
        return 0 < notes.version < VERSION

    async def rebuild(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        progress: ProgressCallback | None = None,
        should_continue: Callable[[], Awaitable[bool]] | None = None,
    ) -> RebuildResult:
        """Rebuild the whole index, or only the data of a user or a session.

        If the same rebuild was interrupted before, this call continues it.

        Args:
            user: rebuild only sessions and memories of this user; None: those of all users.
            session: rebuild only the session with this id; None: all sessions.
            progress: called after each session.
            should_continue: called after each session; it may sleep to slow the rebuild down. If it returns False, the rebuild
                stops, and the next call continues it.
        """
        notes = await self.read_notes()
        now = Rebuilding(notes.running.epoch if notes.running else 0, user, session)
        resumed = notes.running == now and notes.running_version == VERSION
        if not resumed:
            now = msgspec.structs.replace(now, epoch=notes.epoch + 1)
            notes = msgspec.structs.replace(notes, epoch=now.epoch, running=now, running_version=VERSION)
            await self._write_notes(notes)
        done = await _RebuildRun(self, now, progress, should_continue).run()
        if done is None:
            return RebuildResult(resumed=resumed)
        notes = msgspec.structs.replace(await self.read_notes(), running=None, running_version=0)
        if user is None and session is None:
            notes = msgspec.structs.replace(notes, version=VERSION)
        await self._write_notes(notes)
        return msgspec.structs.replace(done, resumed=resumed)

    async def _write_notes(self, notes: RebuildNotes) -> None:
        await self.index.keep_note(NOTE, _encode(notes))


class _RebuildRun:
    """One call of a rebuild, which may continue an earlier call."""

    def __init__(
        self,
        by: Rebuilder,
        what: Rebuilding,
        progress: ProgressCallback | None,
        should_continue: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self._by = by
        self._what = what
        self._progress = progress
        self._should_continue = should_continue

    async def run(self) -> RebuildResult | None:
        """Run the rebuild. Return its result, or None if it was stopped before all sessions were rebuilt."""
        what, by = self._what, self._by
        total = 0 if self._progress is None else await self._count_sessions()
        sessions = entries = 0
        damaged: list[SessionName] = []
        async for session in self._iter_sessions():
            try:
                session.require_intact()
                fed = await by.feeder.update_source(session.ref, epoch=what.epoch, reanalyse=True)
                if what.session is not None:
                    await by.walker.update_session_records(session.ref, what.epoch)
                sessions, entries = sessions + 1, entries + fed.entries
            except StoreCorrupt as exc:
                if exc.session_id is None:  # the index itself is damaged, not a session
                    raise
                _log.error("not indexed: %s", exc)
                damaged.append(SessionName(session.user_id, session.id))
            if self._progress is not None:
                self._progress(sessions, max(total, sessions))
            if self._should_continue is not None and not await self._should_continue():
                return None
        dropped, owners = 0, 0
        if what.session is None:
            dropped = await by.walker.drop_leftovers(what.user, self._should_continue)
            owners = await self._rebuild_owners()
            go_on = self._should_continue or always_continue
            await by.walker.update_records(what.epoch, go_on, sessions=True, user=what.user)
        return RebuildResult(sessions, entries, owners, dropped, damaged=tuple(damaged))

    async def _iter_sessions(self) -> AsyncIterator[Session]:
        """Yield the sessions to rebuild. A session that changes meanwhile may appear twice, which does no harm."""
        what, store = self._what, self._by.store
        if what.session is not None:
            named = what.session
            yield await (store.find(named) if what.user is None else store.get(SessionRef(what.user, named)))
            return
        async for page in iterate_session_pages(store, size=_PAGE, user_id=what.user):
            for session in page:
                if not is_child(session.ref):
                    yield session

    async def _count_sessions(self) -> int:
        return sum([1 async for _ in self._iter_sessions()])

    async def _rebuild_owners(self) -> int:
        by, number = self._by, 0
        async for owner in self._iter_owners():
            await bring_stored_up_to_date(by.index, by.store, owner, rebuild_epoch=self._what.epoch)
            number += 1
            if self._should_continue is not None and not await self._should_continue():
                break
        return number

    async def _iter_owners(self) -> AsyncIterator[Owner]:
        if self._what.user is not None:
            yield Owner("user", self._what.user)
            return
        async for owner, _ in iterate_owners(self._by.store):
            yield owner
