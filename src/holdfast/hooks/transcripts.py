"""Write a transcript of each session: a JSON-lines file with all of its entries, for people and tools, and as a backup copy.

A write to a session only records in memory that the session's file is out of date. A task then updates the file from the store. The task
adds all entries that the file lacks, including entries of other processes and of a process that crashed. So the file has every entry
once and in order, regardless of which process writes. When a session ends, the whole file is compared with the store. Changes that the
file does not have yet are then made, such as pins, state, or an erasure by another process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.background import run_in_thread
from holdfast.domain.session import EndReason, Entry, Session, SessionRef
from holdfast.errors import HookFailed, InvalidRequest, SessionNotFound, StoreUnavailable
from holdfast.hooks.registry import Change, EndedSession
from holdfast.hooks.transcript_files import (
    PART,
    SUFFIX,
    FileRevision,
    Retirement,
    RetirementTracker,
    TranscriptEnd,
    TranscriptFile,
    UnexpectedContent,
    encode_entry,
    encode_header,
    encode_header_start,
    encode_retirement,
    format_timestamp,
    make_earlier_name,
    make_earlier_pattern,
    make_file_name,
    sync_folder,
)
from holdfast.secrets import Redactor
from holdfast.stores.base import Store
from holdfast.stores.log import Appended
from holdfast.stores.walk import iterate_tenants

PAGE: Final = 200
"""Number of entries that are read, encoded and written together."""
PATIENCE: Final = 20.0
"""Maximum seconds to wait for a file that another process or task has locked."""
_PAUSES: Final = (0.001, 0.1)
"""First and longest pause in seconds between two attempts to lock a file."""

Log = Callable[[int], AsyncIterator[Entry]]
"""Function that yields the entries of a log, including retired ones. Its argument is the `seq` of the first entry to yield."""


@asynccontextmanager
async def hold_file(path: Path, *, patience: float = PATIENCE) -> AsyncIterator[TranscriptFile]:
    """Open and lock a transcript file for the duration of the block. Create the file if it does not exist.

    Args:
        path: path of the file.
        patience: maximum seconds to wait if another process or task has locked the file.

    Raises:
        HookFailed: the file was locked for longer than `patience`.
    """
    pause, longest = _PAUSES
    until = time.monotonic() + patience
    while (file := await run_in_thread(TranscriptFile.open_locked, path)) is None:
        if time.monotonic() > until:
            raise HookFailed(f"the transcript has been locked by another writer for {patience:g} s")
        await asyncio.sleep(pause)
        pause = min(longest, pause * 2)
    try:
        yield file
    finally:
        await run_in_thread(file.close)


class _HeaderOwner(msgspec.Struct):
    """Tenant and user of a session, as read from the first line of its file."""

    tenant: str
    user_id: str


def read_owner(path: Path) -> tuple[str, str] | None:
    """Return tenant and user from the first line of a file; None if the line does not name them."""
    try:
        with path.open("rb") as file:
            header = msgspec.json.decode(file.readline(), type=_HeaderOwner)
    except (OSError, msgspec.MsgspecError):
        return None
    return header.tenant, header.user_id


async def append_new_entries(file: TranscriptFile, store: Store, session: Session, redactor: Redactor | None) -> None:
    """Append the entries that a session's file lacks. The cost depends on the number of these entries, not on the length of the session.

    Args:
        file: the locked file of the session.
        store: the store of the session's tenant.
        session: the session in its present state.
        redactor: removes secrets; None: entries are written as they are stored.

    Raises:
        UnexpectedContent: the file belongs to another session, or its last entry differs from the store.
    """
    end = await run_in_thread(file.find_end, encode_header_start(session))
    if end is None:
        await run_in_thread(lambda: file.append(encode_header(session, redactor)))
        end = TranscriptEnd()
    await _check_end(end, store, session.ref)
    after, known = end.seq, end.retired
    while True:
        page = await store.entries(session.ref, start=after + 1, limit=PAGE, retired=True)
        # Read after the page, so that it includes retirements by entries of the page that happened while it was read.
        tracker, known = RetirementTracker(await _find_retired(after, store, session.ref), known), None
        next_seq = page[-1].seq + 1 if page else after + 1
        last = len(page) < PAGE
        data = await run_in_thread(_encode_lines, tracker, page, next_seq if last else None, redactor)
        if data:
            await run_in_thread(file.append, data)
        if last:
            return
        after = page[-1].seq


async def _check_end(end: TranscriptEnd, store: Store, ref: SessionRef) -> None:
    """Raise `UnexpectedContent` if the last entry in the file differs from the entry with the same `seq` in the store."""
    if end.seq >= 0:
        found = await store.entries(ref, start=end.seq, limit=1, retired=True)
        if not found or not _is_same_entry(found[0], end):
            raise UnexpectedContent


async def _find_retired(seq: int, store: Store, ref: SessionRef) -> list[Entry]:
    """Return the entries up to `seq` that were retired by an entry after `seq`, newest first."""
    if seq < 0:
        return []
    before = await store.entries(ref, start=seq, limit=1, retired=True)
    left: list[Entry] = []
    while before and before[-1].retired_by is not None:
        left += before
        before = await store.entries(ref, stop=left[-1].seq, limit=PAGE, descending=True, retired=True)
    return [entry for entry in (*left, *before) if (entry.retired_by or 0) > seq]


def _is_same_entry(entry: Entry, end: TranscriptEnd) -> bool:
    line = end.entry or {}
    written = (line.get("seq"), line.get("timestamp"), line.get("turn_id"), line.get("role"))
    return written == (entry.seq, format_timestamp(entry.timestamp), entry.turn_id, entry.message.role)


def _encode_lines(
    tracker: RetirementTracker, page: Sequence[Entry], next_seq: int | None, redactor: Redactor | None
) -> bytes:
    """Return the lines of consecutive entries, with the `retired` lines that belong between them.

    Args:
        tracker: determines where the `retired` lines belong.
        page: the entries.
        next_seq: if `page` ends with the last entry of the log, the `seq` that the next entry will have; otherwise None.
        redactor: removes secrets; None: entries are written as they are stored.
    """
    lines: list[bytes] = []
    for entry in page:
        lines += [encode_retirement(retired) for retired in tracker.track(entry)]
        lines.append(encode_entry(entry, redactor))
    at_end: Sequence[Retirement] = [] if next_seq is None else list(tracker.list_before(next_seq))
    return b"".join((*lines, *map(encode_retirement, at_end)))


async def revise_file(
    file: TranscriptFile, session: Session, log: Log, redactor: Redactor | None, *, sync: bool = False
) -> None:
    """Compare a whole file with the store, and rewrite it if it differs.

    Args:
        file: the locked file of the session.
        session: the session in its present state.
        log: reads the session's log.
        redactor: removes secrets; None: entries are written as they are stored.
        sync: True: the file survives a power loss after this returns.
    """
    revision = FileRevision(file)
    try:
        await run_in_thread(lambda: revision.write(encode_header(session, redactor)))
        tracker, page, next_seq = RetirementTracker(), [], 0
        async for entry in log(0):
            page.append(entry)
            next_seq = entry.seq + 1
            if len(page) == PAGE:
                await run_in_thread(_write_page, revision, tracker, page, None, redactor)
                page = []
        await run_in_thread(_write_page, revision, tracker, page, next_seq, redactor)
        await run_in_thread(lambda: revision.finish(sync=sync))
    finally:
        await run_in_thread(revision.close)


def _write_page(
    revision: FileRevision,
    tracker: RetirementTracker,
    page: Sequence[Entry],
    next_seq: int | None,
    redactor: Redactor | None,
) -> None:
    revision.write(_encode_lines(tracker, page, next_seq, redactor))


def make_log_reader(store: Store, ref: SessionRef) -> Log:
    """Return a function that reads a session's log page by page."""

    async def entries(start: int) -> AsyncIterator[Entry]:
        while page := await store.entries(ref, start=start, limit=PAGE, retired=True):
            for entry in page:
                yield entry
            start = page[-1].seq + 1

    return entries


_log = logging.getLogger("holdfast.transcripts")
Fsync = Literal["never", "end", "always"]
FSYNC: Final = ("never", "end", "always")
"""Choices of when to sync files to disk. `never`: when the operating system decides; `end`: when the session ends; `always`: at every write."""
_STALE: Final = ".stale"
_WORKERS: Final = 4
_RECENT_PAGE: Final = 100
"""After a start, recent sessions are searched for files that a crash left out of date. This is the number of sessions per page."""
_RECENT_PAGES: Final = 100
"""Maximum number of pages in this search."""
_LONGEST_PAUSE: Final = 60.0
_SERIOUS: Final[dict[str | None, int]] = {None: 0, "annotated": 1, "erased": 1, "replaced": 2, "deleted": 3}
"""Severity of each kind of change; None is an append. Updating a file after a change also covers all less severe changes."""


class _Key(NamedTuple):
    tenant: str
    ref: SessionRef


class _StaleNote(msgspec.Struct, frozen=True):
    """Content of a marker file, whose existence shows that a transcript is out of date.

    The marker is written before a change of data that the transcript contains, and deleted when the transcript is up to date.
    """

    tenant: str
    user_id: str
    id: str
    how: Change


class Transcripts:
    """Writes a transcript of every session. Use it as `Holdfast(hooks=[Transcripts("transcripts")])`.

    As an observer, it keeps the file of a session up to date. As a hook, it completes the file when the session ends, and deletes it when
    the session is deleted. A failed update is logged, without any content, and retried.

    Args:
        folder: folder of the files. If it does not exist, it is created, and only its owner can access it.
        redactor: removes secrets from the messages that are written; None: messages are written as they are stored.
        fsync: when files are synced to disk; see `FSYNC`.
        pause: seconds before a failed update is retried. The pause doubles with each failure, up to a minute.

    Raises:
        InvalidRequest: `fsync` is invalid, or this is Windows, which has no locks that end with their process.
    """

    name = "transcripts"
    reasons: frozenset[EndReason] = frozenset({"ttl", "cap", "delete", "close", "shutdown"})

    def __init__(
        self, folder: str | Path, *, redactor: Redactor | None = None, fsync: Fsync = "end", pause: float = 1.0
    ) -> None:
        if os.name == "nt":
            raise InvalidRequest("transcripts need file locks that Windows does not have", param="transcripts_dir")
        if fsync not in FSYNC:
            raise InvalidRequest(f"fsync must be one of {', '.join(FSYNC)}, not {fsync!r}"[:300], param="fsync")
        self.folder = Path(folder)
        self._redactor = redactor
        self._fsync = fsync
        self._pause = pause
        self._store: Store | None = None
        self._mine = secrets.token_hex(4)
        self._lagging: OrderedDict[_Key, Change | None] = OrderedDict()
        self._changing: Counter[_Key] = Counter()
        self._busy: set[_Key] = set()
        self._failures: dict[_Key, int] = {}
        self._waiting: dict[_Key, tuple[asyncio.TimerHandle, Change | None]] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._workers = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"Transcripts({str(self.folder)!r})"

    def path(self, tenant: str, user_id: str, session_id: str) -> Path:
        """Return the path of a session's transcript, whether or not it exists."""
        return self.folder / make_file_name(tenant, user_id, session_id)

    # -- as an observer ------------------------------------------------------

    def begin(self, store: Store) -> None:
        """Begin to observe writes to a store, and update files that were left out of date by a crash."""
        self._store = store
        # As an observer, it need not be notified of a shutdown: `close` updates every file.
        self.reasons -= {"shutdown"}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise StoreUnavailable(f"transcripts cannot be written to {self.folder}: {exc.strerror or exc}") from exc
        self._start(self._recover(store))

    def on_append(self, tenant: str, ref: SessionRef, appended: Appended) -> None:
        self._note(_Key(tenant, ref), None)

    def before_change(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """Write the marker of an outdated transcript. It remains if the process ends before deleted content is removed from the file."""
        path = self.path(tenant, ref.user_id, ref.id)
        try:
            self._changing[_Key(tenant, ref)] += 1
            if path.exists():
                note = msgspec.json.encode(_StaleNote(tenant, ref.user_id, ref.id, how))
                self._make_stale_path(path).write_bytes(note)
        except OSError as exc:
            _log_failure("could not be noted as stale", ref, exc)

    def after_change(self, tenant: str, ref: SessionRef, how: Change) -> None:
        key = _Key(tenant, ref)
        self._changing[key] -= 1
        if not self._changing[key]:
            del self._changing[key]
        self._note(key, how)

    async def wait_until_settled(self) -> None:
        """Wait until every file is up to date, or its update has failed."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def close(self) -> None:
        """Bring every file up to date. Each failed update is retried once."""
        for key, (timer, how) in list(self._waiting.items()):
            timer.cancel()
            self._note(key, how)
        self._waiting.clear()
        await self.wait_until_settled()
        for timer, _ in self._waiting.values():
            timer.cancel()
        if self._waiting:
            count = len(self._waiting)
            _log.error("transcripts are out of date", extra={"fields": {"sessions": count}})
        self._waiting.clear()

    # -- as a hook -----------------------------------------------------------

    async def __call__(self, ended: EndedSession) -> None:
        """Complete the file of a session that has ended. If the session was deleted, delete the file.

        Raises:
            HookFailed: the file could not be written. The message says why.
        """
        task = self._ends.get(ended.delivery_id)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            # A task of its own, since a write to a file must not be cancelled in the middle. For a very long session it may
            # outlive the hook's timeout; then the next attempt finds it here.
            task = self._ends[ended.delivery_id] = self._start(self._handle_end(ended))
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                self._ends.pop(ended.delivery_id, None)

    async def _handle_end(self, ended: EndedSession) -> None:
        session = ended.session
        path = self.path(session.tenant, session.user_id, session.id)
        # If another session has the name now, this session's file has been renamed.
        moved = path.with_name(make_earlier_name(path.name, session.created_at))
        try:
            if await run_in_thread(moved.exists) or not await self._complete_or_remove(path, ended):
                await self._complete_or_remove(moved, ended)
        except OSError as exc:
            raise HookFailed(f"the transcript could not be written: {exc.strerror or type(exc).__name__}") from exc

    async def _complete_or_remove(self, path: Path, ended: EndedSession) -> bool:
        """Complete or delete the file at `path`. If it belongs to another session, do nothing and return False."""
        sync = self._fsync != "never"
        async with hold_file(path) as file:
            if not await run_in_thread(file.has_start, encode_header_start(ended.session)):
                return False
            if ended.reason != "delete":
                await revise_file(file, ended.session, partial(_read_entries, ended), self._redactor, sync=sync)
                return True
            await run_in_thread(file.remove)
        if sync:
            await run_in_thread(sync_folder, self.folder)
        return True

    async def forget(self, tenant: str, user_id: str, session_id: str) -> int:
        """Delete the files of all sessions that now have, or once had, this user and id. Return the number of deleted files."""
        path = self.path(tenant, user_id, session_id)

        def remove() -> int:
            files = [one for one in (path, *path.parent.glob(make_earlier_pattern(path.name))) if one.exists()]
            for one in files:
                one.unlink(missing_ok=True)
            return len(files)

        return await run_in_thread(remove)

    async def forget_user(self, tenant: str, user_id: str) -> int:
        """Delete the files of all sessions of a user. Return the number of deleted files.

        This reads the first line of every file, because a file may exist although its session is no longer in the store: it expired, or
        another process deleted it.
        """

        def remove() -> int:
            files = [one for one in self.folder.glob(f"*{SUFFIX}") if read_owner(one) == (tenant, user_id)]
            for one in files:
                one.unlink(missing_ok=True)
            return len(files)

        return await run_in_thread(remove)

    # -- updating files ------------------------------------------------------

    def _note(self, key: _Key, how: Change | None) -> None:
        if key in self._waiting:
            timer, earlier = self._waiting.pop(key)
            timer.cancel()
            how = max(how, earlier, key=_SERIOUS.__getitem__)
        self._lagging[key] = max(how, self._lagging.get(key), key=_SERIOUS.__getitem__)
        if self._workers < _WORKERS:
            self._workers += 1
            self._start(self._run_worker())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._discard_task)
        return task

    def _discard_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it if no caller waits

    async def _run_worker(self) -> None:
        """Update all files that are out of date, except files that another worker is updating."""
        try:
            while (key := next((one for one in self._lagging if one not in self._busy), None)) is not None:
                await self._process(key, self._lagging.pop(key))
        finally:
            self._workers -= 1

    async def _process(self, key: _Key, how: Change | None) -> None:
        self._busy.add(key)
        try:
            await self._update(key, how)
            self._failures.pop(key, None)
        except Exception as exc:  # noqa: BLE001 - no caller waits for this, and it is retried
            self._put_off(key, how, exc)
        finally:
            self._busy.discard(key)

    def _put_off(self, key: _Key, how: Change | None, exc: Exception) -> None:
        _log_failure("could not be written", key.ref, exc)
        if key in self._lagging:  # out of date again in the meantime: one retry is enough for both
            how = max(how, self._lagging.pop(key), key=_SERIOUS.__getitem__)
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(_LONGEST_PAUSE, self._pause * 2 ** min(failures, 16))
        timer = asyncio.get_running_loop().call_later(pause, self._retry, key)
        self._waiting[key] = (timer, how)

    def _retry(self, key: _Key) -> None:
        _, how = self._waiting.pop(key)
        self._note(key, how)

    async def _update(self, key: _Key, how: Change | None) -> None:
        """Update the file of one session. `how` is the change after which it is updated, or None after an append."""
        if self._store is None:
            return
        path = self.path(key.tenant, key.ref.user_id, key.ref.id)
        while not await self._try_update(path, self._store.for_tenant(key.tenant), key.ref, how):
            pass
        if how is not None and key not in self._lagging and key not in self._changing:
            await run_in_thread(partial(self._make_stale_path(path).unlink, missing_ok=True))

    async def _try_update(self, path: Path, store: Store, ref: SessionRef, how: Change | None) -> bool:
        """Update a file, and return True.

        Return False if the caller must try again, because the path had the file of an earlier session, which was moved or deleted.
        """
        async with hold_file(path) as file:
            # Read after locking, so that a deletion in the meantime reaches the file once it is unlocked.
            try:
                session = await store.get(ref)
            except SessionNotFound:
                if how == "deleted":
                    await run_in_thread(file.remove)
                return True  # otherwise it was withdrawn, and the hook is notified of its end
            if how not in {None, "replaced"} and not file.size:
                return True
            if not await run_in_thread(file.has_start, encode_header_start(session)):
                await run_in_thread(file.remove if how in {"replaced", "deleted"} else file.move_away)
                return False
            if how is None and await self._append_new(file, store, session):
                return True
            sync = self._fsync != "never"
            await revise_file(file, session, make_log_reader(store, ref), self._redactor, sync=sync)
            return True

    async def _append_new(self, file: TranscriptFile, store: Store, session: Session) -> bool:
        """Append new entries to a file, and return True. Return False if the file is damaged or its last entry differs from the store."""
        try:
            await append_new_entries(file, store, session, self._redactor)
        except UnexpectedContent:
            return False
        if self._fsync == "always":
            await run_in_thread(file.sync)
            await run_in_thread(sync_folder, self.folder)
        return True

    # -- after a crash -------------------------------------------------------

    async def _recover(self, store: Store) -> None:
        """Update files that were left out of date by a crash: those with a marker file, and those of recently written sessions."""
        try:
            await run_in_thread(self._remove_parts)
            for key, how in await run_in_thread(self._take_over_stale_notes):
                self._note(key, how)
            async for tenant in iterate_tenants(store):
                await self._check_recent_sessions(store.for_tenant(tenant))
        except Exception as exc:  # noqa: BLE001 - as in `_run_worker`; the next write, or the end, updates a file
            _log.warning(
                "transcripts could not be checked after the start", extra={"fields": {"error": type(exc).__name__}}
            )

    async def _check_recent_sessions(self, store: Store) -> None:
        after: SessionRef | None = None
        for _ in range(_RECENT_PAGES):
            page = await store.list(limit=_RECENT_PAGE, after=after)
            late = await run_in_thread(self._find_late, page.sessions)
            for session in late:
                self._note(_Key(store.tenant, session.ref), None)
            if not late or not page.has_more:
                return
            after = page.sessions[-1].ref

    def _find_late(self, sessions: Sequence[Session]) -> list[Session]:
        """Return the sessions whose file lacks the last entry.

        Sessions without a file are left out. Their file is written at the next write, or when the session ends.
        """
        return [session for session in sessions if self._is_late(session)]

    def _is_late(self, session: Session) -> bool:
        path = self.path(session.tenant, session.user_id, session.id)
        try:
            file = TranscriptFile.open_locked(path) if _is_file_of(path, session) else None
            if file is None:  # there is no file, or another process is writing to it
                return False
            try:
                end = file.find_end(encode_header_start(session))
            finally:
                file.close()
        except (UnexpectedContent, OSError):
            return True
        return end is None or end.seq < session.tail.next_seq - 1

    def _remove_parts(self) -> None:
        """Delete unfinished new versions of files, because they may contain data that has been erased."""
        for part in self.folder.glob(f"*{PART}"):
            file = TranscriptFile.open_locked(part.with_suffix(""))
            if file is not None:
                part.unlink(missing_ok=True)
                file.close()

    def _take_over_stale_notes(self) -> list[tuple[_Key, Change]]:
        found = []
        for path in sorted(self.folder.glob(f"*{_STALE}")):
            try:
                note = msgspec.json.decode(path.read_bytes(), type=_StaleNote)
            except (OSError, msgspec.MsgspecError):
                continue
            found.append((_Key(note.tenant, SessionRef(note.user_id, note.id)), note.how))
            path.rename(self._make_stale_path(self.path(note.tenant, note.user_id, note.id)))
        return found

    def _make_stale_path(self, path: Path) -> Path:
        """Return the path of this process's marker file for a transcript that is out of date."""
        return path.with_name(f"{path.name.removesuffix(SUFFIX)}.{self._mine}{_STALE}")


def _read_entries(ended: EndedSession, start: int) -> AsyncIterator[Entry]:
    return ended.entries(start=start, retired=True)


def _is_file_of(path: Path, session: Session) -> bool | None:
    """Return True if the file at `path` belongs to this session, and False if it belongs to another one.

    Return None if the file is missing, or its first line is incomplete.
    """
    start = encode_header_start(session)
    try:
        with path.open("rb") as file:
            actual = file.read(len(start))
    except FileNotFoundError:
        return None
    # The first line may be incomplete after a crash.
    return None if len(actual) < len(start) and start.startswith(actual) else actual == start


def _log_failure(what: str, ref: SessionRef, exc: Exception) -> None:
    """Log a failure with the session's id and the kind of error, without any content."""
    reason = exc.strerror if isinstance(exc, OSError) else None
    fields = {"session_id": ref.id, "error": reason or type(exc).__name__}
    _log.warning("a transcript %s", what, extra={"fields": fields})
